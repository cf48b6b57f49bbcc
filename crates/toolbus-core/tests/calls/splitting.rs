//! Results that are too long for a model.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use serde_json::{Value, json};
use toolbus_core::caller::AgentName;
use toolbus_core::failure::ToolFailure;
use toolbus_core::results::{
    LongResult, READER, READER_SOURCE, ResultBudget, ResultPart, ResultSettings, ResultSplitter, SplitResult, SplitRule,
};
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::{InnerCall, InnerOrigin, Invoker as _};
use toolbus_protocol::ContentBlock;

use crate::fixture::{Message, World, call, inner_call};

/// The beginning of `more than ten`, where a longer one is cut.
const CUT: &str = "more than \n[result truncated — 3 chars omitted]";

/// Keeps what it is given, unless it is away.
#[derive(Debug, Default)]
struct Shelf {
    kept: Mutex<Vec<LongResult>>,
    is_away: bool,
}

impl ResultSplitter for Shelf {
    fn split(&self, result: LongResult) -> BoxFuture<'static, Result<SplitResult, String>> {
        if self.is_away {
            return ready(Err("away".to_owned())).boxed();
        }
        let text = format!("table {} of {} for {}", result.run, result.tool, result.caller.name);
        let parts = vec![ResultPart { key: "session/s/part ä".into(), heading: "A heading".to_owned() }];
        self.kept.lock().push(result);
        ready(Ok(SplitResult { text, parts })).boxed()
    }
}

fn world(shelf: &Arc<Shelf>) -> World {
    let splitter = Arc::clone(shelf) as Arc<dyn ResultSplitter>;
    let topics = [("tool.invoke.mcp".to_owned(), 0)].into();
    let budget = ResultBudget::new(1 << 20, 1 << 20);
    let results = ResultSettings { threshold: 10, models: Vec::new(), topics, splitter, budget };
    World::with(|settings| settings.results = Some(results))
}

/// An empty shelf, and a world that keeps results there and whose callers can read their parts.
fn reading() -> (Arc<Shelf>, World) {
    let shelf = Arc::default();
    (Arc::clone(&shelf), reading_from(&shelf))
}

fn reading_from(shelf: &Arc<Shelf>) -> World {
    let world = world(shelf);
    add(
        &world,
        ToolDescriptor::new(READER, READER_SOURCE, "local"),
        ToolOutput::text("a part of fifty characters or so"),
    );
    world
}

fn add(world: &World, descriptor: ToolDescriptor, output: ToolOutput) {
    world.add(Tool::new(descriptor, output));
}

fn echo(text: &str) -> Message {
    call("echo", json!({"text": text}))
}

async fn content(world: &World, message: Message) -> Value {
    world.reply(message).await.body["content"].clone()
}

/// A call of an MCP client, or of a tool.
fn inner(world: &World, origin: InnerOrigin, key: Option<&str>) -> InnerCall {
    let caller = world.dispatcher.policy().vouched(AgentName::parse("ana").ok(), "s".into());
    let call = inner_call(caller, "echo", &json!({"text": "more than ten"}));
    InnerCall { idempotency_key: key.map(Into::into), origin, ..call }
}

#[tokio::test]
async fn a_long_result_is_kept_in_parts_and_the_reply_is_their_table() {
    let (shelf, world) = reading();
    let reply = world.reply(echo("more than ten")).await;
    let kept = shelf.kept.lock().pop().unwrap();
    assert_eq!((&*kept.text, kept.max, &*kept.tool, kept.run.len()), ("more than ten", 10, "echo", 8));
    assert_eq!(reply.body["content"], format!("table {} of echo for ana", kept.run));
    assert_eq!(reply.body.get("contentBlocks"), None);
}

#[tokio::test]
async fn links_to_the_parts_are_sent_on_request() {
    let (shelf, world) = reading();
    let reply = world.reply(echo("more than ten").header("rb-resource-links", "1")).await;
    let run = shelf.kept.lock().pop().unwrap().run;
    let expected = json!([
        {"type": "text", "text": format!("table {run} of echo for ana")},
        {"type": "resource_link", "text": "A heading", "mimeType": "text/plain",
         "uri": "toolbus://memory/session/s/part%20%C3%A4"},
    ]);
    assert_eq!(reply.body["contentBlocks"], expected);
}

#[tokio::test]
async fn characters_count_and_a_result_of_just_as_many_stays() {
    let (shelf, world) = reading();
    assert_eq!(content(&world, echo("ääääääääää")).await, "ääääääääää");
    assert!(shelf.kept.lock().is_empty());
}

#[tokio::test]
async fn a_repeated_request_gets_the_same_table_and_nothing_is_kept_again() {
    let (shelf, world) = reading();
    let first = world.reply(echo("more than ten")).await;
    let again = world.reply(echo("more than ten").redelivered()).await;
    assert_eq!((first.body, first.properties), (again.body, again.properties));
    assert_eq!(shelf.kept.lock().len(), 1);
}

#[tokio::test]
async fn a_caller_that_cannot_read_parts_gets_the_beginning() {
    let shelf: Arc<Shelf> = Arc::default();
    assert_eq!(content(&world(&shelf), echo("more than ten")).await, CUT);
    let other = world(&shelf);
    add(&other, ToolDescriptor::new(READER, "mcp:other", "mcp"), ToolOutput::text("x"));
    assert_eq!(content(&other, echo("more than ten")).await, CUT, "a tool of that name, from elsewhere");
    assert!(shelf.kept.lock().is_empty());
}

#[tokio::test]
async fn a_result_whose_parts_cannot_be_kept_is_cut() {
    let shelf = Arc::new(Shelf { is_away: true, ..Shelf::default() });
    assert_eq!(content(&reading_from(&shelf), echo("more than ten")).await, CUT);
}

#[tokio::test]
async fn results_of_memory_itself_and_on_topics_without_are_whole() {
    let (shelf, world) = reading();
    assert_eq!(content(&world, call(READER, json!({}))).await, "a part of fifty characters or so");
    let mcp = ToolDescriptor { server: Some("x".into()), ..ToolDescriptor::new("of_server", "mcp:x", "mcp") };
    add(&world, mcp, ToolOutput::text("a long result of a server"));
    let message = Message { topic: "tool.invoke.mcp", ..call("of_server", json!({})) };
    assert_eq!(content(&world, message).await, "a long result of a server");
    assert!(shelf.kept.lock().is_empty());
}

/// Pages were cut again, with the line on how to go on.
#[tokio::test]
async fn results_of_memory_at_another_daemon_are_whole() {
    let (_, world) = reading();
    for (name, is_whole) in [(READER, true), ("search_working_memory", true), ("read_page", false)] {
        let published = format!("lab.{name}");
        let own_name = Some(name.into());
        let descriptor = ToolDescriptor { own_name, ..ToolDescriptor::new(published.as_str(), "remote:lab", "remote") };
        add(&world, descriptor, ToolOutput::text("a page [characters 0 to 6 of 9]"));
        let content = content(&world, call(&published, json!({})).id(name)).await;
        assert_eq!(content == "a page [characters 0 to 6 of 9]", is_whole, "{name}: {content}");
    }
}

#[tokio::test]
async fn a_result_is_whole_for_a_caller_that_gets_its_structured_part() {
    let (_, world) = reading();
    let output = ToolOutput { structured: Some(Box::new(json!({"a": 1}))), ..ToolOutput::text("more than ten") };
    add(&world, ToolDescriptor::new("structured", "test", "local"), output);
    let wanted = call("structured", json!({})).header("rb-rb-structured-content", "1");
    assert_eq!(content(&world, wanted).await, "more than ten");
    let unwanted = content(&world, call("structured", json!({})).id("other")).await;
    assert!(unwanted.as_str().unwrap().starts_with("table "), "{unwanted}");
}

/// A result with its tool's rule for splitting.
fn with_rule() -> ToolOutput {
    let rule = SplitRule {
        threshold: 12,
        max: 6,
        ttl: Duration::from_secs(60),
        stem: "page".to_owned(),
        category: "web",
        subject: "A page".to_owned(),
    };
    ToolOutput { split: Some(Box::new(rule)), ..ToolOutput::text("more than ten") }
}

#[tokio::test]
async fn a_rule_of_the_tool_decides_when_and_how_its_result_is_split_on_every_topic() {
    let (shelf, world) = reading();
    let of_server = ToolDescriptor { server: Some("x".into()), ..ToolDescriptor::new("page", "mcp:x", "mcp") };
    add(&world, of_server, with_rule());
    let short = ToolOutput { content: Some("more than 10".to_owned()), ..with_rule() };
    add(&world, ToolDescriptor::new("short_page", "test", "local"), short);
    assert_eq!(content(&world, call("short_page", json!({}))).await, "more than 10", "longer than other results are");
    for (topic, id) in [("tool.invoke", "a"), ("tool.invoke.mcp", "b")] {
        let reply = content(&world, Message { topic, ..call("page", json!({})).id(id) }).await;
        let kept = shelf.kept.lock().pop().unwrap();
        assert_eq!(reply, format!("table {} of page for ana", kept.run));
        assert_eq!((kept.max, kept.rule), (6, with_rule().split));
    }
    let inner = InnerCall { tool: "page".to_owned(), arguments: None, ..inner(&world, InnerOrigin::Tool, None) };
    let whole = world.dispatcher.invoke(inner).await.unwrap();
    assert_eq!(whole.content.as_deref(), Some("more than ten"), "for a tool that calls");
    assert!(shelf.kept.lock().is_empty());
}

#[tokio::test]
async fn a_result_with_a_rule_is_cut_at_its_threshold_where_no_parts_can_be_kept_or_read() {
    let away = Arc::new(Shelf { is_away: true, ..Shelf::default() });
    let worlds = [world(&Arc::default()), reading_from(&away), World::with(|settings| settings.results = None)];
    for world in worlds {
        add(&world, ToolDescriptor::new("page", "test", "local"), with_rule());
        let cut = content(&world, call("page", json!({}))).await;
        assert_eq!(cut, "more than te\n[result truncated — 1 chars omitted]");
    }
}

#[tokio::test]
async fn images_stay_beside_the_table() {
    let (shelf, world) = reading();
    let block = |kind: &str, text: Option<&str>, data: Option<&str>| ContentBlock {
        kind: kind.to_owned(),
        text: text.map(str::to_owned),
        data: data.map(str::to_owned),
        ..ContentBlock::default()
    };
    let blocks = vec![
        block("image", None, Some("AAAA")),
        block("text", Some("more than"), None),
        block("text", Some("ten"), None),
    ];
    let output = ToolOutput { blocks, ..ToolOutput::text("more than\nten") };
    add(&world, ToolDescriptor::new("picture", "test", "local"), output);
    let reply = world.reply(call("picture", json!({}))).await;
    let table = format!("table {} of picture for ana", shelf.kept.lock().pop().unwrap().run);
    assert_eq!(reply.body["content"], table);
    assert_eq!(
        reply.body["contentBlocks"],
        json!([{"type": "image", "data": "AAAA"}, {"type": "text", "text": table}])
    );
}

#[tokio::test]
async fn an_inner_call_gets_the_whole_result() {
    let (shelf, world) = reading();
    let output = world.dispatcher.invoke(inner(&world, InnerOrigin::Tool, None)).await.unwrap();
    assert_eq!(output.content.as_deref(), Some("more than ten"));
    assert!(shelf.kept.lock().is_empty());
}

#[tokio::test]
async fn an_mcp_client_gets_a_link_to_each_part_beside_the_table_with_a_key_or_without() {
    let (shelf, world) = reading();
    for key in [None, Some("k")] {
        let output = world.dispatcher.invoke(inner(&world, InnerOrigin::McpClient, key)).await.unwrap();
        let table = format!("table {} of echo for ana", shelf.kept.lock().pop().unwrap().run);
        let [text, link] = &output.blocks[..] else { panic!("{output:?}") };
        assert_eq!((output.content.as_deref(), text.text.as_deref()), (Some(&*table), Some(&*table)));
        assert_eq!(link, &ContentBlock::memory_link("session/s/part ä", "A heading"));
        assert_eq!(link.uri.as_deref(), Some("toolbus://memory/session/s/part%20%C3%A4"));
    }
}

/// Returns whether its result may be larger than executors take by themselves.
struct HasRoom;

impl Executor for HasRoom {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::text(call.room.map_or("none", |_| "room")))
    }
}

#[tokio::test]
async fn only_a_result_that_would_be_split_has_room_above_the_limits_of_executors() {
    let (_, world) = reading();
    world.add(Tool::new(ToolDescriptor::new("has_room", "test", "local"), HasRoom));
    assert_eq!(content(&world, call("has_room", json!({}))).await, "room");
    let of = async |origin| {
        let inner = InnerCall { tool: "has_room".to_owned(), arguments: None, ..inner(&world, origin, None) };
        world.dispatcher.invoke(inner).await.unwrap().content
    };
    assert_eq!(of(InnerOrigin::McpClient).await.as_deref(), Some("room"));
    assert_eq!(of(InnerOrigin::Tool).await.as_deref(), Some("none"));
}
