//! A daemon with a well-behaved server, and hostile ones that come later.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::MutexGuard;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::{at_most, eventually};
use uuid::Uuid;

use crate::turn;

/// Longest time of a call of the neighbour, in 99 of 100 calls, on a machine with nothing else to do.
const LATENCY: Duration = Duration::from_millis(250);
/// A machine that is busy with other things gets some tries, and so many times what it needed before.
const TRIES: usize = 4;
const BUSY: u32 = 3;
/// Calls of the neighbour, and the time that they take at least.
const CALLS: usize = 100;
const SIEGE: Duration = Duration::from_secs(2);
/// Most memory that hostile servers may cost the daemon, in KiB.
const MEMORY: u64 = 100 * 1024;
/// Longest end of the daemon and of everything that it started, on such a machine.
const SHUTDOWN: Duration = Duration::from_secs(10);
/// Secret that the daemon alone may have.
pub(crate) const SECRET: &str = "hunter2-of-the-daemon";
/// Unit of CPU time in Linux's `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;

/// A daemon that is measured.
pub(crate) struct Fixture {
    pub(crate) site: BrokerNamespace,
    pub(crate) daemon: Daemon,
    pub(crate) client: Client,
    base: String,
    tag: String,
    /// Time of the neighbour's calls before anything hostile was there.
    latency: Duration,
    /// Memory before anything hostile was there, in KiB.
    resting: u64,
    _turn: MutexGuard<'static, ()>,
}

impl Fixture {
    /// A daemon with the neighbour alone; `more` is further configuration.
    pub(crate) async fn quiet(more: &str) -> Self {
        let turn = turn().await;
        let (site, tag) = (BrokerNamespace::shared().await, Uuid::new_v4().simple().to_string());
        let base = format!("{}{more}", stdio("neighbour", "neighbour", "-", &tag, ""));
        let daemon = Daemon::launch(&site, &base, &[("TOKEN_OF_THE_DAEMON", SECRET)]).await;
        daemon.wait_until_ready().await;
        let client = Client::connect(&site).await;
        let mut fixture = Self { site, daemon, client, base, tag, latency: Duration::ZERO, resting: 0, _turn: turn };
        fixture.seen_of("neighbour", "ready", "").await;
        fixture.latency = fixture.neighbour_replies().await;
        fixture.rest();
        fixture
    }

    /// Has memory count from here on, and not what it took so far.
    pub(crate) fn rest(&mut self) {
        self.daemon.forget_peak();
        self.resting = self.daemon.peak();
    }

    /// Starts a daemon, and then a server `hostile` that behaves in this way. The neighbour serves meanwhile.
    pub(crate) async fn besieged(way: &str) -> Self {
        Self::besieged_with(way, "-", "").await
    }

    /// Starts a daemon and a server `hostile`; `thing` is an argument of its way, `keys` are more keys of its section.
    pub(crate) async fn besieged_with(way: &str, thing: &str, keys: &str) -> Self {
        let fixture = Self::quiet("").await;
        let section = fixture.program("hostile", way, thing, keys);
        fixture.add(&section).await;
        fixture.neighbour_serves().await;
        fixture
    }

    /// The section of a server that is a program.
    pub(crate) fn program(&self, name: &str, way: &str, thing: &str, keys: &str) -> String {
        stdio(name, way, thing, &self.tag, keys)
    }

    /// Adds to the configuration of the running daemon.
    pub(crate) async fn add(&self, sections: &str) {
        let line = self.daemon.reload(&format!("{}{sections}", self.base)).await;
        assert_eq!(line["message"], "reload: done", "{line}");
    }

    /// Calls the neighbour again and again; its replies come as if nothing were wrong.
    pub(crate) async fn neighbour_serves(&self) {
        let longest = at_most(LATENCY).max(self.latency * BUSY);
        for _ in 0..TRIES {
            if self.neighbour_replies().await < longest {
                return;
            }
        }
        assert!(self.neighbour_replies().await < longest, "the neighbour has to wait longer than {longest:?}");
    }

    /// The time within which 99 of 100 of the neighbour's replies come.
    async fn neighbour_replies(&self) -> Duration {
        let (began, mut times) = (Instant::now(), Vec::new());
        while times.len() < CALLS || began.elapsed() < SIEGE {
            let started = Instant::now();
            let call = self.client.request("neighbour", &json!({})).by("friend");
            let reply = self.client.exchange(&call).await;
            assert_eq!(reply.content(), "well", "{:?}", reply.body());
            times.push(started.elapsed());
        }
        times.sort();
        let p99 = times[times.len() * 99 / 100];
        println!("p99 of the neighbour: {} ms of {} calls", p99.as_millis(), times.len());
        p99
    }

    /// Calls the tool of the hostile server.
    pub(crate) async fn strike(&self) -> Message {
        self.client.call("strike", &json!({})).await
    }

    /// Calls the tool of the hostile server while the neighbour serves.
    pub(crate) async fn strike_beside_neighbour(&self, arguments: Value) -> Message {
        let strike = self.client.request("strike", &arguments);
        self.client.send(&strike).await;
        self.neighbour_serves().await;
        self.client.reply(&strike).await
    }

    /// Waits until `/status` has this phase and an error with this text for the hostile server, and gives what
    /// `toolbus mcp show` has.
    pub(crate) async fn seen(&self, phase: &str, error: &str) -> Value {
        self.seen_of("hostile", phase, error).await
    }

    /// Waits until `/status` has this phase and an error with this text for a server.
    pub(crate) async fn seen_of(&self, name: &str, phase: &str, error: &str) -> Value {
        eventually(&format!("{name} to be {phase}: {error}"), async || {
            let (_, status) = self.daemon.get("/status").await?;
            let server = status["mcp"].as_array()?.iter().find(|server| server["name"] == name)?.clone();
            let last_error = server["lastError"].as_str().unwrap_or_default();
            (server["phase"] == phase && last_error.contains(error)).then_some(())
        })
        .await;
        self.shown(name).await
    }

    /// Returns what `toolbus mcp show` has.
    pub(crate) async fn shown(&self, name: &str) -> Value {
        let run = self.daemon.operate(&["--output", "json", "mcp", "show", name]).await;
        assert_eq!(run.code, 0, "{run:?}");
        run.json()
    }

    /// CPU time of the daemon until now, in seconds.
    pub(crate) fn processor_seconds(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.daemon.pid())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
        let ticks: f64 = [fields[11], fields[12]].iter().map(|field| field.parse::<f64>().unwrap()).sum();
        ticks / TICKS_PER_SECOND
    }

    /// Processes of hostile servers and of the neighbour, supervisors included.
    pub(crate) fn processes(&self) -> Vec<u32> {
        processes(&self.tag)
    }

    /// Ends the daemon: in time, in order, and with everything that it started.
    pub(crate) async fn end(self) {
        self.end_within(MEMORY).await;
    }

    /// Ends the daemon as [`Self::end`] does, with another limit of memory, in KiB.
    pub(crate) async fn end_within(mut self, most: u64) {
        let grown = self.daemon.peak().saturating_sub(self.resting);
        println!("memory: {} KiB more than {} KiB", grown, self.resting);
        assert!(grown < most, "{grown} KiB");
        let started = Instant::now();
        self.daemon.signal("TERM").await;
        let status = self.daemon.ended().await;
        assert_eq!(status.code(), Some(0));
        eventually("the end of all processes", async || self.processes().is_empty().then_some(())).await;
        println!("end: after {} ms", started.elapsed().as_millis());
        assert!(started.elapsed() < at_most(SHUTDOWN), "{:?}", started.elapsed());
    }
}

/// Path of a hostile program.
pub(crate) fn python(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(file)
}

fn stdio(name: &str, way: &str, thing: &str, tag: &str, keys: &str) -> String {
    let program = python("hostile_mcp.py");
    format!(
        "[mcp.servers.{name}]\ncommand = \"python3\"\nargs = [{:?}, {way:?}, {thing:?}, {tag:?}]\n{keys}\n",
        program.to_str().unwrap()
    )
}

/// Processes with this text among their arguments.
fn processes(tag: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_tag = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).split('\0').any(|argument| argument == tag)
    };
    pids.filter(has_tag).collect()
}
