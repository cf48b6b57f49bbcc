//! Requests for scripts as RockBot's agents publish them, under the users and permissions of the recipe. The parts look
//! at scripts and commands in the daemon that serves.

mod confined;
mod elsewhere;
mod levels;
mod life;
mod memory;
mod pods;
mod requests;
mod results;
mod seen;
pub(crate) mod setup;
mod steps;
mod turns;

use serde_json::{Value, json};
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;

use crate::recipe::Fixture;

/// A daemon that takes requests for scripts, of which `bruno` may have none run.
async fn daemon(fixture: &Fixture) -> Daemon {
    let more = "[script]\nrunner = \"local\"\nlocal = { i_understand = true }\n\
                [identity]\nsource = \"broker\"\nusers = { svc-ana = \"ana\", svc-bruno = \"bruno\" }\n\
                [agents.ana]\nallowed_tools = [\"execute_python_script\"]\n[agents.bruno]\nallowed_tools = [\"current_time\"]\n";
    let path = std::env::var("PATH").unwrap();
    let daemon = Daemon::launch(&fixture.site, more, &[("PATH", &path)]).await;
    daemon.wait_until_ready().await;
    daemon
}

/// Builds the request that RockBot's agent of this name publishes.
fn request(client: &Client, name: &str, script: Option<&str>) -> Request {
    let mut request = client.raw("");
    let body = json!({
        "toolCallId": request.correlation, "script": script, "inputData": null, "timeoutSeconds": 30, "pipPackages": null
    });
    request.body = body.to_string().into_bytes();
    request.on("script.invoke").header("rb-source", name).with(|properties| {
        properties
            .with_type("RockBot.Scripts.ScriptInvokeRequest".into())
            .with_reply_to(format!("script.result.{name}").into())
            .with_user_id(format!("svc-{name}").into())
    })
}

/// The body of a reply, which is of the one type that agents read.
fn reply_body(reply: &Message) -> Value {
    assert_eq!((reply.kind(), &*reply.exchange), ("RockBot.Scripts.ScriptInvokeResponse", "rockbot"));
    reply.body()
}

#[tokio::test]
async fn a_request_for_a_script_gets_its_reply_on_the_agents_topic_in_the_form_that_agents_read() {
    let fixture = Fixture::new().await;
    let daemon = daemon(&fixture).await;
    let (ana, bruno) = (fixture.agent("svc-ana").await, fixture.agent("svc-bruno").await);
    let refused = |sent: &Request, text: &str| {
        json!({
            "toolCallId": sent.correlation, "output": null, "stderr": text,
            "exitCode": -1, "isSuccess": false, "elapsedMs": 0
        })
    };

    let sent = request(&ana, "ana", None);
    let reply = ana.exchange(&sent).await;
    assert_eq!(reply.routing_key, "script.result.ana");
    assert_eq!(reply_body(&reply), refused(&sent, "The request is not usable: missing member `script`."));

    let sent = request(&bruno, "bruno", Some("print('hi')"));
    let reply = bruno.exchange(&sent).await;
    assert_eq!(reply.routing_key, "script.result.bruno");
    assert_eq!(reply_body(&reply), refused(&sent, "Tool 'execute_python_script' is not registered."));
    daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_daemon_without_scripts_has_no_script_queue() {
    let fixture = Fixture::new().await;
    let daemon = Daemon::start(&fixture.site, "[tools]\necho = true\n").await;
    let connection = fixture.connect("toolbus").await;
    let channel = connection.create_channel().await.unwrap();
    let passive = lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
    let declared = channel.queue_declare("toolbus.script".into(), passive, Default::default()).await;
    assert!(declared.is_err_and(|error| error.to_string().contains("NOT_FOUND")));
    daemon.stop(&fixture.site).await;
}
