//! `toolbus doctor` against brokers, users, queues and programs that are as they should be, and as they should not.

use std::net::TcpListener;
use std::path::Path;

use lapin::types::AMQPValue;
use serde_json::Value;
use tempfile::TempDir;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::{Run, toolbus, toolbus_in};
use toolbus_testing::patience::eventually;
use toolbus_testing::rabbit::RabbitNode;

/// The command in the folder of a daemon, or of one that is to be.
const DOCTOR: [&str; 5] = ["doctor", "--config", "site.toml", "--config", "more.toml"];

/// A folder with the configuration of a daemon that does not run.
fn folder(site: &BrokerNamespace, more: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("site.toml"), site.config()).unwrap();
    std::fs::write(folder.path().join("more.toml"), more).unwrap();
    folder
}

/// Examines the installation of a folder.
async fn examine(folder: &Path) -> (Run, Vec<Value>) {
    let run = toolbus_in(folder, &[&DOCTOR[..], &["--output", "json"]].concat()).await;
    let report = run.json();
    let findings = report["findings"].as_array().unwrap().clone();
    let problems = findings.iter().filter(|finding| finding["verdict"] == "problem").count();
    assert_eq!((&report["problems"], run.code), (&Value::from(problems), i32::from(problems > 0)), "{run:?}");
    assert_eq!(run.err, "", "{run:?}");
    (run, findings)
}

/// The problem of this subject, whose text has these words: what mends it.
fn mend<'a>(findings: &'a [Value], subject: &str, words: &str) -> &'a str {
    let is_meant = |finding: &&Value| {
        let text = finding["text"].as_str().unwrap();
        finding["verdict"] == "problem" && finding["subject"] == subject && text.contains(words)
    };
    let found = findings.iter().find(is_meant);
    found.unwrap_or_else(|| panic!("no problem with `{words}`: {findings:#?}"))["mend"].as_str().unwrap_or_default()
}

/// Runs the command of `rabbitmqctl` that a text begins with.
async fn obey(node: &RabbitNode, mend: &str) {
    let command = mend.strip_prefix("rabbitmqctl ").and_then(|rest| rest.split([';', ',']).next()).unwrap();
    let words: Vec<&str> = command.split(' ').map(|word| word.trim_matches('\'')).collect();
    node.ctl(&words).await;
}

#[tokio::test]
async fn a_working_installation_has_no_problem_and_every_part_is_reported() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, "[store]\nurl = \"sqlite:toolbus.db\"\n").await;
    let run = daemon.operate(&DOCTOR).await;
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{run:?}");
    for line in [
        "ok       configuration  valid: `site.toml`, `more.toml`\n",
        "RabbitMQ ",
        " takes the login\n",
        "4 queues exist as configured\n",
        "may declare, bind, publish to and consume",
        "ok       store          `toolbus.db` is written and read\n",
        "ok       daemon         runs, version ",
        "\nno problems, ",
    ] {
        assert!(run.out.contains(line), "{line} is missing in {}", run.out);
    }
    assert!(!run.out.contains("problem  ") && !run.out.contains("guest:guest"), "{}", run.out);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn an_examination_without_a_daemon_leaves_nothing_at_the_broker() {
    let site = BrokerNamespace::shared().await;
    let folder = folder(&site, "");
    let (run, findings) = examine(folder.path()).await;
    assert_eq!(run.code, 0, "{run:?}");
    let has_finding = |words: &str| findings.iter().any(|finding| finding["text"].as_str().unwrap().contains(words));
    assert!(has_finding("the daemon declares it") && has_finding("none runs"), "{findings:#?}");
    assert_eq!(site.consumers(&site.queue()).await, None);
    let exchanges = RabbitNode::shared().await.ctl(&["list_exchanges", "name"]).await;
    assert!(!exchanges.contains(&site.exchange), "{exchanges}");
}

#[tokio::test]
async fn an_unreachable_or_silent_broker_is_reported_and_the_rest_examined() {
    let mut site = BrokerNamespace::shared().await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    for (address, words) in [("127.0.0.1:1".to_owned(), "refused"), (silent.to_string(), "no answer within 5 s")] {
        site.url = format!("amqp://guest:hunter2@{address}/%2f");
        let folder = folder(&site, "[store]\nurl = \"sqlite:toolbus.db\"\n");
        let (run, findings) = examine(folder.path()).await;
        assert_eq!(mend(&findings, "broker", words), "start the broker, or correct bus.url");
        assert!(findings.iter().any(|finding| finding["subject"] == "store" && finding["verdict"] == "ok"), "{run:?}");
        assert!(!run.out.contains("hunter2"), "{run:?}");
    }
}

#[tokio::test]
async fn a_refused_login_or_virtual_host_is_reported() {
    let [mut login, mut host] = [BrokerNamespace::shared().await, BrokerNamespace::shared().await];
    login.url = login.url.replace("guest:guest", "guest:hunter2");
    host.url = host.url.replace("%2f", "nowhere");
    for (site, words, setting) in [(login, "refused the login", "bus.password"), (host, "virtual host", "bus.vhost")] {
        let folder = folder(&site, "");
        let (run, findings) = examine(folder.path()).await;
        assert!(mend(&findings, "broker", words).contains(setting), "{run:?}");
        assert!(!run.out.contains("hunter2"), "{run:?}");
    }
}

#[tokio::test]
async fn the_reported_command_grants_the_missing_permission() {
    let (mut site, node) = (BrokerNamespace::shared().await, RabbitNode::shared().await);
    node.ctl(&["add_user", &site.prefix, "hunter2"]).await;
    node.ctl(&["set_permissions", &site.prefix, "^$", "^$", "^$"]).await;
    site.url = node.url_of(&site.prefix, "hunter2");
    let folder = folder(&site, "");
    let (_, findings) = examine(folder.path()).await;
    for name in [format!("exchange `{}`", site.exchange), format!("queue `{}`", site.queue())] {
        mend(&findings, "broker", &format!("{name} does not exist, and the user may not declare it: ACCESS_REFUSED"));
    }
    let command = mend(&findings, "broker", "declaring a queue of its own");
    assert!(command.starts_with("rabbitmqctl set_permissions "), "{command}");
    obey(node, command).await;
    let (run, _) = examine(folder.path()).await;
    assert_eq!(run.code, 0, "{run:?}");
    let daemon = Daemon::start(&site, "").await;
    let run = daemon.operate(&DOCTOR).await;
    assert_eq!(run.code, 0, "{run:?}");
    site.url = node.url();
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_queue_with_other_arguments_is_reported_with_the_command_that_deletes_it() {
    let (site, node) = (BrokerNamespace::shared().await, RabbitNode::shared().await);
    let text = |text: &str| AMQPValue::LongString(text.into());
    let (exchange, queue) = (site.dead_letter_exchange(), site.queue());
    let classic = [
        ("x-queue-type", text("classic")),
        ("x-dead-letter-exchange", text(&exchange)),
        ("x-dead-letter-routing-key", text(&queue)),
    ];
    site.declare(&queue, classic.into()).await;
    let folder = folder(&site, "");
    let (_, findings) = examine(folder.path()).await;
    let words = format!("queue `{queue}` exists with another 'x-queue-type'");
    let command = mend(&findings, "broker", &words);
    assert!(command.ends_with("; or set bus.queue_type to what it has"), "{command}");
    obey(node, command).await;
    let (run, _) = examine(folder.path()).await;
    assert_eq!(run.code, 0, "{run:?}");
}

#[tokio::test]
async fn an_exchange_of_another_type_is_reported() {
    let site = BrokerNamespace::shared().await;
    let (_connection, channel) = site.channel().await;
    let (options, arguments) = (Default::default(), Default::default());
    let kind = lapin::ExchangeKind::Direct;
    channel.exchange_declare(site.exchange.as_str().into(), kind, options, arguments).await.unwrap();
    let folder = folder(&site, "");
    let (_, findings) = examine(folder.path()).await;
    let words = format!("exchange `{}` exists with another", site.exchange);
    assert!(mend(&findings, "broker", &words).contains("bus.exchange"), "{findings:#?}");
}

#[tokio::test]
async fn a_store_whose_folder_is_a_file_is_reported_with_its_key() {
    let site = BrokerNamespace::embedded();
    let folder = folder(&site, "[store]\nurl = \"sqlite:site.toml/toolbus.db\"\n");
    let (run, findings) = examine(folder.path()).await;
    mend(&findings, "configuration", "`store.url`: the file `site.toml/toolbus.db` cannot be used");
    assert_eq!(run.code, 1, "{run:?}");
}

#[tokio::test]
async fn the_interpreter_and_the_sandbox_of_scripts_are_tried() {
    let folder = folder(&BrokerNamespace::embedded(), "[script]\n");
    let (run, findings) = examine(folder.path()).await;
    assert_eq!(run.code, 0, "{run:?}");
    let of_sandbox = findings.iter().filter(|finding| finding["subject"] == "sandbox");
    let texts: Vec<&str> = of_sandbox.map(|finding| finding["text"].as_str().unwrap()).collect();
    let [interpreter, level] = texts[..] else { panic!("{run:?}") };
    assert!(
        interpreter.starts_with("scripts run with Python 3.") && level.starts_with("reaches the level `"),
        "{run:?}"
    );
}

#[tokio::test]
async fn a_missing_program_of_an_mcp_server_is_reported_with_and_without_a_daemon() {
    let (site, servers) = (BrokerNamespace::shared().await, "[mcp.servers.files]\ncommand = \"no-such-program\"\n");
    let folder = folder(&site, servers);
    let (_, findings) = examine(folder.path()).await;
    let command = mend(&findings, "MCP servers", "`files`: program 'no-such-program' was not found");
    assert!(command.contains("toolbus mcp test files"), "{command}");

    let daemon = Daemon::start(&site, servers).await;
    eventually("the server to have failed", async || {
        let run = daemon.operate(&DOCTOR).await;
        (run.code == 1 && run.out.contains("then toolbus mcp restart files")).then_some(())
    })
    .await;
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_daemon_that_takes_no_calls_reports_the_reason() {
    let mut site = BrokerNamespace::shared().await;
    site.url = "amqp://127.0.0.1:1".to_owned();
    let daemon = Daemon::launch(&site, "", &[]).await;
    daemon.blocked_by("disconnected").await;
    let (run, findings) = examine(daemon.folder()).await;
    assert!(
        mend(&findings, "daemon", "takes no calls: no connection to the broker").contains("toolbus status"),
        "{run:?}"
    );
    daemon.end().await;
}

#[tokio::test]
async fn a_file_removed_under_a_running_daemon_is_reported() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, "[store]\nurl = \"sqlite:toolbus.db\"\n").await;
    std::fs::remove_file(daemon.folder().join("toolbus.db")).unwrap();
    daemon.blocked_by("store_away").await;
    let (run, findings) = examine(daemon.folder()).await;
    assert!(mend(&findings, "store", "toolbus.db` was removed or replaced").contains("restart the daemon"), "{run:?}");
    let of_store = findings.iter().filter(|finding| finding["subject"] == "store");
    assert_eq!(of_store.count(), 1, "{findings:#?}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_configuration_with_mistakes_is_reported_and_not_used_for_checks() {
    let run = toolbus(&["doctor", "--set", "bus.nam=x", "--set", "http.listen=here", "--output", "json"]).await;
    let report = run.json();
    assert_eq!((run.code, &report["problems"]), (1, &Value::from(2)), "{run:?}");
    let mut subjects =
        report["findings"].as_array().unwrap().iter().map(|finding| finding["subject"].as_str().unwrap());
    assert!(subjects.all(|subject| subject == "configuration"), "{run:?}");
}
