//! Levels of the sandbox that the system does not allow.

use serde_json::json;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;

use super::setup::{PATH, SCRIPT, WITHOUT_NAMESPACES, call, start_by, status, with_client};

#[tokio::test]
async fn the_daemon_does_not_start_where_less_keeps_scripts_in_than_is_required() {
    let site = BrokerNamespace::shared().await;
    let full = format!("{SCRIPT}sandbox = {{ require = \"full\" }}\n");
    let mut refused = Daemon::spawn_by(&WITHOUT_NAMESPACES, &site, &full, &PATH);
    assert_eq!(refused.ended().await.code(), Some(1), "{}", refused.text());
    let log = refused.text();
    let why = "the sandbox reaches 'no-namespaces', and script.sandbox.require asks for 'full' (full: the sandbox could \
               not be made: no namespaces of its own: ";
    assert!(log.contains(why) && log.contains("allow what is missing, or require less"), "{log}");
    assert!(site.consumers(&format!("{}.script", site.prefix)).await.is_none(), "no request is taken");

    let daemon = start_by(&WITHOUT_NAMESPACES, &site, SCRIPT, &[]).await;
    let client = Client::connect(&site).await;
    let reply = client.exchange(&call(&client, "print('kept in')", &json!({}))).await;
    assert_eq!(reply.content(), "kept in\n");
    assert_eq!(status(&daemon).await["level"], "no-namespaces");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_runner_without_a_sandbox_can_be_configured() {
    let (site, daemon, client) = with_client("[script]\nrunner = \"local\"\nlocal = { i_understand = true }\n").await;
    let reply = client.exchange(&call(&client, "print(open('/etc/passwd').read(4))", &json!({}))).await;
    assert_eq!(reply.content(), "root\n");
    assert_eq!(status(&daemon).await["runner"], "local");
    daemon.stop(&site).await;
}
