//! Everything that can break between a broker and a daemon breaks, again and again, while an effectful tool is called: no
//! call is lost, none runs twice, and nothing is left at the end. The same with the client for Rust, whose own connection
//! and broker break, too.
//!
//! `TOOLBUS_FAULTS` is how many faults there are, `TOOLBUS_SEED` decides which.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use tempfile::TempDir;
use toolbus_client::{BusConnection, ConnectionOptions, ReplyContent};
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::history::{Tally, random};
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_protocol::{Outcome, ToolInvokeRequest, header};
use toolbus_testing::patience::eventually;
use toolbus_testing::proxy::Proxy;
use toolbus_testing::rabbit::RabbitNode;

use crate::turn;

/// Faults, and the seed, unless the environment overrides them.
const FAULTS: usize = 120;
const SEED: usize = 16;
/// Faults of the client for Rust, and how often one of them is the end of the broker.
const CLIENT_FAULTS: usize = 30;
const BROKER_FAULTS: usize = 10;
/// Wait for a reply after which the client for Rust sends a call again, and time that the tool has.
const PATIENCE: Duration = Duration::from_secs(5);
const BUDGET: Duration = Duration::from_secs(100);
/// Callers, each with one call at a time.
const CALLERS: usize = 8;
/// Calls of one client, which looks for a reply among all that it has received.
const CALLS_OF_A_CLIENT: usize = 200;
/// Longest wait for calls to go on between two faults. Some faults meet a daemon that has not recovered from the last one.
const BREATH: Duration = Duration::from_millis(250);
/// Text that the tool prints, after it has written its argument to a file.
const WORKED: &str = "worked for ";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// Connections are cut, and refused for a while.
    Cut,
    /// Nothing passes for a while; a heartbeat is missed in some of them.
    Freeze,
    /// Everything that passes is late.
    Delay,
    /// The daemon stands still for a while.
    Stop,
    /// The daemon is killed, and starts again.
    Kill,
    /// The daemon ends in order, and starts again.
    Terminate,
}

impl Fault {
    fn next(state: &mut u64) -> Self {
        match random(state, 100) {
            0..35 => Self::Cut,
            35..60 => Self::Freeze,
            60..80 => Self::Delay,
            80..90 => Self::Stop,
            90..95 => Self::Kill,
            _ => Self::Terminate,
        }
    }

    async fn strike(self, daemon: Daemon, proxy: &Proxy, state: &mut u64) -> Daemon {
        let mut time = Duration::from_millis(20 + random(state, 300) as u64);
        if random(state, 20) == 0 {
            // Longer than two heartbeats, after which a connection counts as lost.
            time += Duration::from_millis(2500);
        }
        match self {
            Self::Cut => proxy.cut(),
            Self::Freeze => proxy.freeze(),
            Self::Delay => proxy.slow_down(Duration::from_millis(1 + random(state, 50) as u64)),
            Self::Stop => daemon.signal("STOP").await,
            Self::Kill => return daemon.killed().await,
            Self::Terminate => return daemon.restarted().await,
        }
        tokio::time::sleep(time).await;
        match self {
            Self::Stop => daemon.signal("CONT").await,
            _ => proxy.restore(),
        }
        daemon
    }
}

fn from_environment(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// A call that was made, with the client that has its replies.
struct Made {
    id: String,
    client: usize,
    request: Request,
}

/// Calls until `is_over`, one call after another.
async fn call_again_and_again(
    site: &BrokerNamespace,
    caller: usize,
    is_over: &AtomicBool,
    replied: &AtomicUsize,
) -> (Vec<Client>, Vec<Made>) {
    let (mut clients, mut made) = (Vec::new(), Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        if made.len() % CALLS_OF_A_CLIENT == 0 {
            clients.push(Client::connect(site).await);
        }
        let client = clients.last().unwrap();
        let id = format!("{caller}-{}", made.len());
        let request = client.request("work", &json!({"id": id}));
        client.exchange(&request).await;
        replied.fetch_add(1, Ordering::Relaxed);
        made.push(Made { id, client: clients.len() - 1, request });
    }
    (clients, made)
}

/// The queues of a node with their messages: name, ready, unacknowledged.
async fn queues(node: &RabbitNode) -> BTreeMap<String, (u32, u32)> {
    let listed = node.ctl(&["list_queues", "name", "messages_ready", "messages_unacknowledged"]).await;
    let rows = listed.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    rows.filter_map(|row| Some((row[0].to_owned(), (row.get(1)?.parse().ok()?, row.get(2)?.parse().ok()?)))).collect()
}

/// A node behind a proxy, and a daemon whose effectful tool writes down what it is called with.
struct Storm {
    node: RabbitNode,
    proxy: Proxy,
    site: BrokerNamespace,
    /// Names and URL of the broker behind the proxy.
    through: BrokerNamespace,
    folder: TempDir,
    seed: usize,
    is_over: AtomicBool,
    replied: AtomicUsize,
}

impl Storm {
    async fn start() -> Self {
        let node = RabbitNode::start().await;
        let proxy = Proxy::start(node.address()).await.unwrap();
        let site = BrokerNamespace::on(&node);
        let address = (node.address().to_string(), proxy.address().to_string());
        let url = format!("{}?heartbeat=1", site.url.replace(&address.0, &address.1));
        Self {
            through: BrokerNamespace { url, ..site.clone() },
            node,
            proxy,
            site,
            folder: tempfile::tempdir().unwrap(),
            seed: from_environment("TOOLBUS_SEED", SEED),
            is_over: AtomicBool::new(false),
            replied: AtomicUsize::new(0),
        }
    }

    async fn daemon(&self) -> Daemon {
        let runs = self.folder.path().join("runs");
        let script = format!("echo \"$1\" >> '{}'; echo \"{WORKED}$1\"", runs.display());
        let config = format!(
            "[store]\nurl = \"sqlite:store.db\"\n[invoke]\ndefault_timeout = \"110s\"\n[[commands]]\nname = \"work\"\n\
             description = \"Writes its argument to a file\"\ncommand = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{id}}\"]\n\
             parameters = '{{\"type\":\"object\",\"properties\":{{\"id\":{{\"type\":\"string\"}}}},\"required\":[\"id\"]}}'\n\
             effect = \"effectful\"\nsandbox = false\ntimeout = \"100s\"\n"
        );
        Daemon::start(&self.through, &config).await
    }

    /// Has so many faults happen, the broker's own end among them if its callers outlive it.
    async fn strike(&self, faults: usize, mut daemon: Daemon, ends_broker: bool) -> (Daemon, BTreeMap<Fault, usize>) {
        println!("{faults} faults, seed {}", self.seed);
        let (mut state, mut struck) = (self.seed as u64, BTreeMap::<Fault, usize>::new());
        for number in 1..=faults {
            let goal = self.replied.load(Ordering::Relaxed) + 1;
            let is_there = || self.replied.load(Ordering::Relaxed) >= goal;
            let going_on = eventually("a reply", async || is_there().then_some(()));
            drop(tokio::time::timeout(BREATH, going_on).await);
            if ends_broker && number % BROKER_FAULTS == 0 {
                self.node.flush().await;
                self.node.restart().await;
                continue;
            }
            let fault = Fault::next(&mut state);
            daemon = fault.strike(daemon, &self.proxy, &mut state).await;
            *struck.entry(fault).or_default() += 1;
        }
        self.is_over.store(true, Ordering::Relaxed);
        (daemon, struck)
    }

    /// Number of runs of the tool, by its argument.
    fn runs(&self) -> BTreeMap<String, usize> {
        let mut times = BTreeMap::new();
        for line in std::fs::read_to_string(self.folder.path().join("runs")).unwrap().lines() {
            *times.entry(line.to_owned()).or_default() += 1;
        }
        times
    }
}

#[tokio::test]
async fn whatever_breaks_no_call_is_lost_none_runs_twice_and_nothing_is_left() {
    let _turn = turn().await;
    let storm = Storm::start().await;
    let Storm { node, site, seed, is_over, replied, .. } = &storm;
    let daemon = storm.daemon().await;
    let before = queues(node).await;

    let calling = (0..CALLERS).map(|caller| call_again_and_again(site, caller, is_over, replied));
    let began = Instant::now();
    let breaking = storm.strike(from_environment("TOOLBUS_FAULTS", FAULTS), daemon, false);
    let (made, (daemon, struck)) = tokio::join!(join_all(calling), breaking);

    let times = storm.runs();
    let mut tally = Tally::default();
    for (clients, made) in &made {
        for client in clients {
            client.caught_up().await;
        }
        for Made { id, client, request } in made {
            let runs = times.get(id).copied().unwrap_or_default();
            tally.count(id, &clients[*client].replies_to(&request.correlation), runs, &format!("{WORKED}{id}"));
        }
    }
    tally.check(&format!("{struck:?} within {:?} (seed {seed})", began.elapsed()));
    let ids: BTreeSet<&str> = made.iter().flat_map(|(_, made)| made).map(|made| made.id.as_str()).collect();
    assert!(times.keys().all(|id| ids.contains(id.as_str())), "what ran was called");
    // A request whose ack was lost with a connection comes again after its reply, and gets a second one: without its
    // caller, that reply would be a dead letter.
    eventually("every request to be acknowledged", async || {
        queues(node).await.values().all(|messages| *messages == (0, 0)).then_some(())
    })
    .await;
    drop(made);
    daemon.stop(&storm.through).await;
    eventually("no queue and no message to be left over", async || {
        let left = queues(node).await;
        println!("{left:?}");
        let is_empty = left.iter().all(|(name, messages)| before.contains_key(name) && *messages == (0, 0));
        (is_empty && !left.is_empty()).then_some(())
    })
    .await;
}

/// Sends a call with a key again and again until there is a reply that is final: its text, or what is known of its effects.
async fn until_replied(client: &toolbus_client::Client, id: &str) -> Result<String, Option<Outcome>> {
    let arguments = Some(json!({ "id": id }).to_string());
    let call = ToolInvokeRequest {
        tool_call_id: Some(id.to_owned()),
        tool_name: "work".to_owned(),
        arguments,
        session_id: None,
        batch_id: None,
    };
    let mut request = client.call(&call, Some(BUDGET), None);
    let key = (header::IDEMPOTENCY_KEY.to_owned(), id.to_owned());
    Arc::make_mut(&mut request.properties).headers.push(key);
    loop {
        match client.send(&request, PATIENCE).await.map(|reply| reply.content) {
            Ok(ReplyContent::Result(result)) => return Ok(result.content.unwrap_or_default()),
            Ok(ReplyContent::Error(error)) if !error.is_retryable => return Err(error.outcome),
            Ok(ReplyContent::Error(_)) | Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

#[tokio::test]
async fn calls_of_the_client_for_rust_have_one_effect_though_they_are_sent_again() {
    let _turn = turn().await;
    let storm = Storm::start().await;
    let daemon = storm.daemon().await;
    let exchange = storm.site.exchange.clone();
    let options = ConnectionOptions { exchange, ..ConnectionOptions::new(&storm.through.url) };
    let connection = BusConnection::open(options).unwrap();
    let client = connection.client(BUDGET).await.unwrap();

    let calling = (0..CALLERS).map(async |caller| {
        let mut outcomes = Vec::new();
        while !storm.is_over.load(Ordering::Relaxed) {
            let id = format!("{caller}-{}", outcomes.len());
            outcomes.push((id.clone(), until_replied(&client, &id).await));
            storm.replied.fetch_add(1, Ordering::Relaxed);
        }
        outcomes
    });
    let faults = from_environment("TOOLBUS_FAULTS", CLIENT_FAULTS);
    let (outcomes, (daemon, struck)) = tokio::join!(join_all(calling), storm.strike(faults, daemon, true));

    let (times, outcomes) = (storm.runs(), outcomes.concat());
    let unknown = outcomes.iter().filter(|(_, outcome)| *outcome == Err(Some(Outcome::Unknown))).count();
    println!("{struck:?}: {} calls, of which {unknown} are not known to have run", outcomes.len());
    for (id, outcome) in &outcomes {
        match (outcome, times.get(id).copied().unwrap_or_default()) {
            (Ok(text), 1) => assert_eq!(*text, format!("{WORKED}{id}")),
            (Err(Some(Outcome::Unknown)), 0 | 1) => {}
            (outcome, runs) => panic!("{id} ran {runs} times: {outcome:?}"),
        }
    }
    assert!(unknown < outcomes.len() / 2);
    connection.close().await;
    daemon.stop(&storm.through).await;
}
