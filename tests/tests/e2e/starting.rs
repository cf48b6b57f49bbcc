//! Starting: without a broker, with a login that it refuses, on a queue that another made.

use std::collections::BTreeMap;

use lapin::types::AMQPValue;
use serde_json::json;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::sockets::nodelay;
use toolbus_testing::patience::eventually;
use toolbus_testing::rabbit::RabbitNode;

const ECHO: &str = "[tools]\necho = true\n";

#[tokio::test]
async fn a_broker_that_is_away_is_waited_for() {
    let node = RabbitNode::start().await;
    node.kill();
    let site = BrokerNamespace::on(&node);
    let daemon = Daemon::launch(&site, ECHO, &[]).await;
    eventually("/readyz to report that the broker refuses", async || {
        let blocker = daemon.blocked_by("disconnected").await;
        blocker["detail"].as_str()?.contains("Connection refused").then_some(())
    })
    .await;
    assert_eq!(daemon.get("/livez").await.unwrap().0, 200);
    assert_eq!(daemon.get("/healthz").await.unwrap().0, 200);

    node.restart().await;
    daemon.wait_until_ready().await;
    let client = Client::connect(&site).await;
    assert_eq!(client.call("echo", &json!({"text": "here now"})).await.content(), "here now");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_refused_login_is_reported_without_the_password() {
    let mut site = BrokerNamespace::shared().await;
    site.url = site.url.replace("guest:guest", "guest:hunter2");
    let mut daemon = Daemon::launch(&site, ECHO, &[]).await;
    let error = eventually("the reason", async || {
        let (_, status) = daemon.get("/status").await?;
        Some(status["broker"]["lastError"].as_str()?.to_owned())
    })
    .await;
    assert!(error.contains("refused the login: check user and password in bus.url"), "{error}");
    let (code, ready) = daemon.get("/readyz").await.unwrap();
    assert_eq!(code, 503);
    daemon.signal("TERM").await;
    assert_eq!(daemon.ended().await.code(), Some(0));
    for shown in [error, ready.to_string(), daemon.text()] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[tokio::test]
async fn a_queue_with_other_arguments_stops_the_daemon_with_a_remedy() {
    let site = BrokerNamespace::shared().await;
    site.declare(&site.queue(), BTreeMap::from([("x-max-length", AMQPValue::LongInt(7))])).await;
    let mut daemon = Daemon::spawn(&site, ECHO, &[]);
    assert_eq!(daemon.ended().await.code(), Some(1));
    let log = daemon.text();
    let last: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!(last["message"], "stopped by an error");
    let error = last["error"].as_str().unwrap().replace(&site.prefix, "PREFIX").replace(&site.exchange, "EXCHANGE");
    insta::assert_snapshot!(error, @"queue 'PREFIX.invoke' exists with another 'x-dead-letter-exchange' (received the value 'EXCHANGE.dlx' of type 'longstr' but current is none); delete the queue, or set bus.queue_prefix so that another one is used, or set bus.dead_letter_exchange to what it has");
}

#[tokio::test]
async fn no_connection_to_the_broker_holds_small_packets_back() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, ECHO).await;
    assert_eq!(
        nodelay(daemon.pid(), RabbitNode::shared().await.address()),
        [true, true],
        "TCP_NODELAY of both connections"
    );
    daemon.stop(&site).await;
}

/// A command that counts its runs in a file.
fn counted(runs: &std::path::Path) -> String {
    format!(
        "[[commands]]\nname = \"count\"\ndescription = \"Counts\"\ncommand = [\"sh\", \"-c\", \"echo x >> {}\"]\n\
         sandbox = false\n[daemon]\nsocket = \"none\"\n",
        runs.display()
    )
}

#[tokio::test]
async fn without_a_store_effects_are_known_in_the_state_folder_where_two_daemons_do_not_meet() {
    let site = BrokerNamespace::shared().await;
    let folder = tempfile::tempdir().unwrap();
    let (runs, state) = (folder.path().join("runs"), folder.path().join("state").display().to_string());
    let environment = [("STATE_DIRECTORY", state.as_str())];
    let key = |client: &Client| client.request("count", &json!({})).header("rb-idempotency-key", "once");
    let client = Client::connect(&site).await;
    for _ in 0..2 {
        let mut daemon = Daemon::launch(&site, &counted(&runs), &environment).await;
        daemon.wait_until_ready().await;
        assert_eq!(client.exchange(&key(&client)).await.code(), "");
        assert_eq!(daemon.logged("state is kept").len(), 1);
        daemon.signal("KILL").await;
        daemon.ended().await;
    }
    assert_eq!(std::fs::read_to_string(&runs).unwrap(), "x\n", "the effect happens once");

    // Another name is another folder, and for a folder that cannot be used, what is lost is logged.
    let elsewhere = BrokerNamespace::shared().await;
    let config = counted(&runs);
    let (daemon, other) =
        tokio::join!(Daemon::launch(&site, &config, &environment), Daemon::launch(&elsewhere, &config, &environment));
    assert_eq!(std::fs::read_dir(&state).unwrap().count(), 2);
    for (daemon, site) in [(daemon, &site), (other, &elsewhere)] {
        daemon.wait_until_ready().await;
        daemon.stop(site).await;
    }
    std::fs::write(folder.path().join("file"), "").unwrap();
    let wrong = folder.path().join("file").display().to_string();
    let daemon = Daemon::launch(&site, &counted(&runs), &[("STATE_DIRECTORY", &wrong)]).await;
    daemon.wait_until_ready().await;
    let warned = daemon.logged("state is in memory: after a crash calls that had begun may run twice, and switches, schedules and working memory are lost when the daemon ends; set store.url");
    assert_eq!(warned.len(), 1, "{}", daemon.text());
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_service_manager_is_notified_of_the_start_the_watchdog_and_the_end() {
    let site = BrokerNamespace::shared().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = tokio::net::UnixDatagram::bind(&path).unwrap();
    let hears = async |state: &str| {
        let mut buffer = [0; 256];
        eventually(state, async || {
            let length = socket.recv(&mut buffer).await.unwrap();
            buffer[..length].starts_with(state.as_bytes()).then_some(())
        })
        .await;
    };
    let path = path.display().to_string();
    let daemon = Daemon::launch(&site, ECHO, &[("NOTIFY_SOCKET", &path), ("WATCHDOG_USEC", "200000")]).await;
    hears("READY=1").await;
    assert_eq!(daemon.get("/readyz").await.unwrap().0, 200, "{}", daemon.text());
    hears("WATCHDOG=1").await;
    hears("WATCHDOG=1").await;
    tokio::join!(daemon.stop(&site), hears("STOPPING=1"));

    let without_broker = [("NOTIFY_SOCKET", &*path), ("TOOLBUS__BUS__URL", "amqp://127.0.0.1:1")];
    let daemon = Daemon::launch(&site, ECHO, &without_broker).await;
    hears("READY=1").await;
    assert_eq!(daemon.get("/readyz").await.unwrap().0, 503, "{}", daemon.text());
    daemon.end().await;
}
