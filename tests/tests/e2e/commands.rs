//! The commands of the binary against a broker and a daemon.

use std::net::SocketAddr;

use lapin::ExchangeKind;
use lapin::options::ExchangeDeclareOptions;
use lapin::types::FieldTable;
use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::{toolbus, toolbus_at, toolbus_in};
use toolbus_testing::rabbit::RabbitNode;

/// Nothing listens here.
const NOWHERE: &str = "127.0.0.1:1";

#[tokio::test]
async fn call_makes_a_call_as_an_agent_would() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let parameters = r#"{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}"#;
    let weather = backend.endpoint("get_weather", "/weather/{city}", parameters, "");
    let daemon = Daemon::start(&site, &weather).await;

    let pairs = toolbus_at(&site, &["call", "get_weather", "city=Tunja"]).await;
    assert_eq!((pairs.code, pairs.out.as_str(), pairs.err.as_str()), (0, "{\"city\":\"Tunja\",\"sky\":\"clear\"}", ""));
    let object = toolbus_at(&site, &["call", "get_weather", r#"{"city":"Tunja"}"#, "--json"]).await;
    assert_eq!(object.code, 0);
    let body = object.json();
    assert_eq!((&body["isError"], &body["toolName"]), (&Value::Bool(false), &Value::from("get_weather")));
    assert_eq!(body["content"], r#"{"city":"Tunja","sky":"clear"}"#);

    let verbose = toolbus_at(&site, &["call", "get_weather", "city=Tunja", "--verbose"]).await;
    assert_eq!(verbose.out, pairs.out, "what is shown beside the result goes to standard error");
    let sent = backend.headers("Tunja")["traceparent"].to_str().unwrap().to_owned();
    let trace = sent.split('-').nth(1).unwrap();
    for shown in
        [trace, "tool.invoke", "RockBot.Tools.ToolInvokeRequest", "RockBot.Tools.ToolInvokeResponse", "rb-source"]
    {
        assert!(verbose.err.contains(shown), "{shown} is missing in {}", verbose.err);
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn the_exit_code_of_call_shows_the_outcome() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let any = r#"{"type":"object"}"#;
    let tools = [
        backend.endpoint("teapot", "/status/418", any, ""),
        backend.endpoint("unavailable", "/status/503", any, ""),
        backend.tool("hold", "/gate?id={id}", ""),
    ];
    let daemon = Daemon::start(&site, &format!("[tools]\necho = true\n{}", tools.concat())).await;
    let table: [(i32, &[&str], &str); 8] = [
        (0, &["echo", "text=fine"], ""),
        (1, &["teapot"], "HTTP 418"),
        (2, &["echo", "text"], "key=value"),
        (2, &["echo", "{\"text\""], "arguments"),
        (3, &["ecko", "text=x"], "Did you mean 'echo'?"),
        (3, &["echo", "text:=7"], "invalid_arguments: "),
        (4, &["unavailable"], "execution_failed: "),
        (5, &["hold", "id=held", "--timeout", "300ms"], "timeout: "),
    ];
    for (code, arguments, message) in table {
        let run = toolbus_at(&site, &[&["call"], arguments].concat()).await;
        assert_eq!(run.code, code, "{arguments:?}: {run:?}");
        assert!(run.err.contains(message), "{arguments:?}: {run:?}");
    }
    backend.open();
    daemon.stop(&site).await;
}

#[tokio::test]
async fn an_overloaded_daemon_has_an_exit_code_of_its_own() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let limits = "[invoke]\nmax_in_flight = 1\nmax_waiting = 1\n";
    let daemon = Daemon::start(&site, &format!("{limits}{}", backend.tool("hold", "/gate?id={id}", ""))).await;
    let running = toolbus_at(&site, &["call", "hold", "id=running"]);
    let refused = async {
        backend.wait_for("running").await;
        let refused = toolbus_at(&site, &["call", "hold", "id=second", "--timeout", "600ms"]).await;
        backend.open();
        refused
    };
    let (running, refused) = tokio::join!(running, refused);
    assert_eq!((running.code, running.out.trim()), (0, "passed running"), "{running:?}");
    assert_eq!(refused.code, 6, "{refused:?}");
    assert!(refused.err.contains("overloaded: ") && refused.err.contains("after 1000 ms"), "{refused:?}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn call_reports_a_missing_daemon_and_a_missing_broker() {
    let mut site = BrokerNamespace::shared().await;
    // The exchange exists, and no daemon.
    Daemon::start(&site, "[invoke]\ntopics = [\"elsewhere\"]\n").await.stop(&site).await;
    let unanswered = toolbus_at(&site, &["call", "echo", "text=x"]).await;
    assert_eq!(unanswered.code, 7, "{unanswered:?}");
    assert!(unanswered.err.contains("no daemon takes calls from the queue"), "{unanswered:?}");

    site.url = format!("amqp://guest:hunter2@{NOWHERE}/%2f");
    let away = toolbus_at(&site, &["call", "echo", "text=x"]).await;
    assert_eq!(away.code, 7, "{away:?}");
    assert!(away.err.contains("could not be reached") && !away.err.contains("hunter2"), "{away:?}");
}

#[tokio::test]
async fn a_refusal_of_the_broker_is_reported_at_once_and_not_as_unreachable() {
    let site = BrokerNamespace::shared().await;
    let other = BrokerNamespace::on(RabbitNode::shared().await);
    let (_connection, channel) = other.channel().await;
    let (options, arguments) = (ExchangeDeclareOptions::default(), FieldTable::default());
    channel.exchange_declare(other.exchange.as_str().into(), ExchangeKind::Direct, options, arguments).await.unwrap();
    let node = RabbitNode::shared().await;
    node.ctl(&["add_user", &site.prefix, "hunter2"]).await;
    node.ctl(&["set_permissions", &site.prefix, "^e2e.*", ".*", ".*"]).await;
    let [mut login, mut host, mut right, mut exchange] = [site.clone(), site.clone(), site.clone(), site];
    right.url = node.url_of(&right.prefix, "hunter2");
    login.url = login.url.replace("guest:guest", "guest:hunter2");
    host.url = host.url.replace("%2f", "nowhere");
    exchange.exchange.clone_from(&other.exchange);
    let wrong = [
        (login, "the broker refused the login"),
        (host, "the broker refused the virtual host"),
        (right, "give this user the right to configure"),
        (exchange, "exists with"),
    ];
    for (site, message) in wrong {
        let run = toolbus_at(&site, &["call", "echo", "text=x"]).await;
        assert_eq!(run.code, 7, "{run:?}");
        assert!(run.err.contains(message) && !run.err.contains("could not be reached"), "{message}: {run:?}");
        assert!(!run.err.contains("hunter2"), "{run:?}");
    }
}

#[tokio::test]
async fn a_script_is_run_where_there_is_no_configuration() {
    let run = toolbus(&["call", "execute_python_script", "script=print(6*7)"]).await;
    assert!(run.code == 0 && run.out.contains("42"), "{run:?}");
}

#[tokio::test]
async fn a_missing_daemon_is_reported_on_a_fresh_broker_too() {
    let site = BrokerNamespace::shared().await;
    let unanswered = toolbus_at(&site, &["call", "echo", "text=x"]).await;
    assert_eq!(unanswered.code, 7, "{unanswered:?}");
    assert!(unanswered.err.contains("no queue of this exchange takes topic `tool.invoke`"), "{unanswered:?}");
}

#[tokio::test]
async fn the_demonstration_runs_on_the_broker_too_and_leaves_nothing_there() {
    let site = BrokerNamespace::shared().await;
    let demo = toolbus_at(&site, &["demo"]).await;
    assert_eq!(demo.code, 0, "{demo:?}");
    for outcome in ["ok after", "error after", "invalid_arguments after", "tool_not_found after", "timeout after"] {
        assert!(demo.out.contains(outcome), "{outcome} is missing in {}", demo.out);
    }
    assert!(demo.out.contains("p50 ") && !demo.out.contains("guest:guest@"), "{}", demo.out);
    // The demonstration keeps to names of its own, with any configuration.
    for queue in ["toolbus-demo.invoke", "toolbus-demo.invoke.dlq"] {
        assert_eq!(site.consumers(queue).await, None, "{queue} is still there: {}", demo.err);
    }
}

#[tokio::test]
async fn the_demonstration_needs_no_broker_where_a_configuration_has_one() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("toolbus.toml"), format!("bus.url = 'amqp://{NOWHERE}'")).expect("a file");
    let demo = toolbus_in(folder.path(), &["demo"]).await;
    assert!(demo.code == 0 && demo.out.contains("on embedded"), "{demo:?}");
}

#[tokio::test]
async fn health_queries_the_daemon() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, "").await;
    let ready = toolbus(&["health", "--listen", daemon.listen()]).await;
    assert_eq!((ready.code, ready.json()["ready"].clone()), (0, Value::Bool(true)), "{ready:?}");
    daemon.stop(&site).await;

    let mut lost = site;
    lost.url = format!("amqp://{NOWHERE}");
    let daemon = Daemon::launch(&lost, "", &[]).await;
    daemon.blocked_by("disconnected").await;
    let unready = toolbus(&["health", "--listen", daemon.listen()]).await;
    assert_eq!((unready.code, unready.json()["ready"].clone()), (1, Value::Bool(false)), "{unready:?}");
    let live = toolbus(&["health", "--live", "--listen", daemon.listen(), "--output", "json"]).await;
    assert_eq!((live.code, live.json().is_object()), (0, true), "{live:?}");
    let unused: SocketAddr = NOWHERE.parse().unwrap();
    assert_eq!(toolbus(&["health", "--listen", &unused.to_string()]).await.code, 1);
    daemon.end().await;
}

#[tokio::test]
async fn bench_measures_both_sides_and_no_packet_of_a_single_call_is_held_back() {
    let site = BrokerNamespace::shared().await;
    let bench =
        toolbus_at(&site, &["bench", "--rounds", "1", "--seconds", "1", "--callers", "1,8", "--output", "json"]).await;
    assert_eq!(bench.code, 0, "{bench:?}");
    let report = bench.json();
    let rows = report["rows"].as_array().unwrap();
    let sides: Vec<String> =
        rows.iter().map(|row| format!("{} {}", row["side"].as_str().unwrap(), row["callers"])).collect();
    assert_eq!(sides, ["bare responder 1", "toolbus 1", "bare responder 8", "toolbus 8"]);
    let p50 = |row: &Value| row["p50Ms"].as_f64().unwrap();
    assert!(rows.iter().all(|row| row["callsPerSecond"].as_f64().unwrap() > 0.0), "{report}");
    // A packet that one side holds back for the other's acknowledgement would cost 40 ms.
    assert!(p50(&rows[1]) < 3.0 * p50(&rows[0]) + 20.0, "{report}");
    for ratio in report["ratios"].as_array().unwrap() {
        assert!(ratio["throughput"].as_f64().unwrap() > 0.0 && ratio["p50"].as_f64().unwrap() > 0.0, "{ratio}");
    }
    assert_eq!(report["ratios"].as_array().map(Vec::len), Some(2));
    let folder = tempfile::tempdir().unwrap();
    let ledger =
        ["bench", "--rounds", "1", "--seconds", "1", "--callers", "8", "--entries", "1000", "--output", "json"];
    let folder_and_remote = ["--ledger", folder.path().to_str().unwrap(), "--remote"];
    let others = toolbus_at(&site, &[&ledger[..], &folder_and_remote].concat()).await;
    assert_eq!(others.code, 0, "{others:?}");
    let report = others.json();
    for (other, side) in ["recorded, SQLite", "passed on"].into_iter().enumerate() {
        let other = &report["others"][other];
        assert_eq!((&other["side"], &other["callers"]), (&json!(side), &json!(8)), "{report}");
        assert!(["throughput", "p50"].iter().all(|ratio| other[ratio].as_f64().unwrap() > 0.0), "{report}");
    }
    assert!(report["millionEntries"]["fileMib"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    let without = toolbus(&["bench"]).await;
    assert_eq!(without.code, 1);
    assert!(without.err.contains("--bus-url"), "{without:?}");
}
