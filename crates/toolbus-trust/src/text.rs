//! Texts of others, bounded and freed of what nobody sees.

mod kinds;

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

pub(crate) use self::kinds::is_invisible;
use self::kinds::{Kind, Walk};

/// A text that may be shown and given to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cleaned<'a> {
    /// What is left.
    pub text: Cow<'a, str>,
    /// What is not.
    pub removed: Removed,
}

/// What was taken out of a text, or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Removed {
    /// Control characters.
    pub control: usize,
    /// Characters that change the direction of text.
    pub bidirectional: usize,
    /// Other characters that are not seen.
    pub invisible: usize,
    /// Bytes beyond the limit.
    pub cut: usize,
    /// Of the characters, those that do not get into a text by accident: tags, overrides of the direction, escape
    /// sequences, variation selectors in a row.
    pub deliberate: usize,
}

/// The text without control, bidirectional and invisible characters, and without space at its ends; at most `limit`
/// bytes of it, then `…`.
///
/// Tabs stay, and line breaks, which all become line feeds. So do joiners where a script or an emoji needs them: after a
/// letter of a script that joins its letters, between two emoji, and the tags of the three flags that have some.
#[must_use]
pub fn clean(text: &str, limit: usize) -> Cleaned<'_> {
    let text = text.trim();
    if text.len() <= limit && is_plain(text) {
        return Cleaned { text: Cow::Borrowed(text), removed: Removed::default() };
    }
    let (mut kept, mut removed) = (String::with_capacity(text.len().min(limit) + '…'.len_utf8()), Removed::default());
    let mut walk = Walk::new(text);
    while let Some((at, kind)) = walk.next() {
        match kind {
            // What was removed before it made it the first.
            Kind::Kept(c) if kept.is_empty() && c.is_whitespace() => {}
            Kind::Kept(c) if kept.len() + c.len_utf8() > limit => {
                removed.cut = text.len() - at;
                // What joins two characters has lost one of them.
                kept.truncate(kept.trim_end_matches(|c: char| c.is_whitespace() || kinds::joins_two(c)).len());
                kept.push('…');
                return Cleaned { text: Cow::Owned(kept), removed };
            }
            Kind::Kept(c) => kept.push(c),
            other => removed.count(other),
        }
    }
    // What was removed after it made it the last.
    kept.truncate(kept.trim_end().len());
    Cleaned { text: Cow::Owned(kept), removed }
}

/// What [`clean`] would take out of a text that must stay as it is.
#[must_use]
pub fn unseen(text: &str) -> Removed {
    let mut removed = Removed::default();
    if !is_plain(text) {
        let mut walk = Walk::new(text);
        while let Some((_, kind)) = walk.next() {
            removed.count(kind);
        }
    }
    removed
}

/// Whether a name can be mistaken for another: something in it is not seen, or breaks the line.
#[must_use]
pub fn has_unseen(name: &str) -> bool {
    name.chars().any(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')) || unseen(name).characters() > 0
}

/// The text in one line, as a log may have it: what [`clean`] would take out, line breaks and tabs are escaped.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    let (mut line, mut walk) = (String::with_capacity(text.len()), Walk::new(text));
    let mut next = walk.next();
    while let Some((at, kind)) = next {
        next = walk.next();
        // Two characters where they are one line break.
        let written = text.get(at..next.map_or(text.len(), |(end, _)| end)).unwrap_or_default();
        match kind {
            Kind::Kept(c) if !c.is_control() => line.push(c),
            _ => line.extend(written.chars().flat_map(char::escape_default)),
        }
    }
    Cow::Owned(line)
}

/// The characters that [`clean`] would leave.
pub(crate) fn seen(text: &str) -> impl Iterator<Item = char> {
    let mut walk = Walk::new(text);
    std::iter::from_fn(move || {
        loop {
            if let (_, Kind::Kept(c)) = walk.next()? {
                return Some(c);
            }
        }
    })
}

/// Whether there can be nothing to remove.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n' | b'\t'))
}

impl Removed {
    /// Whether nothing was removed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Characters that were removed, wherever they were.
    #[must_use]
    pub const fn characters(&self) -> usize {
        self.control + self.bidirectional + self.invisible
    }

    /// Adds what was taken out of another text.
    pub const fn add(&mut self, other: &Self) {
        self.control += other.control;
        self.bidirectional += other.bidirectional;
        self.invisible += other.invisible;
        self.cut += other.cut;
        self.deliberate += other.deliberate;
    }

    const fn count(&mut self, kind: Kind) {
        let deliberate = match kind {
            Kind::Kept(_) => return,
            Kind::Control { deliberate } => {
                self.control += 1;
                deliberate
            }
            Kind::Bidirectional { deliberate } => {
                self.bidirectional += 1;
                deliberate
            }
            Kind::Invisible { deliberate } => {
                self.invisible += 1;
                deliberate
            }
        };
        self.deliberate += deliberate as usize;
    }
}

/// As it is told to people: `2 control characters, 300 bytes cut`.
impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [(self.control, "control"), (self.bidirectional, "bidirectional"), (self.invisible, "invisible")];
        let mut between = "";
        for (count, kind) in kinds.into_iter().filter(|(count, _)| *count > 0) {
            let plural = if count == 1 { "" } else { "s" };
            write!(f, "{between}{count} {kind} character{plural}")?;
            between = ", ";
        }
        match self.cut {
            0 if between.is_empty() => f.write_str("nothing"),
            0 => Ok(()),
            cut => write!(f, "{between}{cut} bytes cut"),
        }
    }
}

#[cfg(test)]
mod tests;
