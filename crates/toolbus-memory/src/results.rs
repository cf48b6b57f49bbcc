//! `[results]`: results that are too long for a model are kept in working memory, in parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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
use toolbus_core::working_memory::{KeyError, MemoryOwner, Namespace, NewEntry, WorkingMemory};

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

/// Returns the text that a model is told before the table, as RockBot's agents are.
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

#[cfg(test)]
mod tests {
    use toolbus_core::Clock;
    use toolbus_core::caller::Caller;
    use toolbus_core::results::SplitRule;
    use toolbus_core::working_memory::{EntryKey, MemoryEntry};

    use super::*;
    use crate::MemoryConfig;

    fn splitter(config: &MemoryConfig) -> MemorySplitter {
        let memory = toolbus_store::VolatileMemory::new(config.limits(), Clock::SYSTEM);
        MemorySplitter { memory: Arc::new(memory), ttl: Duration::from_secs(1200) }
    }

    fn caller(session: Option<&str>) -> Caller {
        Caller { login: Some("ana".into()), session: session.map(Into::into), ..Caller::unknown() }
    }

    fn result(caller: Caller, text: &str) -> LongResult {
        let (caller, tool) = (Arc::new(caller), "fs.read file".into());
        LongResult { caller, tool, run: "0123abcd".to_owned(), text: text.into(), max: 64_000, rule: None }
    }

    fn manual() -> String {
        let section = |number: usize| format!("# Section {number}\n\n{}\n\n", "Some words of it.\n".repeat(1500));
        (0..5).map(section).collect()
    }

    async fn value(splitter: &MemorySplitter, caller: &Caller, key: &str) -> Option<Arc<str>> {
        let (owner, key) = (MemoryOwner::of(caller).unwrap(), EntryKey::parse(key).unwrap());
        splitter.memory.get(owner, key).await.unwrap().map(|MemoryEntry { value, .. }| value)
    }

    #[tokio::test]
    async fn the_table_names_parts_that_are_there_and_together_are_the_result() {
        let (splitter, caller, text) = (splitter(&MemoryConfig::default()), caller(Some("abc")), manual());
        let split = splitter.split(result(caller.clone(), &text)).await.unwrap();
        assert_eq!(
            split.text,
            "Tool result for 'fs.read file' is large (135,075 chars) and has been split into 4 chunk(s) stored in working \
             memory.\n\
             A document outline is stored at key `session/abc/tool-fs_read_file-0123abcd-index` — retrieve it with \
             get_from_working_memory to navigate the content by section heading.\n\
             Call get_from_working_memory(key) for each relevant chunk BEFORE drawing any conclusions.\n\n\
             | # | Heading | Key |\n\
             |---|---------|-----|\n\
             | 0 | Section 0 | `session/abc/tool-fs_read_file-0123abcd-chunk0` |\n\
             | 1 | Section 1 | `session/abc/tool-fs_read_file-0123abcd-chunk1` |\n\
             | 2 | Section 2 | `session/abc/tool-fs_read_file-0123abcd-chunk2` |\n\
             | 3 | Section 3; Section 4 | `session/abc/tool-fs_read_file-0123abcd-chunk3` |\n"
        );
        let mut whole = String::new();
        for part in &split.parts {
            whole.push_str(&value(&splitter, &caller, &part.key).await.unwrap());
        }
        assert_eq!(whole, text);
        let outline = value(&splitter, &caller, "session/abc/tool-fs_read_file-0123abcd-index").await.unwrap();
        assert!(
            outline.starts_with(
                "## Document Outline\n\n- **Section 0** → `session/abc/tool-fs_read_file-0123abcd-chunk0`\n"
            )
        );
    }

    #[tokio::test]
    async fn a_session_that_is_a_path_is_the_namespace_and_without_one_it_is_the_owners() {
        let splitter = splitter(&MemoryConfig::default());
        for (session, key) in [
            (Some("patrol/mail"), "patrol/mail/tool-fs_read_file-0123abcd-chunk0"),
            (None, "agent/tool-fs_read_file-0123abcd-chunk0"),
        ] {
            let split = splitter.split(result(caller(session), &manual())).await.unwrap();
            assert_eq!(&*split.parts[0].key, key);
        }
    }

    #[tokio::test]
    async fn a_rule_of_the_tool_gives_length_time_keys_and_the_beginning() {
        let (splitter, caller, text) = (splitter(&MemoryConfig::default()), caller(Some("abc")), manual());
        let rule = SplitRule {
            threshold: 8000,
            max: 4000,
            ttl: Duration::from_secs(60),
            stem: "web-example.com-01".to_owned(),
            category: "web",
            subject: "> A note.\n\nPage \"Manual\"".to_owned(),
        };
        let long = LongResult { max: 4000, rule: Some(Box::new(rule)), ..result(caller.clone(), &text) };
        let split = splitter.split(long).await.unwrap();
        let start = "> A note.\n\nPage \"Manual\" is large (135,075 chars) and has been split into ";
        assert!(split.text.starts_with(start), "{}", split.text);
        assert!(split.text.contains("`session/abc/web-example.com-01-index`"), "{}", split.text);
        let owner = MemoryOwner::of(&caller).unwrap();
        let all = Namespace::of(None).unwrap().prefix(Some("/")).unwrap();
        let kept = splitter.memory.list(owner, all).await.unwrap();
        assert_eq!(kept.len(), split.parts.len() + 1);
        for info in &kept {
            assert!(info.key.as_str().starts_with("session/abc/web-example.com-01-"), "{info:?}");
            assert_eq!(
                (info.category.as_deref(), info.expires_at - info.saved_at),
                (Some("web"), Duration::from_secs(60))
            );
            assert!(info.characters <= 4000 || info.key.as_str().ends_with("-index"), "{info:?}");
        }
        let mut whole = String::new();
        for part in &split.parts {
            whole.push_str(&value(&splitter, &caller, &part.key).await.unwrap());
        }
        assert_eq!(whole, text);
    }

    #[tokio::test]
    async fn a_table_is_not_longer_than_the_result_that_would_have_been_answered_as_it_is() {
        let (splitter, caller) = (splitter(&MemoryConfig::default()), caller(Some("abc")));
        let text: String = (0..150).map(|n| format!("# {n} {}\n\n{}\n\n", "a".repeat(200), "b ".repeat(700))).collect();
        for max in [1500, 2000, 8000] {
            let split = splitter.split(LongResult { max, ..result(caller.clone(), &text) }).await.unwrap();
            assert!(split.text.chars().count() <= max, "{max}: {}", split.text);
            let rows = split.text.matches("| `session/").count();
            let left_out = format!("\n\n{} more chunks are in the outline.\n", split.parts.len() - rows);
            assert!(rows > 0 && split.text.ends_with(&left_out), "{}", split.text);
        }
    }

    #[tokio::test]
    async fn a_result_that_memory_has_no_room_for_is_refused_and_leaves_nothing() {
        let (splitter, caller) =
            (splitter(&MemoryConfig { max_entries_per_namespace: 3, ..MemoryConfig::default() }), caller(Some("a")));
        let error = splitter.split(result(caller.clone(), &manual())).await.unwrap_err();
        assert!(error.contains("has room for 3 entries"), "{error}");
        assert_eq!(value(&splitter, &caller, "session/a/tool-fs_read_file-0123abcd-chunk0").await, None);
    }

    #[tokio::test]
    async fn a_caller_that_cannot_be_told_from_others_is_refused() {
        let splitter = splitter(&MemoryConfig::default());
        let error = splitter.split(result(Caller::unknown(), &manual())).await.unwrap_err();
        assert_eq!(error, "its caller cannot be told from others");
    }
}
