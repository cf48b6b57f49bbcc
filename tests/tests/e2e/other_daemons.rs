//! Two daemons on one broker: each replies to its own requests, and both notice when they take each other's calls.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

/// The document with the two sides: of the daemon that runs the tools, and of the one that agents call.
const REMOTE: &str = include_str!("../../../docs/remote.md");

/// The configurations that a document has, in order.
fn configurations(document: &'static str) -> impl Iterator<Item = &'static str> {
    document.split("```toml\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0))
}

async fn status(daemon: &Daemon) -> Value {
    daemon.get("/status").await.unwrap().1
}

/// Entry of the status for the other daemon: its prefix and what both share.
async fn noticed(daemon: &Daemon) -> (String, String) {
    eventually("the other daemon", async || {
        let other = status(daemon).await["otherDaemons"].as_array()?.first()?.clone();
        Some((other["queuePrefix"].as_str()?.to_owned(), other["shares"].as_str()?.to_owned()))
    })
    .await
}

#[tokio::test]
async fn only_the_called_daemon_replies_to_control_requests() {
    let site = BrokerNamespace::shared().await;
    let elsewhere = site.beside();
    let mut documented = configurations(REMOTE);
    let lab = documented.next().unwrap().replace("toolbus-lab", &elsewhere.prefix);
    let front = format!("{}[bus]\nname = \"front\"\n", documented.next().unwrap());
    let (back, front) = (Daemon::start(&elsewhere, &lab).await, Daemon::start(&site, &front).await);
    let client = Client::connect(&site).await;
    let listed = |reply: &Value| -> Vec<String> {
        let tools = reply["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    for round in 0..5 {
        let [list, hints, ping] = [("tool.list", "{}"), ("tool.hints", r#"{"text":"echo"}"#), ("tool.ping", "")]
            .map(|(topic, body)| client.raw(body).on(topic).by("ana"));
        for sent in [&list, &hints, &ping] {
            client.send(sent).await;
        }
        assert!(listed(&client.reply(&list).await.body()).contains(&"lab.echo".to_owned()), "{round}");
        assert_eq!(client.reply(&ping).await.body()["name"], "front");
        client.reply(&hints).await;
        // By then the other daemon would have replied, too.
        let own = client.exchange(&client.raw("").on("tool.ping.lab").by("ana")).await;
        assert_eq!(own.body()["name"], "toolbus");
        let list = client.exchange(&client.raw("{}").on("tool.list.lab").by("ana")).await;
        assert!(listed(&list.body()).contains(&"echo".to_owned()), "the other daemon has topics of its own");
    }
    let received = client.caught_up().await;
    assert_eq!(received.len(), 5 * 5, "one reply each");
    assert!(status(&front).await.get("otherDaemons").is_none(), "they share nothing");
    back.stop(&elsewhere).await;
    front.stop(&site).await;
}

#[tokio::test]
async fn a_daemon_with_the_same_queues_and_another_configuration_is_noticed_by_both() {
    let site = BrokerNamespace::shared().await;
    let (one, other) = ("[tools]\necho = true\n", "[bus]\nname = \"laptop\"\n[tools]\ntime = false\n");
    let (one, other) = (Daemon::start(&site, one).await, Daemon::start(&site, other).await);
    for daemon in [&one, &other] {
        assert_eq!(noticed(daemon).await, (site.prefix.clone(), "queues".to_owned()));
        assert!(daemon.text().contains("under another configuration"), "{}", daemon.text());
    }
    let shown = one.operate(&["status"]).await;
    assert!(shown.out.contains("laptop") && shown.out.contains("shares queues"), "{}", shown.out);
    other.end().await;
    one.stop(&site).await;
}

#[tokio::test]
async fn a_daemon_that_takes_the_same_topic_with_other_queues_is_noticed_by_both() {
    let site = BrokerNamespace::shared().await;
    let elsewhere = site.beside();
    let (one, other) = (Daemon::start(&site, "").await, Daemon::start(&elsewhere, "").await);
    assert_eq!(noticed(&one).await, (elsewhere.prefix.clone(), "topics".to_owned()));
    assert_eq!(noticed(&other).await, (site.prefix.clone(), "topics".to_owned()));
    let replies = Client::connect(&site).await;
    let call = replies.request("current_time", &json!({}));
    replies.exchange(&call).await;
    eventually("the reply of each", async || (replies.replies_to(&call.correlation).len() == 2).then_some(())).await;
    other.stop(&elsewhere).await;
    one.stop(&site).await;
}
