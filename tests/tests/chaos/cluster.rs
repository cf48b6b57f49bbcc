//! A cluster of three brokers of which one is down: calls need neither the node of the dead letters nor that of another
//! caller's answers, and no answer is lost.

use std::sync::Arc;

use serde_json::json;
use tokio::task::JoinSet;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::survivor::Survivor;
use toolbus_testing::cluster::{NODES, RabbitCluster};
use toolbus_testing::patience::eventually;

use crate::turn;

/// Calls that have to be answered for the cluster to count as working.
const WORKING: usize = 40;

/// A cluster with a daemon that is told all of its nodes, and a caller that goes to the nodes from this one on.
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
async fn while_the_node_of_the_dead_letters_is_down_calls_go_on_and_an_answer_without_a_queue_is_kept() {
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
    let returned = "a dead letter was not confirmed; its request goes back to its queue";
    eventually("an answer that no queue takes", async || (!daemon.logged(returned).is_empty()).then_some(())).await;
    survivor.exchange("while an answer waits").await;

    cluster.restart(0).await;
    let kept = eventually("the answer that was kept", async || {
        // Its own queue may be back before that of the dead letters.
        let own = others.take(absent).await;
        if own.is_some() { own } else { others.take(&dead_letters).await }
    })
    .await;
    assert_eq!((kept.correlation_id(), kept.content().as_str()), (request.correlation.as_str(), "passed held"));
    assert_eq!(backend.count("held"), 1);
    fixture.end().await;
}
