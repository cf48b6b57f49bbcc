//! Storage of a long page in working memory.

use std::time::Duration;

use sha2::{Digest, Sha256};
use toolbus_core::results::SplitRule;
use toolbus_core::text::excerpt;
use url::Url;

use crate::page::{BrowseMode, PageText};

/// The category of the entries.
const CATEGORY: &str = "web";
/// Longest part of an address in a key, in characters.
const MAX_ADDRESS: usize = 60;
/// Bytes of the digest in a key: addresses with the same key cannot be found by trying.
const DIGEST: usize = 10;
/// Longest title before a table, in characters.
const MAX_TITLE: usize = 200;

/// Limits by which pages are split, and the memory of their chunks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkSettings {
    /// Length above which a page is split, in characters.
    pub(crate) threshold: usize,
    /// Length of the longest chunk, in characters.
    pub(crate) max: usize,
    /// Time for which chunks are kept.
    pub(crate) ttl: Duration,
}

impl ChunkSettings {
    /// The rule for a page that was requested under this address.
    pub(crate) fn rule(self, url: &Url, mode: BrowseMode, page: &PageText) -> SplitRule {
        let Self { threshold, max, ttl } = self;
        let name = if page.title.is_empty() { url.as_str() } else { &page.title };
        // The notes are in the first chunk, too, which a model need not read.
        let subject = format!("{}Page \"{}\"", page.quoted_notes(), excerpt(name, MAX_TITLE));
        SplitRule { threshold, max, ttl, stem: stem(url, mode), category: CATEGORY, subject }
    }
}

/// The start of the keys of a page: its address as far as it can be part of one, and a digest, which differs for each
/// address and mode.
fn stem(url: &Url, mode: BrowseMode) -> String {
    let address = url.as_str();
    let shown = address.split_once("://").map_or(address, |(_, rest)| rest);
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
    let shown: String = shown.chars().take(MAX_ADDRESS).map(plain).collect();
    let mode = match mode {
        BrowseMode::Article => b'a',
        BrowseMode::Full => b'f',
        BrowseMode::Raw => b'r',
    };
    let digest = Sha256::new().chain_update([mode]).chain_update(address).finalize();
    let digest: String = digest.iter().take(DIGEST).map(|byte| format!("{byte:02x}")).collect();
    format!("web-{}-{digest}", shown.trim_end_matches('_').to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> String {
        stem(&Url::parse(url).unwrap(), BrowseMode::Article)
    }

    #[test]
    fn a_key_shows_the_address_and_is_short_and_plain() {
        assert_eq!(
            of("https://Example.com/Docs/a b?q=ä#part"),
            "web-example.com_docs_a_20b_q__c3_a4_part-cdbf71c7ab00461e4709"
        );
        let long = of(&format!("https://example.com/{}", "é/".repeat(2000)));
        assert!(long.len() <= 4 + MAX_ADDRESS + 1 + 2 * DIGEST, "{long}");
        assert!(long.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)), "{long}");
    }

    #[test]
    fn keys_of_different_addresses_and_modes_differ() {
        let start = format!("https://example.com/{}", "x".repeat(100));
        let addresses = [
            "https://example.com/".to_owned(),
            "http://example.com/".to_owned(),
            "https://example.com/a_b".to_owned(),
            "https://example.com/a/b".to_owned(),
            "https://example.com/A/b".to_owned(),
            "https://example.com/a?b".to_owned(),
            "https://example.com/a#b".to_owned(),
            format!("{start}/1"),
            format!("{start}/2"),
        ];
        let mut stems: Vec<String> = addresses.iter().map(|url| of(url)).collect();
        let url = Url::parse(&addresses[0]).unwrap();
        stems.extend([BrowseMode::Full, BrowseMode::Raw].map(|mode| stem(&url, mode)));
        let (count, mut distinct) = (stems.len(), stems);
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), count, "{distinct:?}");
    }

    #[test]
    fn the_text_before_the_table_has_the_notes_and_the_title_or_the_address() {
        let settings = ChunkSettings { threshold: 8000, max: 4000, ttl: Duration::from_secs(60) };
        let url = Url::parse("https://example.com/").unwrap();
        let page = PageText {
            title: "A \"good\" guide".to_owned(),
            notes: vec!["Suspect: x".to_owned(), "Cut.".to_owned()],
            ..PageText::default()
        };
        let rule = settings.rule(&url, BrowseMode::Article, &page);
        assert_eq!(rule.subject, "> Suspect: x\n> Cut.\n\nPage \"A \\\"good\\\" guide\"");
        let rule = settings.rule(&url, BrowseMode::Article, &PageText::default());
        assert_eq!(rule.subject, "Page \"https://example.com/\"");
    }
}
