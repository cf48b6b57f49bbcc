//! Pages of lists.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::rpc::RpcError;

/// Most entries of a page.
const MAX_ENTRIES: usize = 200;
/// Size from which a page is full, in bytes.
const MAX_BYTES: usize = 512 * 1024;

/// What comes after the last page that a client has: everything after this key. Entries that come or go meanwhile make no
/// other one appear twice or not at all.
#[derive(Debug, Default)]
pub(crate) struct Cursor(Option<String>);

impl Cursor {
    /// Reads what a client sent.
    pub(crate) fn read(text: Option<&str>) -> Result<Self, RpcError> {
        let Some(text) = text else { return Ok(Self(None)) };
        let key = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        match key {
            Some(key) => Ok(Self(Some(key))),
            None => Err(RpcError::invalid_params("The cursor is none of ours. Begin the list anew, without one.")),
        }
    }

    /// The next page of entries, which are sorted by their keys, and the cursor of the page after it.
    pub(crate) fn page<'t, T, E>(
        &self,
        sorted: &'t [T],
        key: impl Fn(&T) -> &str,
        entry: impl Fn(&'t T) -> E,
        size: impl Fn(&T) -> usize,
    ) -> (Vec<E>, Option<String>) {
        let begin = self.0.as_deref().map_or(0, |after| sorted.partition_point(|item| key(item) <= after));
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut rest = sorted.get(begin..).unwrap_or_default().iter().peekable();
        let mut last = None;
        while let Some(item) = rest.next() {
            entries.push(entry(item));
            bytes += size(item);
            if entries.len() >= MAX_ENTRIES || bytes >= MAX_BYTES {
                last = rest.peek().is_some().then(|| key(item));
                break;
            }
        }
        (entries, last.map(|key| URL_SAFE_NO_PAD.encode(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(keys: &[String], size: usize) -> Vec<Vec<String>> {
        let (mut cursor, mut pages) = (Cursor::default(), Vec::new());
        loop {
            let (page, next) = cursor.page(keys, |key| key, String::clone, |_| size);
            pages.push(page);
            match next {
                Some(next) => cursor = Cursor::read(Some(&next)).unwrap(),
                None => return pages,
            }
        }
    }

    fn keys(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("{number:05}")).collect()
    }

    #[test]
    fn every_entry_is_on_one_page_in_order() {
        for (count, expected) in [(0, 1), (1, 1), (200, 1), (201, 2), (1000, 5)] {
            let pages = pages(&keys(count), 10);
            assert_eq!(pages.len(), expected, "{count}");
            assert_eq!(pages.concat(), keys(count), "{count}");
        }
    }

    #[test]
    fn large_entries_make_small_pages() {
        assert_eq!(pages(&keys(3), MAX_BYTES).len(), 3);
    }

    #[test]
    fn what_comes_or_goes_between_two_pages_moves_no_other_entry() {
        let mut all = keys(300);
        let (first, next) = Cursor::default().page(&all, |key| key, String::clone, |_| 1);
        all.remove(199);
        all.insert(0, "!".to_owned());
        let (second, _) = Cursor::read(next.as_deref()).unwrap().page(&all, |key| key, String::clone, |_| 1);
        assert_eq!([first, second].concat(), keys(300));
    }

    #[test]
    fn a_cursor_of_somebody_else_is_refused() {
        for text in ["!", "a", "_w"] {
            assert_eq!(Cursor::read(Some(text)).unwrap_err().code, RpcError::INVALID_PARAMS, "{text}");
        }
    }
}
