//! The node of the emulated cluster: it runs the programs of pods, or lets pods go through states.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use super::cluster::{Key, Node, Shared};

/// Does with a new pod what the node does.
pub(super) async fn start(shared: Shared, key: Key, object: Value, node: Node) {
    match node {
        Node::Runs => run(&shared, &key, &object).await,
        Node::States(states, log) => {
            shared.add_log(&key, &log);
            for status in states {
                let is_ended = matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"));
                shared.set_status(&key, &status);
                if is_ended {
                    shared.end_log(&key);
                }
            }
        }
    }
}

/// Runs the program of a pod's container.
async fn run(shared: &Shared, key: &Key, object: &Value) {
    shared.set_status(key, &json!({"phase": "Pending"}));
    let container = &object["spec"]["containers"][0];
    let work = tempfile::tempdir().unwrap();
    let text = |value: &Value| value.as_str().unwrap().replace("/work", work.path().to_str().unwrap());
    let [command, args] = ["command", "args"].map(|key| container[key].as_array().unwrap().clone());
    let words: Vec<String> = command.iter().chain(&args).map(text).collect();
    let variables = container["env"].as_array().unwrap().iter();
    let variables = variables.map(|variable| [&variable["name"], &variable["value"]].map(|v| v.as_str().unwrap()));
    // As in a container, the supervisor is the first process of a PID namespace, which ends with it.
    let mut child = Command::new("unshare")
        .args(["--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--"])
        .args(&words)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(variables.map(|[name, value]| (name.to_owned(), value.to_owned())))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    shared.set_status(key, &running());
    let mut stdout = child.stdout.take().unwrap();
    let mut bytes = vec![0; 4096];
    while let Ok(read @ 1..) = stdout.read(&mut bytes).await {
        shared.add_log(key, &bytes[..read]);
    }
    let code = child.wait().await.unwrap().code().unwrap_or(137);
    shared.end_log(key);
    shared.set_status(key, &ended(code, if code == 0 { "Completed" } else { "Error" }));
}

/// The status of a pod whose container has ended.
#[must_use]
pub fn ended(code: i32, reason: &str) -> Value {
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let state = json!({"terminated": {"exitCode": code, "reason": reason}});
    json!({"phase": phase, "containerStatuses": container_status(state)})
}

/// The status of a pod whose container runs.
#[must_use]
pub fn running() -> Value {
    json!({"phase": "Running", "containerStatuses": container_status(json!({"running": {}}))})
}

/// The status of a pod whose container has not begun.
#[must_use]
pub fn waiting(reason: &str, message: &str) -> Value {
    let state = json!({"waiting": {"reason": reason, "message": message}});
    json!({"phase": "Pending", "containerStatuses": container_status(state)})
}

fn container_status(state: Value) -> Value {
    json!([{"name": "script", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}])
}
