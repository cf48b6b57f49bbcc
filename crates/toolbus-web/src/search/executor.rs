//! The tool `web_search`.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use serde_json::{Value, json};
use toolbus_core::Clock;
use toolbus_core::events::{WebEvents, WebSearch};
use toolbus_core::failure::{Effect, ToolFailure};
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_outbound::HttpClient;
use toolbus_trust::text;

use super::SearchResult;
use super::engine::{SearchEngine, SearchError};
use super::provider::SearchProvider;
use crate::{MARGIN, SOURCE};

/// Name of the tool.
pub(crate) const NAME: &str = "web_search";
const DEFAULT_COUNT: usize = 5;
const MAX_COUNT: usize = 20;
/// Longest query, in characters: what engines take.
const MAX_QUERY: usize = 400;
/// Longest title and snippet, in bytes.
const MAX_TITLE: usize = 300;
const MAX_SNIPPET: usize = 1000;
/// Longest tag that is taken out of them, in bytes.
const MAX_TAG: usize = 32;
/// Responses that are kept, and how long.
const CACHED: NonZeroUsize = NonZeroUsize::new(256).unwrap();
const LIFETIME: Duration = Duration::from_secs(60);

/// Makes the tool.
pub(crate) fn tool(providers: &[SearchProvider], client: &HttpClient, events: Arc<dyn WebEvents>) -> Tool {
    let engines = providers.iter().map(|provider| SearchEngine::new(provider.clone(), client.clone())).collect();
    let descriptor = ToolDescriptor {
        description: "Searches the web. Returns titles, addresses and short texts of the best results; read one with \
                      web_browse."
            .to_owned(),
        parameters: Some(Arc::new(json!({
            "type": "object",
            "properties": {
                "query": {"type": "string", "minLength": 1, "maxLength": MAX_QUERY, "description": "What to search for."},
                "count": {
                    "type": "integer", "minimum": 1, "maximum": MAX_COUNT,
                    "description": format!("Number of results, {DEFAULT_COUNT} by default."),
                },
            },
            "required": ["query"],
            "additionalProperties": false,
        }))),
        effect: Effect::ReadOnly,
        ..ToolDescriptor::new(NAME, SOURCE, SOURCE)
    };
    Tool::new(descriptor, SearchExecutor::new(engines, events))
}

type SearchKey = (String, usize);
type KeptResults = (Instant, Arc<[SearchResult]>);

pub(super) struct SearchExecutor {
    engines: Vec<SearchEngine>,
    events: Arc<dyn WebEvents>,
    /// By query and count: until when they are kept, and the results.
    kept: Mutex<LruCache<SearchKey, KeptResults>>,
}

impl SearchExecutor {
    pub(super) fn new(engines: Vec<SearchEngine>, events: Arc<dyn WebEvents>) -> Self {
        Self { engines, events, kept: Mutex::new(LruCache::new(CACHED)) }
    }

    async fn search(&self, query: &str, count: usize, until: Instant) -> Result<Vec<SearchResult>, Vec<SearchError>> {
        let mut errors = Vec::new();
        for (left, engine) in (1..=self.engines.len()).rev().zip(&self.engines) {
            // An engine that does not respond leaves the next its share.
            let now = Clock::SYSTEM.now();
            let share = until.saturating_duration_since(now) / u32::try_from(left).unwrap_or(u32::MAX);
            let found = engine.search(query, count, now + share).await;
            let outcome = found.as_ref().err().map_or("ok", SearchError::outcome);
            self.events.searched(&WebSearch { provider: engine.provider.kind(), outcome });
            match found {
                Ok(results) => return Ok(results),
                Err(error) => {
                    tracing::warn!(provider = engine.provider.name(), %error, "a search engine has no results");
                    errors.push(error);
                }
            }
        }
        Err(errors)
    }
}

impl Executor for SearchExecutor {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let query =
            call.arguments.get("query").and_then(Value::as_str).map(str::trim).filter(|query| !query.is_empty());
        let query = query.ok_or_else(|| ToolFailure::invalid("Missing required argument: query"))?;
        let count = call.arguments.get("count").and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok());
        let count = count.unwrap_or(DEFAULT_COUNT).clamp(1, MAX_COUNT);
        let key = (query.to_owned(), count);
        let now = Clock::SYSTEM.now();
        let known =
            self.kept.lock().get(&key).filter(|(until, _)| *until > now).map(|(_, results)| Arc::clone(results));
        if let Some(known) = known {
            return Ok(output(&known));
        }
        let until = call.deadline.checked_sub(MARGIN).unwrap_or(call.deadline);
        match self.search(query, count, until).await {
            Ok(results) => {
                let results: Arc<[_]> = results.iter().map(SearchResult::cleaned).collect();
                self.kept.lock().put(key, (Clock::SYSTEM.now() + LIFETIME, Arc::clone(&results)));
                Ok(output(&results))
            }
            Err(errors) => {
                let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
                Ok(ToolOutput::error(format!("Search failed: {}.", errors.join("; "))))
            }
        }
    }
}

impl SearchResult {
    /// The same without what engines mark words with, and not too long.
    fn cleaned(&self) -> Self {
        Self {
            title: plain(&self.title, MAX_TITLE),
            url: text::clean(&self.url.replace(' ', "%20"), MAX_SNIPPET).text.replace(char::is_whitespace, ""),
            snippet: plain(&self.snippet, MAX_SNIPPET),
        }
    }
}

/// The results as text, and as `{"results": […]}` for programs and pipelines.
fn output(results: &[SearchResult]) -> ToolOutput {
    let structured = results
        .iter()
        .map(|SearchResult { title, url, snippet }| json!({"title": title, "url": url, "snippet": snippet}));
    let structured = json!({"results": structured.collect::<Vec<_>>()});
    ToolOutput { structured: Some(Box::new(structured)), ..ToolOutput::text(shown(results)) }
}

/// `1. [Title](url) — Snippet`, a line for each.
fn shown(results: &[SearchResult]) -> String {
    if results.is_empty() {
        return "No results found.".to_owned();
    }
    let mut lines = String::new();
    for (index, SearchResult { title, url, snippet }) in results.iter().enumerate() {
        let title = title.replace('[', "(").replace(']', ")");
        let url = url.replace('(', "%28").replace(')', "%29");
        let _ = write!(lines, "{}. [{title}]({url})", index + 1);
        if !snippet.is_empty() {
            let _ = write!(lines, " — {snippet}");
        }
        lines.push('\n');
    }
    lines.truncate(lines.trim_end().len());
    lines
}

/// One line without the tags and references that engines mark words with.
fn plain(marked: &str, limit: usize) -> String {
    let mut plain = String::with_capacity(marked.len());
    let mut rest = marked;
    while let Some((before, after)) = rest.split_once('<') {
        plain.push_str(before);
        // Looked for in the length of a tag alone: a text of nothing but signs must not take time by its square.
        let start = after.get(..after.floor_char_boundary(MAX_TAG)).unwrap_or_default();
        match start.find('>').and_then(|end| Some((start.get(..end)?, after.get(end + 1..)?))) {
            Some((tag, after)) if tag.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/') => {
                rest = after;
            }
            _ => {
                plain.push('<');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    let references = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#x27;", "'"), ("&#39;", "'"), ("&amp;", "&")];
    let plain = references.iter().fold(plain, |text, (reference, character)| text.replace(reference, character));
    let clean = text::clean(&plain, limit).text;
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tags_go_and_signs_that_are_none_stay() {
        let table = [
            ("a <strong>b</strong>&amp;c", "a b&c"),
            ("1 < 2 > 3 <4>", "1 < 2 > 3 <4>"),
            ("<a-tag-that-is-longer-than-thirty-two-bytes>", "<a-tag-that-is-longer-than-thirty-two-bytes>"),
            ("x<<b>>y<", "x<>y<"),
            ("<キー>", "<キー>"),
            ("&amp;lt;", "&lt;"),
        ];
        for (marked, expected) in table {
            assert_eq!(plain(marked, MAX_SNIPPET), expected, "{marked}");
        }
        assert!(plain(&"<".repeat(4 << 20), MAX_TITLE).starts_with("<<<"));
    }

    proptest! {
        #[test]
        fn any_result_is_one_line(title in ".{0,60}", url in ".{0,60}", snippet in ".{0,60}") {
            let engine = serde_json::from_value::<SearchProvider>(json!({"provider": "json", "url": "http://a.example"}));
            let response = json!({"results": [{"title": title, "url": url, "snippet": snippet}]});
            let results: Vec<_> = engine.unwrap().results(&response, 1).unwrap().iter().map(SearchResult::cleaned).collect();
            let shown = shown(&results);
            prop_assert!(!shown.contains(['\n', '\r', '\u{85}', '\u{2028}']), "{}", shown);
        }
    }
}
