//! Huge bodies of one publisher: memory stays bounded, and another agent's calls go on. (Names in any number: `agents.rs`.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::json;
use tokio::sync::MutexGuard;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::at_most;

use crate::turn;

/// Calls of another agent of which the time is taken, at least.
const CALLS: usize = 200;
/// How many times as long 99 of 100 of them may take beside what is sent here.
const SLOWER: u32 = 3;
/// And how long in any case, on a machine with nothing else to do: publisher, broker and daemon share its processors, and
/// what one queue has before a call is delivered before it.
const SHORT: Duration = Duration::from_secs(1);
/// Messages that are published before the confirm of the first.
const AT_ONCE: usize = 64;

struct Fixture {
    site: BrokerNamespace,
    daemon: Daemon,
    hostile: Client,
    bruno: Client,
    _turn: MutexGuard<'static, ()>,
}

impl Fixture {
    async fn start() -> Self {
        let turn = turn().await;
        let site = BrokerNamespace::shared().await;
        let rules = "[tools]\necho = true\n[invoke]\ndefault_timeout = \"110s\"\n[identity]\ntrust_headers = true\n\
                     [agents.ana]\n[agents.bruno]\n";
        let daemon = Daemon::start(&site, rules).await;
        let (hostile, bruno) = (Client::connect(&site).await, Client::connect(&site).await);
        let fixture = Self { site, daemon, hostile, bruno, _turn: turn };
        // The first calls pay for connections and sets that are made once.
        fixture.p99(&AtomicBool::new(true)).await;
        fixture
    }

    /// The time within which 99 of 100 of bruno's answers come: of some calls, and of all until the flood is over.
    async fn p99(&self, is_over: &AtomicBool) -> Duration {
        let mut times = Vec::new();
        while times.len() < CALLS || !is_over.load(Ordering::Relaxed) {
            let request = self.bruno.request("echo", &json!({"text": "well"})).by("bruno");
            let began = Instant::now();
            assert_eq!(self.bruno.exchange(&request).await.content(), "well");
            times.push(began.elapsed());
        }
        times.sort();
        times[times.len() * 99 / 100]
    }

    /// Sends all of these while bruno calls. They may cost this much memory, in KiB.
    async fn endure(&self, what: &str, requests: &[Request], most: u64) {
        self.daemon.forget_peak();
        let before = self.daemon.peak();
        let quiet = self.p99(&AtomicBool::new(true)).await;
        let is_over = AtomicBool::new(false);
        let flood = async {
            futures_util::stream::iter(requests)
                .for_each_concurrent(AT_ONCE, async |request| self.hostile.send(request).await)
                .await;
            is_over.store(true, Ordering::Relaxed);
        };
        let (beside, ()) = tokio::join!(self.p99(&is_over), flood);
        let grown = self.daemon.peak().saturating_sub(before);
        let ratio = beside.as_secs_f64() / quiet.as_secs_f64();
        println!("{what}: p99 {beside:?}, {ratio:.1} times {quiet:?}; {grown} KiB more than {before} KiB");
        assert!(beside < (quiet * SLOWER).max(at_most(SHORT)), "{beside:?} is {ratio:.1} times {quiet:?}");
        assert!(grown < most, "{grown} KiB");
    }

    async fn end(self) {
        self.daemon.stop(&self.site).await;
    }
}

#[tokio::test]
async fn bodies_of_50_mb_are_refused_one_by_one() {
    let fixture = Fixture::start().await;
    let body = vec![b'x'; 50 * 1024 * 1024];
    let requests: Vec<_> = (0..6).map(|_| fixture.hostile.raw(body.clone()).by("ana")).collect();
    // AMQP has no way to skip a body: what comes behind one waits until it has been read.
    fixture.endure("bodies of 50 MB", &requests, 400 * 1024).await;
    for request in &requests {
        assert_eq!(fixture.hostile.answer(request).await.code(), "invalid_arguments");
    }
    fixture.end().await;
}
