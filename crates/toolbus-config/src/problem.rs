//! Problems of a configuration, and where they are.

use std::fmt;
use std::path::Path;

use crate::format::ConfigFormat;

/// Most problems that are shown; the others are counted.
pub const MAX_SHOWN: usize = 100;
/// Most names that are listed where one of them is expected.
const MAX_NAMED: usize = 24;
/// Longest missed name that is compared with the known ones, in bytes.
const MAX_COMPARED: usize = 64;

/// A position in a file; both counted from one, the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

/// The positions of a key and of its value in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Beginning of the key.
    pub key: Position,
    /// Beginning of the value.
    pub value: Position,
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// In a file.
    File {
        /// The file, as it was named.
        file: String,
        /// Position in it; `None` where the format keeps no positions.
        span: Option<Span>,
    },
    /// In an environment variable of this name.
    Environment(String),
    /// On the command line, by this option.
    CommandLine(String),
    /// Nowhere: the default holds.
    Default,
}

/// Whether a problem is with the name of a key or with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The key.
    Key,
    /// The value.
    Value,
}

impl Origin {
    /// The location as a string: `file:line:column`, or the file alone if its format keeps no positions; the variable; the
    /// option.
    #[must_use]
    pub fn location(&self, part: Part) -> String {
        match self {
            Self::File { file, span: None } => file.clone(),
            Self::File { file, span: Some(span) } => {
                let Position { line, column } = if part == Part::Key { span.key } else { span.value };
                format!("{file}:{line}:{column}")
            }
            Self::Environment(name) => format!("environment {name}"),
            Self::CommandLine(option) => format!("command line {option}"),
            Self::Default => "configuration".to_owned(),
        }
    }

    /// The format in which the value was written; variables and options are read as TOML.
    pub(crate) fn format(&self) -> ConfigFormat {
        match self {
            Self::File { file, .. } => ConfigFormat::of(Path::new(file)).unwrap_or(ConfigFormat::Toml),
            _ => ConfigFormat::Toml,
        }
    }
}

impl Problems {
    /// The same problems, reported for `file`, which was read as `draft`.
    #[must_use]
    pub fn of_file(mut self, draft: &Path, file: &Path) -> Self {
        let (draft, file) = (draft.display().to_string(), file.display().to_string());
        self.0.iter_mut().for_each(|problem| problem.location = problem.location.replace(&draft, &file));
        self
    }
}

/// One mistake. Its text never holds the value of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Location: see [`Origin::location`].
    pub location: String,
    /// The full key, as it would be written in TOML; empty when the file could not be read.
    pub key: String,
    /// The mistake, and the expected form.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.as_str() {
            "" => write!(f, "{}: {}", self.location, self.what),
            key => write!(f, "{}: `{key}`: {}", self.location, self.what),
        }
    }
}

/// Every mistake of a configuration, in the order of the layers and lines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().take(MAX_SHOWN).enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        match self.0.len().saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

/// The name nearest to one that was missed, if any is near; case does not count.
pub fn nearest<'a>(missed: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    near_names(missed, names, 1).pop()
}

/// At most `most` names near to one that was missed, nearest first; case does not count. Costs the product of the lengths
/// for each name that is about as long; none is near to a text of more than 64 bytes, which a sender may have chosen.
pub fn near_names<'a>(missed: &str, names: impl IntoIterator<Item = &'a str>, most: usize) -> Vec<&'a str> {
    if missed.len() > MAX_COMPARED {
        return Vec::new();
    }
    let furthest = (missed.len() / 3).max(1);
    let lower = missed.to_lowercase();
    let mut near: Vec<(usize, &str)> = names
        .into_iter()
        .filter(|name| name.len().abs_diff(missed.len()) <= furthest)
        .map(|name| (strsim::osa_distance(&lower, &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= furthest)
        .collect();
    near.sort_unstable();
    near.into_iter().take(most).map(|(_, name)| name).collect()
}

/// `did you mean …?` and the expected names: the end of a problem's text. Of many names the first are listed.
pub fn expected(missed: &str, names: &[&str]) -> String {
    expected_of(missed, names, MAX_NAMED)
}

/// The same for keys of the schema, which are all listed: a section that is left out seems not to exist.
pub(crate) fn expected_key(missed: &str, keys: &[&str]) -> String {
    expected_of(missed, keys, keys.len())
}

fn expected_of(missed: &str, names: &[&str], most: usize) -> String {
    let mut all = names.iter().take(most).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() > most {
        all.push_str(&format!(" and {} more", names.len() - most));
    }
    let hint = nearest(missed, names.iter().copied()).map(|name| format!("did you mean `{name}`? "));
    format!("{}expected {}{all}", hint.unwrap_or_default(), if names.len() > 1 { "one of " } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_whatever_its_case() {
        let names = ["default_timeout", "max_timeout", "topics"];
        assert_eq!(nearest("Default_Timeot", names), Some("default_timeout"));
        assert_eq!(nearest("entirely_different", names), None);
        let long = "x".repeat(MAX_COMPARED + 1);
        assert_eq!(nearest(&long, [long.as_str()]), None);
    }

    #[test]
    fn near_names_come_nearest_first() {
        let names = ["get_weather", "web_search", "web_browse", "web_searches"];
        assert_eq!(near_names("Web_Serach", names, 3), ["web_search", "web_searches"]);
        assert_eq!(near_names("Web_Serach", names, 1), ["web_search"]);
        assert!(near_names("transfer_money", names, 3).is_empty());
    }

    #[test]
    fn of_many_names_the_nearest_and_the_first_are_listed() {
        let names: Vec<String> = (0..1000).map(|number| format!("tool_{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let text = expected("tol_999", &names);
        assert!(text.starts_with("did you mean `tool_999`? expected one of `tool_0`, ") && text.len() < 400, "{text}");
        assert!(text.ends_with("`tool_23` and 976 more"), "{text}");
    }

    #[test]
    fn many_problems_are_shown_up_to_a_limit() {
        let problem = Problem { location: "a.toml:1:1".into(), key: "bus".into(), what: "wrong".into() };
        let text = Problems(vec![problem; MAX_SHOWN + 2]).to_string();
        assert_eq!(text.lines().count(), MAX_SHOWN + 1);
        assert!(text.ends_with("and 2 more"));
    }
}
