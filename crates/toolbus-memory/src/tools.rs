//! The tools: `save_to_working_memory`, `get_from_working_memory`, `list_working_memory`, `search_working_memory` and
//! `delete_from_working_memory`.

use std::sync::Arc;
use std::time::Duration;

use crate::working_memory::{
    EntryKey, KeyError, KeyPrefix, MAX_ENTRY_KEY, MAX_TTL, MemoryError, MemoryOwner, Namespace, NewEntry, SearchQuery,
    WorkingMemory,
};
use serde::Deserialize;
use serde_json::{Value, json};
use toolbus_core::Clock;
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput, rounded_text};

use crate::texts::{Page, found, listed, page};

/// Names of the tools.
pub const NAMES: [&str; 5] = [SAVE, GET, LIST, SEARCH, DELETE];
/// Source of the tools.
pub const SOURCE: &str = "memory";
/// Description for models of the use of the memory tools.
pub const GUIDE: &str = include_str!("guide.md");
const SAVE: &str = "save_to_working_memory";
const GET: &str = "get_from_working_memory";
const LIST: &str = "list_working_memory";
const SEARCH: &str = "search_working_memory";
const DELETE: &str = "delete_from_working_memory";
/// Characters of a value that are read where the caller gives no limit: the longest result that is not split.
const PAGE: u64 = 64_000;
/// Longest category and tag, in characters.
const MAX_LABEL: usize = 64;
/// Tags of an entry.
const MAX_TAGS: usize = 16;
/// Longest query, in characters.
const MAX_QUERY: usize = 1000;
/// Hits that a search shows.
const MAX_HITS: usize = 10;
/// Last sentence of the description of [`SAVE`], if entries do not outlive the process.
const FORGETS: &str = " Entries are lost when the daemon restarts.";

/// Parts that the tools have in common. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MemoryTools {
    /// Keeps the entries.
    pub memory: Arc<dyn WorkingMemory>,
    /// Time for which an entry is kept whose caller gives none.
    pub default_ttl: Duration,
    /// Whether the entries are lost with the process.
    pub is_volatile: bool,
    /// Clock for the remaining time of entries.
    pub clock: Clock,
}

impl MemoryTools {
    /// The five tools.
    #[must_use]
    pub fn tools(&self) -> Vec<Tool> {
        vec![
            Tool::new(save_descriptor(self), Save(self.clone())),
            Tool::new(get_descriptor(), Get(self.clone())),
            Tool::new(list_descriptor(), List(self.clone())),
            Tool::new(search_descriptor(), Search(self.clone())),
            Tool::new(delete_descriptor(), Delete(self.clone())),
        ]
    }
}

fn save_descriptor(tools: &MemoryTools) -> ToolDescriptor {
    let ttl = rounded_text(tools.default_ttl);
    let forgets = if tools.is_volatile { FORGETS } else { "" };
    ToolDescriptor::local(
        SAVE,
        SOURCE,
        format!(
            "Saves a text under a key for {ttl}, or for `ttl_minutes`. Use it for what you need again and do not want in \
             your context: intermediate results, plans, long texts. An entry with the same key is replaced. Choose short \
             keys that say what is there, such as `plan` or `report/draft`.{forgets}"
        ),
        Effect::Idempotent,
        json!({
            "type": "object",
            "properties": {
                "key": key("Where to save it"),
                "value": { "type": "string", "description": "The text" },
                "ttl_minutes": {
                    "type": "integer", "minimum": 1, "maximum": MAX_TTL.as_secs() / 60,
                    "description": format!("Minutes until it expires; default {ttl}"),
                },
                "category": label("What kind of entry it is, such as `plan` or `web`"),
                "tags": {
                    "type": "array", "maxItems": MAX_TAGS, "items": label("A tag"),
                    "description": "What it is about",
                },
            },
            "required": ["key", "value"],
            "additionalProperties": false,
        }),
    )
}

fn get_descriptor() -> ToolDescriptor {
    ToolDescriptor::local(
        GET,
        SOURCE,
        format!(
            "Reads an entry of working memory: one that you saved, or a part of a long result, under the key that its \
             table gives. Of a long entry, the first {PAGE} characters are read; `offset` and `limit` read others."
        ),
        Effect::ReadOnly,
        json!({
            "type": "object",
            "properties": {
                "key": key("The key of the entry"),
                "offset": { "type": "integer", "minimum": 0, "description": "First character to read; default 0" },
                "limit": {
                    "type": "integer", "minimum": 1,
                    "description": format!("Characters to read at most; default {PAGE}"),
                },
            },
            "required": ["key"],
            "additionalProperties": false,
        }),
    )
}

fn list_descriptor() -> ToolDescriptor {
    ToolDescriptor::local(
        LIST,
        SOURCE,
        "Lists the keys of working memory with length, category, tags and time left, not the texts. Without `prefix`, \
         those of this session."
            .to_owned(),
        Effect::ReadOnly,
        json!({
            "type": "object",
            "properties": { "prefix": prefix() },
            "additionalProperties": false,
        }),
    )
}

fn search_descriptor() -> ToolDescriptor {
    ToolDescriptor::local(
        SEARCH,
        SOURCE,
        format!(
            "Finds entries of working memory by words of their key, category, tags and text, the {MAX_HITS} best first, \
             each with its key and its start. Read them with `{GET}`. Without `prefix`, those of this session."
        ),
        Effect::ReadOnly,
        json!({
            "type": "object",
            "properties": {
                "query": {
                    "type": "string", "minLength": 1, "maxLength": MAX_QUERY,
                    "description": "Words to find; adjacent words count more where they are adjacent in the text",
                },
                "category": label("Only entries whose category begins with this text"),
                "tags": {
                    "type": "array", "maxItems": MAX_TAGS, "items": label("A tag"),
                    "description": "Only entries that have all of these tags",
                },
                "prefix": prefix(),
            },
            "required": ["query"],
            "additionalProperties": false,
        }),
    )
}

fn delete_descriptor() -> ToolDescriptor {
    ToolDescriptor::local(
        DELETE,
        SOURCE,
        "Deletes an entry of working memory. What is not deleted expires by itself.".to_owned(),
        Effect::Idempotent,
        json!({
            "type": "object",
            "properties": { "key": key("The key of the entry") },
            "required": ["key"],
            "additionalProperties": false,
        }),
    )
}

fn key(purpose: &str) -> Value {
    json!({
        "type": "string", "minLength": 1, "maxLength": MAX_ENTRY_KEY,
        "description": format!("{purpose}. A name such as `plan` belongs to this session; one with `/`, such as \
                                `patrol/mail/state`, is the same in every session. Upper and lower case are the same"),
    })
}

fn prefix() -> Value {
    json!({
        "type": "string", "maxLength": MAX_ENTRY_KEY,
        "description": "Start of the keys: of this session, or, with a `/`, of all sessions; `/` alone for everything",
    })
}

fn label(purpose: &str) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": MAX_LABEL, "description": purpose })
}

struct Save(MemoryTools);
struct Get(MemoryTools);
struct List(MemoryTools);
struct Search(MemoryTools);
struct Delete(MemoryTools);

#[derive(Deserialize)]
struct SaveArguments<'a> {
    key: &'a str,
    value: &'a str,
    ttl_minutes: Option<u32>,
    category: Option<&'a str>,
    #[serde(default)]
    tags: Vec<&'a str>,
}

#[derive(Deserialize)]
struct GetArguments<'a> {
    key: &'a str,
    offset: Option<u64>,
    limit: Option<u64>,
}

#[derive(Deserialize)]
struct ListArguments<'a> {
    prefix: Option<&'a str>,
}

#[derive(Deserialize)]
struct SearchArguments<'a> {
    query: &'a str,
    category: Option<&'a str>,
    #[serde(default)]
    tags: Vec<&'a str>,
    prefix: Option<&'a str>,
}

#[derive(Deserialize)]
struct DeleteArguments<'a> {
    key: &'a str,
}

impl Executor for Save {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let SaveArguments { key, value, ttl_minutes, category, tags } = call.read()?;
        let key = key_of(&call, key)?;
        let ttl = ttl_minutes.map_or(self.0.default_ttl, |minutes| Duration::from_secs(u64::from(minutes) * 60));
        let entry = NewEntry {
            category: category.map(Arc::from),
            tags: tags.into_iter().map(Arc::from).collect(),
            ..NewEntry::new(key.clone(), value, ttl.min(MAX_TTL))
        };
        let (characters, ttl) = (value.chars().count(), rounded_text(entry.ttl));
        match self.0.memory.save(owner(&call)?, vec![entry]).await {
            Ok(()) => Ok(ToolOutput::text(format!("Saved `{key}`: {characters} characters, for {ttl}."))),
            Err(error @ MemoryError::Store(_)) => Err(error.away()),
            Err(limit) => Ok(ToolOutput::error(format!("Nothing was saved: {limit}."))),
        }
    }
}

impl Executor for Get {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let GetArguments { key, offset, limit } = call.read()?;
        let key = key_of(&call, key)?;
        let found = self.0.memory.get(owner(&call)?, key.clone()).await.map_err(|error| error.away())?;
        let Some(entry) = found else {
            return Ok(ToolOutput::error(format!(
                "There is no entry `{key}`, or it has expired. `{LIST}` shows those that there are."
            )));
        };
        let offset = offset.unwrap_or_default();
        let page = page(&entry.value, entry.info.characters, offset, limit.unwrap_or(PAGE));
        Ok(match (page.written(), page) {
            (None, Page::Behind(characters)) => {
                ToolOutput::error(format!("`{key}` has {characters} characters; there is none at `offset` {offset}."))
            }
            (text, _) => ToolOutput::text(text.unwrap_or_default()),
        })
    }
}

impl Executor for List {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let ListArguments { prefix } = call.read()?;
        let prefix = prefix_of(&call, prefix)?;
        let entries = self.0.memory.list(owner(&call)?, prefix.clone()).await.map_err(|error| error.away())?;
        Ok(ToolOutput::text(listed(&prefix, &entries, self.0.clock.since_epoch())))
    }
}

impl Executor for Search {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let SearchArguments { query, category, tags, prefix } = call.read()?;
        let query = SearchQuery {
            text: query.to_owned(),
            prefix: prefix_of(&call, prefix)?,
            category: category.map(str::to_owned),
            tags: tags.into_iter().map(str::to_owned).collect(),
            max: MAX_HITS,
        };
        let hits = self.0.memory.search(owner(&call)?, query).await.map_err(|error| error.away())?;
        Ok(ToolOutput::text(found(&hits, self.0.clock.since_epoch())))
    }
}

impl Executor for Delete {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let DeleteArguments { key } = call.read()?;
        let key = key_of(&call, key)?;
        let deleted = self.0.memory.delete(owner(&call)?, key.clone()).await.map_err(|error| error.away())?;
        Ok(ToolOutput::text(if deleted { format!("Deleted `{key}`.") } else { format!("There is no entry `{key}`.") }))
    }
}

fn owner(call: &ToolCall) -> Result<MemoryOwner, ToolFailure> {
    MemoryOwner::required(&call.caller)
}

fn key_of(call: &ToolCall, key: &str) -> Result<EntryKey, ToolFailure> {
    Namespace::required(&call.caller)?.key(key).map_err(|error| error.failure("key", key))
}

fn prefix_of(call: &ToolCall, prefix: Option<&str>) -> Result<KeyPrefix, ToolFailure> {
    let unusable = |error: KeyError| error.failure("prefix", prefix.unwrap_or_default());
    Namespace::required(&call.caller)?.prefix(prefix).map_err(unusable)
}
