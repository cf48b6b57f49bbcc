//! Requests on topics of handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use toolbus_core::bus::Target;
use toolbus_core::{Clock, ControlError, ControlHandler, ControlReply, ControlRequest, ControlService, Service};
use toolbus_testing::recording_bus::Route;

use crate::fixture::{Message, Sent, Settled, Settlement, World, control, delivery, raw, serve};

const TOPIC: &str = "my.topic";

/// Repeats the body of a request, which must be JSON.
struct Parrot {
    message_type: Option<&'static str>,
}

impl ControlHandler for Parrot {
    fn message_type(&self) -> Option<&'static str> {
        self.message_type
    }

    fn handle<'a>(&'a self, request: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>> {
        Box::pin(async move {
            if !request.has_address() {
                return Err(ControlError::NoAddress);
            }
            let body = toolbus_protocol::parse_object(&request.body)?;
            let reply = json!({"caller": *request.caller.name, "body": body});
            Ok(Some(ControlReply::new("Toolbus.ParrotResponse", &reply).of("mcp")))
        })
    }
}

/// Needs a store that is away.
struct WithoutStore;

impl ControlHandler for WithoutStore {
    fn message_type(&self) -> Option<&'static str> {
        None
    }

    fn handle<'a>(&'a self, _: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>> {
        Box::pin(async { Err(ControlError::StoreAway) })
    }
}

/// Messages that leave when this one arrives on the parrot's topic.
async fn sent(parrot: Parrot, message: Message) -> Vec<Sent> {
    let world = World::new();
    let control = control(&world.dispatcher, &world.bus).with(TOPIC, Arc::new(parrot));
    let settlement = serve(&world.dispatcher, &control, TOPIC, message).await;
    assert_eq!(settlement.get(), Some(Settled::Acknowledged));
    world.sent()
}

fn is_dead_letter(sent: &Sent, reason: &str) -> bool {
    let is_dead = matches!(&sent.target, Target::DeadLetter(queue) if queue == "bus7.invoke");
    is_dead && sent.properties.header("rb-dead-reason") == Some(reason)
}

#[tokio::test]
async fn the_reply_of_a_handler_has_the_envelope_of_every_reply() {
    let all =
        sent(Parrot { message_type: Some("Toolbus.Parrot") }, raw("{\"a\":1}").typed(Some("Toolbus.Parrot"))).await;
    let [reply] = &*all else { panic!("{all:?}") };
    assert_eq!(reply.target, Target::Topic("tool.result.ana".to_owned()));
    assert_eq!(reply.body, json!({"caller": "ana", "body": {"a": 1}}));
    let header = |name| reply.properties.header(name);
    assert_eq!((header("rb-rb-content-trust"), header("rb-rb-tool-provider")), (Some("tool-output"), Some("mcp")));
    assert_eq!((header("rb-source"), header("rb-destination")), (Some("toolbus"), Some("ana")));
    assert_eq!(reply.properties.correlation_id.as_deref(), Some("corr-1"));
}

#[tokio::test]
async fn an_unreadable_request_is_refused_to_its_sender_or_dead_lettered() {
    for body in ["nonsense".to_owned(), format!("{{\"a\":\"{}\"}}", "x".repeat(64 * 1024))] {
        let all = sent(Parrot { message_type: None }, raw(body.clone())).await;
        let [reply] = &*all else { panic!("{all:?}") };
        assert_eq!(reply.body["code"], "invalid_arguments");
        assert!(reply.body["message"].as_str().unwrap().starts_with("The request is not usable: it "));
        let all = sent(Parrot { message_type: None }, raw(body).reply_to(None)).await;
        assert!(matches!(&*all, [dead] if is_dead_letter(dead, "malformed_request")), "{all:?}");
    }
}

#[tokio::test]
async fn a_topic_with_one_type_refuses_others_and_without_one_the_handler_decides() {
    let foreign = || raw("{}").typed(Some("RockBot.Other.Request"));
    let all = sent(Parrot { message_type: Some("Toolbus.Parrot") }, foreign()).await;
    assert!(matches!(&*all, [dead] if is_dead_letter(dead, "unknown_type")), "{all:?}");
    let all = sent(Parrot { message_type: None }, foreign()).await;
    assert!(matches!(&*all, [reply] if reply.body["caller"] == "ana"), "{all:?}");
    for parrot in [Parrot { message_type: Some("Toolbus.Parrot") }, Parrot { message_type: None }] {
        let all = sent(parrot, raw("{}").typed(Some("RockBot.Other.Response"))).await;
        assert!(all.is_empty(), "replies have no reply: {all:?}");
    }
}

#[tokio::test]
async fn a_forbidden_reply_address_is_refused_before_the_handler_is_called() {
    for address in ["tool.invoke", "mcp.manage", "rockbot.ana"] {
        let all = sent(Parrot { message_type: None }, raw("{}").reply_to(Some(address))).await;
        assert!(matches!(&*all, [dead] if is_dead_letter(dead, "reply_to_refused")), "{address}: {all:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_dead_letter_is_not_confirmed_goes_back_to_its_queue() {
    let dead_letters = Target::DeadLetter("bus7.invoke".to_owned());
    for route in [Route::Unavailable, Route::Rejected, Route::Refused] {
        let world = World::new();
        let control = control(&world.dispatcher, &world.bus).with(TOPIC, Arc::new(Parrot { message_type: None }));
        world.bus.route(dead_letters.clone(), route.clone());
        let begun = Clock::SYSTEM.now();
        let message = raw("{}").reply_to(Some("tool.invoke"));
        let settlement = serve(&world.dispatcher, &control, TOPIC, message.clone()).await;
        assert_eq!((settlement.get(), world.recorder.dead_letters()), (Some(Settled::Requeued), 0), "{route:?}");
        let waited = Clock::SYSTEM.since(begun);
        assert!(waited >= Duration::from_secs(9), "{route:?}: {waited:?}");
        world.bus.route(dead_letters.clone(), Route::Routed);
        let settlement = serve(&world.dispatcher, &control, TOPIC, message).await;
        assert_eq!((settlement.get(), world.recorder.dead_letters()), (Some(Settled::Acknowledged), 1), "{route:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_is_settled_if_no_queue_takes_its_reply() {
    for route in [Route::Unroutable, Route::Refused, Route::Rejected, Route::Unavailable] {
        let world = World::new();
        let control = control(&world.dispatcher, &world.bus).with(TOPIC, Arc::new(Parrot { message_type: None }));
        world.route_both("tool.result.ana", &route);
        let settlement = serve(&world.dispatcher, &control, TOPIC, raw("{}")).await;
        assert_eq!((settlement.get(), world.sent().len()), (Some(Settled::Acknowledged), 0), "{route:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_needs_a_store_which_is_away_goes_back_to_its_queue_after_a_pause() {
    let world = World::new();
    let control = control(&world.dispatcher, &world.bus).with(TOPIC, Arc::new(WithoutStore));
    let begun = Clock::SYSTEM.now();
    let settlement = serve(&world.dispatcher, &control, TOPIC, raw("{}")).await;
    assert_eq!((settlement.get(), world.sent().len()), (Some(Settled::Requeued), 0));
    assert!(Clock::SYSTEM.since(begun) >= Duration::from_secs(10));
}

/// Runs calls, which it counts.
#[derive(Default)]
struct Runner(AtomicUsize);

impl ControlHandler for Runner {
    fn message_type(&self) -> Option<&'static str> {
        None
    }

    fn runs_calls(&self) -> bool {
        true
    }

    fn handle<'a>(&'a self, _: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok(Some(ControlReply::new("Toolbus.Ran", &json!({"done": true})))) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_handlers_reply_to_a_call_is_kept_until_confirmed_and_its_request_acknowledged_then() {
    let (world, runner) = (World::new(), Arc::new(Runner::default()));
    let control = control(&world.dispatcher, &world.bus).with(TOPIC, Arc::clone(&runner) as _);
    let target = Target::Topic("tool.result.ana".to_owned());
    world.bus.route(target.clone(), Route::Unavailable);
    let (task, settlement) = begin(&world, &control);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((settlement.get(), world.sent().len()), (None, 0));
    world.bus.route(target.clone(), Route::Routed);
    task.await.unwrap();
    assert_eq!((settlement.get(), world.sent().len()), (Some(Settled::Acknowledged), 1));
    // What no queue takes is put aside, and what is not sent at the end goes back with its request.
    for route in [Route::Rejected, Route::Unroutable] {
        world.route_both("tool.result.ana", &route);
        let settlement = serve(&world.dispatcher, &control, TOPIC, raw("{}")).await;
        assert_eq!(settlement.get(), Some(Settled::Acknowledged));
        assert!(is_dead_letter(world.sent().last().unwrap(), "undeliverable_answer"), "{route:?}");
    }
    world.bus.route(target, Route::Unavailable);
    let (task, settlement) = begin(&world, &control);
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.dispatcher.shut_down();
    task.await.unwrap();
    assert_eq!(settlement.get(), Some(Settled::Requeued));
    assert_eq!(runner.0.load(Ordering::SeqCst), 4);
}

/// Delivers a message on the topic without waiting.
fn begin(world: &World, control: &ControlService) -> (tokio::task::JoinHandle<()>, Settlement) {
    let (mut delivery, settlement) = delivery(raw("{}"));
    delivery.routing_key = TOPIC.into();
    let (sender, receiver) = mpsc::channel(1);
    sender.try_send(delivery).unwrap();
    drop(sender);
    let (service, control) = (Service::new(world.dispatcher.clone()), control.clone());
    let task = TaskTracker::new().spawn(async move {
        service.serve_requests(&control, receiver).await;
        service.drain(Duration::from_secs(3600)).await;
    });
    (task, settlement)
}
