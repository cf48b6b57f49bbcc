//! Pages that are kept for revalidation.

use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use reqwest::header::{CACHE_CONTROL, ETAG, HeaderMap, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED};
use reqwest::{Response, StatusCode};
use url::Url;

use crate::page::RawPage;

/// The part of the cache that one page may take.
const LARGEST_SHARE: usize = 4;
/// Size that a page takes besides its body, in bytes.
const OVERHEAD: usize = 1024;
/// Longest value that a site recognises a page by, in bytes: a page with a longer one is not kept.
const LONGEST_HEADER: usize = 1024;

/// Pages with an `ETag` or a date; the least recently used leave first. A page is shown again only after its site has
/// responded, to a request of that caller, that it is unchanged: so no caller sees a page that the rules keep from it.
#[derive(Debug)]
pub(super) struct PageCache {
    pages: Mutex<Pages>,
    /// Bytes.
    limit: usize,
}

#[derive(Debug)]
struct Pages {
    by_url: LruCache<Url, Arc<CachedPage>>,
    bytes: usize,
}

/// A page, and what its site recognises it by.
#[derive(Debug)]
pub(super) struct CachedPage {
    etag: Option<HeaderValue>,
    last_modified: Option<HeaderValue>,
    content_type: String,
    body: Vec<u8>,
    /// Size for which the page counts.
    size: usize,
}

impl PageCache {
    pub(super) fn new(limit: usize) -> Self {
        Self { pages: Mutex::new(Pages { by_url: LruCache::unbounded(), bytes: 0 }), limit }
    }

    pub(super) fn get(&self, url: &Url) -> Option<Arc<CachedPage>> {
        self.pages.lock().by_url.get(&key(url)).cloned()
    }

    /// Keeps a page, if its site allows that, and can revalidate it.
    pub(super) fn put(&self, page: &RawPage, headers: &HeaderMap) {
        let key = key(&page.url);
        // Copies: a value of a response holds the whole buffer that it was read into.
        let own = |name| {
            let value = headers.get(name).map(HeaderValue::as_bytes).filter(|value| value.len() <= LONGEST_HEADER)?;
            HeaderValue::from_bytes(value).ok()
        };
        let (etag, last_modified) = (own(ETAG), own(LAST_MODIFIED));
        let control = headers.get(CACHE_CONTROL).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let may_be_kept =
            !control.to_ascii_lowercase().contains("no-store") && (etag.is_some() || last_modified.is_some());
        let mut fresh =
            CachedPage { etag, last_modified, content_type: page.content_type.clone(), body: Vec::new(), size: 0 };
        fresh.size = page.body.len() + page.content_type.len() + key.as_str().len() + OVERHEAD;
        if may_be_kept && fresh.size <= self.limit / LARGEST_SHARE {
            fresh.body.clone_from(&page.body);
        }
        let mut pages = self.pages.lock();
        if let Some(old) = pages.by_url.pop(&key) {
            pages.bytes -= old.size;
        }
        if fresh.body.is_empty() {
            return;
        }
        pages.bytes += fresh.size;
        pages.by_url.put(key, Arc::new(fresh));
        while pages.bytes > self.limit {
            match pages.by_url.pop_lru() {
                Some((_, old)) => pages.bytes -= old.size,
                None => pages.bytes = 0,
            }
        }
    }
}

/// A fragment is not sent.
fn key(url: &Url) -> Url {
    let mut key = url.clone();
    key.set_fragment(None);
    key
}

impl CachedPage {
    /// Asks the site whether the page has changed.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        for (name, value) in [(IF_NONE_MATCH, &self.etag), (IF_MODIFIED_SINCE, &self.last_modified)] {
            if let Some(value) = value {
                headers.insert(name, value.clone());
            }
        }
    }

    /// Bytes of the body.
    pub(super) const fn len(&self) -> usize {
        self.body.len()
    }

    pub(super) fn page(&self, url: Url) -> RawPage {
        RawPage { url, content_type: self.content_type.clone(), body: self.body.clone(), is_cut: false }
    }
}

pub(super) fn is_unchanged(response: &Response) -> bool {
    response.status() == StatusCode::NOT_MODIFIED
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(url: &str, size: usize) -> RawPage {
        RawPage {
            url: Url::parse(url).unwrap(),
            content_type: "text/plain".into(),
            body: vec![b'x'; size],
            is_cut: false,
        }
    }

    fn headers(list: &[(reqwest::header::HeaderName, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn the_least_recently_used_pages_leave_when_the_cache_is_full() {
        let cache = PageCache::new(4 * (1000 + "text/plain".len() + "http://a.example/0".len() + OVERHEAD));
        let url = |n: usize| format!("http://a.example/{n}");
        let has = |n: usize| cache.get(&Url::parse(&url(n)).unwrap()).is_some();
        for n in 0..4 {
            cache.put(&page(&url(n), 1000), &headers(&[(ETAG, "e")]));
        }
        assert!((0..4).all(has));
        assert!(has(0));
        cache.put(&page(&url(4), 1000), &headers(&[(ETAG, "e")]));
        assert!(has(0) && !has(1) && has(4));
        for _ in 0..10 {
            cache.put(&page(&url(4), 900), &headers(&[(ETAG, "e")]));
        }
        assert!(has(0) && has(2) && has(3) && has(4), "the same page counts once");
        cache.put(&page(&url(5), 2000), &headers(&[(ETAG, "e")]));
        assert!(!has(5), "one page does not take the whole cache");
    }

    #[test]
    fn a_page_with_a_long_tag_is_not_kept() {
        let cache = PageCache::new(1 << 20);
        let of = |length: usize| HeaderMap::from_iter([(ETAG, HeaderValue::from_str(&"e".repeat(length)).unwrap())]);
        for (length, is_kept) in [(LONGEST_HEADER, true), (LONGEST_HEADER + 1, false)] {
            cache.put(&page("http://a.example/", 10), &of(length));
            assert_eq!(cache.get(&Url::parse("http://a.example/").unwrap()).is_some(), is_kept);
        }
    }

    #[test]
    fn only_a_page_that_its_site_can_revalidate_is_kept() {
        let cache = PageCache::new(1 << 20);
        let url = Url::parse("http://a.example/#top").unwrap();
        let table = [
            (vec![], false),
            (vec![(ETAG, "e")], true),
            (vec![(ETAG, "e"), (CACHE_CONTROL, "private, No-Store")], false),
            (vec![(LAST_MODIFIED, "Tue, 24 Nov 2026 10:00:00 GMT")], true),
        ];
        for (sent, is_kept) in table {
            cache.put(&page(url.as_str(), 10), &headers(&sent));
            assert_eq!(cache.get(&url).is_some(), is_kept, "{sent:?}");
        }
    }
}
