//! `[results]`: results that are too long for a model are kept in working memory, in parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::working_memory::{KeyError, MemoryOwner, Namespace, NewEntry, WorkingMemory};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::{ByteSize, HumanDuration};
use toolbus_core::pattern::Pattern;
use toolbus_core::results::{
    LongResult, READER, ResultBudget, ResultPart, ResultSettings, ResultSplitter, SplitResult,
};
use toolbus_core::text::grouped;

use crate::chunk::{ChunkLimits, ChunkedText, chunk};

/// Least length of a part, in characters.
const MIN_PART: usize = 20_000;
/// Longest part of a tool's name in a key, in characters.
const MAX_TOOL: usize = 40;
/// The category of the entries.
const CATEGORY: &str = "tool-result";

/// Results that are too long for a model. Their caller gets a table of their parts, which are in its working memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ResultsConfig {
    /// Length above which a result is split, and of the longest part, in characters; 0: no result is split.
    #[schemars(range(max = 1_000_000))]
    pub threshold: usize,
    /// Time for which parts are kept; at most 24 h.
    pub ttl: HumanDuration,
    /// Largest result that is read of a REST endpoint or an MCP server where it can be kept in parts; at most 512 MiB.
    pub max_size: ByteSize,
    /// Room for such results of all calls, from when they are read until they are answered.
    pub max_total_size: ByteSize,
    /// Topics whose results are not split.
    #[schemars(extend("items" = {"type": "string", "format": "toolbus-topic"}))]
    pub topics_without: Vec<String>,
    /// The threshold for requests on these topics, whatever their model is.
    #[schemars(extend("propertyNames" = {"format": "toolbus-topic"}))]
    pub topics: BTreeMap<String, usize>,
    /// The threshold for callers that name such a model in the header `rb-model`.
    #[schemars(extend("propertyNames" = {"format": "toolbus-pattern"}))]
    pub models: BTreeMap<String, usize>,
}

impl Default for ResultsConfig {
    fn default() -> Self {
        Self {
            threshold: 64_000,
            ttl: HumanDuration::from_secs(20 * 60),
            max_size: ByteSize::from_mib(64),
            max_total_size: ByteSize::from_mib(128),
            topics_without: vec!["tool.invoke.mcp".to_owned()],
            topics: BTreeMap::new(),
            models: BTreeMap::new(),
        }
    }
}

impl ResultsConfig {
    /// Room for large results.
    #[must_use]
    pub fn budget(&self) -> ResultBudget {
        ResultBudget::new(self.max_size.bytes(), self.max_total_size.bytes())
    }

    /// The settings of the dispatcher. Names of models that are no patterns were refused before.
    #[must_use]
    pub fn settings(&self, memory: Arc<dyn WorkingMemory>, budget: ResultBudget) -> ResultSettings {
        let models = self.models.iter().filter_map(|(model, max)| Some((Pattern::parse(model).ok()?, *max)));
        let without = self.topics_without.iter().map(|topic| (topic.clone(), 0));
        ResultSettings {
            threshold: self.threshold,
            models: models.collect(),
            topics: self.topics.clone().into_iter().chain(without).collect(),
            splitter: Arc::new(MemorySplitter { memory, ttl: self.ttl.into() }),
            budget,
        }
    }
}

/// Keeps the parts of results in the working memory of their callers.
#[derive(Debug)]
pub struct MemorySplitter {
    /// Keeps the entries.
    pub memory: Arc<dyn WorkingMemory>,
    /// Time for which the entries are kept.
    pub ttl: Duration,
}

impl ResultSplitter for MemorySplitter {
    fn split(&self, result: LongResult) -> BoxFuture<'static, Result<SplitResult, String>> {
        let Some(owner) = MemoryOwner::of(&result.caller) else {
            return ready(Err("its caller cannot be told from others".to_owned())).boxed();
        };
        match self.prepare(&result) {
            Ok((split, entries)) => {
                let memory = Arc::clone(&self.memory);
                async move { memory.save(owner, entries).await.map(|()| split).map_err(|error| error.to_string()) }
                    .boxed()
            }
            Err(error) => ready(Err(format!("the session is no namespace: {error}"))).boxed(),
        }
    }
}

impl MemorySplitter {
    /// The parts of a result as entries, and what its caller gets.
    fn prepare(&self, result: &LongResult) -> Result<(SplitResult, Vec<NewEntry>), KeyError> {
        let namespace = Namespace::of(result.caller.session.as_deref())?;
        let LongResult { tool, run, text, max, rule, .. } = result;
        let (stem, category, ttl, subject) = match rule.as_deref() {
            Some(rule) => (rule.stem.clone(), rule.category, rule.ttl, rule.subject.clone()),
            None => {
                let name: String = tool.chars().take(MAX_TOOL).map(|c| if is_plain(c) { c } else { '_' }).collect();
                (format!("tool-{name}-{run}"), CATEGORY, self.ttl, format!("Tool result for '{tool}'"))
            }
        };
        let key = |end: &str| namespace.key(&format!("{namespace}/{stem}-{end}"));
        let chunked = chunk(text, ChunkLimits::new(MIN_PART, *max));
        let keys = (0..chunked.chunks.len()).map(|index| key(&format!("chunk{index}")));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let key_of = |index: usize| keys.get(index).map(ToString::to_string).unwrap_or_default();
        let index = key("index")?;
        let entry = |key, value: &str| NewEntry { category: Some(category.into()), ..NewEntry::new(key, value, ttl) };
        let mut entries = Vec::with_capacity(keys.len() + 1);
        let mut parts = Vec::with_capacity(keys.len());
        for (chunk, key) in chunked.chunks.iter().zip(&keys) {
            entries.push(entry(key.clone(), text.get(chunk.range.clone()).unwrap_or_default()));
            parts.push(ResultPart { key: key.as_str().into(), heading: chunk.heading.clone() });
        }
        entries.push(entry(index.clone(), &chunked.outline(key_of)));
        let mut table = introduction(&subject, text.chars().count(), &chunked, index.as_str());
        let room = rule.as_ref().map_or(*max, |rule| rule.threshold).saturating_sub(table.chars().count());
        table += &chunked.table(key_of, room);
        Ok((SplitResult { text: table, parts }, entries))
    }
}

/// Returns the text before the table, in the words of RockBot's agents.
fn introduction(subject: &str, characters: usize, chunked: &ChunkedText, index: &str) -> String {
    let (characters, count) = (grouped(characters), chunked.chunks.len());
    format!(
        "{subject} is large ({characters} chars) and has been split into {count} chunk(s) stored in working \
         memory.\n\
         A document outline is stored at key `{index}` — retrieve it with {READER} to navigate the content by section \
         heading.\n\
         Call {READER}(key) for each relevant chunk BEFORE drawing any conclusions.\n\n"
    )
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}
