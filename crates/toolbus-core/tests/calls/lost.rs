//! Calls whose connection ends, or whose ledger is away for a while: another daemon may have them by now.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolbus_core::bus::Target;
use toolbus_core::ledger::Ledger;
use toolbus_testing::faulty_ledger::FaultyLedger;
use toolbus_testing::faulty_store::StoreFault;
use toolbus_testing::recording_bus::Route;

use crate::fixture::{Message, Settled, World, call};
use crate::ledger::{ROOMY, daemon, ledger};

fn pay() -> Message {
    call("pay", json!({})).id("paid for")
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_is_dropped_with_its_connection_and_a_running_one_is_answered() {
    let world = World::with(|settings| settings.max_in_flight = 1);
    let (running, first) = world.begin_running(call("wait_effectful", json!({}))).await;
    let (waiting, second) = world.begin(pay());
    world.until_waiting(1).await;
    first.lose();
    second.lose();
    waiting.await.unwrap();
    assert_eq!((world.load.waiting(), world.bus.attempts().len()), (0, 0), "nothing is published for it");
    world.finish(running).await;
    assert_eq!(world.sent().pop().unwrap().body["content"], "waited");
    assert_eq!((world.runs(), world.sent().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_redelivered_over_the_next_connection_keeps_its_position() {
    let world = World::with(|settings| settings.max_in_flight = 1);
    let (running, _first) = world.begin_running(call("wait_effectful", json!({}))).await;
    let (waiting, lost) = world.begin(pay());
    world.until_waiting(1).await;
    let (again, settled) = world.begin(pay().redelivered());
    again.await.unwrap();
    lost.lose();
    tokio::task::yield_now().await;
    world.finish(running).await;
    waiting.await.unwrap();
    assert_eq!((settled.get(), world.runs()), (Some(Settled::Acknowledged), 2));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_waits_for_the_broker_is_dropped_with_the_connection() {
    let world = World::new();
    let address = Target::Topic("tool.result.ana".to_owned());
    world.bus.route(address.clone(), Route::Unavailable);
    let (refused, settled) = world.begin(call("no_such_tool", json!({})));
    world.until_attempted(1).await;
    settled.lose();
    refused.await.unwrap();
    world.bus.route(address, Route::Routed);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(world.sent().is_empty(), "{:?}", world.sent());
}

#[tokio::test(start_paused = true)]
async fn a_redelivered_call_waits_for_a_ledger_that_is_away_and_gets_the_reply_of_the_daemon_that_ran_it() {
    let stored = ledger(ROOMY);
    let first = daemon(&stored).reply(pay()).await;
    let away = Arc::new(FaultyLedger::new(stored));
    away.set(StoreFault::Away);
    let other = daemon(&(Arc::clone(&away) as Arc<dyn Ledger>));
    let (again, _settled) = other.begin(pay().redelivered());
    other.until_waiting(1).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(other.sent().is_empty());
    away.set(None);
    again.await.unwrap();
    let sent = other.sent().pop().unwrap();
    assert_eq!((sent.body, sent.properties, other.runs()), (first.body, first.properties, 0));
}
