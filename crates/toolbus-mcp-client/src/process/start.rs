//! The start of a server: its environment, its program file, and the limit of concurrent starts.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Access, access};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::SpawnError;
use crate::spec::StdioSpec;

/// Variables of the daemon that a server gets: those that the MCP SDKs pass, and those for the locations and
/// language of a program. Everything else may be a secret of the daemon's.
const INHERITED: [&str; 11] =
    ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TERM", "TMPDIR", "TZ", "USER"];
/// Prefix of further such variables.
const INHERITED_PREFIX: &str = "LC_";
/// Where programs are looked for without `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The whole environment of a program, out of the daemon's and its own.
pub(super) fn of(
    program: &StdioSpec,
    daemon: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeMap<OsString, OsString> {
    let is_inherited = |name: &str| INHERITED.contains(&name) || name.starts_with(INHERITED_PREFIX);
    daemon
        .filter(|(name, _)| name.to_str().is_some_and(is_inherited))
        .chain(program.env.iter().map(|(name, value)| (name.into(), value.expose().into())))
        .collect()
}

/// Finds the program that a command leads to, as `execvp` does in that directory with that `PATH`.
pub(super) fn find(command: &str, cwd: &Path, path: Option<&OsStr>) -> Result<PathBuf, SpawnError> {
    let paths: Vec<PathBuf> = if command.is_empty() {
        Vec::new()
    } else if command.contains('/') {
        vec![cwd.join(command)]
    } else {
        let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
        std::env::split_paths(path).map(|directory| cwd.join(directory).join(command)).collect()
    };
    let is_executable = |file: &&PathBuf| access(file.as_path(), Access::EXEC_OK).is_ok();
    let files: Vec<PathBuf> = paths.into_iter().filter(|file| file.is_file()).collect();
    match (files.iter().find(is_executable), files.first()) {
        (Some(program), _) => Ok(program.clone()),
        (None, Some(_)) => Err(SpawnError::NotExecutable(command.to_owned())),
        (None, None) if command.trim().contains(char::is_whitespace) => {
            Err(SpawnError::HasArguments(command.to_owned()))
        }
        (None, None) => Err(SpawnError::NotFound(command.to_owned())),
    }
}

/// Fewest servers that start at a time.
const FEWEST: usize = 4;
/// Longest time that a start holds its permit. A longer start waits for something other than the CPU.
const LONGEST: Duration = Duration::from_secs(1);

/// Limits concurrent starts. Clones share the limit.
#[derive(Debug, Clone)]
pub(super) struct StartLimit(Arc<Semaphore>);

/// A permit to start a server.
pub(crate) struct StartPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl StartLimit {
    pub(super) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self(Arc::new(Semaphore::new((processors * 2).max(FEWEST))))
    }

    pub(super) async fn next(&self) -> StartPermit {
        // The semaphore is never closed.
        StartPermit { _permit: Arc::clone(&self.0).acquire_owned().await.ok() }
    }
}

impl StartPermit {
    /// Runs a start. The permit is released when the start ends, or after 1 s.
    pub(crate) async fn run<T>(self, start: impl Future<Output = T>) -> T {
        let mut start = pin!(start);
        if let Ok(started) = timeout(LONGEST, &mut start).await {
            return started;
        }
        drop(self);
        start.await
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::testing;

    fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn a_server_gets_common_and_configured_variables_alone() {
        let env = BTreeMap::from([("TOKEN".to_owned(), "hunter2".into()), ("LANG".to_owned(), "C".into())]);
        let program = StdioSpec { env, ..testing::program("x", &[]) };
        let daemon = variables(&[
            ("PATH", "/bin"),
            ("LC_ALL", "de_DE"),
            ("LANG", "de_DE"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("TOOLBUS_BUS__URL", "amqp://u:p@h"),
            ("LD_PRELOAD", "/x.so"),
            ("path", "/"),
        ]);
        assert_eq!(
            of(&program, daemon.into_iter()),
            variables(&[("LANG", "C"), ("LC_ALL", "de_DE"), ("PATH", "/bin"), ("TOKEN", "hunter2")])
                .into_iter()
                .collect()
        );
    }

    #[test]
    fn a_program_is_found_as_execvp_would_find_it() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("first"), directory.path().join("second"));
        for (directory, mode) in [(&first, 0o644), (&second, 0o755)] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("tool"), "").unwrap();
            fs::set_permissions(directory.join("tool"), fs::Permissions::from_mode(mode)).unwrap();
        }
        let found = |command: &str, path: &str| find(command, directory.path(), Some(path.as_ref()));

        let both = std::env::join_paths([&first, &second]).unwrap();
        assert_eq!(found("tool", both.to_str().unwrap()).unwrap(), second.join("tool"));
        assert_eq!(found("tool", "second").unwrap(), second.join("tool"));
        assert_eq!(found("./second/tool", "").unwrap(), directory.path().join("./second/tool"));
        assert_eq!(found(second.join("tool").to_str().unwrap(), "").unwrap(), second.join("tool"));

        let refused = |command, path| found(command, path).unwrap_err().to_string();
        assert_eq!(refused("tool", "first"), "program 'tool' cannot be executed; check its permissions");
        assert_eq!(refused("tool", "third"), "program 'tool' was not found; give its full path, or check PATH");
        assert_eq!(refused("./second", ""), "program './second' was not found; give its full path, or check PATH");
        assert_eq!(refused("", "first"), "program '' was not found; give its full path, or check PATH");
        let with_arguments =
            "program 'python3 -u' was not found; `command` is the program alone, and its arguments belong into `args`";
        assert_eq!(refused("python3 -u", "third"), with_arguments);
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_start_at_a_time() {
        let (turns, starting, most) = (StartLimit::new(), AtomicUsize::new(0), AtomicUsize::new(0));
        let servers = (0..100).map(async |_| {
            let start = async {
                most.fetch_max(starting.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                sleep(LONGEST / 2).await;
                starting.fetch_sub(1, Ordering::Relaxed);
            };
            turns.next().await.run(start).await;
        });
        futures_util::future::join_all(servers).await;
        assert_eq!(most.into_inner(), turns.0.available_permits());
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_starts_delay_others_by_their_turns_alone() {
        let turns = StartLimit::new();
        let hanging = turns.0.available_permits() * 3;
        let servers = (0..hanging).map(async |_| turns.next().await.run(sleep(LONGEST * 60)).await);
        let others = async {
            let began = Instant::now();
            turns.next().await.run(sleep(LONGEST / 2)).await;
            assert_eq!(began.elapsed(), LONGEST * 3 + LONGEST / 2);
        };
        futures_util::future::join(futures_util::future::join_all(servers), others).await;
    }
}
