//! Results that are too long for a model: when they are split, and what splits them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::caller::Caller;
use crate::pattern::Pattern;

/// The tool that reads what a result is split into. A caller that cannot use it gets the beginning of the result.
pub const READER: &str = "get_from_working_memory";
/// The source of [`READER`], whose own results are never split.
pub const READER_SOURCE: &str = "memory";
/// Parts of a result that have a link of their own, for MCP clients. The outline names all.
const MAX_LINKED: usize = 200;

/// When results are split, and by what.
#[derive(Debug, Clone)]
pub struct ResultSettings {
    /// Length above which a result is split, in characters; 0: none is.
    pub threshold: usize,
    /// The same for callers whose model has such a name: of several patterns, the one that fixes most of it counts.
    pub models: Vec<(Pattern, usize)>,
    /// The same for requests on these topics, whatever their model is.
    pub topics: BTreeMap<String, usize>,
    /// Splits them.
    pub splitter: Arc<dyn ResultSplitter>,
}

impl ResultSettings {
    /// Length above which the result of a call is split, in characters.
    pub(crate) fn threshold<'a>(&self, topic: Option<&str>, model: impl FnOnce() -> Option<&'a str>) -> Option<usize> {
        let of_topic = topic.and_then(|topic| self.topics.get(topic)).copied();
        let of_model = || {
            let name = if self.models.is_empty() { None } else { model() }?;
            let matching = self.models.iter().filter(|(pattern, _)| pattern.matches(name));
            matching.max_by_key(|(pattern, _)| pattern.specificity()).map(|(_, threshold)| *threshold)
        };
        Some(of_topic.or_else(of_model).unwrap_or(self.threshold)).filter(|threshold| *threshold > 0)
    }
}

/// Splits results, and keeps the parts where their caller can read them.
pub trait ResultSplitter: fmt::Debug + Send + Sync + 'static {
    /// Splits a result. The parts are there once this has returned: all of them or, after an error, none.
    ///
    /// What takes long is done before the future is polled.
    ///
    /// # Errors
    ///
    /// If the parts cannot be kept, with the reason for the log.
    fn split(&self, result: LongResult) -> BoxFuture<'_, Result<SplitResult, String>>;
}

/// A result that is too long.
#[derive(Debug, Clone)]
pub struct LongResult {
    /// Whose it is.
    pub caller: Arc<Caller>,
    /// The tool, as its caller names it.
    pub tool: Arc<str>,
    /// Distinguishes it from other results of the tool.
    pub run: String,
    /// Its text.
    pub text: Arc<str>,
    /// Length of its longest part, in characters.
    pub max: usize,
}

/// What stands for a result that was split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitResult {
    /// What a model is shown.
    pub text: String,
    /// The parts, in order.
    pub parts: Vec<ResultPart>,
}

/// A part of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultPart {
    /// Its key in working memory.
    pub key: Arc<str>,
    /// What it is about.
    pub heading: String,
}

impl SplitResult {
    /// The parts that an MCP client is given links to.
    pub(crate) fn linked(&self) -> impl Iterator<Item = &ResultPart> {
        self.parts.iter().take(MAX_LINKED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Unused;

    impl ResultSplitter for Unused {
        fn split(&self, _: LongResult) -> BoxFuture<'_, Result<SplitResult, String>> {
            unreachable!("no result is split in this test")
        }
    }

    #[test]
    fn the_topic_decides_then_the_model_then_the_default() {
        let pattern = |text: &str| Pattern::parse(text).unwrap();
        let settings = ResultSettings {
            threshold: 64_000,
            models: vec![
                (pattern("openrouter/*"), 32_000),
                (pattern("openrouter/deepseek*"), 16_000),
                (pattern("big"), 0),
            ],
            topics: [("tool.invoke.mcp".to_owned(), 0), ("short".to_owned(), 100)].into(),
            splitter: Arc::new(Unused),
        };
        for (topic, model, expected) in [
            (Some("tool.invoke"), None, Some(64_000)),
            (None, None, Some(64_000)),
            (Some("tool.invoke"), Some("openrouter/deepseek-v3"), Some(16_000)),
            (Some("tool.invoke"), Some("openrouter/x"), Some(32_000)),
            (Some("tool.invoke"), Some("other"), Some(64_000)),
            (Some("tool.invoke"), Some("big"), None),
            (Some("tool.invoke.mcp"), Some("openrouter/x"), None),
            (Some("short"), Some("openrouter/x"), Some(100)),
        ] {
            assert_eq!(settings.threshold(topic, || model), expected, "{topic:?} {model:?}");
        }
        assert_eq!(ResultSettings { threshold: 0, ..settings }.threshold(None, || None), None);
    }
}
