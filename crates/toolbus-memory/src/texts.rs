//! Texts that the tools write: lists of entries, and parts of a text.

use std::time::Duration;

use crate::working_memory::{EntryInfo, KeyPrefix, SearchHit};
use toolbus_core::text::shown;
use toolbus_core::tool::rounded_text;

/// Entries that a list shows.
pub(crate) const MAX_LISTED: usize = 200;

/// The entries under a prefix, a line each.
pub(crate) fn listed(prefix: &KeyPrefix, entries: &[EntryInfo], now: Duration) -> String {
    let scope = match prefix.as_str() {
        "" => "anywhere".to_owned(),
        prefix => format!("under `{prefix}`"),
    };
    if entries.is_empty() {
        return format!("There are no entries {scope}.");
    }
    let lines = entries.iter().take(MAX_LISTED).map(|info| format!("- {}", described(info, now)));
    let mut text = lines.collect::<Vec<_>>().join("\n");
    if let Some(more) = entries.len().checked_sub(MAX_LISTED).filter(|more| *more > 0) {
        text.push_str(&format!("\n… and {more} more {scope}; give a longer prefix to see them."));
    }
    text
}

/// The hits of a search, the best first, each with the start of its text.
pub(crate) fn found(hits: &[SearchHit], now: Duration) -> String {
    if hits.is_empty() {
        return "No entry matches. Try other words, or call `list_working_memory`.".to_owned();
    }
    let lines = hits.iter().enumerate().map(|(index, hit)| {
        let start = hit.start.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{}. {}\n   {start}", index + 1, described(&hit.info, now))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn described(info: &EntryInfo, now: Duration) -> String {
    let EntryInfo { key, category, tags, characters, expires_at, .. } = info;
    let mut text = format!("`{key}`: {characters} characters");
    if let Some(category) = category {
        text.push_str(&format!(", category {}", shown(category)));
    }
    if !tags.is_empty() {
        let tags: Vec<String> = tags.iter().map(|tag| shown(tag)).collect();
        text.push_str(&format!(", tags {}", tags.join(", ")));
    }
    format!("{text}; expires in {}", rounded_text(expires_at.saturating_sub(now)))
}

/// Part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Page<'a> {
    /// All of it.
    Whole(&'a str),
    /// Characters from `from` to before `to`, of so many.
    Part { text: &'a str, from: u64, to: u64, of: u64 },
    /// The text has so many characters, and none there.
    Behind(u64),
}

/// At most `limit` characters of a text of `characters`, from the character `offset` on.
pub(crate) fn page(text: &str, characters: u64, offset: u64, limit: u64) -> Page<'_> {
    if offset == 0 && characters <= limit {
        return Page::Whole(text);
    }
    if offset >= characters {
        return Page::Behind(characters);
    }
    let to = characters.min(offset.saturating_add(limit));
    let byte_offset = |character: u64| {
        let character = usize::try_from(character).unwrap_or(usize::MAX);
        text.char_indices().nth(character).map_or(text.len(), |(index, _)| index)
    };
    let text = text.get(byte_offset(offset)..byte_offset(to)).unwrap_or_default();
    Page::Part { text, from: offset, to, of: characters }
}

impl Page<'_> {
    /// The part, and how to go on.
    pub(crate) fn written(&self) -> Option<String> {
        match self {
            Self::Whole(text) => Some((*text).to_owned()),
            Self::Part { text, from, to, of } if to < of => {
                Some(format!("{text}\n[characters {from} to {to} of {of}; go on with `offset` {to}]"))
            }
            Self::Part { text, from, to, of } => Some(format!("{text}\n[characters {from} to {to} of {of}, the end]")),
            Self::Behind(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_in_pages_of_whole_characters() {
        let text = "äöü€x";
        assert_eq!(page(text, 5, 0, 5), Page::Whole(text));
        assert_eq!(page(text, 5, 0, 2), Page::Part { text: "äö", from: 0, to: 2, of: 5 });
        assert_eq!(page(text, 5, 2, 2), Page::Part { text: "ü€", from: 2, to: 4, of: 5 });
        assert_eq!(page(text, 5, 4, u64::MAX), Page::Part { text: "x", from: 4, to: 5, of: 5 });
        assert_eq!(page(text, 5, 5, 1), Page::Behind(5));
        assert_eq!(page("", 0, 0, 1), Page::Whole(""));
        let parts = (0..5).map(|offset| match page(text, 5, offset, 1) {
            Page::Part { text, .. } => text,
            other => panic!("{other:?}"),
        });
        assert_eq!(parts.collect::<String>(), text);
    }
}
