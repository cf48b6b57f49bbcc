//! Runners of scripts for tests.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::OnceCell;
use toolbus_core::Clock;
use toolbus_sandbox::{Level, Sandbox};
use toolbus_scripts::config::PoolMode;
use toolbus_scripts::interpreter::Interpreter;
use toolbus_scripts::runner::sandbox::{SandboxRunner, SandboxSettings};
use toolbus_scripts::runner::{Runner as _, Script, StartKind};
use toolbus_testing::patience::eventually;

/// The interpreter of the machine: also other users may read it.
pub(crate) async fn interpreter() -> Interpreter {
    static FOUND: OnceCell<Interpreter> = OnceCell::const_new();
    FOUND.get_or_init(async || Interpreter::find("/usr/bin/python3").await.unwrap()).await.clone()
}

/// The program that confines, which cargo builds beside the tests.
pub(crate) fn helper() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let helper = tests.ancestors().nth(2).unwrap().join("examples/sandbox_helper");
    assert!(helper.exists(), "build {} first: cargo build -p toolbus-sandbox --examples", helper.display());
    helper
}

/// Start mode of interpreters: the tests are run once more, as another program, with forked ones.
pub(crate) fn mode() -> PoolMode {
    if env!("CARGO_CRATE_NAME").ends_with("_forked") { PoolMode::Fork } else { PoolMode::Spawn }
}

/// A script with more time than it should need.
pub(crate) fn script(source: impl Into<String>) -> Script {
    Script {
        call_id: "call-1".into(),
        owner: Some("attacker".into()),
        source: source.into(),
        input: None,
        files: Vec::new(),
        packages: Vec::new(),
        time: Duration::from_secs(60),
        cpu: Duration::from_secs(30),
        deadline: Clock::SYSTEM.now() + Duration::from_secs(120),
        idempotency_key: None,
    }
}

/// Starts a runner. Where it forks interpreters, one waits: scripts that do nothing have run.
pub(crate) async fn start(settings: SandboxSettings, sandbox: Sandbox) -> SandboxRunner {
    let forks = settings.pool.mode == PoolMode::Fork && settings.strongest == Level::Full;
    let runner = SandboxRunner::start(settings, sandbox).await.unwrap();
    if forks {
        // Makes an interpreter that forks for those that follow.
        runner.run(script("")).await.unwrap();
        // A fork may be lost on a busy machine; the script then gets an interpreter of its own.
        let is_forked =
            async || runner.status().warm > 0 && runner.run(script("")).await.unwrap().start == StartKind::Forked;
        eventually("a script in a forked interpreter", async || is_forked().await.then_some(())).await;
    }
    runner
}
