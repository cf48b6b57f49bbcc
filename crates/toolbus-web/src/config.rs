//! `[web]`: searching the web, and reading pages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::{ByteSize, HumanDuration, Secret};

use crate::search::SearchProvider;

/// Searching the web, and reading pages. Without this section there are no web tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WebConfig {
    /// Search engines, in order of preference: the next one is asked when one fails. Without any there is no `web_search`.
    #[schemars(length(max = 16))]
    pub search: Vec<SearchProvider>,
    /// Reading pages.
    pub browse: BrowseConfig,
    /// Token for issues, pull requests and files of GitHub; absent: as a visitor, with fewer requests per hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub github_token: Option<Secret>,
    /// Address of GitHub's API; absent: that of github.com.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "toolbus-http-url"))]
    pub github_api: Option<String>,
}

/// Reading pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BrowseConfig {
    /// Longest page that is answered as it is, in characters. A longer one is kept in working memory, in chunks, or cut off
    /// here where that cannot be.
    #[schemars(range(min = 1000))]
    pub chunking_threshold: usize,
    /// Longest chunk, in characters.
    #[schemars(range(min = 500))]
    pub chunk_max: usize,
    /// Time for which chunks are kept; at most 24 h.
    pub chunk_ttl: HumanDuration,
    /// Most bytes that are read of a page, after decompression.
    pub max_page: ByteSize,
    /// Longest time for one page.
    pub timeout: HumanDuration,
    /// Most redirects of one page.
    #[schemars(range(max = 20))]
    pub max_redirects: usize,
    /// Pages that are kept to ask whether they have changed, in bytes.
    pub cache: ByteSize,
    /// Whether `robots.txt` of a site decides what is read.
    pub robots: bool,
    /// Time between two requests to one host; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spacing: Option<HumanDuration>,
    /// Name by which sites know the daemon; absent: `toolbus/VERSION`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub user_agent: Option<String>,
}

impl Default for BrowseConfig {
    fn default() -> Self {
        Self {
            chunking_threshold: 8000,
            chunk_max: 8000,
            chunk_ttl: HumanDuration::from_secs(30 * 60),
            max_page: ByteSize::from_mib(10),
            timeout: HumanDuration::from_secs(20),
            max_redirects: 5,
            cache: ByteSize::from_mib(16),
            robots: false,
            spacing: None,
            user_agent: None,
        }
    }
}
