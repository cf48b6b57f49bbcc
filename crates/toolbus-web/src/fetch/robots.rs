//! `robots.txt` (RFC 9309): what a site allows automatic readers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use memchr::memmem;
use parking_lot::Mutex;
use reqwest::header::HeaderMap;
use toolbus_core::Clock;
use toolbus_outbound::egress::{Egress, EgressError, HostLists, next_hop};
use toolbus_outbound::read_up_to;
use url::Url;

/// The name that rules are looked up by.
const NAME: &str = "toolbus";
/// Bytes that the rules which are remembered may have.
const MAX_KEPT: usize = 16 << 20;
/// Size that a rule, and a site, takes besides its text, in bytes.
const OVERHEAD: usize = 128;
/// Time for which rules are remembered.
const LIFETIME: Duration = Duration::from_secs(3600);
/// Time for which it is remembered that a site did not give its rules.
const FAILURE_LIFETIME: Duration = Duration::from_secs(30);
/// Bytes that are read of a file.
const MAX_SIZE: usize = 512 * 1024;
/// Redirects that are followed.
const MAX_REDIRECTS: usize = 5;
/// Most rules of one site.
const MAX_RULES: usize = 2000;

/// The rules of sites; those that were not used for longest leave first.
#[derive(Debug)]
pub(super) struct RobotsCache(Mutex<KeptRules>);

#[derive(Debug)]
struct KeptRules {
    by_site: LruCache<String, (Instant, Arc<Robots>)>,
    /// Of their text, with what they take besides.
    bytes: usize,
}

impl Default for RobotsCache {
    fn default() -> Self {
        Self(Mutex::new(KeptRules { by_site: LruCache::unbounded(), bytes: 0 }))
    }
}

impl KeptRules {
    fn get(&mut self, site: &str) -> Option<Arc<Robots>> {
        let now = Clock::SYSTEM.now();
        self.by_site.get(site).filter(|(until, _)| *until > now).map(|(_, robots)| Arc::clone(robots))
    }

    fn put(&mut self, site: String, until: Instant, robots: Arc<Robots>) {
        self.bytes += size(&site, &robots);
        if let Some((old_site, (_, old))) = self.by_site.push(site, (until, robots)) {
            self.bytes -= size(&old_site, &old);
        }
        while self.bytes > MAX_KEPT {
            match self.by_site.pop_lru() {
                Some((site, (_, robots))) => self.bytes -= size(&site, &robots),
                None => self.bytes = 0,
            }
        }
    }
}

fn size(site: &str, robots: &Robots) -> usize {
    robots.0.iter().map(|(pattern, _)| pattern.len() + OVERHEAD).sum::<usize>() + site.len() + OVERHEAD
}

impl RobotsCache {
    /// Whether the site of a URL allows it. Asks the site, if its rules are not known.
    ///
    /// # Errors
    ///
    /// If this caller does not reach the site.
    pub(super) async fn allows(&self, egress: &Egress, url: &Url, lists: &HostLists) -> Result<bool, EgressError> {
        let site = url.origin().ascii_serialization();
        let now = Clock::SYSTEM.now();
        let known = self.0.lock().get(&site);
        let robots = match known {
            Some(robots) => robots,
            None => {
                // Not remembered: it depends on the lists of this caller.
                let Some(robots) = fetch(egress, url, lists).await? else { return Ok(true) };
                let robots = Arc::new(robots);
                let lifetime = if *robots == Robots::nothing() { FAILURE_LIFETIME } else { LIFETIME };
                self.0.lock().put(site, now + lifetime, Arc::clone(&robots));
                robots
            }
        };
        Ok(robots.allows(url))
    }
}

/// The rules of a site. One that has none allows all, one that fails allows nothing. `None` if they are where this
/// caller may not go.
async fn fetch(egress: &Egress, url: &Url, lists: &HostLists) -> Result<Option<Robots>, EgressError> {
    let Ok(mut at) = url.join("/robots.txt") else { return Ok(Some(Robots::default())) };
    for followed in 0..=MAX_REDIRECTS {
        let mut response = match egress.get(&at, HeaderMap::new(), lists).await {
            Ok(response) => response,
            // The caller did not request the host of this redirect, and would not understand its refusal.
            Err(EgressError::Refused(_)) if followed > 0 => return Ok(None),
            Err(_) if followed > 0 => return Ok(Some(Robots::nothing())),
            Err(error) => return Err(error),
        };
        match next_hop(&response) {
            Some(Ok(next)) => at = next,
            Some(Err(_)) => break,
            None if response.status().is_success() => {
                return Ok(Some(match read_up_to(&mut response, MAX_SIZE).await {
                    Ok((bytes, _)) => Robots::parse(&String::from_utf8_lossy(&bytes)),
                    Err(_) => Robots::nothing(),
                }));
            }
            None if response.status().is_server_error() => return Ok(Some(Robots::nothing())),
            None => break,
        }
    }
    Ok(Some(Robots::default()))
}

/// The rules for this daemon: patterns of paths, and whether they are allowed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Robots(Vec<(String, bool)>);

impl Robots {
    fn nothing() -> Self {
        Self(vec![("/".to_owned(), false)])
    }

    fn parse(text: &str) -> Self {
        let (mut own, mut for_all) = (None, Vec::new());
        let (mut is_own, mut is_for_all, mut in_names) = (false, false, false);
        for line in text.trim_start_matches('\u{feff}').lines() {
            let line = line.split('#').next().unwrap_or_default();
            let Some((key, value)) = line.split_once(':') else { continue };
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
            match key.as_str() {
                "user-agent" => {
                    if !std::mem::replace(&mut in_names, true) {
                        (is_own, is_for_all) = (false, false);
                    }
                    is_own |= value.eq_ignore_ascii_case(NAME);
                    is_for_all |= value == "*";
                    if is_own {
                        own.get_or_insert_with(Vec::new);
                    }
                }
                "allow" | "disallow" => {
                    in_names = false;
                    let rule = (value.to_owned(), key == "allow");
                    let is_rule = !value.is_empty();
                    if let Some(own) = own.as_mut().filter(|own| is_own && is_rule && own.len() < MAX_RULES) {
                        own.push(rule.clone());
                    }
                    if is_for_all && is_rule && for_all.len() < MAX_RULES {
                        for_all.push(rule);
                    }
                }
                _ => {}
            }
        }
        Self(own.unwrap_or(for_all))
    }

    /// Whether the longest pattern that matches allows it; of two as long, the one that allows.
    fn allows(&self, url: &Url) -> bool {
        let path = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let matching = self.0.iter().filter(|(pattern, _)| matches(pattern, &path));
        matching.max_by_key(|(pattern, allows)| (pattern.len(), *allows)).is_none_or(|(_, allows)| *allows)
    }
}

/// Whether a pattern matches the start of a path: `*` is any run, `$` at the end is the end.
fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, is_whole) = pattern.strip_suffix('$').map_or((pattern, false), |pattern| (pattern, true));
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| path.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return !is_whole || rest.is_empty() };
    for part in middle {
        // Takes time in proportion to the path, whatever it is.
        let after = memmem::find(rest.as_bytes(), part.as_bytes()).and_then(|at| rest.get(at + part.len()..));
        match after {
            Some(after) => rest = after,
            None => return false,
        }
    }
    if is_whole { rest.ends_with(last) } else { memmem::find(rest.as_bytes(), last.as_bytes()).is_some() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(robots: &str, path: &str) -> bool {
        Robots::parse(robots).allows(&Url::parse("https://a.example").unwrap().join(path).unwrap())
    }

    #[test]
    fn the_longest_matching_rule_of_the_own_group_decides() {
        let robots = "\
            # all\nUser-agent: *\nDisallow: /\n\n\
            User-Agent: other\nuser-agent: Toolbus\nDisallow: /private # not this\nAllow: /private/open\n\
            Disallow: /*.pdf$\nDisallow:\nCrawl-delay: 5\nDisallow: /search?q=\n\n\
            user-agent: third\nDisallow: /third\n";
        let table = [
            ("/", true),
            ("/private", false),
            ("/private/x", false),
            ("/private/open/x", true),
            ("/a/b.pdf", false),
            ("/a/b.pdf?x", true),
            ("/search?q=1", false),
            ("/third", true),
        ];
        for (path, expected) in table {
            assert_eq!(allows(robots, path), expected, "{path}");
        }
    }

    #[test]
    fn without_an_own_group_that_for_all_holds_and_without_rules_all_is_allowed() {
        assert!(!allows("User-agent: *\nDisallow: /a", "/a"));
        assert!(allows("User-agent: *\nDisallow: /a", "/b"));
        assert!(allows("User-agent: other\nDisallow: /", "/a"));
        assert!(allows("", "/a"));
        assert!(allows("<html>not found</html>", "/a"));
        assert!(allows("User-agent: *\nDisallow: /\nUser-agent: toolbus\nDisallow:", "/a"));
        assert!(!Robots::nothing().allows(&Url::parse("https://a.example/x").unwrap()));
    }

    #[test]
    fn rules_of_many_sites_leave_when_they_take_too_much() {
        let robots = Arc::new(Robots::parse(&format!("User-agent: *\nDisallow: /{}", "a".repeat(1 << 20))));
        let until = Clock::SYSTEM.now() + LIFETIME;
        let cache = RobotsCache::default();
        for site in 0..100 {
            cache.0.lock().put(format!("https://{}.example", site % 50), until, Arc::clone(&robots));
        }
        let mut kept = cache.0.lock();
        assert!(kept.get("https://49.example").is_some() && kept.get("https://0.example").is_none());
        assert!(kept.by_site.len() == 15 && kept.bytes <= MAX_KEPT, "{} {}", kept.by_site.len(), kept.bytes);
        kept.put("https://49.example".to_owned(), until, Arc::default());
        assert!(kept.by_site.len() == 15 && kept.bytes < 15 << 20, "{}", kept.bytes);
    }

    #[test]
    fn many_rules_with_stars_are_read_up_to_a_limit_and_matched_in_little_time() {
        let rule = |number: usize| format!("Disallow: /{}x{number}\n", "*a".repeat(30));
        let robots = Robots::parse(&format!("User-agent: *\n{}", (0..6000).map(rule).collect::<String>()));
        assert_eq!(robots.0.len(), MAX_RULES);
        let url = Url::parse(&format!("https://a.example/{}", "a".repeat(8000))).unwrap();
        let began = Clock::SYSTEM.now();
        assert!(robots.allows(&url));
        if std::env::var_os("TOOLBUS_LAB").is_some() {
            assert!(Clock::SYSTEM.since(began) < Duration::from_millis(200), "{:?}", Clock::SYSTEM.since(began));
        }
    }

    #[test]
    fn of_two_rules_as_long_the_one_that_allows_decides() {
        assert!(allows("User-agent: *\nDisallow: /a\nAllow: /a", "/a"));
        assert!(allows("User-agent: *\nAllow: /*/b\nDisallow: /a/", "/a/b"));
    }
}
