//! Scripts in pods and in sandboxes of a warm pool, against an API server that speaks HTTP.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, helpers outside test functions included"
)]

mod claims;
mod failures;
mod scripts;

use std::time::Duration;

use toolbus_core::Clock;
use toolbus_kubernetes::{ClusterError, KubernetesRunner, PodTemplate};
use toolbus_sandbox::{Limits, Outcome};
use toolbus_scripts::config::{KubernetesConfig, ScriptConfig};
use toolbus_scripts::runner::{RunFailure, Runner as _, Script};

use toolbus_testing::kubernetes::{ApiServer, Node};

/// A time that is long enough for what is to happen, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of output that a script may write.
const OUTPUT: u64 = 100_000;

/// A cluster, and a runner in it.
struct Fixture {
    server: ApiServer,
    runner: KubernetesRunner,
}

impl Fixture {
    async fn new(node: Node) -> Self {
        let server = ApiServer::start(node).await;
        let runner = start(&server).await.unwrap();
        Self { server, runner }
    }

    /// With a runner that claims sandboxes of a warm pool.
    async fn with_pool(node: Node) -> Self {
        let server = ApiServer::start(node).await;
        let runner = start_with(&server, Some("python"), "python3").await.unwrap();
        Self { server, runner }
    }

    /// One of each kind.
    async fn of_each_kind() -> [Self; 2] {
        [Self::new(Node::Runs).await, Self::with_pool(Node::Runs).await]
    }

    async fn run(&self, script: Script) -> Result<Outcome, RunFailure> {
        self.runner.run(script).await.map(|finished| finished.outcome)
    }

    /// Runs a script that does nothing, and that is not run.
    async fn failure(&self) -> RunFailure {
        self.run(script("pass")).await.unwrap_err()
    }
}

async fn start(server: &ApiServer) -> Result<KubernetesRunner, ClusterError> {
    start_with(server, None, "python3").await
}

async fn start_with(server: &ApiServer, pool: Option<&str>, python: &str) -> Result<KubernetesRunner, ClusterError> {
    let warm_pool = pool.map(str::to_owned);
    let config = KubernetesConfig { kubeconfig: Some(server.kubeconfig()), warm_pool, ..KubernetesConfig::default() };
    let (image, python) = ("python:3.12-slim".to_owned(), python.to_owned());
    // The emulated node runs scripts as the user of the tests, who has other processes.
    let limits = Limits { processes: 4096, output: OUTPUT, artifacts: 1_000, ..ScriptConfig::default().limits() };
    KubernetesRunner::start(&config, PodTemplate { image, python, cpu_millis: 500, limits }).await
}

fn script(source: &str) -> Script {
    Script {
        call_id: "call_1".into(),
        owner: Some("ana".into()),
        source: source.to_owned(),
        input: None,
        files: Vec::new(),
        packages: Vec::new(),
        time: PATIENCE,
        cpu: PATIENCE,
        deadline: Clock::SYSTEM.now() + 2 * PATIENCE,
        idempotency_key: None,
    }
}

/// A script whose call has so little time.
fn short(milliseconds: u64) -> Script {
    Script { deadline: Clock::SYSTEM.now() + Duration::from_millis(milliseconds), ..script("pass") }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
