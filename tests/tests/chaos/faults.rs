//! Everything that can break between a broker and a daemon breaks, again and again, while an effectful tool is called: no
//! call is lost, none runs twice, and nothing is left at the end.
//!
//! `TOOLBUS_FAULTS` is how many faults there are, `TOOLBUS_SEED` decides which.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::history::{Tally, random};
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;
use toolbus_testing::proxy::Proxy;
use toolbus_testing::rabbit::RabbitNode;

use crate::turn;

/// Faults, and the seed, unless the environment says otherwise.
const FAULTS: usize = 120;
const SEED: usize = 16;
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

/// Calls until it is told to stop, one call after another.
async fn call_again_and_again(
    site: &BrokerNamespace,
    caller: usize,
    is_over: &AtomicBool,
    answered: &AtomicUsize,
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
        answered.fetch_add(1, Ordering::Relaxed);
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

#[tokio::test]
async fn whatever_breaks_no_call_is_lost_none_runs_twice_and_nothing_is_left() {
    let _turn = turn().await;
    let (faults, seed) = (from_environment("TOOLBUS_FAULTS", FAULTS), from_environment("TOOLBUS_SEED", SEED));
    println!("{faults} faults, seed {seed}");
    let node = RabbitNode::start().await;
    let proxy = Proxy::start(node.address()).await.unwrap();
    let site = BrokerNamespace::on(&node);
    let url = format!("{}?heartbeat=1", site.url.replace(&node.address().to_string(), &proxy.address().to_string()));
    let through = BrokerNamespace { url, ..site.clone() };
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    let script = format!("echo \"$1\" >> '{}'; echo \"{WORKED}$1\"", runs.display());
    let config = format!(
        "[store]\nurl = \"sqlite:store.db\"\n[invoke]\ndefault_timeout = \"110s\"\n[[commands]]\nname = \"work\"\n\
         description = \"Writes its argument to a file\"\ncommand = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{id}}\"]\n\
         parameters = '{{\"type\":\"object\",\"properties\":{{\"id\":{{\"type\":\"string\"}}}},\"required\":[\"id\"]}}'\n\
         effect = \"effectful\"\nsandbox = false\ntimeout = \"100s\"\n"
    );
    let mut daemon = Daemon::start(&through, &config).await;
    let before = queues(&node).await;
    let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));

    let calling = (0..CALLERS).map(|caller| call_again_and_again(&site, caller, &is_over, &answered));
    let breaking = async {
        let (mut state, mut struck) = (seed as u64, BTreeMap::<Fault, usize>::new());
        for _ in 0..faults {
            let goal = answered.load(Ordering::Relaxed) + 1;
            let going_on = eventually("an answer", async || (answered.load(Ordering::Relaxed) >= goal).then_some(()));
            drop(tokio::time::timeout(BREATH, going_on).await);
            let fault = Fault::next(&mut state);
            daemon = fault.strike(daemon, &proxy, &mut state).await;
            *struck.entry(fault).or_default() += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        (daemon, struck)
    };
    let began = Instant::now();
    let (made, (daemon, struck)) = tokio::join!(join_all(calling), breaking);

    let mut times = BTreeMap::<String, usize>::new();
    for line in std::fs::read_to_string(&runs).unwrap().lines() {
        *times.entry(line.to_owned()).or_default() += 1;
    }
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
    // One whose acknowledgement was lost with a connection comes again after its reply, and is answered again: without its
    // caller, that reply would be a dead letter.
    eventually("every request to be acknowledged", async || {
        queues(&node).await.values().all(|messages| *messages == (0, 0)).then_some(())
    })
    .await;
    drop(made);
    daemon.stop(&through).await;
    eventually("no queue and no message to be left over", async || {
        let left = queues(&node).await;
        println!("{left:?}");
        let is_empty = left.iter().all(|(name, messages)| before.contains_key(name) && *messages == (0, 0));
        (is_empty && !left.is_empty()).then_some(())
    })
    .await;
}
