//! Fetches a page: redirects, limits, the cache, `robots.txt`, and the time between requests to one host.

mod cache;
mod robots;
mod spacing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::header::{ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use toolbus_config::HumanDuration;
use toolbus_core::Clock;
use toolbus_core::tool::rounded_text;
use toolbus_outbound::egress::{Egress, EgressError, HostLists, Refusal, next_hop};
use toolbus_outbound::read_growing;
use url::Url;

use self::cache::{PageCache, is_unchanged};
use self::robots::RobotsCache;
use self::spacing::HostSpacing;
use crate::config::BrowseConfig;
use crate::page::RawPage;
use crate::slots::{FairSlots, Slot};

/// Preferred forms of a page that exists in several forms.
const ACCEPTED: HeaderValue = HeaderValue::from_static(
    "text/html,application/xhtml+xml,text/markdown;q=0.9,text/*;q=0.8,application/json;q=0.8,*/*;q=0.5",
);
/// Bytes of a page above which it takes a slot.
const SMALL_PAGE: usize = 64 * 1024;
/// Larger pages that are in memory at a time, of one owner and of all.
const LARGE_PAGES: (usize, usize) = (2, 6);
const LANGUAGE: HeaderValue = HeaderValue::from_static("en;q=0.9,*;q=0.5");

/// Fetches pages of hosts that the rules allow.
#[derive(Debug)]
pub(crate) struct Fetcher {
    egress: Egress,
    cache: PageCache,
    robots: Option<RobotsCache>,
    spacing: Option<HostSpacing>,
    large_pages: FairSlots,
    /// Bytes.
    max_page: usize,
    max_redirects: usize,
}

/// A page that was fetched.
#[derive(Debug)]
pub(crate) struct FetchedPage {
    pub(crate) page: RawPage,
    /// Whether the page was kept, and its site has responded that it is unchanged.
    pub(crate) is_unchanged: bool,
    /// Held while the page, or its Markdown, is in memory; absent for a small page.
    pub(crate) slot: Option<Slot>,
}

/// Reason why there is no page.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The rules refuse it.
    #[error("{0}")]
    Refused(Refusal),
    /// The rules refuse the target of its redirect.
    #[error("it redirects to an address that may not be reached: {0}")]
    RefusedAfterRedirect(Refusal),
    /// `robots.txt` refuses it.
    #[error("the robots.txt of `{0}` does not allow this page to automatic readers")]
    Robots(String),
    /// The last request to the host is too recent.
    #[error("requests to `{host}` are spaced, and the next one is too late for this call")]
    Spaced { host: String, wait: Duration },
    /// Too many redirects, or a loop.
    #[error("it redirects more than {0} times")]
    TooManyRedirects(usize),
    /// The target of a redirect cannot be read.
    #[error("it redirects to no usable address")]
    BadRedirect,
    /// The name has no address.
    #[error("the host name is not known")]
    UnknownHost,
    /// No connection.
    #[error("no connection to the host could be made")]
    Connect,
    /// The connection was lost, or what came is no HTTP.
    #[error("the connection was lost, or the response is damaged")]
    Lost,
    /// An error of the site.
    #[error("HTTP {status}{}", .retry_after.map_or_else(String::new, |wait| format!(", try again after {}", rounded_text(wait))))]
    Status { status: StatusCode, retry_after: Option<Duration> },
    /// The time is over.
    #[error("it was not complete within the time of the call")]
    Timeout,
}

impl Fetcher {
    pub(crate) fn new(config: &BrowseConfig, egress: Egress) -> Self {
        let bytes = |size: toolbus_config::ByteSize| usize::try_from(size.bytes()).unwrap_or(usize::MAX);
        Self {
            egress,
            cache: PageCache::new(bytes(config.cache)),
            robots: config.robots.then(RobotsCache::default),
            spacing: config.spacing.map(HumanDuration::get).map(HostSpacing::new),
            large_pages: FairSlots::new(LARGE_PAGES.0, LARGE_PAGES.1),
            max_page: bytes(config.max_page),
            max_redirects: config.max_redirects,
        }
    }

    pub(crate) const fn egress(&self) -> &Egress {
        &self.egress
    }

    /// A slot for a large page of an owner.
    pub(crate) async fn slot(&self, owner: &Arc<str>) -> Slot {
        self.large_pages.take(owner).await
    }

    /// Fetches a page for an agent with these lists, which the owner's name stands for where pages take turns.
    ///
    /// # Errors
    ///
    /// If there is no whole page with status 200 by `until`.
    pub(crate) async fn get(
        &self,
        url: &Url,
        lists: &HostLists,
        owner: &Arc<str>,
        until: Instant,
    ) -> Result<FetchedPage, FetchError> {
        let mut url = url.clone();
        for followed in 0..=self.max_redirects {
            let is_first = followed == 0;
            // Before anything waits or is sent for it.
            let target = self.egress.rules().check_url(&url, lists).map_err(|refusal| refused(refusal, is_first))?;
            if let Some(robots) = &self.robots {
                let allowed = robots.allows(&self.egress, &url, lists);
                if !within(until, allowed).await?.map_err(|error| FetchError::of(error, is_first))? {
                    return Err(FetchError::Robots(target.host));
                }
            }
            if let Some(spacing) = &self.spacing {
                spacing.wait(&target.host, until).await?;
            }
            let known = self.cache.get(&url);
            let mut headers = HeaderMap::from_iter([(ACCEPT, ACCEPTED), (ACCEPT_LANGUAGE, LANGUAGE)]);
            if let Some(known) = &known {
                known.ask(&mut headers);
            }
            let response = within(until, self.egress.get(&url, headers, lists)).await?;
            let response = response.map_err(|error| FetchError::of(error, is_first))?;
            match next_hop(&response) {
                Some(next) => {
                    let next = next.map_err(|_| FetchError::BadRedirect)?;
                    let fragment = url.fragment().map(str::to_owned);
                    url = next;
                    if url.fragment().is_none() {
                        url.set_fragment(fragment.as_deref());
                    }
                }
                None => {
                    if let Some(known) = known.filter(|_| is_unchanged(&response)) {
                        let is_small = known.len() <= SMALL_PAGE;
                        let slot = if is_small { None } else { Some(within(until, self.slot(owner)).await?) };
                        return Ok(FetchedPage { page: known.page(url), is_unchanged: true, slot });
                    }
                    let (page, slot) = within(until, self.read(url, response, owner)).await??;
                    return Ok(FetchedPage { page, is_unchanged: false, slot });
                }
            }
        }
        Err(FetchError::TooManyRedirects(self.max_redirects))
    }

    async fn read(
        &self,
        url: Url,
        mut response: Response,
        owner: &Arc<str>,
    ) -> Result<(RawPage, Option<Slot>), FetchError> {
        let status = response.status();
        if !status.is_success() {
            return Err(FetchError::Status { status, retry_after: retry_after(response.headers()) });
        }
        let mut slot = None;
        let grow = async {
            slot = Some(self.slot(owner).await);
            self.max_page
        };
        let read = read_growing(&mut response, SMALL_PAGE.min(self.max_page), grow).await;
        let (body, is_whole) = read.map_err(|_| FetchError::Lost)?;
        let content_type = response.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let content_type = String::from_utf8_lossy(content_type).into_owned();
        let page = RawPage { url, content_type, body, is_cut: !is_whole };
        if is_whole && status == StatusCode::OK {
            self.cache.put(&page, response.headers());
        }
        Ok((page, slot))
    }
}

impl FetchError {
    /// Returns the outcome of the fetch, as telemetry names it.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Refused(_) | Self::RefusedAfterRedirect(_) => "refused",
            Self::Robots(_) => "robots",
            Self::Spaced { .. } => "spaced",
            Self::TooManyRedirects(_) | Self::BadRedirect => "redirects",
            Self::UnknownHost | Self::Connect | Self::Lost => "unreachable",
            Self::Status { status, .. } if status.is_client_error() => "http_4xx",
            Self::Status { status, .. } if status.is_server_error() => "http_5xx",
            Self::Status { .. } => "http_other",
            Self::Timeout => "timeout",
        }
    }

    /// Refusal of the egress rules, if it is one.
    pub(crate) const fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) | Self::RefusedAfterRedirect(refusal) => Some(refusal),
            _ => None,
        }
    }

    fn of(error: EgressError, is_first: bool) -> Self {
        match error {
            EgressError::Refused(refusal) => refused(refusal, is_first),
            EgressError::Redirect => Self::BadRedirect,
            EgressError::UnknownHost => Self::UnknownHost,
            EgressError::Failed(error) if error.is_connect() => Self::Connect,
            EgressError::Failed(_) | EgressError::Client(_) => Self::Lost,
        }
    }
}

const fn refused(refusal: Refusal, is_first: bool) -> FetchError {
    if is_first { FetchError::Refused(refusal) } else { FetchError::RefusedAfterRedirect(refusal) }
}

/// Ends what does not end in time.
async fn within<T>(until: Instant, task: impl Future<Output = T>) -> Result<T, FetchError> {
    tokio::time::timeout_at(until.into(), task).await.map_err(|_| FetchError::Timeout)
}

/// Returns the time that a server requests to wait: seconds, or until a date.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
    let now = jiff::Timestamp::try_from(Clock::SYSTEM.wall()).ok()?;
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}
