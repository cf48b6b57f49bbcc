//! Reading a text of ASCII characters from its beginning.

/// What is left of a text.
pub(super) struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
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

    /// A number, without zeros that say nothing. It may be longer than any type of numbers.
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
