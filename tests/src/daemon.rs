//! The daemon as a process of its own.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use toolbus_testing::patience::{PATIENCE, eventually};

use crate::client::Client;
use crate::namespace::BrokerNamespace;
use crate::processes::{self, Process};
use crate::program::{Run, binary, toolbus_in};

/// Log message when a reload changes nothing.
const REFUSED: &str = "reload: refused; everything stays as it was";
/// The configuration of a daemon that has no broker.
const ALONE: &str = "[http]\nlisten = \"127.0.0.1:0\"\n[telemetry]\nlog_format = \"json\"\n";
/// Longest response of the HTTP server.
const HTTP_TIME: Duration = Duration::from_secs(10);

/// Longest time in which what a daemon has started ends after it.
const LEAVING_TIME: Duration = Duration::from_secs(30);

/// A daemon, which a test has to end. Its `Drop` fails a test that did not, and one whose daemon left a process, a socket
/// or a folder behind.
pub struct Daemon {
    child: Child,
    pid: u32,
    /// Processes that were below it when it was last signalled or waited for.
    started: Mutex<BTreeSet<Process>>,
    log: Arc<Mutex<Vec<Value>>>,
    reader: Option<JoinHandle<()>>,
    http: String,
    folder: Arc<TempDir>,
}

/// Resources that a daemon holds.
#[derive(Debug, Clone, Copy)]
pub struct Holdings {
    /// Memory, in KiB.
    pub memory: u64,
    /// Open files and connections.
    pub descriptors: usize,
    /// Threads of the daemon.
    pub threads: u64,
    /// Processes below it.
    pub processes: usize,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The log of the daemon shows why a test fails.
        if std::thread::panicking() {
            println!("the log of the daemon:\n{}", self.text());
            return;
        }
        let status = self.child.try_wait().unwrap();
        let status = status.unwrap_or_else(|| panic!("the daemon was not stopped:\n{}", self.text()));
        let waiting = Instant::now();
        loop {
            let left = self.left(status);
            if left.is_empty() {
                return;
            }
            assert!(waiting.elapsed() < LEAVING_TIME, "left by the daemon: {left:?}\n{}", self.text());
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

impl Daemon {
    /// Starts a daemon and waits until it is ready. `more` is laid over the site's configuration.
    pub async fn start(site: &BrokerNamespace, more: &str) -> Self {
        let daemon = Self::launch(site, more, &[]).await;
        daemon.wait_until_ready().await;
        daemon
    }

    /// Starts a daemon in a new namespace of the shared broker, and a client.
    pub async fn with_client(more: &str) -> (BrokerNamespace, Self, Client) {
        let site = BrokerNamespace::shared().await;
        let daemon = Self::start(&site, more).await;
        let client = Client::connect(&site).await;
        (site, daemon, client)
    }

    /// Starts a daemon without a broker, for HTTP clients, and waits until it is ready.
    pub async fn alone(more: &str) -> Self {
        Self::alone_with(more, &[]).await
    }

    /// Starts a daemon as [`Self::alone`] does, with these environment variables.
    pub async fn alone_with(more: &str, environment: &[(&str, &str)]) -> Self {
        let mut daemon = Self::spawn_in(Arc::new(folder_of(ALONE, more)), environment, &[]);
        daemon.wait_until_listening().await;
        daemon.wait_until_ready().await;
        daemon
    }

    /// Starts a daemon and waits until its HTTP server listens.
    ///
    /// # Panics
    ///
    /// When it ends before that.
    pub async fn launch(site: &BrokerNamespace, more: &str, environment: &[(&str, &str)]) -> Self {
        let mut daemon = Self::spawn(site, more, environment);
        daemon.wait_until_listening().await;
        daemon
    }

    /// Waits until its HTTP server listens.
    pub async fn wait_until_listening(&mut self) {
        self.http = eventually("the HTTP server", async || {
            let listening = self.logged("HTTP: listening").pop();
            listening.and_then(|line| Some(format!("http://{}", line.get("address")?.as_str()?)))
        })
        .await;
    }

    /// Starts a daemon that may end by itself.
    ///
    /// # Panics
    ///
    /// When no process can be started.
    #[must_use]
    pub fn spawn(site: &BrokerNamespace, more: &str, environment: &[(&str, &str)]) -> Self {
        Self::spawn_by(&[], site, more, environment)
    }

    /// Starts a daemon by another program, which becomes it: `launcher` is that program with what comes before the
    /// binary's path.
    ///
    /// # Panics
    ///
    /// When no process can be started.
    #[must_use]
    pub fn spawn_by(launcher: &[&str], site: &BrokerNamespace, more: &str, environment: &[(&str, &str)]) -> Self {
        Self::spawn_in(Arc::new(folder_of(&site.config(), more)), environment, launcher)
    }

    fn spawn_in(folder: Arc<TempDir>, environment: &[(&str, &str)], launcher: &[&str]) -> Self {
        let binary = binary().into_os_string();
        let mut words = launcher.iter().map(OsString::from).chain([binary]);
        let mut child = Command::new(words.next().expect("the binary at least"))
            .args(words)
            .args(["serve", "--config", "site.toml", "--config", "more.toml"])
            .current_dir(folder.path())
            .env_clear()
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().expect("a pipe");
        let log = Arc::<Mutex<Vec<Value>>>::default();
        let kept = Arc::clone(&log);
        let reader = Some(tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        }));
        let pid = child.id().expect("a process");
        Self { child, pid, started: Mutex::default(), log, reader, http: String::new(), folder }
    }

    /// Remembers what the daemon has started, to look for it after its end.
    fn remember(&self) {
        self.started.lock().unwrap_or_else(PoisonError::into_inner).extend(processes::below(self.pid));
    }

    /// Lists what an ended daemon has left: processes and, if it ended in order, sockets and folders.
    fn left(&self, status: ExitStatus) -> Vec<String> {
        let started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left: Vec<_> = started.iter().filter_map(Process::command).collect();
        if status.success() {
            let of_pid = |name: &str| name.starts_with("toolbus-") && name.contains(&format!("-{}-", self.pid));
            let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().collect::<Vec<_>>();
            let sockets = entries(self.folder()).into_iter();
            let sockets = sockets.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
            let folders = entries(&std::env::temp_dir()).into_iter();
            let folders = folders.filter(|entry| entry.file_name().to_str().is_some_and(of_pid));
            left.extend(sockets.chain(folders).map(|entry| entry.path().display().to_string()));
        }
        left
    }

    /// Ends the daemon in order, and starts it again in its folder, with what it kept there.
    pub async fn restarted(self) -> Self {
        self.started_again_after("TERM").await
    }

    /// Kills the daemon, and starts it again in its folder, with what it kept there.
    pub async fn killed(self) -> Self {
        self.started_again_after("KILL").await
    }

    async fn started_again_after(mut self, signal: &str) -> Self {
        self.signal(signal).await;
        self.ended().await;
        let folder = Arc::clone(&self.folder);
        // What it left is looked for before another uses its folder.
        drop(self);
        let mut again = Self::spawn_in(folder, &[], &[]);
        again.wait_until_listening().await;
        again.wait_until_ready().await;
        again
    }

    /// The folder that it works in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs a command of the binary in the daemon's folder, where it finds its socket.
    pub async fn operate(&self, arguments: &[&str]) -> Run {
        toolbus_in(self.folder(), arguments).await
    }

    /// Lays another configuration over the site's and requests a reload; waits until its outcome is logged, and
    /// gives that line.
    ///
    /// # Panics
    ///
    /// When the file cannot be written.
    pub async fn reload(&self, more: &str) -> Value {
        std::fs::write(self.folder().join("more.toml"), more).unwrap();
        let before = [self.logged("reload: done").len(), self.logged(REFUSED).len()];
        self.signal("HUP").await;
        eventually("a reload", async || {
            let now = [self.logged("reload: done"), self.logged(REFUSED)];
            now.into_iter().zip(before).find_map(|(lines, before)| lines.get(before).cloned())
        })
        .await
    }

    /// Waits until the daemon takes requests and replies.
    pub async fn wait_until_ready(&self) {
        let mut shown = Value::Null;
        eventually("readiness", async || {
            let (code, body) = self.get("/readyz").await?;
            if code != 200 && body != shown {
                println!("not ready: {body}");
                shown = body;
            }
            (code == 200).then_some(())
        })
        .await;
    }

    /// Status code and body of a GET request to the HTTP server, if it responds.
    pub async fn get(&self, path: &str) -> Option<(u16, Value)> {
        let client = reqwest::Client::builder().timeout(HTTP_TIME).no_proxy().build().ok()?;
        let response = client.get(format!("{}{path}", self.http)).send().await.ok()?;
        let status = response.status().as_u16();
        let text = response.text().await.ok()?;
        Some((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// The first remote tool set, as `/status` shows it, once it is so.
    pub async fn remote_set(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(what, async || {
            let (_, status) = self.get("/status").await?;
            status.get("remote")?.get(0).filter(|set| is_so(set)).cloned()
        })
        .await
    }

    /// Waits until `/readyz` names this reason, and gives its detail.
    pub async fn blocked_by(&self, reason: &str) -> Value {
        eventually(&format!("/readyz to name {reason}"), async || {
            let (code, body) = self.get("/readyz").await?;
            let blockers = body.get("blockedBy")?.as_array()?;
            let found =
                blockers.iter().find(|blocker| blocker.get("reason").and_then(Value::as_str) == Some(reason))?;
            (code == 503).then(|| found.clone())
        })
        .await
    }

    /// Address of the HTTP server, as `IP:PORT`.
    #[must_use]
    pub fn listen(&self) -> &str {
        self.http.trim_start_matches("http://")
    }

    /// The id of the process.
    ///
    /// # Panics
    ///
    /// When it has ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id().expect("a running daemon")
    }

    /// Forgets the most memory that the process has held until now.
    ///
    /// # Panics
    ///
    /// When it has ended.
    pub fn forget_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.pid()), "5").unwrap();
    }

    /// The most memory that the process has held since [`Self::forget_peak`], in KiB.
    ///
    /// # Panics
    ///
    /// When it has ended.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.of_status("VmHWM:")
    }

    /// Returns the resources that the process holds now.
    ///
    /// # Panics
    ///
    /// When it has ended.
    #[must_use]
    pub fn usage(&self) -> Holdings {
        Holdings {
            memory: self.of_status("VmRSS:"),
            descriptors: std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count(),
            threads: self.of_status("Threads:"),
            processes: processes::below(self.pid).len(),
        }
    }

    /// A number of the process from `/proc`, in KiB if it is one of memory.
    fn of_status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of this name");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// Sends a signal, such as `TERM`.
    ///
    /// # Panics
    ///
    /// When it cannot be sent.
    pub async fn signal(&self, name: &str) {
        self.remember();
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args([format!("-{name}"), pid]).status().await.unwrap();
        assert!(sent.success());
    }

    /// Waits for the end, and for the last line of the log.
    ///
    /// # Panics
    ///
    /// When it does not come.
    pub async fn ended(&mut self) -> ExitStatus {
        self.remember();
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("an end in time").unwrap();
        if let Some(reader) = self.reader.take() {
            reader.await.unwrap();
        }
        status
    }

    /// Ends a daemon without a broker in order, or one whose queue does not matter.
    ///
    /// # Panics
    ///
    /// If it does not end with 0.
    pub async fn end(mut self) {
        self.signal("TERM").await;
        let status = self.ended().await;
        assert_eq!(status.code(), Some(0), "{}", self.text());
    }

    /// Ends the daemon in order, and checks that nothing was left in its queue.
    ///
    /// # Panics
    ///
    /// When it does not end with 0, or a message is left.
    pub async fn stop(mut self, site: &BrokerNamespace) {
        self.signal("TERM").await;
        let status = self.ended().await;
        assert_eq!(status.code(), Some(0), "{}", self.text());
        let left = site.take(&site.queue()).await;
        assert!(left.is_none(), "left in the queue: {left:?}\n{}", self.text());
    }

    /// The lines of the log with this message.
    #[must_use]
    pub fn logged(&self, message: &str) -> Vec<Value> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().filter(|line| line.get("message").and_then(Value::as_str) == Some(message)).cloned().collect()
    }

    /// Waits until the log has this message so many times; a line may be written after its cause has been seen.
    ///
    /// # Panics
    ///
    /// When it has more.
    pub async fn logged_times(&self, message: &str, times: usize) {
        let is_there = async || (self.logged(message).len() >= times).then_some(());
        eventually(&format!("`{message}` in the log"), is_there).await;
        assert_eq!(self.logged(message).len(), times, "{}", self.text());
    }

    /// The whole log, one line each.
    #[must_use]
    pub fn text(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// A folder with the site's configuration, and what is laid over it.
fn folder_of(site: &str, more: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("site.toml", site), ("more.toml", more)] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}
