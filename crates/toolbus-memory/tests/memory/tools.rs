//! The tools of working memory, on entries that are lost with the process.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolbus_core::Clock;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{Effect, Tool, ToolCall, ToolOutput};
use toolbus_memory::{MemoryConfig, NAMES};
use toolbus_store::VolatileMemory;

const SAVE: &str = NAMES[0];
const GET: &str = NAMES[1];
const LIST: &str = NAMES[2];
const SEARCH: &str = NAMES[3];
const DELETE: &str = NAMES[4];

struct Fixture {
    tools: Vec<Tool>,
    clock: Clock,
}

fn fixture(config: &MemoryConfig) -> Fixture {
    let clock = Clock::manual();
    let memory = Arc::new(VolatileMemory::new(config.limits(), clock));
    Fixture { tools: config.tools(memory, true, clock).tools(), clock }
}

fn ana(session: Option<&str>) -> Caller {
    Caller { session: session.map(Arc::from), ..Caller::agent(AgentName::parse("ana").unwrap()) }
}

impl Fixture {
    async fn run(&self, caller: Caller, name: &str, arguments: Value) -> Result<ToolOutput, ToolFailure> {
        let tool = self.tools.iter().find(|tool| &*tool.descriptor.name == name).unwrap();
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        let call = ToolCall::new(name, caller, arguments, Duration::from_secs(30));
        Arc::clone(&tool.executor).execute_boxed(call).await
    }

    async fn text(&self, session: &str, name: &str, arguments: Value) -> String {
        let output = self.run(ana(Some(session)), name, arguments).await.unwrap();
        assert!(!output.is_error, "{output:?}");
        output.content.unwrap()
    }

    async fn error(&self, session: &str, name: &str, arguments: Value) -> String {
        let output = self.run(ana(Some(session)), name, arguments).await.unwrap();
        assert!(output.is_error, "{output:?}");
        output.content.unwrap()
    }
}

#[tokio::test]
async fn a_saved_entry_is_listed_found_read_and_deleted() {
    let fixture = fixture(&MemoryConfig::default());
    let saved = json!({"key": "Plan", "value": "Buy\nmilk", "category": "todo", "tags": ["shop", "a`b"]});
    let text = fixture.text("abc", SAVE, saved).await;
    assert_eq!(text, "Saved `session/abc/plan`: 8 characters, for 20 minutes.");
    fixture.clock.advance(Duration::from_secs(61));
    let line = "`session/abc/plan`: 8 characters, category todo, tags shop, a`b; expires in 19 minutes";
    assert_eq!(fixture.text("abc", LIST, json!({})).await, format!("- {line}"));
    let found = fixture.text("session/abc", SEARCH, json!({"query": "MILK", "category": "to"})).await;
    assert_eq!(found, format!("1. {line}\n   Buy milk"));
    assert_eq!(fixture.text("abc", GET, json!({"key": "plan"})).await, "Buy\nmilk");
    assert_eq!(fixture.text("other", GET, json!({"key": "session/ABC/plan"})).await, "Buy\nmilk");
    assert_eq!(fixture.text("abc", DELETE, json!({"key": "plan"})).await, "Deleted `session/abc/plan`.");
    assert_eq!(fixture.text("abc", DELETE, json!({"key": "plan"})).await, "There is no entry `session/abc/plan`.");
    assert_eq!(fixture.text("abc", LIST, json!({})).await, "There are no entries under `session/abc/`.");
    assert!(fixture.text("abc", SEARCH, json!({"query": "milk"})).await.starts_with("No entry matches."));
    assert!(fixture.error("abc", GET, json!({"key": "plan"})).await.contains("expired"));
}

#[tokio::test]
async fn an_entry_expires_after_the_requested_time() {
    let fixture = fixture(&MemoryConfig::default());
    fixture.text("abc", SAVE, json!({"key": "a", "value": "x", "ttl_minutes": 1})).await;
    fixture.text("abc", SAVE, json!({"key": "b", "value": "x"})).await;
    fixture.clock.advance(Duration::from_secs(60));
    assert_eq!(fixture.text("abc", GET, json!({"key": "b"})).await, "x");
    fixture.error("abc", GET, json!({"key": "a"})).await;
    fixture.clock.advance(Duration::from_secs(19 * 60));
    fixture.error("abc", GET, json!({"key": "b"})).await;
}

#[tokio::test]
async fn sessions_see_their_own_keys_and_those_with_a_slash() {
    let fixture = fixture(&MemoryConfig::default());
    for (session, key) in [("one", "note"), ("two", "note"), ("patrol/mail", "note"), ("one", "patrol/mail/state")] {
        fixture.text(session, SAVE, json!({"key": key, "value": format!("rain of {session}")})).await;
    }
    assert_eq!(fixture.text("two", GET, json!({"key": "note"})).await, "rain of two");
    assert_eq!(fixture.text("patrol/mail", GET, json!({"key": "state"})).await, "rain of one");
    assert_eq!(fixture.text("two", LIST, json!({})).await.lines().count(), 1);
    assert_eq!(fixture.text("two", SEARCH, json!({"query": "rain"})).await.matches("expires").count(), 1);
    assert_eq!(fixture.text("two", LIST, json!({"prefix": "patrol/"})).await.lines().count(), 2);
    assert_eq!(fixture.text("two", LIST, json!({"prefix": "/"})).await.lines().count(), 4);
    let everywhere = json!({"query": "rain", "prefix": "/"});
    assert_eq!(fixture.text("two", SEARCH, everywhere).await.matches("expires").count(), 4);
    let without = fixture.run(ana(None), SAVE, json!({"key": "note", "value": ""})).await.unwrap();
    assert_eq!(without.content.unwrap(), "Saved `agent/note`: 0 characters, for 20 minutes.");
}

#[tokio::test]
async fn a_long_entry_is_read_in_pages() {
    let fixture = fixture(&MemoryConfig::default());
    let value = "ä".repeat(64_001);
    fixture.text("abc", SAVE, json!({"key": "long", "value": value})).await;
    let first = fixture.text("abc", GET, json!({"key": "long"})).await;
    assert!(first.ends_with("ä\n[characters 0 to 64000 of 64001; go on with `offset` 64000]"), "{first}");
    let last = fixture.text("abc", GET, json!({"key": "long", "offset": 64_000})).await;
    assert_eq!(last, "ä\n[characters 64000 to 64001 of 64001, the end]");
    assert_eq!(fixture.text("abc", GET, json!({"key": "long", "limit": 100_000})).await, value);
    let error = fixture.error("abc", GET, json!({"key": "long", "offset": 64_001})).await;
    assert_eq!(error, "`session/abc/long` has 64001 characters; there is none at `offset` 64001.");
}

#[tokio::test]
async fn a_write_over_a_limit_is_an_error_with_a_remedy() {
    let config = MemoryConfig { max_entries_per_namespace: 1, ..MemoryConfig::default() };
    let fixture = fixture(&config);
    fixture.text("abc", SAVE, json!({"key": "a", "value": "x"})).await;
    let error = fixture.error("abc", SAVE, json!({"key": "b", "value": "x"})).await;
    assert_eq!(
        error,
        "Nothing was saved: the namespace `session/abc` has room for 1 entries. Delete some of them, or wait until \
         they expire."
    );
    let long = "x".repeat(1024 * 1024 + 1);
    assert!(fixture.error("abc", SAVE, json!({"key": "a", "value": long})).await.contains("1048577 bytes"));
    assert_eq!(fixture.text("abc", GET, json!({"key": "a"})).await, "x");
}

#[tokio::test]
async fn a_key_or_session_that_cannot_be_used_is_an_invalid_argument() {
    let fixture = fixture(&MemoryConfig::default());
    for (session, key, expected) in [
        (Some("abc"), "/x", "Argument `key`: `/x` cannot be used"),
        (Some("abc"), "a\u{7}", "`a\\u{7}`"),
        (Some("a//b"), "x", "The session id cannot be used"),
    ] {
        let failure = fixture.run(ana(session), GET, json!({"key": key})).await.unwrap_err();
        assert_eq!(failure.cause, Cause::InvalidArguments);
        assert!(failure.message.contains(expected), "{}", failure.message);
    }
}

#[tokio::test]
async fn an_unidentified_caller_has_no_memory() {
    let fixture = fixture(&MemoryConfig::default());
    for (name, arguments) in [
        (SAVE, json!({"key": "a", "value": "x"})),
        (GET, json!({"key": "a"})),
        (LIST, json!({})),
        (SEARCH, json!({"query": "x"})),
        (DELETE, json!({"key": "a"})),
    ] {
        let failure = fixture.run(Caller::unknown(), name, arguments).await.unwrap_err();
        assert_eq!(failure.cause, Cause::NotAllowed, "{name}");
    }
}

#[test]
fn only_save_and_delete_have_effects_and_volatile_memory_is_described() {
    let Fixture { tools, .. } = fixture(&MemoryConfig::default());
    let names: Vec<_> = tools.iter().map(|tool| &*tool.descriptor.name).collect();
    assert_eq!(names, NAMES);
    for tool in &tools {
        let descriptor = &tool.descriptor;
        let changes = [SAVE, DELETE].contains(&&*descriptor.name);
        assert_eq!(descriptor.effect, if changes { Effect::Idempotent } else { Effect::ReadOnly });
        assert_eq!((&*descriptor.source, descriptor.provider), ("memory", "local"));
        assert_eq!(descriptor.description.contains("lost"), &*descriptor.name == SAVE);
    }
}
