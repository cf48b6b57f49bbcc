//! A cluster of three brokers. While one is down, calls need neither the node of the dead letters nor that of another
//! caller's replies. Whatever is killed or cut under load, no call is lost, and none runs twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::history::Tally;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::survivor::Survivor;
use toolbus_testing::cluster::{NODES, RabbitCluster};
use toolbus_testing::patience::eventually;

use crate::turn;

/// Replies after which the cluster counts as working.
const WORKING: usize = 40;
/// Callers, each with one call at a time.
const CALLERS: usize = 8;
/// Time in which nodes that reach each other again are one cluster again.
const REJOIN_TIME: Duration = Duration::from_secs(120);

/// A cluster, a daemon that is configured with all of its nodes, and a caller that goes to the nodes from this one on.
struct Fixture {
    cluster: RabbitCluster,
    backend: Backend,
    site: BrokerNamespace,
    daemon: Daemon,
    survivor: Arc<Survivor>,
    receiver: JoinSet<()>,
}

impl Fixture {
    async fn start(first: usize) -> Self {
        let (cluster, backend) = (RabbitCluster::start().await, Backend::start().await);
        let site = BrokerNamespace { url: cluster.urls()[0].clone(), ..BrokerNamespace::embedded() };
        let urls: Vec<String> = cluster.urls().iter().map(|url| format!("{url}?heartbeat=2")).collect();
        let bus = format!("[bus]\nurl = {urls:?}\nqueue_type = \"quorum\"\n[store]\nurl = \"sqlite:store.db\"\n");
        let work = backend.tool("work", "/work?id={id}", "effect = \"effectful\"");
        let hold = backend.tool("hold", "/gate?id={id}", "effect = \"effectful\"");
        let daemon = Daemon::start(&site, &format!("{bus}{work}{hold}")).await;
        let own = BrokerNamespace { url: cluster.urls()[first].clone(), ..site.clone() };
        let survivor = Survivor::of_cluster(&own, cluster.urls().split_off(first), "quorum").await;
        for node in 0..NODES {
            cluster.flush(node).await;
        }
        let mut receiver = JoinSet::new();
        receiver.spawn(Arc::clone(&survivor).receive());
        Self { cluster, backend, site, daemon, survivor, receiver }
    }

    async fn end(mut self) {
        self.cluster.wait_until_whole().await.unwrap();
        self.daemon.wait_until_ready().await;
        self.receiver.shutdown().await;
        self.daemon.stop(&self.site).await;
    }
}

#[tokio::test]
async fn while_the_node_of_the_dead_letters_is_down_calls_go_on_and_an_unroutable_reply_is_kept() {
    let _turn = turn().await;
    let fixture = Fixture::start(1).await;
    let Fixture { cluster, backend, site, daemon, survivor, .. } = &fixture;
    // Both queues are on the first node alone.
    let absent = "answers.absent";
    site.declare(absent, [].into()).await;
    let dead_letters = site.dead_letters();
    for queue in [absent, &dead_letters] {
        eventually("a queue on the first node", async || (cluster.home(1, queue).await.ok()? == 0).then_some(())).await;
    }
    let others = BrokerNamespace { url: cluster.urls()[1].clone(), ..site.clone() };
    let client = Client::connect(&others).await;
    let request = client.request("hold", &json!({"id": "held"})).reply_to(absent);
    client.send(&request).await;
    backend.wait_for("held").await;

    cluster.kill(0);
    for number in 0..WORKING {
        survivor.exchange(&format!("without-it-{number}")).await;
    }
    backend.open();
    let returned = "a dead letter was not confirmed; its request was requeued";
    eventually("a reply that no queue takes", async || (!daemon.logged(returned).is_empty()).then_some(())).await;
    survivor.exchange("while a reply waits").await;

    cluster.restart(0).await;
    let kept = eventually("the reply that was kept", async || {
        // Its own queue may be back before that of the dead letters.
        let own = others.take(absent).await;
        if own.is_some() { own } else { others.take(&dead_letters).await }
    })
    .await;
    assert_eq!((kept.correlation_id(), kept.content().as_str()), (request.correlation.as_str(), "passed held"));
    assert_eq!(backend.count("held"), 1);
    fixture.end().await;
}

/// Fault of the network or the nodes while calls are made.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The leader of the requests' queue is killed.
    LeaderKilled,
    /// A follower, a minority of one, does not reach the others, nor they it.
    FollowerCut,
    /// The leader is that minority.
    LeaderCut,
    /// No node reaches another, so that there is no majority.
    AllCut,
    /// Loss of all that the leader sends to the others; what they send arrives.
    LeaderMute,
    /// The leader and one follower do not reach each other; the third node reaches both. A node that notices pauses, so
    /// that none may be left that sees a majority.
    LeaderCutFromOne,
}

impl Fault {
    const ALL: [Self; 6] = [
        Self::LeaderKilled,
        Self::FollowerCut,
        Self::LeaderCut,
        Self::AllCut,
        Self::LeaderMute,
        Self::LeaderCutFromOne,
    ];

    /// Breaks the cluster, and returns once the nodes have noticed.
    async fn strike(self, cluster: &RabbitCluster, leader: usize, queue: &str) {
        let [next, last] = [1, 2].map(|step| (leader + step) % NODES);
        match self {
            Self::LeaderKilled => cluster.kill(leader),
            Self::FollowerCut => cluster.isolate(next),
            Self::LeaderCut => cluster.isolate(leader),
            Self::AllCut => {
                cluster.isolate(leader);
                cluster.cut(next, last);
                cluster.cut(last, next);
            }
            Self::LeaderMute => [next, last].into_iter().for_each(|follower| cluster.cut(leader, follower)),
            Self::LeaderCutFromOne => {
                cluster.cut(leader, next);
                cluster.cut(next, leader);
            }
        }
        match self {
            Self::LeaderKilled | Self::LeaderCut | Self::LeaderMute => {
                eventually("another leader", async || {
                    cluster.leader(next, queue).await.ok().filter(|found| *found != leader)
                })
                .await;
            }
            Self::FollowerCut => {
                eventually("a node less", async || (!cluster.takes_connections(next).await).then_some(())).await;
            }
            Self::LeaderCutFromOne => {
                eventually("a node that stops", async || {
                    (!cluster.takes_connections(leader).await || !cluster.takes_connections(next).await).then_some(())
                })
                .await;
            }
            Self::AllCut => {
                for node in 0..NODES {
                    eventually("a node that stops", async || (!cluster.takes_connections(node).await).then_some(()))
                        .await;
                }
            }
        }
    }

    /// Whether a majority of the nodes surely go on.
    fn leaves_majority(self) -> bool {
        !matches!(self, Self::AllCut | Self::LeaderCutFromOne)
    }

    async fn heal(self, cluster: &RabbitCluster, leader: usize) {
        match self {
            Self::LeaderKilled => cluster.restart(leader).await,
            _ => cluster.heal(),
        }
        // Nodes that have seen each other run apart may stay so until an operator restarts one.
        for node in (0..NODES).map(|step| (leader + step) % NODES) {
            if timeout(REJOIN_TIME, cluster.wait_until_whole()).await.is_ok_and(|whole| whole.is_ok()) {
                return;
            }
            println!("{self:?}: the nodes stayed apart, and node {node} is restarted");
            cluster.kill(node);
            cluster.restart(node).await;
        }
        cluster.wait_until_whole().await.unwrap();
    }
}

#[tokio::test]
async fn kills_and_cuts_in_a_cluster_lose_no_call_and_run_none_twice() {
    let _turn = turn().await;
    let fixture = Fixture::start(0).await;
    let Fixture { cluster, backend, site, survivor, .. } = &fixture;
    let (is_over, replied) = (AtomicBool::new(false), AtomicUsize::new(0));
    let calling = (0..CALLERS).map(async |caller| {
        let mut ids = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let id = format!("{caller}-{}", ids.len());
            survivor.exchange(&id).await;
            replied.fetch_add(1, Ordering::Relaxed);
            ids.push(id);
        }
        ids
    });
    let going_on = async || {
        let goal = replied.load(Ordering::Relaxed) + WORKING;
        eventually("further replies", async || (replied.load(Ordering::Relaxed) >= goal).then_some(())).await;
    };
    let breaking = async {
        for fault in Fault::ALL {
            going_on().await;
            let queue = site.queue();
            let leader = eventually("a leader", async || cluster.leader(0, &queue).await.ok()).await;
            let began = Instant::now();
            fault.strike(cluster, leader, &queue).await;
            let noticed = began.elapsed();
            if fault.leaves_majority() {
                going_on().await;
            }
            fault.heal(cluster, leader).await;
            println!("{fault:?}: noticed after {noticed:?}, healed after {:?}", began.elapsed());
        }
        going_on().await;
        is_over.store(true, Ordering::Relaxed);
    };
    let began = Instant::now();
    let (made, ()) = tokio::join!(join_all(calling), breaking);

    // A request that was published twice has two replies once the queue is empty.
    eventually("empty queues", async || {
        let listed = cluster.ctl(0, &["list_queues", "name", "messages"]).await.ok()?;
        let is_empty = |queue: &str| listed.lines().any(|line| line.split_once('\t') == Some((queue, "0")));
        (is_empty(&site.queue()) && is_empty(&survivor.queue)).then_some(())
    })
    .await;
    let mut tally = Tally::default();
    for id in made.iter().flatten() {
        tally.count(id, &survivor.replies(id), backend.count(id), &format!("worked for {id}"));
    }
    tally.check(&format!("{:?} in a cluster within {:?}", Fault::ALL, began.elapsed()));
    assert_eq!(site.ready(&site.dead_letters()).await, 0, "no reply is a dead letter");
    fixture.end().await;
}
