//! Plans and sandboxes for the tests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use toolbus_sandbox::{Job, Level, Limits, Outcome, Plan, Sandbox};

/// The levels that are tested.
pub(crate) const LEVELS: [Level; 2] = [Level::Full, Level::NoNamespaces];

/// The executable that keeps programs in.
pub(crate) fn helper() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let helper = tests.ancestors().nth(2).unwrap().join("examples/sandbox_helper");
    assert!(helper.exists(), "build {} first: cargo build -p toolbus-sandbox --examples", helper.display());
    helper
}

/// A sandbox at a level.
pub(crate) fn sandbox(level: Level) -> Sandbox {
    Sandbox::with_helper(helper(), level).unwrap()
}

/// Limits that are no trouble.
pub(crate) const fn limits() -> Limits {
    const MIB: u64 = 1024 * 1024;
    Limits {
        memory: 128 * MIB,
        disk: 16 * MIB,
        files: 256,
        file_size: 8 * MIB,
        open_files: 64,
        processes: 32,
        output: 64 * 1024,
        artifacts: MIB,
    }
}

/// A plan for a shell command.
pub(crate) fn shell(command: &str) -> Plan {
    Plan {
        program: PathBuf::from("/bin/sh"),
        args: vec!["-c".to_owned(), command.to_owned()],
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        stdin: Bytes::new(),
        read: ["/bin", "/lib", "/lib64", "/usr/bin", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"]
            .map(PathBuf::from)
            .to_vec(),
        write: Vec::new(),
        network: false,
        metadata: false,
        waits: false,
        forks: false,
        owner: None,
        limits: limits(),
    }
}

/// A job without files.
pub(crate) fn job() -> Job {
    Job { time: Duration::from_secs(10), cpu: Duration::from_secs(5), ..Job::default() }
}

/// Runs a plan.
pub(crate) async fn run(level: Level, plan: &Plan, job: Job) -> Outcome {
    sandbox(level).start(plan).await.unwrap().run(job).await.unwrap()
}

/// Returns what a program wrote to a stream, as text.
pub(crate) fn text(stream: &toolbus_sandbox::Stream) -> String {
    String::from_utf8_lossy(&stream.bytes).into_owned()
}
