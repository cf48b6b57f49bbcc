//! Notifications of agents, and their lists on request.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use toolbus_core::bus::{Bus, Target};
use toolbus_core::caller::AgentName;
use toolbus_core::policy::EffectiveTools;
use toolbus_core::registry::Rank;
use toolbus_core::tool::{Tool, ToolDescriptor, ToolOutput};

use toolbus_core::{NotificationSource, NotifyHandle};
use toolbus_protocol::Format;
use toolbus_testing::recording_bus::Route;

use crate::fixture::{World, agent, call, control, request, serve};
use tokio_util::task::TaskTracker;
use toolbus_core::Clock;

/// Notifies every agent but `silent` of the number of new tools.
struct Count;

impl NotificationSource for Count {
    fn topic(&self, agent: &AgentName) -> Option<String> {
        (agent.as_str() != "silent").then(|| format!("count.{agent}"))
    }

    fn message_type(&self) -> &'static str {
        "Toolbus.CountChanged"
    }

    fn notifies_at_start(&self) -> bool {
        true
    }

    fn messages(&self, _: &AgentName, before: Option<&EffectiveTools>, now: &EffectiveTools) -> Vec<Vec<u8>> {
        let had = before.map_or(0, |before| before.names().count());
        let more = now.names().count() - had;
        if before.is_some() && more == 0 { Vec::new() } else { vec![more.to_string().into_bytes()] }
    }
}

/// A world with a notifier, and the notifier's handle.
fn world() -> (World, NotifyHandle) {
    let world = World::new();
    let bus = Arc::clone(&world.bus) as Arc<dyn Bus>;
    let (notifier, handle) = world.dispatcher.notifier_of(Count, bus);
    TaskTracker::new().spawn(notifier.run());
    (world, handle)
}

fn add_tool(world: &World, name: &str) {
    world.add(Tool::new(ToolDescriptor::new(name, "test", "local"), ToolOutput::text("done")));
}

/// A world that notifies of names of tools, in which ana has called lately.
async fn with_name_notifications() -> World {
    let world = World::new();
    let notifier = world.dispatcher.notifier(Arc::clone(&world.bus) as Arc<dyn Bus>);
    TaskTracker::new().spawn(notifier.run());
    world.deliver(call("pay", json!({}))).await;
    a_minute().await;
    world
}

/// Tools that came and tools that went, by the only message of that so far.
fn changed(world: &World) -> (Value, Value) {
    let all = notifications(world, "tool.meta.tools.ana");
    let [changed] = &*all else { panic!("{all:?}") };
    (changed["added"].clone(), changed["removed"].clone())
}

/// Messages on a topic so far.
fn notifications(world: &World, topic: &str) -> Vec<Value> {
    let is_it = |target: &Target| *target == Target::Topic(topic.to_owned());
    world.sent().into_iter().filter(|sent| is_it(&sent.target)).map(|sent| sent.body).collect()
}

/// Reply to ana when she lists her tools in a format.
async fn list(world: &World, format: Option<&str>) -> Value {
    let message = request(&json!({"format": format})).typed(Some("Toolbus.ToolListRequest"));
    serve(&world.dispatcher, &control(&world.dispatcher, &world.bus), "tool.list", message).await;
    world.sent().pop().unwrap().body
}

/// Long enough for everything that is due.
async fn a_minute() {
    tokio::time::sleep(Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn a_requesting_agent_gets_everything_at_once_and_later_changes_together() {
    let (world, handle) = world();
    let begun = Clock::SYSTEM.now();
    handle.notify(&agent("ana")).await;
    assert_eq!(Clock::SYSTEM.since(begun), Duration::ZERO);
    assert_eq!(notifications(&world, "count.ana"), [json!(9)]);
    for name in ["one", "two", "three"] {
        add_tool(&world, name);
    }
    a_minute().await;
    assert_eq!(notifications(&world, "count.ana"), [json!(9), json!(3)]);
    handle.notify(&agent("ana")).await;
    assert_eq!(notifications(&world, "count.ana"), [json!(9), json!(3), json!(12)], "everything again");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_called_lately_is_notified_of_changes_and_others_are_not() {
    let (world, _handle) = world();
    world.deliver(call("pay", json!({}))).await;
    add_tool(&world, "one");
    a_minute().await;
    assert_eq!(notifications(&world, "count.ana"), [json!(10)]);
    assert_eq!(notifications(&world, "count.bob"), [] as [Value; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_a_topic_gets_no_notification_and_does_not_wait_for_it() {
    let (world, handle) = world();
    handle.notify(&agent("silent")).await;
    a_minute().await;
    assert!(world.sent().is_empty());
}

#[tokio::test(start_paused = true)]
async fn notifications_that_the_broker_could_not_take_are_sent_when_it_is_back() {
    let (world, handle) = world();
    let topic = || Target::Topic("count.ana".to_owned());
    world.bus.route(topic(), Route::Unavailable);
    handle.notify(&agent("ana")).await;
    add_tool(&world, "one");
    a_minute().await;
    assert_eq!(notifications(&world, "count.ana"), [] as [Value; 0]);
    let tries = world.bus.attempts().len();
    assert!((5..=20).contains(&tries), "at intervals: {tries}");
    world.bus.route(topic(), Route::Routed);
    a_minute().await;
    assert_eq!(notifications(&world, "count.ana"), [json!(10)], "once, and as it is now");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_notification_waits_for_the_next_change_and_delays_no_other_agent() {
    for refusal in [Route::Refused, Route::Rejected] {
        let (world, handle) = world();
        handle.notify(&agent("ana")).await;
        handle.notify(&agent("bob")).await;
        let topic = || Target::Topic("count.ana".to_owned());
        world.bus.route(topic(), refusal);
        add_tool(&world, "one");
        a_minute().await;
        assert_eq!(notifications(&world, "count.bob"), [json!(9), json!(1)]);
        assert_eq!(
            world.bus.attempts().iter().filter(|(target, _)| *target == topic()).count(),
            2,
            "not over and over"
        );
        world.bus.route(topic(), Route::Routed);
        add_tool(&world, "two");
        a_minute().await;
        assert_eq!(notifications(&world, "count.ana"), [json!(9), json!(2)]);
    }
}

#[tokio::test(start_paused = true)]
async fn names_of_tools_are_published_when_they_change_and_not_before() {
    let world = with_name_notifications().await;
    assert_eq!(notifications(&world, "tool.meta.tools.ana"), [] as [Value; 0]);
    add_tool(&world, "one");
    world.dispatcher.policy().registry().unregister("pay");
    world.dispatcher.policy().refresh();
    a_minute().await;
    assert_eq!(changed(&world), (json!(["one"]), json!(["pay"])));
}

#[tokio::test(start_paused = true)]
async fn changes_are_relative_to_the_last_list_of_the_agent() {
    let world = with_name_notifications().await;
    add_tool(&world, "one");
    // Before any agent is notified of it.
    let listed = list(&world, None).await;
    assert!(listed["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "one"), "{listed}");
    a_minute().await;
    assert_eq!(notifications(&world, "tool.meta.tools.ana"), [] as [Value; 0], "it knows that already");
    add_tool(&world, "two");
    a_minute().await;
    assert_eq!(changed(&world), (json!(["two"]), json!([])));
}

#[tokio::test(start_paused = true)]
async fn a_list_names_the_tools_whose_descriptions_its_format_cuts() {
    let world = World::new();
    let long = ToolDescriptor { description: "x".repeat(1025), ..ToolDescriptor::new("long", "test", "local") };
    world.add(Tool::new(long, ToolOutput::text("done")));
    let notice = |listed: Value| listed["notice"].as_str().map(str::to_owned);
    let openai = notice(list(&world, Some("openai")).await).unwrap();
    assert_eq!(openai, "1 descriptions are cut, because the format `openai` takes no longer ones: long.");
    assert_eq!(notice(list(&world, Some("anthropic")).await), None);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_the_same_text_after_servers_have_come_back_in_another_order() {
    let world = World::new();
    let publish = |source: &str, names: &[&str]| {
        let tool = |name: &&str| Tool::new(ToolDescriptor::new(*name, source, "mcp"), ToolOutput::text("done"));
        let access = world.dispatcher.policy();
        access.registry().publish(Rank::Configured, &source.into(), names.iter().map(tool).collect()).unwrap();
        access.refresh();
    };
    publish("mcp:a", &["read", "append", "zip"]);
    publish("mcp:b", &["list", "copy"]);
    let mut before = Vec::new();
    for format in Format::ALL {
        before.push(list(&world, Some(format.as_str())).await["tools"].to_string());
    }
    publish("mcp:a", &[]);
    publish("mcp:b", &[]);
    publish("mcp:b", &["copy", "list"]);
    publish("mcp:a", &["zip", "read", "append"]);
    for (format, before) in Format::ALL.into_iter().zip(before) {
        assert!(before.contains("append"), "{before}");
        assert_eq!(list(&world, Some(format.as_str())).await["tools"].to_string(), before, "{format}");
    }
}
