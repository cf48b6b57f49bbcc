//! Scheduled tasks over the bus: each time is published once, also across a restart and where several daemons share a store.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;
use toolbus_testing::redis::RedisServer;

const RULES: &str = r#"
[identity]
trust_headers = true
[agents.ana]
[schedule]
timezone = "Europe/Berlin"
missed = "all"
min_interval = "1s"
"#;

/// A task at each second.
async fn schedule(client: &Client) {
    let task = json!({"name": "tick", "cron": "* * * * * *", "description": "Say tick"});
    let scheduled = client.text("ana", "schedule_task", &task).await;
    assert!(scheduled.starts_with("Scheduled task 'tick' with cron '* * * * * *'. Next fire: "), "{scheduled}");
}

/// The messages that have come of scheduled tasks.
async fn fired(client: &Client) -> Vec<Message> {
    let kind = "RockBot.Host.ScheduledTaskMessage";
    client.caught_up().await.into_iter().filter(|message| message.kind() == kind).collect()
}

/// Waits until so many messages have come; returns their times, each of which came with its own id.
async fn times(client: &Client, at_least: usize) -> Vec<String> {
    let messages = eventually("messages of scheduled tasks", async || {
        Some(fired(client).await).filter(|messages| messages.len() >= at_least)
    });
    let messages = messages.await;
    let ids: BTreeSet<_> = messages.iter().map(|message| (message.message_id(), due(message))).collect();
    let times: Vec<String> = messages.iter().map(due).collect();
    assert_eq!(ids.len(), times.iter().collect::<BTreeSet<_>>().len(), "one id for each time: {ids:?}");
    times
}

fn due(message: &Message) -> String {
    message.body()["dueAt"].as_str().unwrap().to_owned()
}

/// The seconds of these times, which are those of one hour.
fn seconds(times: &[String]) -> Vec<u32> {
    let second = |time: &String| {
        let (_, clock) = time.split_once('T').unwrap();
        clock.trim_end_matches('Z').split(':').fold(0, |all, part| all * 60 + part.parse::<u32>().unwrap())
    };
    times.iter().map(second).collect()
}

/// Keeps the first of each time: a pass that was not settled is published again, all of its times in their order.
fn forget_repetitions(times: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    times.retain(|time| seen.insert(time.clone()));
}

/// Whether each time follows the one before by a second, midnight apart.
fn is_gapless(times: &[String]) -> bool {
    seconds(times).windows(2).all(|pair| pair[1] == (pair[0] + 1) % (24 * 60 * 60))
}

#[tokio::test]
async fn a_task_is_published_at_each_of_its_times_for_its_agent_also_after_the_daemon_was_killed() {
    let (site, daemon, client) = Daemon::with_client(&format!("{RULES}[store]\nurl = \"sqlite:toolbus.db\"\n")).await;
    client.bind("scheduled.task.ana").await;
    schedule(&client).await;
    let before = times(&client, 3).await;
    let first = fired(&client).await.remove(0);
    assert_eq!(first.body()["taskName"], "tick");
    assert_eq!(first.body()["description"], "Say tick");
    assert_eq!((first.header("rb-destination"), first.header("rb-rb-tool-profile")), ("ana", "scheduled"));
    let daemon = daemon.killed().await;
    let mut times = times(&client, before.len() + 6).await;
    // What was confirmed as the daemon was killed may come again, with the same id.
    forget_repetitions(&mut times);
    assert!(is_gapless(&times), "{times:?}");
    // What was missed is settled once it has been published.
    let listed = eventually("a task that is not overdue", async || {
        Some(client.text("ana", "list_scheduled_tasks", &json!({})).await).filter(|listed| !listed.contains("OVERDUE"))
    })
    .await;
    assert!(listed.contains("| **tick** | `* * * * * *` |"), "{listed}");
    assert_eq!(
        client.text("ana", "cancel_scheduled_task", &json!({"name": "Tick"})).await,
        "Cancelled scheduled task 'Tick'."
    );
    daemon.stop(&site).await;
}

#[tokio::test]
async fn of_two_daemons_on_one_store_one_publishes_and_the_other_takes_over_when_it_is_killed() {
    let (site, redis) = (BrokerNamespace::shared().await, RedisServer::start().await);
    let rules = format!("{RULES}[store]\nurl = \"{}\"\n", redis.url());
    let mut first = Daemon::start(&site, &rules).await;
    let client = Client::connect(&site).await;
    client.bind("scheduled.task.ana").await;
    schedule(&client).await;
    times(&client, 2).await;
    let second = Daemon::start(&site, &rules).await;
    let before = times(&client, 5).await;
    assert!(is_gapless(&before), "{before:?}");
    first.signal("KILL").await;
    first.ended().await;
    let mut times = times(&client, before.len() + 15).await;
    forget_repetitions(&mut times);
    assert!(is_gapless(&times), "{times:?}");
    second.stop(&site).await;
}

#[tokio::test]
async fn a_one_time_task_waits_for_a_queue_and_ends_with_its_message() {
    let (site, daemon, client) = Daemon::with_client(RULES).await;
    let task = json!({"name": "once", "cron": "* * * * * *", "description": "Say it once", "run_once": true});
    client.text("ana", "schedule_task", &task).await;
    daemon.logged_times("a scheduled task could not be published; it is tried again", 1).await;
    assert!(client.text("ana", "list_scheduled_tasks", &json!({})).await.contains("`* * * * * *`, once"));
    client.bind("scheduled.task.ana").await;
    times(&client, 1).await;
    eventually("the end of the task", async || {
        let listed = client.text("ana", "list_scheduled_tasks", &json!({})).await;
        listed.starts_with("No scheduled tasks.").then_some(())
    })
    .await;
    assert_eq!(times(&client, 1).await.len(), 1);
    daemon.stop(&site).await;
}

/// Schedules a call of `work` for the next second.
async fn schedule_call(client: &Client, id: &str) {
    let call = json!({"name": "work", "arguments": {"id": id}});
    let task = json!({"name": id, "cron": "* * * * * *", "description": "Work", "run_once": true, "tool": call});
    let scheduled = client.text("ana", "schedule_task", &task).await;
    assert!(scheduled.ends_with(" `work` is called then."), "{scheduled}");
}

/// The only message that comes of scheduled tasks.
async fn only(client: &Client) -> Message {
    let is_there = async || Some(fired(client).await).filter(|messages| !messages.is_empty());
    let mut messages = eventually("the message of a scheduled task", is_there).await;
    assert_eq!(messages.len(), 1);
    messages.remove(0)
}

#[tokio::test]
async fn a_scheduled_call_is_made_and_its_result_comes_with_the_message() {
    let backend = Backend::start().await;
    let (site, daemon, client) =
        Daemon::with_client(&format!("{RULES}{}", backend.tool("work", "/gate?id={id}", ""))).await;
    client.bind("scheduled.task.ana").await;
    backend.open();
    schedule_call(&client, "one").await;
    let message = only(&client).await;
    let (body, id) = (message.body(), message.message_id());
    assert_eq!((&body["taskName"], &body["toolError"]), (&json!("one"), &Value::Null));
    let response = &body["toolResponse"];
    assert_eq!((&response["toolName"], &response["isError"]), (&json!("work"), &json!(false)), "{body}");
    assert_eq!(response["toolCallId"], json!(id));
    assert_eq!(
        (message.header("rb-rb-tool-profile"), message.header("rb-rb-content-trust")),
        ("scheduled", "tool-output")
    );
    assert_eq!(backend.count("one"), 1);
    let no_tool = json!({"name": "x", "cron": "@daily", "description": "x", "tool": {"name": "wrok"}});
    let refused = client.exchange(&client.request("schedule_task", &no_tool).by("ana")).await;
    assert_eq!(refused.code(), "invalid_arguments", "{refused:?}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_scheduled_call_that_was_running_when_the_daemon_was_killed_is_not_made_again() {
    let backend = Backend::start().await;
    let tools = backend.tool("work", "/gate?id={id}", "");
    let (site, daemon, client) =
        Daemon::with_client(&format!("{RULES}{tools}[store]\nurl = \"sqlite:toolbus.db\"\n")).await;
    client.bind("scheduled.task.ana").await;
    schedule_call(&client, "one").await;
    backend.wait_for("one").await;
    let daemon = daemon.killed().await;
    backend.open();
    let body = only(&client).await.body();
    let error = &body["toolError"];
    assert_eq!((&error["code"], &error["outcome"]), (&json!("execution_failed"), &json!("unknown")), "{body}");
    assert_eq!(backend.count("one"), 1);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn tasks_due_while_the_store_is_away_are_published_once_when_it_is_back() {
    const AWAY: &str = "scheduled tasks cannot be read: none is published";
    let redis = RedisServer::start().await;
    let (site, daemon, client) = Daemon::with_client(&format!("{RULES}[store]\nurl = \"{}\"\n", redis.url())).await;
    client.bind("scheduled.task.ana").await;
    schedule(&client).await;
    let before = times(&client, 2).await;
    redis.kill();
    daemon.logged_times(AWAY, 1).await;
    let killed = std::time::Instant::now();
    let has_passed = async || (killed.elapsed() > std::time::Duration::from_secs(5)).then_some(());
    eventually("five times of the task", has_passed).await;
    redis.restart().await;
    let mut times = times(&client, before.len() + 10).await;
    forget_repetitions(&mut times);
    assert!(is_gapless(&times), "{times:?}");
    daemon.logged_times("scheduled tasks can be read again", 1).await;
    assert_eq!(daemon.logged(AWAY).len(), 1);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_daemon_that_stood_still_publishes_nothing_that_another_has_published() {
    let (site, redis) = (BrokerNamespace::shared().await, RedisServer::start().await);
    let rules = format!("{RULES}[store]\nurl = \"{}\"\n", redis.url());
    let first = Daemon::start(&site, &rules).await;
    let client = Client::connect(&site).await;
    client.bind("scheduled.task.ana").await;
    schedule(&client).await;
    times(&client, 2).await;
    let second = Daemon::start(&site, &rules).await;
    let before = times(&client, 4).await;
    first.signal("STOP").await;
    let meanwhile = times(&client, before.len() + 15).await;
    first.signal("CONT").await;
    let mut times = times(&client, meanwhile.len() + 5).await;
    forget_repetitions(&mut times);
    assert!(is_gapless(&times), "{times:?}");
    first.stop(&site).await;
    second.stop(&site).await;
}
