//! Versions and version specifiers, by the [specification of version specifiers].
//!
//! [specification of version specifiers]: https://packaging.python.org/en/latest/specifications/version-specifiers/

use std::fmt;

use super::error::RequirementMistake;

/// Every operator; one that begins another comes after it.
const OPERATORS: [&str; 8] = ["===", "==", "~=", "!=", "<=", ">=", "<", ">"];

/// An operator and a version, normalised.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Specifier {
    operator: &'static str,
    version: String,
}

impl Specifier {
    pub(super) fn read(from: &mut RequirementCursor<'_>) -> Result<Self, RequirementMistake> {
        let operator = from.take_any(&OPERATORS).ok_or(RequirementMistake::Operator)?;
        if operator == "===" {
            return Err(RequirementMistake::Arbitrary);
        }
        from.skip_spaces();
        let read =
            PackageVersion::read(from).filter(|_| matches!(from.rest().bytes().next(), None | Some(b' ' | b',')));
        let version = read.ok_or(RequirementMistake::Version)?;
        let is_equality = matches!(operator, "==" | "!=");
        if version.is_wildcard && (!is_equality || !version.tail.is_empty() || version.local.is_some()) {
            return Err(RequirementMistake::Wildcard);
        }
        if version.local.is_some() && !is_equality {
            return Err(RequirementMistake::Local);
        }
        if operator == "~=" && version.release.len() < 2 {
            return Err(RequirementMistake::Compatible);
        }
        Ok(Self { operator, version: version.to_string() })
    }
}

impl fmt::Display for Specifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.operator, self.version)
    }
}

/// The parts of a version.
struct PackageVersion<'a> {
    epoch: &'a str,
    release: Vec<&'a str>,
    /// Pre-release, post-release and development release.
    tail: String,
    local: Option<String>,
    /// Whether `.*` stands at its end.
    is_wildcard: bool,
}

impl<'a> PackageVersion<'a> {
    fn read(from: &mut RequirementCursor<'a>) -> Option<Self> {
        let _ = from.take_any(&["v", "V"]);
        let mut release = vec![from.number()?];
        let mut epoch = "0";
        if from.take("!") {
            epoch = std::mem::replace(&mut release, vec![from.number()?]).into_iter().next()?;
        }
        while let Some(number) = from.attempt(|from| from.take(".").then(|| from.number())?) {
            release.push(number);
        }
        let mut tail = String::new();
        let parts = [pre(from), post(from), labelled(from, &["dev"]).map(|number| format!(".dev{number}"))];
        parts.into_iter().flatten().for_each(|part| tail.push_str(&part));
        let local = if from.take("+") { Some(local(from)?) } else { None };
        let is_wildcard = from.take(".*");
        Some(Self { epoch, release, tail, local, is_wildcard })
    }
}

impl fmt::Display for PackageVersion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.epoch != "0" {
            write!(f, "{}!", self.epoch)?;
        }
        write!(f, "{}{}", self.release.join("."), self.tail)?;
        if let Some(local) = &self.local {
            write!(f, "+{local}")?;
        }
        f.write_str(if self.is_wildcard { ".*" } else { "" })
    }
}

fn pre(from: &mut RequirementCursor<'_>) -> Option<String> {
    let forms = [(["alpha", "a"].as_slice(), "a"), (&["beta", "b"], "b"), (&["preview", "pre", "rc", "c"], "rc")];
    forms.iter().find_map(|(labels, form)| Some(format!("{form}{}", labelled(from, labels)?)))
}

fn post(from: &mut RequirementCursor<'_>) -> Option<String> {
    let implicit = from.attempt(|from| from.take("-").then(|| from.number())?);
    let number = implicit.or_else(|| labelled(from, &["post", "rev", "r"]))?;
    Some(format!(".post{number}"))
}

/// A label in any case with separators around it, and its number, which is 0 where there is none.
fn labelled<'a>(from: &mut RequirementCursor<'a>, labels: &[&str]) -> Option<&'a str> {
    const SEPARATORS: [&str; 3] = [".", "-", "_"];
    from.attempt(|from| {
        let _ = from.take_any(&SEPARATORS);
        let word = from.take_while(|c| c.is_ascii_alphabetic());
        labels.iter().find(|label| label.eq_ignore_ascii_case(word))?;
        let number = from.attempt(|from| {
            let _ = from.take_any(&SEPARATORS);
            from.number()
        });
        Some(number.unwrap_or("0"))
    })
}

/// Local version, after `+`: words of letters and digits.
fn local(from: &mut RequirementCursor<'_>) -> Option<String> {
    let mut words = Vec::new();
    loop {
        let word = from.take_while(|c| c.is_ascii_alphanumeric());
        if word.is_empty() {
            return None;
        }
        words.push(word.to_ascii_lowercase());
        if from.rest().starts_with(".*") || from.take_any(&[".", "-", "_"]).is_none() {
            return Some(words.join("."));
        }
    }
}

/// Rest of a text.
pub(super) struct RequirementCursor<'a> {
    rest: &'a str,
}

impl<'a> RequirementCursor<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    pub(super) const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start_matches(' ');
    }

    /// Whether the rest begins with this, which is taken then.
    pub(super) fn take(&mut self, text: &str) -> bool {
        self.take_any(&[text]).is_some()
    }

    /// The first of these with which the rest begins.
    pub(super) fn take_any<'t>(&mut self, texts: &[&'t str]) -> Option<&'t str> {
        let text = texts.iter().find(|text| self.rest.starts_with(**text))?;
        self.rest = self.rest.get(text.len()..)?;
        Some(text)
    }

    /// The longest beginning of such characters; it may be empty.
    pub(super) fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// A name of a package or an extra, normalised: in lower case, each run of `-`, `_` and `.` one `-`.
    pub(super) fn name(&mut self) -> Option<String> {
        let is_separator = |c| matches!(c, '-' | '_' | '.');
        let name = self.take_while(|c| c.is_ascii_alphanumeric() || is_separator(c));
        if name.is_empty() || name.starts_with(is_separator) || name.ends_with(is_separator) {
            return None;
        }
        let words = name.split(is_separator).filter(|word| !word.is_empty());
        Some(words.collect::<Vec<_>>().join("-").to_ascii_lowercase())
    }

    /// A number, without leading zeros. It may be longer than any type of numbers.
    pub(super) fn number(&mut self) -> Option<&'a str> {
        let digits = self.take_while(|c| c.is_ascii_digit());
        let number = digits.trim_start_matches('0');
        match (digits.is_empty(), number.is_empty()) {
            (true, _) => None,
            (false, true) => Some("0"),
            (false, false) => Some(number),
        }
    }

    /// Reads what may be there, and goes back if it is not.
    pub(super) fn attempt<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let before = self.rest;
        let found = read(self);
        if found.is_none() {
            self.rest = before;
        }
        found
    }

    pub(super) const fn rest(&self) -> &'a str {
        self.rest
    }
}
