//! Real servers under the real supervisor.

mod endings;
mod families;
mod starting;
mod traffic;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::Transport as _;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use toolbus_testing::patience::eventually;

use super::{Launcher, Process};
use crate::spec::StdioSpec;
use crate::testing;
use crate::transport::stdio::StdioTransport;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(100);

/// A server in Python.
fn python(script: &str) -> StdioSpec {
    testing::program("python3", &["-c", &format!("import os, signal, subprocess, sys, time\n{script}")])
}

/// Starts a server with this grace to end by itself.
fn start(grace: Duration, script: &str) -> (Process, StdioTransport) {
    Launcher::of_tests(grace).start("hostile", &python(script)).unwrap()
}

/// The numbers in the first so many lines of a server's standard error.
async fn stderr_numbers<const N: usize>(process: &Process) -> [i32; N] {
    eventually("a server to write its process ids", async || {
        let numbers: Vec<i32> = process.stderr_tail().iter().filter_map(|line| line.parse().ok()).collect();
        numbers.try_into().ok()
    })
    .await
}

fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(") ").unwrap().1.starts_with(['Z', 'X']))
}

async fn all_gone(pids: &[i32]) {
    eventually("every process to be gone", async || pids.iter().all(|pid| !is_alive(*pid)).then_some(())).await;
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Reason why the transport ended. Fails when a message comes first.
async fn failure(transport: &mut StdioTransport) -> String {
    assert!(transport.receive().await.is_none());
    transport.failure().get().unwrap().to_owned()
}

/// A request of about that many bytes.
fn request(id: usize, bytes: usize) -> ClientJsonRpcMessage {
    let arguments = json!({ "text": "x".repeat(bytes) });
    let params = json!({ "name": "echo", "arguments": arguments });
    serde_json::from_value(json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })).unwrap()
}

/// The memory of a process that runs a single test.
struct Memory {
    before: usize,
}

impl Memory {
    /// By how much it was ever larger than before, in bytes.
    fn growth(&self) -> usize {
        largest() - self.before
    }
}

/// Runs a test of this module again in a process of its own, and returns its memory there; else `None`.
fn alone(name: &str) -> Option<Memory> {
    const ALONE: &str = "TOOLBUS_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return Some(Memory { before: largest() });
    }
    let name = format!("process::tests::{name}");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("1 passed"), "{text}");
    None
}

/// The most memory that this process ever had, in bytes.
fn largest() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}
