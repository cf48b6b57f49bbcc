//! `toolbus dlq`: dead letters are listed, shown, replayed and dropped on the broker.

use std::collections::BTreeSet;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use serde_json::{Value, json};
use tokio::process::Command;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::{Run, binary, toolbus, toolbus_at};
use toolbus_testing::patience::eventually;
use toolbus_testing::rabbit::RabbitNode;

/// Runs `toolbus dlq` on the broker of a test.
async fn dlq(site: &BrokerNamespace, arguments: &[&str]) -> Run {
    toolbus_at(site, &[&["dlq"], arguments].concat()).await
}

/// Has a daemon declare its queues, and end.
async fn declared(more: &str) -> BrokerNamespace {
    let site = BrokerNamespace::shared().await;
    Daemon::start(&site, more).await.stop(&site).await;
    site
}

const ECHO: &str = "[tools]\necho = true\n";

/// Puts letters into the queue of dead letters, as the daemon does.
async fn fill(site: &BrokerNamespace, letters: impl IntoIterator<Item = (String, Vec<u8>)>) {
    let (_connection, channel) = site.channel().await;
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let queue = site.dead_letters();
    for (id, body) in letters {
        let mut headers = FieldTable::default();
        for (name, value) in
            [("rb-dead-reason", "malformed_request"), ("rb-dead-topic", "tool.invoke"), ("rb-source", "ana")]
        {
            headers.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        let properties = BasicProperties::default().with_message_id(id.into()).with_headers(headers);
        let options = BasicPublishOptions::default();
        drop(channel.basic_publish("".into(), queue.as_str().into(), options, &body, properties).await.unwrap());
    }
    channel.wait_for_confirms().await.unwrap();
}

fn numbered(count: usize, size: usize) -> impl Iterator<Item = (String, Vec<u8>)> {
    (0..count).map(move |number| (format!("m{number:05}"), vec![b'x'; size]))
}

/// The message ids in a queue, in order. Takes nothing.
async fn ids(site: &BrokerNamespace, queue: &str) -> Vec<String> {
    use futures_util::StreamExt as _;
    let count = site.ready(queue).await;
    let (_connection, channel) = site.channel().await;
    let consume = BasicConsumeOptions::default();
    let stream = channel.basic_consume(queue.into(), "".into(), consume, FieldTable::default()).await.unwrap();
    let id = |delivery: lapin::message::Delivery| delivery.properties.message_id().as_ref().unwrap().to_string();
    stream.take(count as usize).map(|delivery| id(delivery.unwrap())).collect().await
}

#[tokio::test]
async fn a_replayed_request_gets_a_reply_like_a_first_delivery() {
    let site = declared(ECHO).await;
    let client = Client::connect(&site).await;
    let request = client.request("echo", &json!({"text": "at last"})).by("ana").header("rb-rb-timeout-ms", "2000");
    // As old as its budget: its age must not count against a replay.
    let sent = |properties: BasicProperties| properties.with_expiration("1".into()).with_timestamp(1_700_000_000);
    let request = request.with(sent);
    client.send(&request).await;
    site.wait_for_ready(&site.dead_letters(), 1).await;

    let listed = dlq(&site, &["list", "invoke", "--output", "json"]).await.json();
    let letter = &listed["letters"][0];
    assert_eq!((&letter["reason"], &letter["topic"]), (&json!("expired"), &json!("tool.invoke")), "{listed}");
    assert_eq!((&letter["agent"], &letter["tool"]), (&json!("ana"), &json!("echo")));
    let dry = dlq(&site, &["replay", "--dry-run", "--output", "json"]).await.json();
    assert_eq!(dry["letters"][0]["id"], letter["id"]);
    assert_eq!(site.ready(&site.dead_letters()).await, 1, "nothing was done");

    let daemon = Daemon::start(&site, ECHO).await;
    let done = dlq(&site, &["replay", "--id", request.correlation.as_str()]).await;
    assert_eq!((done.code, done.out.trim()), (0, "1 dead letter replayed"), "{done:?}");
    let reply = client.reply(&request).await;
    assert_eq!((reply.content().as_str(), reply.correlation_id()), ("at last", request.correlation.as_str()));
    assert_eq!(site.ready(&site.dead_letters()).await, 0);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_request_dead_lettered_by_the_broker_is_no_reply_whatever_its_headers() {
    let site = declared(ECHO).await;
    let (client, other) = (Client::connect(&site).await, Client::connect(&site).await);
    let forged = client.request("echo", &json!({"text": "x"})).with(|sent| sent.with_expiration("1".into()));
    let forged = forged.header("rb-dead-reason", "undeliverable_answer").header("rb-dead-reply-to", other.queue());
    let forged = forged.header("rb-dead-topic", "tool.invoke.other").header("rb-dead-since", "1");
    client.send(&forged).await;
    site.wait_for_ready(&site.dead_letters(), 1).await;
    let listed = dlq(&site, &["list", "--output", "json"]).await.json();
    let letter = &listed["letters"][0];
    assert_eq!((&letter["reason"], &letter["topic"]), (&json!("expired"), &json!("tool.invoke")), "{listed}");
    assert!(letter["since"].as_u64().unwrap() > 1 && letter["replyTo"] == client.queue(), "{listed}");
    assert_eq!(dlq(&site, &["replay"]).await.code, 0);
    assert_eq!(site.take(&site.queue()).await.unwrap().message_id(), forged.correlation.as_str());
    assert_eq!(other.caught_up().await, [], "nothing came as a reply");
}

#[tokio::test]
async fn a_replayed_request_that_has_run_gets_its_reply_again_and_does_not_run() {
    let backend = Backend::start().await;
    let tools = backend.tool("work", "/work?id={id}", "");
    let (site, daemon, client) = Daemon::with_client(&format!("[store]\nurl = \"sqlite:store.db\"\n{tools}")).await;
    let request = client.request("work", &json!({"id": "once"}));
    let first = client.exchange(&request).await;
    let daemon = daemon.restarted().await;
    // As the broker leaves a request that was delivered too often, and as a replay that was interrupted leaves it twice.
    let letter = request.clone().on(&site.dead_letters()).header("rb-dead-topic", "tool.invoke");
    for _ in 0..2 {
        client.publish("", &letter).await;
    }
    let done = dlq(&site, &["replay"]).await;
    assert_eq!((done.code, done.out.trim()), (0, "2 dead letters replayed"), "{done:?}");
    // One reply for both, where the second attaches to the first.
    let replies = || client.replies_to(&request.correlation);
    eventually("a reply", async || (replies().len() > 1).then_some(())).await;
    daemon.stop(&site).await;
    for reply in replies() {
        assert_eq!((reply.message_id(), &reply.data), (first.message_id(), &first.data));
    }
    assert_eq!((backend.count("once"), first.content().as_str()), (1, "worked for once"));
}

#[tokio::test]
async fn a_replay_reaches_the_queue_alone_that_the_letter_came_from() {
    let site = declared(ECHO).await;
    let client = Client::connect(&site).await;
    client.bind("tool.invoke").await;
    let mut letter = client.request("echo", &json!({"text": "x"})).on(&site.dead_letters());
    letter = letter.header("rb-dead-reason", "unknown_type").header("rb-dead-topic", "tool.invoke");
    let copies = FieldArray::from(vec![AMQPValue::LongString("bystander".into())]);
    letter = letter.header_of("CC", AMQPValue::FieldArray(copies));
    client.publish("", &letter).await;
    assert_eq!(dlq(&site, &["replay"]).await.code, 0);
    let replayed = site.take(&site.queue()).await.unwrap();
    assert_eq!((replayed.routing_key.as_str(), replayed.message_id()), ("tool.invoke", letter.correlation.as_str()));
    // A quorum queue writes this one into everything.
    let names: Vec<_> = replayed.headers.keys().filter(|name| *name != "x-delivery-count").collect();
    assert!(names.is_empty(), "no trace of its death: {names:?}");
    assert_eq!(client.caught_up().await, [], "no other queue gets it");
}

#[tokio::test]
async fn a_request_that_dies_again_is_replayed_once() {
    let (site, daemon, client) = Daemon::with_client(ECHO).await;
    let refused = client.request("echo", &json!({"text": "x"})).reply_to("tool.invoke");
    client.send(&refused).await;
    site.wait_for_ready(&site.dead_letters(), 1).await;
    let listed = dlq(&site, &["list", "--output", "json"]).await.json();
    assert_eq!(listed["letters"][0]["topic"], "tool.invoke", "{listed}");
    assert!(listed["letters"][0]["since"].as_u64().is_some(), "{listed}");
    let done = dlq(&site, &["replay", "--reason", "reply_to_refused", "--output", "json"]).await.json();
    assert_eq!((&done["replayed"], &done["failed"]), (&json!(1), &json!(0)));
    let again = site.take_dead_letter().await;
    assert_eq!(
        (again.header("rb-dead-reason"), again.message_id()),
        ("reply_to_refused", refused.correlation.as_str())
    );
    daemon.stop(&site).await;
}

#[tokio::test]
async fn an_unroutable_reply_is_sent_again_to_its_address() {
    let site = declared("").await;
    let client = Client::connect(&site).await;
    for (id, address) in [("one", client.queue()), ("other", "queue.that.is.gone")] {
        let letter = client.raw(json!({"toolName": "pay"}).to_string()).on(&site.dead_letters());
        let letter = letter.with(|properties| properties.with_message_id(id.into()).with_correlation_id(id.into()));
        let letter = letter.header("rb-dead-reason", "undeliverable_answer").header("rb-dead-reply-to", address);
        client.publish("", &letter).await;
    }
    let done = dlq(&site, &["replay"]).await;
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.out.contains("1 dead letter left") && done.out.contains("other: no queue takes messages for it"));
    eventually("the reply", async || client.replies_to("one").pop()).await;
    assert_eq!(ids(&site, &site.dead_letters()).await, ["other"]);
}

#[tokio::test]
async fn only_selected_letters_are_dropped_and_the_others_keep_their_order() {
    let site = declared("").await;
    fill(&site, numbered(6, 10)).await;
    let refused = dlq(&site, &["drop", "--id", "m00001"]).await;
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.err.contains("there is no terminal to ask on"), "{refused:?}");
    let done = dlq(&site, &["drop", "invoke", "--id", "m00001", "--id", "m00004", "--yes"]).await;
    assert_eq!((done.code, done.out.trim()), (0, "2 dead letters removed"), "{done:?}");
    assert_eq!(ids(&site, &site.dead_letters()).await, ["m00000", "m00002", "m00003", "m00005"]);
    assert_eq!(dlq(&site, &["drop", "--limit", "1", "--yes"]).await.code, 0);
    assert_eq!(ids(&site, &site.dead_letters()).await, ["m00002", "m00003", "m00005"]);
    let kept = dlq(&site, &["drop", "--agent", "bob", "--yes"]).await;
    assert_eq!(kept.out.trim(), "0 dead letters removed");
}

#[tokio::test]
async fn each_letter_that_an_operator_drops_on_the_console_is_in_the_audit() {
    const COUNT: usize = 30;
    let site = BrokerNamespace::shared().await;
    let rules = "[audit]\nfile = \"audit.jsonl\"\n[http]\nadmin_token = \"a-token-of-the-tests\"\n";
    let daemon = Daemon::start(&site, rules).await;
    fill(&site, numbered(COUNT, 10)).await;
    site.wait_for_ready(&site.dead_letters(), COUNT as u32).await;

    let origin = format!("http://{}", daemon.listen());
    let browser = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let post = |path: &str, body: String| browser.post(format!("{origin}{path}")).header("origin", &origin).body(body);
    let login = post("/console/login", "token=a-token-of-the-tests&next=".to_owned());
    let login = login.header("content-type", "application/x-www-form-urlencoded").send().await.unwrap();
    let cookie = login.headers()["set-cookie"].clone();
    let page = browser.get(format!("{origin}/console/dead-letters")).header("cookie", &cookie).send().await.unwrap();
    let page = page.text().await.unwrap();
    let fields = |name: &str| -> Vec<&str> {
        let field = format!("name=\"{name}\" value=\"");
        page.split(&field).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
    };
    let all = fields("letters").into_iter().max_by_key(|names| names.len()).unwrap().replace(' ', "+");
    let form = format!("proof={}&letters={all}", fields("proof")[0]);
    let done = post("/console/dead-letters/drop", form).header("cookie", &cookie).send().await.unwrap();
    assert!(done.status().is_redirection(), "{done:?}");

    let file = daemon.folder().join("audit.jsonl");
    let expected = (0..COUNT).map(|number| format!("drop dead letter of {}: m{number:05}", site.queue()));
    let expected = expected.chain([format!("drop {COUNT} dead letters of all queues, of which {COUNT} are gone")]);
    let expected: BTreeSet<String> = expected.collect();
    eventually("a record of each letter", async || {
        let text = std::fs::read_to_string(&file).ok()?;
        let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let actions: BTreeSet<String> = records.map(|record| record["action"].as_str().unwrap().to_owned()).collect();
        expected.is_subset(&actions).then_some(())
    })
    .await;
    daemon.stop(&site).await;
}

#[tokio::test]
async fn arguments_are_shown_by_show_alone_and_without_control_characters() {
    let site = declared("").await;
    let body = json!({"toolName": "pay\u{1b}[2J", "arguments": {"card": "4111\u{1b}]0;x\u{7}"}}).to_string();
    fill(&site, [("m\u{1b}[31m".to_owned(), body.into_bytes())]).await;
    let listed = dlq(&site, &["list"]).await;
    assert!(listed.out.contains("malformed_request") && listed.out.contains("ana"), "{listed:?}");
    let shown = dlq(&site, &["show"]).await;
    assert!(shown.out.contains("4111") && !listed.out.contains("4111"), "{listed:?} {shown:?}");
    for text in [&listed.out, &shown.out] {
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text:?}");
    }
    let whole = dlq(&site, &["show", "--output", "json"]).await;
    assert!(!whole.out.contains('\u{1b}'));
    assert_eq!(whole.json()[0]["headers"]["rb-source"], "ana");
    assert_eq!(site.ready(&site.dead_letters()).await, 1, "looking takes nothing");
}

#[tokio::test]
async fn a_replay_that_is_killed_loses_nothing() {
    // A quorum queue hands no more than 2000 to one consumer.
    const COUNT: usize = 1_500;
    let site = declared("").await;
    fill(&site, numbered(COUNT, 100)).await;
    let mut command = Command::new(binary());
    command.args(site.arguments()).args(["dlq", "replay", "invoke"]).env_clear().kill_on_drop(true);
    let mut replay = command.spawn().unwrap();
    eventually("some replayed letters", async || (site.ready(&site.queue()).await > 50).then_some(())).await;
    replay.kill().await.unwrap();
    // The broker notices the end of the connection, and puts back what was read.
    eventually("all letters in the two queues", async || {
        let ready = site.ready(&site.queue()).await + site.ready(&site.dead_letters()).await;
        (ready as usize >= COUNT).then_some(())
    })
    .await;
    let (replayed, left) = (ids(&site, &site.queue()).await, ids(&site, &site.dead_letters()).await);
    assert!(!left.is_empty() && left.is_sorted(), "it was killed half-way, and order stays");
    let known: BTreeSet<&String> = replayed.iter().chain(&left).collect();
    assert_eq!(known.len(), COUNT, "none is lost");
    assert!(replayed.len() + left.len() <= COUNT + 1, "at most the one under way is there twice");
    assert_eq!(dlq(&site, &["replay"]).await.code, 0);
    let replayed: BTreeSet<String> = ids(&site, &site.queue()).await.into_iter().collect();
    assert_eq!(replayed.len(), COUNT);
    site.purge(&site.queue()).await;
}

#[tokio::test]
async fn ten_thousand_large_letters_are_read_in_bounded_memory() {
    const COUNT: usize = 10_000;
    const MAX_KIB: u64 = 96 * 1024;
    let site = declared("").await;
    // 195 MiB in all.
    fill(&site, numbered(COUNT, 20 * 1024)).await;
    let mut command = Command::new(binary());
    let limit = ["dlq", "list", "--limit", "3", "--output", "json"];
    command.args(site.arguments()).args(limit).env_clear().stdout(std::process::Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id().unwrap());
    let mut peak = 0;
    let mut pulse = tokio::time::interval(Duration::from_millis(20));
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let held = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        peak = peak.max(held.unwrap_or(0));
        pulse.tick().await;
    }
    let output = child.wait_with_output().await.unwrap();
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((listed["letters"].as_array().unwrap().len(), &listed["more"]), (3, &json!(COUNT - 3)));
    assert!(peak > 0 && peak < MAX_KIB, "{peak} KiB");
    assert_eq!(site.ready(&site.dead_letters()).await as usize, COUNT);
    site.purge(&site.dead_letters()).await;
}

#[tokio::test]
async fn mistakes_are_reported() {
    let site = BrokerNamespace::shared().await;
    let missing = dlq(&site, &["list", "invoke"]).await;
    assert!(missing.code == 1 && missing.err.contains("invoke.dlq' does not exist"), "{missing:?}");
    let unknown = dlq(&site, &["list", "invok"]).await;
    assert!(unknown.code == 2 && unknown.err.contains("expected one of invoke, control"), "{unknown:?}");
    let away = toolbus(&["--bus-url", "amqp://127.0.0.1:1", "dlq", "list"]).await;
    assert!(away.code == 1 && away.err.contains("no connection to the broker"), "{away:?}");
    let embedded = toolbus(&["dlq", "list"]).await;
    assert!(embedded.code == 2 && embedded.err.contains("embedded bus keeps no dead letters"), "{embedded:?}");
}

#[tokio::test]
async fn a_missing_permission_of_the_user_is_named() {
    let site = declared("").await;
    fill(&site, numbered(1, 10)).await;
    let node = RabbitNode::shared().await;
    let (reader, powerless) = (format!("reader-{}", site.prefix), format!("powerless-{}", site.prefix));
    for (user, read) in [(&reader, r"\.dlq$"), (&powerless, "^$")] {
        node.ctl(&["add_user", user, "secret"]).await;
        node.ctl(&["set_permissions", user, "^$", "^$", read]).await;
    }
    let of = |user: &str| BrokerNamespace { url: node.url_of(user, "secret"), ..site.clone() };
    let refused = dlq(&of(&powerless), &["list", "invoke"]).await;
    assert!(refused.code == 1 && refused.err.contains("the right to read this queue"), "{refused:?}");
    let listed = dlq(&of(&reader), &["list", "invoke"]).await;
    assert!(listed.code == 0 && listed.out.contains("m00000"), "{listed:?}");
    let refused = dlq(&of(&reader), &["replay", "invoke"]).await;
    assert!(refused.code == 1 && refused.err.contains("the right to configure"), "{refused:?}");
    assert_eq!(ids(&site, &site.dead_letters()).await, ["m00000"]);
    site.purge(&site.dead_letters()).await;
    for user in [&reader, &powerless] {
        node.ctl(&["delete_user", user]).await;
    }
}

#[tokio::test]
async fn under_verified_identity_only_its_sender_can_send_a_request_again() {
    let site = declared("").await;
    fill(&site, numbered(1, 10)).await;
    let done = dlq(&site, &["replay", "--set", "identity.source=broker"]).await;
    assert!(done.code == 1 && done.out.contains("only its sender can send it again"), "{done:?}");
    assert_eq!(ids(&site, &site.dead_letters()).await, ["m00000"]);
}
