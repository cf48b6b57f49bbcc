//! Daemons that run scripts, and what is seen of their processes.

use std::collections::HashSet;
use std::fs;

use serde_json::{Value, json};
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

/// Scripts that nothing is made ready for: a process of the daemon's is one of a script then.
pub(crate) const SCRIPT: &str = "[script]\npool = { max = 0 }\n";
/// `PATH` with the interpreter that other users may run, too.
pub(super) const PATH: [(&str, &str); 1] = [("PATH", "/usr/bin:/bin:/usr/local/bin")];
/// Command that runs a program where it cannot make namespaces.
pub(crate) const WITHOUT_NAMESPACES: [&str; 6] = [
    "unshare",
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    "echo 0 >/proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"",
];

/// A daemon with this configuration that is ready.
pub(super) async fn start(site: &BrokerNamespace, more: &str) -> Daemon {
    start_by(&[], site, more, &[]).await
}

/// A ready daemon with this configuration, and a client.
pub(super) async fn with_client(more: &str) -> (BrokerNamespace, Daemon, Client) {
    let site = BrokerNamespace::shared().await;
    let daemon = start(&site, more).await;
    let client = Client::connect(&site).await;
    (site, daemon, client)
}

/// A daemon by another program and with more variables.
pub(crate) async fn start_by(
    launcher: &[&str],
    site: &BrokerNamespace,
    more: &str,
    variables: &[(&str, &str)],
) -> Daemon {
    let mut daemon = Daemon::spawn_by(launcher, site, more, &[&PATH, variables].concat());
    daemon.wait_until_listening().await;
    daemon.wait_until_ready().await;
    daemon
}

/// A call of the tool for scripts, with more arguments.
pub(super) fn call(client: &Client, script: &str, more: &Value) -> Request {
    let mut arguments = json!({"script": script});
    if let (Some(all), Some(more)) = (arguments.as_object_mut(), more.as_object()) {
        all.extend(more.clone());
    }
    client.request("execute_python_script", &arguments)
}

/// A request on `script.invoke`, with more fields.
pub(super) fn script_request(client: &Client, script: &str, more: &Value) -> Request {
    let mut body = json!({"script": script});
    if let (Some(all), Some(more)) = (body.as_object_mut(), more.as_object()) {
        all.extend(more.clone());
    }
    client.raw(body.to_string()).on("script.invoke").of_type("RockBot.Scripts.ScriptInvokeRequest")
}

/// Returns the scripts in `/status`.
pub(super) async fn status(daemon: &Daemon) -> Value {
    daemon.get("/status").await.unwrap().1["script"].clone()
}

/// Waits until a script runs in a process of the daemon's, and gives all of these processes.
pub(super) async fn running(daemon: &Daemon) -> HashSet<u32> {
    eventually("a script", async || {
        let processes = descendants(daemon.pid());
        let is_python = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| shows_python(&exe));
        processes.iter().any(is_python).then_some(processes)
    })
    .await
}

fn shows_python(exe: &std::path::Path) -> bool {
    exe.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"))
}

/// Processes that this one has started, and those that they have, but for the spawner of sandboxes, which stays as long
/// as its daemon.
pub(super) fn descendants(of: u32) -> HashSet<u32> {
    let listed = fs::read_dir("/proc").unwrap().flatten();
    let parents: Vec<(u32, u32)> = listed
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, parent(pid)?))
        })
        .collect();
    let mut family = HashSet::from([of]);
    loop {
        let before = family.len();
        family.extend(
            parents.iter().filter(|(_, parent)| family.contains(parent)).map(|(pid, _)| *pid).collect::<Vec<_>>(),
        );
        if family.len() == before {
            family.retain(|pid| *pid != of && name(*pid).as_deref() != Some("toolbus-spawner"));
            return family;
        }
    }
}

/// The parent of a process that lives.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    fields.next()?.parse().ok().filter(|_| state != "Z")
}

/// The name of a process that lives.
fn name(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// Whether a process lives.
pub(super) fn lives(pid: u32) -> bool {
    parent(pid).is_some()
}
