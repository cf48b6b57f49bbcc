//! `toolbus bench`: runs the program `toolbus-bench`.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that measures.
const PROGRAM: &str = "toolbus-bench";
/// Variable with the daemon to measure.
const DAEMON: &str = "TOOLBUS_BIN";

/// Measures the daemon against a bare responder on the same broker; or MCP servers with and without it, scripts, or the
/// MCP server of the daemon.
///
/// Runs `toolbus-bench`, from the folder of this program or from PATH, which is built with
/// `cargo build --profile dist -p toolbus-bench`. `toolbus bench --help` shows its options.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct BenchArgs {
    /// Options of `toolbus-bench`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    pub(crate) options: Vec<OsString>,
}

/// Reason why nothing is measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The program is not installed.
    #[error(
        "there is no `{PROGRAM}` beside {} or on PATH: build it with `cargo build --profile dist -p {PROGRAM}`",
        .0.display()
    )]
    Absent(PathBuf),
    /// The program cannot be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// Becomes `toolbus-bench`, so that signals and the exit code are its own; `global` are the global options, as words of a
/// command line. Returns only if that fails.
pub fn run(args: &BenchArgs, global: Vec<OsString>) -> BenchError {
    let this = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("toolbus"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let Some(program) = find(&this, std::env::split_paths(&path)) else { return BenchError::Absent(this) };
    let mut command = Command::new(&program);
    command.args(global).args(&args.options);
    if std::env::var_os(DAEMON).is_none() {
        command.env(DAEMON, &this);
    }
    let source = command.exec();
    BenchError::Start { program, source }
}

/// The program beside this one, else the first on the path.
fn find(this: &Path, path: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let beside = this.with_file_name(PROGRAM);
    std::iter::once(beside).chain(path.map(|folder| folder.join(PROGRAM))).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_beside_this_one_comes_before_those_on_the_path() {
        let [here, there] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (this, path) = (here.path().join("toolbus"), [there.path().to_owned()]);
        assert_eq!(find(&this, path.clone().into_iter()), None);
        let on_path = there.path().join(PROGRAM);
        std::fs::write(&on_path, "").unwrap();
        assert_eq!(find(&this, path.clone().into_iter()), Some(on_path));
        let beside = here.path().join(PROGRAM);
        std::fs::write(&beside, "").unwrap();
        assert_eq!(find(&this, path.into_iter()), Some(beside));
    }
}
