use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;
use toolbus_broker::embedded::Embedded;
use toolbus_core::bus::Delivery;
use toolbus_core::failure::ToolFailure;
use toolbus_core::ledger::LedgerLimits;
use toolbus_core::policy::AgentPolicy;
use toolbus_core::registry::Registry;
use toolbus_core::tool::{Executor, Tool, ToolCall};
use toolbus_core::toolsets::SessionSets;
use toolbus_core::{About, ControlService, Service};
use toolbus_protocol::new_message_id;
use toolbus_store::MemoryLedger;

use super::*;
use crate::testing;

/// A tool with effects, which is counted.
struct PayExecutor(Arc<AtomicUsize>);

impl Executor for PayExecutor {
    async fn execute(&self, _: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::text(format!("paid {}", self.0.fetch_add(1, Ordering::SeqCst))))
    }
}

/// A daemon that announces `pay`, and the messages that ana receives.
struct Fixture {
    bus: Embedded,
    replies: mpsc::Receiver<Delivery>,
}

impl Fixture {
    fn new() -> Self {
        let (bus, registry, clock) = (Embedded::new(), Registry::new(), Clock::SYSTEM);
        let pay = ToolDescriptor { effect: Effect::Effectful, ..ToolDescriptor::new("pay", "test", "local") };
        registry.register(Tool::new(pay, PayExecutor(Arc::default()))).unwrap();
        registry
            .register(Tool::new(ToolDescriptor::new("refund", "test", "local"), PayExecutor(Arc::default())))
            .unwrap();
        let policy = testing::policy(registry, [("ana", AgentPolicy::default())]);
        let ledger = Arc::new(MemoryLedger::new(LedgerLimits { max_entries: 100, max_bytes: 1024 * 1024 }, clock));
        let dispatcher = testing::dispatcher(&policy, &bus, Some(ledger), clock);
        let config = A2aConfig { announce: vec!["pay".to_owned()], ..A2aConfig::default() };
        let of_daemon: Arc<dyn Bus> = Arc::new(bus.clone());
        let parts = (("toolbus", "1"), (clock, Random::SYSTEM));
        let announcer = Announcer::new(&config, policy, Arc::clone(&of_daemon), parts.0, parts.1).unwrap().unwrap();
        let about = About {
            name: "toolbus".to_owned(),
            version: "1".to_owned(),
            config_digest: watch::channel("0".to_owned()).1,
            roles: Vec::new(),
            started: clock.now(),
        };
        let skills = SkillHandler::new(announcer, Arc::new(dispatcher.clone()));
        let sessions = SessionSets::default();
        let control = ControlService::new(about, of_daemon, testing::reply_rules(), dispatcher.clone(), sessions)
            .with(topic::agent_task("toolbus"), Arc::new(skills))
            .with(topic::agent_task_cancel("toolbus"), Arc::new(SkillCancelHandler));
        let topics = [&*topic::agent_task("toolbus"), &topic::agent_task_cancel("toolbus")];
        let requests = testing::queue(&bus, "toolbus.tasks", &topics, MAX_TASK_BODY);
        let service = Service::new(dispatcher);
        TaskTracker::new().spawn(async move { service.serve_requests(&control, requests).await });
        let replies = testing::queue(&bus, "ana", &[&topic::agent_response("ana")], MAX_TASK_BODY);
        Self { bus, replies }
    }

    /// Sends a message of ana's about the task `t1`, and returns the type of the reply, and its body.
    async fn exchange(&mut self, topic: &str, kind: &str, body: String) -> (String, Value) {
        let envelope = Envelope {
            correlation_id: "t1".to_owned(),
            reply_to: topic::agent_response("ana"),
            ..Envelope::outgoing(kind, "ana", new_message_id(), Clock::SYSTEM.wall())
        };
        let message = Outgoing {
            target: Target::Topic(topic.to_owned()),
            mandatory: true,
            proven: false,
            properties: envelope.into_properties().into(),
            body: body.into(),
        };
        self.bus.publish(&message).await.unwrap();
        let reply = self.replies.recv().await.unwrap();
        let (envelope, body) = (Envelope::read(&reply.properties), serde_json::from_slice(&reply.body).unwrap());
        reply.settle.acknowledge().await;
        assert_eq!(envelope.correlation_id, "t1");
        (envelope.message_type, body)
    }

    /// Gives a task.
    async fn task(&mut self, body: String) -> (String, Value) {
        self.exchange(&topic::agent_task("toolbus"), message_type::AGENT_TASK_REQUEST, body).await
    }
}

/// A task for `pay`, with a message of data and so many bytes of text.
fn pay(id: &str, size: usize) -> String {
    let parts = json!([{"kind": "data", "data": "{}"}, {"kind": "text", "text": "x".repeat(size)}]);
    json!({"taskId": id, "skill": "pay", "message": {"role": "user", "parts": parts}}).to_string()
}

#[tokio::test]
async fn a_task_as_large_as_agents_give_them_is_run() {
    let (kind, body) = Fixture::new().task(pay("t1", 400_000)).await;
    assert_eq!((kind.as_str(), &body["taskId"]), (message_type::AGENT_TASK_RESULT, &json!("t1")), "{body}");
}

#[tokio::test]
async fn a_tool_that_is_not_announced_is_no_skill_although_the_sender_may_use_it() {
    let (kind, body) = Fixture::new().task(pay("t1", 0).replace("\"pay\"", "\"refund\"")).await;
    let error = (kind.as_str(), body["code"].as_str().unwrap());
    assert_eq!(error, (message_type::AGENT_TASK_ERROR, AgentTaskError::SKILL_NOT_SUPPORTED), "{body}");
}

#[tokio::test]
async fn an_unusable_task_ends_with_an_error_and_an_unusable_cancellation_ends_no_task() {
    let mut fixture = Fixture::new();
    let twice = r#"{"taskId":"t1","taskId":"t2","skill":"pay","message":{"parts":[]}}"#.to_owned();
    for body in [pay("t1", 2 * MAX_TASK_BODY), twice.clone(), String::new()] {
        let (kind, body) = fixture.task(body).await;
        let error = (kind.as_str(), body["taskId"].as_str().unwrap(), body["code"].as_str().unwrap());
        assert_eq!(error, (message_type::AGENT_TASK_ERROR, "t1", AgentTaskError::INVALID_REQUEST), "{body}");
        assert!(body["message"].as_str().unwrap().starts_with("The request is not usable: it "), "{body}");
    }
    let cancel = topic::agent_task_cancel("toolbus");
    let (kind, body) = fixture.exchange(&cancel, message_type::AGENT_TASK_CANCEL_REQUEST, twice).await;
    let error = (kind.as_str(), body["code"].as_str().unwrap());
    assert_eq!(error, (message_type::AGENT_TASK_ERROR, AgentTaskError::TASK_NOT_CANCELABLE), "{body}");
}

#[test]
fn a_message_is_the_arguments_as_a_json_object_or_the_only_text_that_the_tool_needs() {
    let with = |parameters: Value| ToolDescriptor {
        parameters: Some(Arc::new(parameters)),
        ..ToolDescriptor::new("t", "s", "local")
    };
    let one = with(json!({"properties": {"city": {"type": "string"}, "days": {}}, "required": ["city"]}));
    let two = with(json!({"properties": {"a": {"type": "string"}}, "required": ["a", "b"]}));
    let read =
        |text: &str, tool| arguments(&AgentMessage::text("user", text), tool).map(|all| Value::Object(all).to_string());
    assert_eq!(read(r#"{"city":"Lima"}"#, &two).as_deref(), Some(r#"{"city":"Lima"}"#));
    assert_eq!(read("Lima", &one).as_deref(), Some(r#"{"city":"Lima"}"#));
    assert_eq!(read("Lima", &two), None);
    assert_eq!(read(r#"{"city":"Lima","city":"Rome"}"#, &two), None);
    assert_eq!(arguments(&AgentMessage::default(), &one), None);
}

#[tokio::test]
async fn a_redelivered_task_is_run_once_with_any_id() {
    for id in ["t1".to_owned(), "t".repeat(300), "a\nb".to_owned()] {
        let mut fixture = Fixture::new();
        for _ in 0..2 {
            let (kind, body) = fixture.task(pay(&id, 0)).await;
            assert_eq!(kind, message_type::AGENT_TASK_RESULT, "{body}");
            assert_eq!((&body["taskId"], &body["message"]["parts"][0]["text"]), (&json!(id), &json!("paid 0")));
        }
        let other = fixture.task(pay(&format!("{id}2"), 0)).await.1;
        assert_eq!(other["message"]["parts"][0]["text"], "paid 1", "another task");
    }
}
