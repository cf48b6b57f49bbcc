//! Routes of replies, and failures to deliver them.

use std::time::Duration;

use serde_json::json;
use toolbus_core::bus::Target;
use toolbus_testing::log::LogCapture;
use toolbus_testing::recording_bus::Route;
use tracing::Level;

use crate::fixture::{Message, Settled, Settlement, World, call};
use toolbus_core::Clock;

const PEER: Option<&str> = Some("RockBot.Tools.ToolInvokeRequest");

fn topic(name: &str) -> Target {
    Target::Topic(name.to_owned())
}

fn queue(name: &str) -> Target {
    Target::Queue(name.to_owned())
}

fn dead_letters() -> Target {
    Target::DeadLetter("bus7.invoke".to_owned())
}

fn pay() -> Message {
    call("pay", json!({}))
}

#[tokio::test]
async fn the_reply_address_and_the_message_type_decide_where_a_reply_goes() {
    let direct = "amq.rabbitmq.reply-to.g1h2AA.xyz==";
    for (what, message, expected) in [
        ("without an address, to the default topic", pay().reply_to(None), (topic("tool.result"), true)),
        ("direct reply-to is never mandatory", pay().reply_to(Some(direct)), (queue(direct), false)),
        ("a peer's address is a topic first", pay().typed(PEER), (topic("tool.result.ana"), true)),
        ("a plain client's address is a queue first", pay().typed(None), (queue("tool.result.ana"), true)),
    ] {
        let sent = World::new().reply(message).await;
        assert_eq!((sent.target, sent.mandatory), expected, "{what}");
    }
}

#[tokio::test]
async fn an_unroutable_address_is_tried_as_a_queue_for_a_peer_and_as_a_topic_for_a_plain_client() {
    let (topic, queue) = (topic("tool.result.ana"), queue("tool.result.ana"));
    for (message_type, unroutable, expected) in [(PEER, &topic, &queue), (None, &queue, &topic)] {
        let world = World::new();
        world.bus.route(unroutable.clone(), Route::Unroutable);
        assert_eq!(world.reply(pay().typed(message_type)).await.target, *expected, "{message_type:?}");
    }
}

#[tokio::test]
async fn a_name_outside_the_reply_topics_is_tried_as_a_queue_only() {
    let world = World::new();
    world.bus.route(queue("amq.gen-42"), Route::Unroutable);
    world.deliver(pay().typed(None).reply_to(Some("amq.gen-42"))).await;
    let tried: Vec<Target> = world.bus.attempts().into_iter().map(|(target, _)| target).collect();
    assert_eq!(tried, [queue("amq.gen-42"), dead_letters()]);
}

#[tokio::test]
async fn no_tool_is_run_for_a_missing_queue_that_took_no_reply() {
    let world = World::new();
    let call = || pay().typed(None).reply_to(Some("mine"));
    world.bus.route(queue("mine"), Route::Unroutable);
    for reason in ["undeliverable_answer", "reply_to_refused", "reply_to_refused"] {
        let letter = world.reply(call()).await;
        assert_eq!((letter.properties.header("rb-dead-reason"), world.runs()), (Some(reason), 1));
    }
    world.bus.route(queue("mine"), Route::Routed);
    assert_eq!((world.reply(call()).await.target, world.runs()), (queue("mine"), 2));
}

#[tokio::test]
async fn a_peers_forbidden_topic_is_a_queue_and_refused_once_it_took_no_reply() {
    let world = World::new();
    let call = || pay().typed(PEER).reply_to(Some("elsewhere.ana"));
    let reply = world.reply(call()).await;
    assert_eq!((reply.target, world.runs()), (queue("elsewhere.ana"), 1));

    let world = World::new();
    world.bus.route(queue("elsewhere.ana"), Route::Unroutable);
    for reason in ["undeliverable_answer", "reply_to_refused"] {
        let letter = world.reply(call()).await;
        assert_eq!((letter.target, world.runs()), (dead_letters(), 1));
        assert_eq!(letter.properties.header("rb-dead-reason"), Some(reason));
        assert_eq!(letter.properties.header("rb-dead-reply-to"), Some("elsewhere.ana"));
    }
}

/// Log of this thread until the guard is dropped.
fn warnings() -> (LogCapture, tracing::subscriber::DefaultGuard) {
    let page = LogCapture::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(Level::WARN).with_writer(page.clone()).finish();
    (page, tracing::subscriber::set_default(subscriber))
}

#[tokio::test]
async fn undeliverable_replies_are_logged_once_and_not_each() {
    let (page, _guard) = warnings();
    let world = World::new();
    world.route_both("tool.result.gone", &Route::Unroutable);
    for _ in 0..50 {
        let call = pay().typed(None).reply_to(Some("tool.result.gone"));
        assert_eq!(world.reply(call).await.target, dead_letters());
    }
    let lines = page.text();
    assert_eq!(lines.matches("dead-lettered a reply").count(), 1, "{lines}");
    assert_eq!(lines.lines().count(), 1, "{lines}");
}

#[tokio::test]
async fn the_route_that_worked_for_an_address_is_remembered() {
    let world = World::new();
    world.bus.route(topic("tool.result.ana"), Route::Unroutable);
    for _ in 0..2 {
        world.reply(pay().typed(PEER)).await;
    }
    let name = "tool.result.ana";
    assert_eq!(world.bus.attempts(), [(topic(name), false), (queue(name), false), (queue(name), true)]);
}

#[tokio::test]
async fn a_remembered_route_that_fails_has_to_prove_itself_again() {
    let world = World::new();
    world.reply(pay().typed(PEER)).await;
    world.bus.route(topic("tool.result.ana"), Route::Unroutable);
    assert_eq!(world.reply(pay().typed(PEER)).await.target, queue("tool.result.ana"));
    let last: Vec<bool> = world.bus.attempts().into_iter().map(|(_, proven)| proven).collect();
    assert_eq!(last, [false, true, false, false]);
}

#[tokio::test]
async fn an_undeliverable_reply_is_dead_lettered_and_the_request_acknowledged() {
    let world = World::new();
    world.route_both("tool.result.ana", &Route::Unroutable);
    let sent = world.reply(pay().typed(PEER)).await;
    assert_eq!(sent.target, Target::DeadLetter("bus7.invoke".to_owned()));
    assert_eq!(sent.properties.header("rb-dead-reason"), Some("undeliverable_answer"));
    assert_eq!(sent.properties.header("rb-dead-reply-to"), Some("tool.result.ana"));
    assert_eq!(sent.body["content"], "paid");
}

#[tokio::test]
async fn an_address_that_the_broker_refuses_is_refused_before_the_tool_runs_and_harms_no_other() {
    let (world, (page, _guard)) = (World::new(), warnings());
    world.bus.route(queue("forbidden"), Route::Refused);
    let sent = world.reply(pay().typed(None).reply_to(Some("forbidden"))).await;
    assert_eq!((sent.target, world.runs()), (dead_letters(), 0));
    assert_eq!(sent.properties.header("rb-dead-reason"), Some("reply_to_refused"));
    let text = page.text();
    assert!(text.contains("the broker does not let the daemon publish there: ACCESS_REFUSED"), "{text}");
    assert_eq!(world.reply(pay()).await.body["content"], "paid");
    world.bus.route(topic("tool.result"), Route::Refused);
    assert_eq!(world.reply(pay().reply_to(None)).await.target, dead_letters());
    assert_eq!(world.runs(), 1, "nor without an address, where the default is refused");
}

#[tokio::test]
async fn an_address_runs_a_tool_if_one_of_its_routes_is_open() {
    let world = World::new();
    world.bus.route(topic("tool.result.ana"), Route::Refused);
    assert_eq!(world.reply(pay().typed(PEER)).await.target, queue("tool.result.ana"));
    let world = World::new();
    world.bus.route(topic("tool.result.ana"), Route::Refused);
    world.bus.route(queue("tool.result.ana"), Route::Unroutable);
    assert_eq!((world.reply(pay().typed(PEER)).await.target, world.runs()), (dead_letters(), 0));
}

#[tokio::test]
async fn an_address_that_took_a_reply_is_checked_again_only_after_it_failed() {
    let world = World::new();
    for _ in 0..3 {
        world.reply(pay().typed(PEER)).await;
    }
    assert_eq!(world.bus.refusal_queries(), 1);
    world.route_both("tool.result.ana", &Route::Refused);
    let late = world.reply(pay().typed(PEER)).await;
    assert_eq!((late.properties.header("rb-dead-reason"), world.runs()), (Some("undeliverable_answer"), 4));
    let next = world.reply(pay().typed(PEER)).await;
    assert_eq!((next.properties.header("rb-dead-reason"), world.runs()), (Some("reply_to_refused"), 4));
}

#[tokio::test]
async fn a_reply_is_published_again_until_the_broker_is_back_or_its_queue_has_room() {
    for refusal in [Route::Unavailable, Route::Rejected] {
        let world = World::new();
        world.bus.route(topic("tool.result.ana"), refusal.clone());
        let (task, settled) = world.begin(pay().typed(PEER));
        world.until_attempted(3).await;
        world.bus.route(topic("tool.result.ana"), Route::Routed);
        task.await.unwrap();
        assert_eq!((settled.get(), world.runs()), (Some(Settled::Acknowledged), 1), "{refusal:?}");
        let targets: Vec<_> = world.sent().into_iter().map(|it| it.target).collect();
        assert_eq!(targets, [topic("tool.result.ana")], "{refusal:?}");
    }
}

#[tokio::test]
async fn a_call_with_a_large_result_keeps_its_slot_until_its_reply_is_delivered() {
    for (length, kept) in [(10, 0), (300 * 1024, 1)] {
        let world = World::new();
        world.bus.route(topic("tool.result.ana"), Route::Unavailable);
        let (task, settled) = world.begin(call("echo", json!({"text": "x".repeat(length)})).typed(PEER));
        world.until_attempted(2).await;
        assert_eq!(world.load.in_flight(), kept, "{length} bytes");
        world.bus.route(topic("tool.result.ana"), Route::Routed);
        task.await.unwrap();
        assert_eq!((settled.get(), world.load.in_flight()), (Some(Settled::Acknowledged), 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_dead_letter_is_not_confirmed_goes_back_to_its_queue() {
    let world = World::new();
    world.bus.route(dead_letters(), Route::Unavailable);
    let settlement = world.deliver(pay().reply_to(Some("tool.invoke"))).await;
    assert_eq!(settlement.get(), Some(Settled::Requeued));
    assert!(world.bus.attempts().len() > 2, "tried again meanwhile");
    assert_eq!(world.recorder.dead_letters(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_requeued_while_the_dead_letter_queue_takes_no_reply() {
    let world = World::new();
    world.route_both("tool.result.ana", &Route::Unroutable);
    world.bus.route(dead_letters(), Route::Rejected);
    let settlement = world.deliver(pay().typed(PEER)).await;
    assert_eq!((settlement.get(), world.runs()), (Some(Settled::Requeued), 1));
    let tries = world.bus.attempts().into_iter().filter(|(target, _)| *target == dead_letters()).count();
    assert!(tries > 2, "tried again meanwhile");
    assert_eq!(world.recorder.dead_letters(), 0);
    // The redelivered request has its reply, and that is kept once a queue takes it.
    world.bus.route(dead_letters(), Route::Routed);
    let settlement = world.deliver(pay().typed(PEER).redelivered()).await;
    assert_eq!((settlement.get(), world.runs()), (Some(Settled::Acknowledged), 1));
    assert_eq!(world.recorder.dead_letters(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_is_published_again_until_the_broker_is_back_and_counted_once() {
    let world = World::new();
    world.bus.route(dead_letters(), Route::Unavailable);
    let (task, settled) = world.begin(pay().reply_to(Some("tool.invoke")));
    while world.bus.attempts().len() < 3 {
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    world.bus.route(dead_letters(), Route::Routed);
    task.await.unwrap();
    assert_eq!((settled.get(), world.recorder.dead_letters()), (Some(Settled::Acknowledged), 1));
}

#[tokio::test(start_paused = true)]
async fn a_refused_dead_letter_is_no_hot_loop_and_never_goes_to_the_reply_address() {
    let world = World::new();
    world.bus.route(dead_letters(), Route::Refused);
    let begun = Clock::SYSTEM.now();
    let settlement = world.deliver(pay().reply_to(Some("tool.invoke"))).await;
    assert_eq!(settlement.get(), Some(Settled::Requeued));
    assert!(Clock::SYSTEM.since(begun) >= Duration::from_secs(10));
    assert_eq!(world.bus.attempts(), [(dead_letters(), false)]);
    assert_eq!(world.recorder.dead_letters(), 0);
}

#[tokio::test]
async fn a_dead_letter_takes_over_no_more_headers_than_fit_into_a_frame() {
    let world = World::new();
    let big = "x".repeat(20 * 1024);
    let message = pay().reply_to(Some("tool.invoke")).header("rb-a", &big).header("rb-b", &big).header("rb-c", "small");
    let sent = world.reply(message).await;
    assert_eq!(sent.properties.header("rb-a"), Some(&*big));
    assert_eq!((sent.properties.header("rb-b"), sent.properties.header("rb-c")), (None, Some("small")));
    assert_eq!(sent.properties.header("rb-dead-reason"), Some("reply_to_refused"));
}

#[tokio::test(start_paused = true)]
async fn while_the_broker_is_away_a_reply_is_kept_and_its_request_not_run_again() {
    let world = World::new();
    world.bus.route(topic("tool.result.ana"), Route::Unavailable);
    let (task, first) = world.begin(pay().typed(PEER));
    tokio::time::sleep(Duration::from_secs(600)).await;
    let second = world.deliver(pay().typed(PEER).redelivered()).await;
    assert_eq!((first.get(), second.get()), (Some(Settled::Acknowledged), None), "the later one is held");
    world.bus.route(topic("tool.result.ana"), Route::Routed);
    task.await.unwrap();
    assert_eq!(second.get(), Some(Settled::Acknowledged));
    assert_eq!((world.sent().len(), world.runs()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_reply_delays_the_drain_only_briefly() {
    let world = World::new();
    world.bus.route(topic("tool.result.ana"), Route::Unavailable);
    let (task, settled) = world.begin(pay().typed(PEER));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(settled.get(), None);
    let begun = Clock::SYSTEM.now();
    world.dispatcher.shut_down();
    task.await.unwrap();
    assert_eq!(settled.get(), Some(Settled::Requeued));
    assert!(Clock::SYSTEM.since(begun) <= Duration::from_secs(6), "{:?}", Clock::SYSTEM.since(begun));
}

/// Calls of this many callers, each of whose queues for replies is full.
fn begin_rejected(world: &World, callers: usize) -> Vec<(tokio::task::JoinHandle<()>, Settlement)> {
    let begin = |number: usize| {
        let name = format!("tool.result.full-{number}");
        world.bus.route(topic(&name), Route::Rejected);
        let mut message = pay().typed(PEER).reply_to(Some(&name));
        message.properties.message_id = Some(name);
        world.begin(message)
    };
    (0..callers).map(begin).collect()
}

#[tokio::test(start_paused = true)]
async fn a_rejected_reply_is_dead_lettered_after_half_a_minute_and_the_request_acknowledged() {
    let world = World::new();
    world.bus.route(topic("tool.result.ana"), Route::Rejected);
    let begun = Clock::SYSTEM.now();
    let sent = world.reply(pay().typed(PEER)).await;
    assert_eq!(sent.target, dead_letters());
    assert_eq!(sent.properties.header("rb-dead-reason"), Some("undeliverable_answer"));
    assert_eq!(sent.properties.header("rb-dead-reply-to"), Some("tool.result.ana"));
    let waited = Clock::SYSTEM.since(begun);
    assert!((Duration::from_secs(20)..Duration::from_secs(40)).contains(&waited), "{waited:?}");
    assert_eq!(world.bus.attempts().len(), 32 + 1, "and no other route is tried, which might repeat the reply");
}

#[tokio::test(start_paused = true)]
async fn rejected_replies_wait_in_an_eighth_of_the_calls_and_the_others_end_at_once() {
    let world = World::with(|settings| (settings.max_in_flight, settings.max_waiting) = (8, 8));
    let begun = Clock::SYSTEM.now();
    let calls = begin_rejected(&world, 8);
    while world.recorder.dead_letters() < 6 {
        tokio::task::yield_now().await;
    }
    assert_eq!(Clock::SYSTEM.since(begun), Duration::ZERO);
    assert_eq!(calls.iter().filter(|(_, settled)| settled.get().is_none()).count(), 2);
    for (task, settled) in calls {
        task.await.unwrap();
        assert_eq!(settled.get(), Some(Settled::Acknowledged));
    }
    assert_eq!(world.recorder.dead_letters(), 8);
}

#[tokio::test(start_paused = true)]
async fn the_slot_of_a_rejected_reply_is_free_again_after_it() {
    let world = World::new();
    for _ in 0..3 {
        let begun = Clock::SYSTEM.now();
        for (task, _) in begin_rejected(&world, 1) {
            task.await.unwrap();
        }
        assert!(Clock::SYSTEM.since(begun) > Duration::from_secs(1), "it waited, too");
    }
}

#[tokio::test(start_paused = true)]
async fn a_route_that_rejects_a_reply_stays_proven() {
    let world = World::new();
    world.reply(pay().typed(PEER)).await;
    world.bus.route(topic("tool.result.ana"), Route::Rejected);
    assert_eq!(world.reply(pay().typed(PEER)).await.target, dead_letters());
    let tried: Vec<bool> = world.bus.attempts().into_iter().map(|(_, proven)| proven).collect();
    assert_eq!(tried, [vec![false], vec![true; 32], vec![false]].concat());
}
