//! Results that are too long for a model: when they are split, what splits them, and how large they may be.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::caller::Caller;
use crate::failure::{Cause, ToolFailure};
use crate::pattern::Pattern;

/// The tool that reads what a result is split into. A caller that cannot use it gets the beginning of the result.
pub const READER: &str = "get_from_working_memory";
/// Suffix of the names of working memory's tools.
pub const MEMORY_TOOLS: &str = "_working_memory";
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
    /// Room for those that are larger than what executors take by themselves.
    pub budget: ResultBudget,
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

/// Room for large results, of all calls together. Executors take results up to limits of their own without it. Cheap to
/// clone.
#[derive(Debug, Clone)]
pub struct ResultBudget {
    max_size: usize,
    /// A permit is a unit.
    room: Arc<Semaphore>,
}

/// Bytes of a unit of a budget.
const UNIT: usize = 1024;

impl ResultBudget {
    /// Room for results of at most `max_size` bytes each, and of `max_total` bytes together, or of one if that is more.
    #[must_use]
    pub fn new(max_size: u64, max_total: u64) -> Self {
        let [max_size, max_total] = [max_size, max_total].map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let max_size = max_size.min(UNIT * 1_000_000);
        Self { max_size, room: Arc::new(Semaphore::new(max_total.max(max_size).div_ceil(UNIT).min(1_000_000_000))) }
    }

    /// Bytes of the largest result.
    #[must_use]
    pub const fn max_size(&self) -> usize {
        self.max_size
    }

    /// Waits for room for the largest result, which is free again when what this returns is dropped.
    pub async fn reserve(&self) -> ReservedRoom {
        ReservedRoom(Arc::clone(&self.room).acquire_many_owned(units(self.max_size)).await.ok())
    }

    /// The room of a call, which has none yet.
    #[must_use]
    pub fn room(&self) -> ResultRoom {
        ResultRoom { budget: self.clone(), taken: Arc::default() }
    }
}

/// Room that something has.
#[derive(Debug)]
#[must_use]
pub struct ReservedRoom(Option<OwnedSemaphorePermit>);

/// Room for the result of one call. Clones are of the same call; what it has is free again when the last one is
/// dropped.
#[derive(Debug, Clone)]
pub struct ResultRoom {
    budget: ResultBudget,
    taken: Arc<Mutex<Option<ReservedRoom>>>,
}

impl ResultRoom {
    /// Bytes of the largest result.
    #[must_use]
    pub const fn max_size(&self) -> usize {
        self.budget.max_size
    }

    /// Waits for room for the largest result.
    pub async fn reserve(&self) {
        let room = self.budget.reserve().await;
        *self.taken.lock() = Some(room);
    }

    /// Gives back what a result of so many bytes does not need.
    pub fn shrink(&self, bytes: usize) {
        if let Some(ReservedRoom(Some(room))) = self.taken.lock().as_mut() {
            let unused = room.num_permits().saturating_sub(units(bytes) as usize);
            drop(room.split(unused));
        }
    }

    /// Takes room for a result that has been read already.
    ///
    /// # Errors
    ///
    /// If it is larger than results may be, or there is no room for it now.
    pub fn take(&self, tool: &str, bytes: usize) -> Result<(), ToolFailure> {
        if bytes > self.max_size() {
            return Err(too_large(tool, self.max_size()));
        }
        let room = Arc::clone(&self.budget.room).try_acquire_many_owned(units(bytes)).map_err(|_| {
            let text =
                format!("The result of tool '{tool}' is large, and too many others are in work. Try again later.");
            // Not `Overloaded`, which means that nothing has begun: the tool has run.
            ToolFailure::new(Cause::Unavailable, text)
        })?;
        *self.taken.lock() = Some(ReservedRoom(Some(room)));
        Ok(())
    }
}

/// The failure of a tool with a result of more than `limit` bytes.
#[must_use]
pub fn too_large(tool: &str, limit: usize) -> ToolFailure {
    let text = format!("Tool '{tool}' answered with more than the {limit} bytes that are allowed. Ask for less.");
    ToolFailure::new(Cause::ResultTooLarge, text)
}

/// Units of so many bytes.
fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

/// Splits results, and keeps the parts where their caller can read them.
pub trait ResultSplitter: fmt::Debug + Send + Sync + 'static {
    /// Splits a result. The parts are there once the future has ended: all of them or, after an error, none.
    ///
    /// What takes long is done before the future is polled, in a [turn](crate::turns).
    ///
    /// # Errors
    ///
    /// If the parts cannot be kept, with the reason for the log.
    fn split(&self, result: LongResult) -> BoxFuture<'static, Result<SplitResult, String>>;
}

/// Splitting of a tool's results, instead of the configuration's.
///
/// A caller that cannot read parts, or whose parts cannot be kept, gets the first `threshold` characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitRule {
    /// Length above which it is split, in characters.
    pub threshold: usize,
    /// Length of its longest part, in characters.
    pub max: usize,
    /// Time that the parts are kept.
    pub ttl: Duration,
    /// Prefix of the parts' keys, after the namespace. Parts replace earlier ones of the same stem.
    pub stem: String,
    /// The category of its parts.
    pub category: &'static str,
    /// Beginning of the text before the table: what must be known of the result, and its name.
    pub subject: String,
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
    /// Text of the result.
    pub text: String,
    /// Length of its longest part, in characters.
    pub max: usize,
    /// Rule of its tool for splitting.
    pub rule: Option<Box<SplitRule>>,
}

/// Text and parts that replace a result that was split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitResult {
    /// Text that a model is shown.
    pub text: String,
    /// The parts, in order.
    pub parts: Vec<ResultPart>,
}

/// A part of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultPart {
    /// Key of the part in working memory.
    pub key: Arc<str>,
    /// Subject of the part.
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
    use futures_util::FutureExt as _;

    use super::*;

    #[derive(Debug)]
    struct Unused;

    impl ResultSplitter for Unused {
        fn split(&self, _: LongResult) -> BoxFuture<'static, Result<SplitResult, String>> {
            unreachable!("no result is split in this test")
        }
    }

    #[test]
    fn the_topic_decides_the_threshold_then_the_model_then_the_default() {
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
            budget: ResultBudget::new(1, 1),
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
    const MIB: usize = 1024 * 1024;

    #[tokio::test]
    async fn results_together_have_the_room_of_the_budget() {
        let budget = ResultBudget::new(64 << 20, 100 << 20);
        let (one, other) = (budget.room(), budget.room());
        one.reserve().await;
        assert!(other.reserve().now_or_never().is_none(), "two of the largest have no room");
        one.shrink(10 * MIB);
        other.reserve().now_or_never().unwrap();
        let third = budget.room();
        assert_eq!(third.take("t", 27 * MIB).unwrap_err().cause, Cause::Unavailable);
        third.take("t", 26 * MIB).unwrap();
        assert_eq!(budget.room().take("t", 64 * MIB + 1).unwrap_err().cause, Cause::ResultTooLarge);
        drop((one.clone(), other, third));
        assert!(budget.reserve().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_budget_has_room_for_one_of_the_largest_at_least() {
        let budget = ResultBudget::new(64 << 20, 1);
        assert!(budget.reserve().now_or_never().is_some());
    }
}
