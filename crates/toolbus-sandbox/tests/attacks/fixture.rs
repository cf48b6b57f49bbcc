//! Runners, scripts, and things that a script should not reach.

#[path = "../shared/runners.rs"]
mod runners;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use toolbus_sandbox::{Ending, Level, Limits, Sandbox};
use toolbus_scripts::config::PoolConfig;
use toolbus_scripts::runner::local::LocalRunner;
use toolbus_scripts::runner::sandbox::{SandboxRunner, SandboxSettings};
use toolbus_scripts::runner::{Finished, Runner as _, Script};

pub(crate) use self::runners::{helper, interpreter, script};
use self::runners::{mode, start};

/// The levels that are attacked.
pub(crate) const LEVELS: [Level; 2] = [Level::Full, Level::NoNamespaces];

const MIB: u64 = 1024 * 1024;

/// Limits that are no trouble.
pub(crate) const LIMITS: Limits = Limits {
    memory: 256 * MIB,
    disk: 32 * MIB,
    files: 1000,
    file_size: 16 * MIB,
    open_files: 64,
    processes: 32,
    output: MIB,
    artifacts: MIB,
};

/// Settings of a runner at exactly this level, with nothing that waits.
pub(crate) async fn settings(level: Level) -> SandboxSettings {
    SandboxSettings {
        interpreter: interpreter().await,
        limits: LIMITS,
        require: level,
        strongest: level,
        pool: PoolConfig { mode: mode(), ..PoolConfig::NONE },
    }
}

/// Whether this process may become other users.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// A runner with these settings. Where it forks interpreters, they wait.
pub(crate) async fn runner_with(settings: SandboxSettings) -> SandboxRunner {
    let sandbox = Sandbox::with_helper(helper(), settings.strongest).unwrap();
    start(settings, sandbox).await
}

/// A runner at exactly this level, with nothing that waits.
pub(crate) async fn runner(level: Level) -> SandboxRunner {
    runner_with(settings(level).await).await
}

/// A script that begins with what attacks need (`prelude.py`), and finds the input's lines in `given`.
pub(crate) fn attack(input: &str, source: &str) -> Script {
    let source = format!("{}{source}", include_str!("prelude.py"));
    Script { input: Some(input.to_owned()), ..script(source) }
}

/// Output of an attack at a level. It must end by itself, well.
pub(crate) async fn printed(level: Level, input: &str, source: &str) -> String {
    stdout(&runner(level).await.run(attack(input, source)).await.unwrap())
}

/// Asserts that an attack prints this at `full` and at `no-namespaces`, and ends well.
pub(crate) async fn assert_printed(input: &str, source: &str, expected: [&str; 2]) {
    for (level, expected) in LEVELS.into_iter().zip(expected) {
        assert_eq!(printed(level, input, source).await, expected, "{level}");
    }
}

/// Output of an attack without a sandbox.
pub(crate) async fn printed_unconfined(input: &str, source: &str) -> String {
    stdout(&LocalRunner::new(interpreter().await, LIMITS, None).run(attack(input, source)).await.unwrap())
}

/// Output of a script that ended well.
pub(crate) fn stdout(finished: &Finished) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let outcome = &finished.outcome;
    assert_eq!(outcome.ending, Ending::Exited(0), "{}", text(&outcome.stderr.bytes));
    text(&outcome.stdout.bytes)
}

/// Processes whose own name or arguments have this text in it.
pub(crate) fn processes(marker: &str) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let contains = |text: &[u8]| text.windows(marker.len()).any(|window| window == marker.as_bytes());
        let has = |file: &str| fs::read(format!("/proc/{pid}/{file}")).is_ok_and(|text| contains(&text));
        *pid != std::process::id() && (has("comm") || has("cmdline"))
    })
    .collect()
}

/// Secret that no script should learn.
pub(crate) const SECRET: &str = "the secret of the daemon";

/// Files of the daemon, one for its user alone and one that everybody may read.
pub(crate) struct Canary {
    folder: tempfile::TempDir,
    was: Vec<String>,
}

impl Canary {
    pub(crate) fn new() -> Self {
        // Where no script has a folder of that name, at any level.
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let mut canary = Self { folder, was: Vec::new() };
        for (path, mode) in canary.paths().iter().zip([0o600, 0o644]) {
            fs::write(path, SECRET).unwrap();
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        canary.was = canary.is();
        canary
    }

    /// The private file and the public one.
    pub(crate) fn paths(&self) -> [PathBuf; 2] {
        ["private", "public"].map(|name| self.folder.path().join(name))
    }

    /// The folder, the private file and the public one, a line each.
    pub(crate) fn lines(&self) -> String {
        let [private, public] = self.paths();
        [self.folder.path(), &private, &public].map(|path| path.to_str().unwrap().to_owned()).join("\n")
    }

    /// Everything about them but the time of the last look.
    fn is(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<PathBuf> = entries.chain([self.folder.path().to_owned()]).collect();
        all.sort();
        let describe = |path: &PathBuf| {
            let found = fs::symlink_metadata(path).unwrap();
            let content = if found.is_file() { fs::read_to_string(path).unwrap() } else { String::new() };
            let owner = (found.uid(), found.gid(), found.mode(), found.nlink(), found.size());
            let changed = (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
            format!("{} {owner:?} {changed:?} {content}", path.display())
        };
        all.iter().map(describe).collect()
    }

    /// Fails when anything has changed.
    #[track_caller]
    pub(crate) fn assert_untouched(&self, level: Level) {
        assert_eq!(self.is(), self.was, "{level}");
    }
}
