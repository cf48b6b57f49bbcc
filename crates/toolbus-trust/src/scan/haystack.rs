//! The texts that are scanned together, made into one.

use toolbus_core::text;

use super::normal;
use crate::schema::{TextPath, TextRole};
use crate::text::{clean, has_unseen, unseen};

/// Most text that is scanned, in bytes.
const MAX_LENGTH: usize = 64 * 1024;
/// Longest excerpt, in characters.
const MAX_EXCERPT: usize = 120;
/// Longest path, in characters.
const MAX_PATH: usize = 160;
/// Empty lines behind which text is far away.
const FAR_LINES: usize = 20;
/// Spaces behind which text is far away.
const FAR_SPACES: usize = 100;

/// Texts that belong together.
pub(super) trait TextSource {
    /// Visits each, always in the same order.
    fn each<'v>(&'v self, visit: &mut dyn FnMut(&TextPath<'_>, TextRole, &'v str));
}

/// Texts as the rules know them, one after the other.
pub(super) struct Haystack {
    text: String,
    /// End of each text.
    ends: Vec<usize>,
    /// The number of the first that is left out.
    left_out: Option<usize>,
}

impl Haystack {
    pub(super) fn of(texts: &impl TextSource) -> Self {
        let (mut text, mut ends, mut left_out) = (String::new(), Vec::new(), None);
        texts.each(&mut |_, role, part| {
            if text.len() + part.len() <= MAX_LENGTH {
                normal::push(part, role, &mut text);
            } else {
                left_out = left_out.or(Some(ends.len()));
            }
            ends.push(text.len());
        });
        Self { text, ends, left_out }
    }

    pub(super) const fn bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// The path and the words of a match.
    pub(super) fn located(&self, texts: &impl TextSource, (start, end): (usize, usize)) -> (String, String) {
        // A match may begin with the end of the line before.
        let number = self.ends.partition_point(|ends| *ends <= start + 1);
        let words = self.bytes().get(start..end).unwrap_or_default();
        (path_of(texts, number), shortened(&String::from_utf8_lossy(words)))
    }

    /// The first text that is not looked at, because those before are too many or too long.
    pub(super) fn left_out(&self, texts: &impl TextSource) -> Option<(String, String)> {
        Some((path_of(texts, self.left_out?), format!("behind {} KiB of other text", MAX_LENGTH / 1024)))
    }

    /// The first name or value with something in it that is not seen.
    pub(super) fn unseen_name(&self, texts: &impl TextSource) -> Option<(String, String)> {
        find(texts, |role, text| match role {
            TextRole::Name => has_unseen(text),
            TextRole::Value => unseen(text).characters() > 0,
            TextRole::Prose => false,
        })
        .map(|(path, text)| (path, shortened(&text.escape_debug().to_string())))
    }

    /// The first text with something behind much empty space.
    pub(super) fn far_away(&self, texts: &impl TextSource) -> Option<(String, String)> {
        let (path, text) = find(texts, |_, text| behind_space(text).is_some())?;
        Some((path, shortened(&clean(behind_space(text).unwrap_or_default(), MAX_EXCERPT * 4).text)))
    }
}

/// Returns what follows behind much empty space.
fn behind_space(text: &str) -> Option<&str> {
    let (mut lines, mut spaces) = (0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'\n' => (lines, spaces) = (lines + 1, 0),
            b' ' | b'\t' => spaces += 1,
            _ if lines > FAR_LINES || spaces > FAR_SPACES => return text.get(at..),
            _ => (lines, spaces) = (0, 0),
        }
    }
    None
}

fn find(texts: &impl TextSource, is_it: impl Fn(TextRole, &str) -> bool) -> Option<(String, &str)> {
    let mut found = None;
    texts.each(&mut |path, role, text| {
        if found.is_none() && is_it(role, text) {
            found = Some((display(path), text));
        }
    });
    found
}

fn path_of(texts: &impl TextSource, number: usize) -> String {
    let (mut next, mut found) = (0, String::new());
    texts.each(&mut |path, _, _| {
        if next == number {
            found = display(path);
        }
        next += 1;
    });
    found
}

/// A path as text for people, shortened and escaped: names in it may be of any length and content.
pub(super) fn display(path: &TextPath<'_>) -> String {
    let escaped: String = path.to_string().escape_debug().take(MAX_PATH + 1).collect();
    text::shortened(&escaped, MAX_PATH).into_owned()
}

/// The beginning of a text, in one line.
pub(super) fn shortened(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().take(MAX_EXCERPT).collect();
    text::shortened(&words.join(" "), MAX_EXCERPT).into_owned()
}
