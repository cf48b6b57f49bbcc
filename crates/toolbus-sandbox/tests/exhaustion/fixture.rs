//! The sandbox runner at both levels, with limits that a test reaches soon.

#[path = "../shared/runners.rs"]
mod runners;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use toolbus_sandbox::{Ending, Level, Limits, Outcome, Sandbox, Stream};
use toolbus_scripts::config::{PoolConfig, PoolMode};
use toolbus_scripts::runner::sandbox::{SandboxRunner, SandboxSettings};
use toolbus_scripts::runner::{Runner as _, Script, StartKind};
use toolbus_testing::patience::eventually;

pub(crate) use self::runners::{helper, script};
use self::runners::{interpreter, mode, start};

const MIB: u64 = 1024 * 1024;

/// Limits of scripts here.
pub(crate) const LIMITS: Limits = Limits {
    memory: 128 * MIB,
    disk: 16 * MIB,
    files: 200,
    file_size: 8 * MIB,
    open_files: 64,
    processes: 16,
    output: 64 * 1024,
    artifacts: MIB,
};

/// A runner at exactly this level, with as many interpreters waiting.
pub(crate) async fn runner(level: Level, warm: usize) -> SandboxRunner {
    runner_in(Sandbox::with_helper(helper(), level).unwrap(), warm).await
}

async fn runner_in(sandbox: Sandbox, warm: usize) -> SandboxRunner {
    let level = sandbox.level();
    let settings = SandboxSettings {
        interpreter: interpreter().await,
        limits: LIMITS,
        require: level,
        strongest: level,
        pool: PoolConfig {
            mode: if warm == 0 { mode() } else { PoolMode::Spawn },
            min: warm,
            max: warm,
            imports: vec!["json".to_owned()],
        },
    };
    start(settings, sandbox).await
}

/// A script that has so little time.
pub(crate) fn brief(source: impl Into<String>, milliseconds: u64) -> Script {
    Script { time: Duration::from_millis(milliseconds), ..script(source) }
}

/// Runs a script, started for it, at one level.
pub(crate) async fn run(level: Level, script: Script) -> Outcome {
    runner(level, 0).await.run(script).await.unwrap().outcome
}

/// Runs a script at `full`, and at `no-namespaces`.
pub(crate) async fn both(script: Script) -> [Outcome; 2] {
    let (full, less) = tokio::join!(run(Level::Full, script.clone()), run(Level::NoNamespaces, script));
    [full, less]
}

/// Runs a script at both levels without cgroups: as for a daemon that may not write to them.
pub(crate) async fn without_cgroups(script: Script) -> [Outcome; 2] {
    let one = async |level, script| {
        let sandbox = Sandbox::with_helper(helper(), level).unwrap().without_cgroups();
        runner_in(sandbox, 0).await.run(script).await.unwrap().outcome
    };
    let (full, less) = tokio::join!(one(Level::Full, script.clone()), one(Level::NoNamespaces, script));
    [full, less]
}

/// Whether this process may make cgroups: an ordinary user may not.
pub(crate) fn has_cgroups() -> bool {
    Sandbox::with_helper(helper(), Level::Full).unwrap().cgroups_missing().is_none()
}

/// Runs a script at both levels in an interpreter that waited for it.
pub(crate) async fn warm(script: Script) -> [Outcome; 2] {
    let one = async |level, script| {
        let runner = runner(level, 1).await;
        eventually("a warm interpreter", async || (runner.status().warm == 1).then_some(())).await;
        let finished = runner.run(script).await.unwrap();
        assert_eq!(finished.start, StartKind::Warm, "{level}");
        finished.outcome
    };
    let (full, less) = tokio::join!(one(Level::Full, script.clone()), one(Level::NoNamespaces, script));
    [full, less]
}

/// End of a script, and both of its streams.
pub(crate) fn told(outcome: &Outcome) -> (Ending, String, String) {
    (outcome.ending, text(&outcome.stdout), text(&outcome.stderr))
}

/// Asserts that both ended by themselves with 0 and printed this.
pub(crate) fn assert_printed(outcomes: &[Outcome; 2], expected: [&str; 2]) {
    for (outcome, expected) in outcomes.iter().zip(expected) {
        assert_eq!(told(outcome), (Ending::Exited(0), format!("{expected}\n"), String::new()));
    }
}

/// Contents of a stream, as text.
pub(crate) fn text(stream: &Stream) -> String {
    String::from_utf8_lossy(&stream.bytes).into_owned()
}

/// Lines that give a script, and all that it starts, a name by which [`living`] finds it.
pub(crate) fn named(name: &str, source: &str) -> String {
    assert!(name.len() < 16, "the kernel keeps 15 bytes");
    format!("import ctypes, os, sys, time\nctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n{source}")
}

/// Number of processes of this name that are alive on the machine.
pub(crate) fn living(name: &str) -> usize {
    let is_alive = |stat: &str| {
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with(['Z', 'X']));
        stat.contains(&format!("({name})")) && state == Some(false)
    };
    let stats = fs::read_dir("/proc").unwrap().flatten().map(|entry| fs::read_to_string(entry.path().join("stat")));
    stats.flatten().filter(|stat| is_alive(stat)).count()
}

/// Waits until no process of this name lives: what was killed is still seen for a moment on a busy machine.
pub(crate) async fn ended(name: &str) {
    eventually("the end of every process of a script", async || (living(name) == 0).then_some(())).await;
}

/// Work folders of this process that hold more than 100 folders in each other.
pub(crate) fn deep_folders() -> Vec<PathBuf> {
    let own = format!("toolbus-sandbox-{}-", std::process::id());
    let bases = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let bases = bases.filter(|base| base.file_name().to_string_lossy().starts_with(&own));
    let runs = bases.flat_map(|base| fs::read_dir(base.path()).into_iter().flatten().flatten());
    runs.map(|run| run.path()).filter(|run| run.join("home").join("d/".repeat(100)).exists()).collect()
}
