//! Behaviour of agent-sandbox with claims, and of the node with programs that are started in their pods.

use std::collections::BTreeMap;
use std::process::Stdio;

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::cluster::{Key, Node, Shared};
use super::node::running;
use super::{failure, missing};

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// A claim, as agent-sandbox takes it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ClaimObject {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    spec: ClaimSpec,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ClaimSpec {
    warm_pool_ref: WarmPoolRef,
    lifecycle: Lifecycle,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WarmPoolRef {
    name: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Lifecycle {
    shutdown_time: Time,
    shutdown_policy: ShutdownPolicy,
}

#[derive(Serialize, Deserialize)]
enum ShutdownPolicy {
    Delete,
    DeleteForeground,
    Retain,
}

/// Checks that a claim has no other fields than those that it may have.
pub(super) fn check(posted: &Value) {
    let known: ClaimObject = serde_json::from_value(posted.clone()).unwrap();
    assert_eq!(&serde_json::to_value(&known).unwrap(), posted, "the claim is not of the schema");
    assert_eq!((&*known.api_version, &*known.kind), ("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim"));
}

/// The condition for whether a claim has a sandbox.
#[must_use]
pub fn ready(status: &str, reason: &str, message: &str) -> Value {
    json!([{"type": "Ready", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-11-01T00:00:00Z"}])
}

/// The status of a claim whose sandbox of this name is ready.
#[must_use]
pub fn bound(sandbox: &str) -> Value {
    json!({"conditions": ready("True", "DependenciesReady", "Pod is Ready"), "sandbox": {"name": sandbox}})
}

/// Gives a claim its states, and the pod with them that they name.
pub(super) fn bind(shared: &Shared, claim: &Key, node: Node) {
    let states = match node {
        Node::Runs => vec![bound(&format!("python-{}", &claim.1[claim.1.len() - 6..]))],
        Node::States(states, _) => states,
    };
    let owned = |name: &str, owner: &str| json!({"name": name, "ownerReferences": [{"apiVersion": "", "kind": "", "name": owner, "uid": ""}]});
    let (shared, claim) = (shared.clone(), claim.clone());
    let binding = {
        let (shared, claim) = (shared.clone(), claim.clone());
        async move {
            for status in states {
                if let Some(name) = status["sandbox"]["name"].as_str() {
                    let pod = format!("{name}-pod");
                    let mut metadata = owned(name, &claim.1);
                    metadata["annotations"] = json!({"agents.x-k8s.io/pod-name": pod});
                    metadata["labels"] = json!({"agents.x-k8s.io/launch-type": "warm"});
                    let sandbox =
                        json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": metadata});
                    shared.change(&("sandboxes", name.to_owned()), "ADDED", |_| Some(sandbox));
                    let object = json!({"metadata": owned(&pod, name), "status": running()});
                    shared.change(&("pods", pod), "ADDED", |_| Some(object));
                }
                shared.set_status(&claim, &status);
            }
        }
    };
    shared.run_with(&claim, binding);
}

/// Starts a program in a pod, and connects its streams with a WebSocket.
pub(super) async fn exec(
    State(shared): State<Shared>,
    Path((_, name)): Path<(String, String)>,
    Query(query): Query<Vec<(String, String)>>,
    mut request: Request,
) -> Response {
    if let Some(refusal) = shared.begin("exec").await {
        return failure(&refusal);
    }
    let (command, rest): (Vec<_>, Vec<_>) = query.into_iter().partition(|(key, _)| key == "command");
    let command: Vec<String> = command.into_iter().map(|(_, word)| word).collect();
    let rest: BTreeMap<String, String> = rest.into_iter().collect();
    assert_eq!(json!(rest), json!({"container": "script", "stdin": "true", "stdout": "true", "stderr": "true"}));
    assert!(command.concat().len() < 1000, "the command is a part of the address: {command:?}");
    let accept = derive_accept_key(request.headers()["sec-websocket-key"].as_bytes());
    let upgrade = request.extensions_mut().remove::<OnUpgrade>().unwrap();
    let (work, cut) = (shared.folder.path().join(&name), shared.exec_cut());
    let program = async move {
        let socket = TokioIo::new(upgrade.await.unwrap());
        let (sink, source) = WebSocketStream::from_raw_socket(socket, Role::Server, None).await.split();
        // A pod keeps its files.
        std::fs::create_dir_all(&work).unwrap();
        let words = command.iter().map(|word| word.replace("/work", work.to_str().unwrap()));
        let mut child = start(words);
        let input = child.stdin.take().unwrap();
        tokio::select! {
            () = receive(source, input) => {}
            () = send(sink, child, cut) => {}
        }
    };
    if !shared.run_with(&("pods", name), program) {
        return missing();
    }
    let headers = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-accept", &*accept),
        ("sec-websocket-protocol", "v5.channel.k8s.io"),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response()
}

/// Starts a program in a PID namespace, in which another is the first.
fn start(words: impl Iterator<Item = String>) -> Child {
    Command::new("unshare")
        .args(["--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--"])
        .args(["sh", "-c", "\"$@\"; exit $?", "sh"])
        .args(words)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Passes on what comes for the program, until the connection ends.
async fn receive(mut source: SplitStream<Socket>, mut input: ChildStdin) {
    while let Some(Ok(message)) = source.next().await {
        if let Message::Binary(bytes) = message
            && let Some((0, data)) = bytes.split_first()
        {
            // A program that has ended takes no more.
            let _ = input.write_all(data).await;
        }
    }
}

/// Passes on what the program writes, and how it ended.
async fn send(mut sink: SplitSink<Socket, Message>, mut child: Child, cut: usize) {
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (mut output, mut other) = (vec![0; 4096], vec![0; 4096]);
    let (mut has_output, mut has_other, mut sent) = (true, true, 0);
    while has_output || has_other {
        let (channel, data) = tokio::select! {
            read = stdout.read(&mut output), if has_output => (1, &output[..read.unwrap()]),
            read = stderr.read(&mut other), if has_other => (2, &other[..read.unwrap()]),
        };
        if data.is_empty() {
            *(if channel == 1 { &mut has_output } else { &mut has_other }) = false;
            continue;
        }
        let data = &data[..data.len().min(cut - sent)];
        sent += data.len();
        if sink.send(Message::binary([&[channel], data].concat())).await.is_err() || sent == cut {
            return;
        }
    }
    let code = child.wait().await.unwrap().code().unwrap_or(137);
    let status = match code {
        0 => json!({"metadata": {}, "status": "Success"}),
        code => json!({"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with exit code {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]}}),
    };
    let _ = sink.send(Message::binary([&[3], status.to_string().as_bytes()].concat())).await;
    let _ = sink.close().await;
}
