//! Search engines in the configuration: the request to each, and the position of its results.

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{Method, Request};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use toolbus_config::Secret;
use url::Url;

use super::SearchResult;

const BRAVE: &str = "https://api.search.brave.com/res/v1/web/search";
const TAVILY: &str = "https://api.tavily.com/search";
/// Placeholders that a URL of a generic engine has for the query, and for the number of results.
const QUERY: &str = "{query}";
const COUNT: &str = "{count}";
/// Number of unresponsive engines that an error names.
const MAX_SILENT: usize = 4;

/// A search engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "provider", rename_all = "lowercase", deny_unknown_fields)]
pub enum SearchProvider {
    /// Brave Search.
    Brave {
        /// The subscription token.
        key: Secret,
        /// Address of the API; absent: Brave's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(extend("format" = "toolbus-http-url"))]
        url: Option<String>,
    },
    /// An instance of SearXNG that serves the format `json`.
    Searxng {
        /// Address of the instance.
        #[schemars(extend("format" = "toolbus-http-url"))]
        url: String,
    },
    /// Tavily.
    Tavily {
        /// The API key.
        key: Secret,
        /// Address of the API; absent: Tavily's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(extend("format" = "toolbus-http-url"))]
        url: Option<String>,
    },
    /// Any endpoint that answers a GET with JSON.
    Json {
        /// Address, with `{query}` and perhaps `{count}` in its query: `https://host/search?q={query}&n={count}`.
        #[schemars(extend("format" = "toolbus-search-url"))]
        url: String,
        /// Headers of every request; a value may be a secret.
        #[serde(default)]
        #[schemars(extend("maxProperties" = 64))]
        headers: BTreeMap<String, Secret>,
        /// Where results are in the response.
        #[serde(default)]
        results: JsonResults,
    },
}

/// Where results are in a response of JSON, by JSON pointers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JsonResults {
    /// The list of results, from the top.
    pub list: String,
    /// The title, from a result.
    pub title: String,
    /// The address, from a result.
    pub url: String,
    /// The text, from a result.
    pub snippet: String,
}

impl Default for JsonResults {
    fn default() -> Self {
        Self::at("/results", "/title", "/url", "/snippet")
    }
}

impl JsonResults {
    fn at(list: &str, title: &str, url: &str, snippet: &str) -> Self {
        Self { list: list.to_owned(), title: title.to_owned(), url: url.to_owned(), snippet: snippet.to_owned() }
    }

    /// The results that have a title and an address; `None` if there is no list.
    fn read(&self, response: &Value, count: usize) -> Option<Vec<SearchResult>> {
        let text = |result: &Value, at: &str| {
            let text = result.pointer(at).and_then(Value::as_str).unwrap_or_default();
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let results = response.pointer(&self.list)?.as_array()?.iter().map(|result| SearchResult {
            title: text(result, &self.title),
            url: text(result, &self.url),
            snippet: text(result, &self.snippet),
        });
        Some(results.filter(|result| !result.title.is_empty() && !result.url.is_empty()).take(count).collect())
    }
}

impl SearchProvider {
    /// The name, as messages have it.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Brave { .. } => "Brave",
            Self::Searxng { .. } => "SearXNG",
            Self::Tavily { .. } => "Tavily",
            Self::Json { .. } => "the search endpoint",
        }
    }

    /// The kind, as the configuration and telemetry name it.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Brave { .. } => "brave",
            Self::Searxng { .. } => "searxng",
            Self::Tavily { .. } => "tavily",
            Self::Json { .. } => "json",
        }
    }

    /// Whether a key is needed and is not there.
    pub(super) fn lacks_key(&self) -> bool {
        match self {
            Self::Brave { key, .. } | Self::Tavily { key, .. } => key.expose().trim().is_empty(),
            Self::Searxng { .. } | Self::Json { .. } => false,
        }
    }

    /// The request for a query; `None` if a setting is none that can be sent, which the check of the configuration refuses.
    pub(super) fn request(&self, query: &str, count: usize) -> Option<Request> {
        let number = count.to_string();
        let request = match self {
            Self::Brave { key, url } => {
                let mut address = Url::parse(url.as_deref().unwrap_or(BRAVE)).ok()?;
                address.query_pairs_mut().append_pair("q", query).append_pair("count", &number);
                let mut request = Request::new(Method::GET, spaces_escaped(address));
                request.headers_mut().insert(HeaderName::from_static("x-subscription-token"), secret(key.expose())?);
                request
            }
            Self::Searxng { url } => {
                let mut address = Url::parse(url).ok()?;
                let path = format!("{}/search", address.path().trim_end_matches('/'));
                address.set_path(&path);
                address.query_pairs_mut().append_pair("q", query).append_pair("format", "json");
                Request::new(Method::GET, spaces_escaped(address))
            }
            Self::Tavily { key, url } => {
                let mut request = Request::new(Method::POST, Url::parse(url.as_deref().unwrap_or(TAVILY)).ok()?);
                let body = json!({"query": query, "max_results": count, "search_depth": "basic"});
                *request.body_mut() = Some(body.to_string().into());
                let bearer = format!("Bearer {}", key.expose().trim());
                request.headers_mut().insert(AUTHORIZATION, secret(&bearer)?);
                request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                request
            }
            Self::Json { url, headers, .. } => {
                let query =
                    percent_encoding::utf8_percent_encode(query, percent_encoding::NON_ALPHANUMERIC).to_string();
                let address = url.replace(QUERY, &query).replace(COUNT, &number);
                let mut request = Request::new(Method::GET, Url::parse(&address).ok()?);
                *request.headers_mut() = toolbus_outbound::headers::with_configured(None, headers).ok()?;
                request
            }
        };
        let mut request = request;
        request.headers_mut().entry(ACCEPT).or_insert(HeaderValue::from_static("application/json"));
        Some(request)
    }

    /// Whether an instance of it may not serve JSON.
    pub(super) const fn has_formats(&self) -> bool {
        matches!(self, Self::Searxng { .. })
    }

    /// Unresponsive engines behind it, with the reasons: `brave: too many requests`.
    pub(super) fn silent(&self, response: &Value) -> Option<String> {
        let Self::Searxng { .. } = self else { return None };
        let engines = response.get("unresponsive_engines")?.as_array()?.iter().take(MAX_SILENT).map(|engine| {
            let words = engine.as_array().map(Vec::as_slice).unwrap_or_default();
            words.iter().take(2).filter_map(Value::as_str).collect::<Vec<_>>().join(": ")
        });
        Some(engines.collect::<Vec<_>>().join(", ")).filter(|silent| !silent.is_empty())
    }

    /// The results of a response; `None` if it has none, not even an empty list.
    pub(super) fn results(&self, response: &Value, count: usize) -> Option<Vec<SearchResult>> {
        match self {
            // Brave leaves `web` out when nothing was found.
            Self::Brave { .. } if response.get("web").is_none() => {
                (response.get("type").and_then(Value::as_str) == Some("search")).then(Vec::new)
            }
            Self::Brave { .. } => {
                JsonResults::at("/web/results", "/title", "/url", "/description").read(response, count)
            }
            Self::Searxng { .. } | Self::Tavily { .. } => {
                JsonResults::at("/results", "/title", "/url", "/content").read(response, count)
            }
            Self::Json { results, .. } => results.read(response, count),
        }
    }
}

/// A query in which spaces are `%20`, as peers send it.
fn spaces_escaped(mut url: Url) -> Url {
    let query = url.query().map(|query| query.replace('+', "%20"));
    url.set_query(query.as_deref());
    url
}

fn secret(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value.trim()).ok()?;
    value.set_sensitive(true);
    Some(value)
}
