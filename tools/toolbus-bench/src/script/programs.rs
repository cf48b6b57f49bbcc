//! Programs that are started and waited for, with nothing of this daemon around them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;
use toolbus_scripts::interpreter::Interpreter;

use super::subject::{SOURCE, WRITTEN};
use crate::error::MeasureError;

/// Paths of the system that every program reads, if they are there.
const SYSTEM: [&str; 4] = ["/usr", "/lib", "/lib64", "/bin"];
/// Arguments of `bwrap` before what may be read.
const ISOLATION: [&str; 8] =
    ["--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"];

/// A command line, and what it writes.
#[derive(Debug)]
pub(super) struct Program {
    program: PathBuf,
    args: Vec<OsString>,
    writes: &'static [u8],
}

impl Program {
    /// The interpreter, which does nothing.
    pub(super) fn plain(interpreter: &Interpreter) -> Self {
        Self { program: interpreter.program.clone(), args: python("pass"), writes: b"" }
    }

    /// The script in the sandbox of others; absent: that is not installed.
    pub(super) fn bwrap(interpreter: &Interpreter, path: Option<&OsString>) -> Option<Self> {
        let folders = path.map(std::env::split_paths).into_iter().flatten();
        let program = folders.map(|folder| folder.join("bwrap")).find(|program| program.is_file())?;
        let mut args: Vec<OsString> = ISOLATION.map(OsString::from).into();
        for path in readable(interpreter) {
            args.extend(["--ro-bind".into(), path.clone().into(), path.into()]);
        }
        args.push(interpreter.program.clone().into());
        args.extend(python(SOURCE));
        Some(Self { program, args, writes: WRITTEN })
    }

    /// Starts it, reads what it writes, and waits for its end. Its environment is that of a script.
    pub(super) async fn run(&self) -> Result<(), MeasureError> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().env("LANG", "C.UTF-8").env("PATH", "/usr/local/bin:/usr/bin:/bin");
        let done = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
        if done.status.success() && done.stdout == self.writes {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        Err(MeasureError::Script(format!("{} ended with {}: {text}", self.program.display(), done.status)))
    }
}

/// Builds the arguments with which the interpreter is started: as it is for scripts.
fn python(source: &str) -> Vec<OsString> {
    ["-I", "-S", "-c", source].map(OsString::from).into()
}

/// Returns the paths of the system that the interpreter may read; none within another.
fn readable(interpreter: &Interpreter) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let system = SYSTEM.iter().map(Path::new).filter(|path| path.exists());
    for path in system.chain(interpreter.read.iter().map(PathBuf::as_path)) {
        if !found.iter().any(|outer| path.starts_with(outer)) {
            found.push(path.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interpreter() -> Interpreter {
        Interpreter {
            program: "/opt/py/bin/python3".into(),
            read: vec!["/usr/lib/python3".into(), "/opt/py".into(), "/opt/py/lib".into()],
            version: "3.11.7".to_owned(),
            abi: String::new(),
        }
    }

    #[test]
    fn the_interpreter_and_the_system_can_be_read_in_the_sandbox_of_others_each_once() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("bwrap"), "").unwrap();
        let path = OsString::from(folder.path());
        let found = Program::bwrap(&interpreter(), Some(&path)).unwrap();
        assert_eq!(found.program, folder.path().join("bwrap"));
        let args: Vec<_> = found.args.iter().map(|arg| arg.to_string_lossy()).collect();
        let text = args.join(" ");
        assert!(text.starts_with("--unshare-all --die-with-parent --proc /proc"), "{text}");
        assert!(text.ends_with(" --ro-bind /opt/py /opt/py /opt/py/bin/python3 -I -S -c print(1)"), "{text}");
        assert_eq!(args.iter().filter(|arg| arg.starts_with("/usr")).count(), 2, "{text}");
    }

    #[test]
    fn a_sandbox_that_is_not_installed_is_absent() {
        let empty = tempfile::tempdir().unwrap();
        assert!(Program::bwrap(&interpreter(), Some(&OsString::from(empty.path()))).is_none());
        assert!(Program::bwrap(&interpreter(), None).is_none());
    }

    #[tokio::test]
    async fn a_program_that_fails_or_writes_something_else_is_not_measured() {
        let shell = |source: &str, writes| Program {
            program: "/bin/sh".into(),
            args: ["-c", source].map(OsString::from).into(),
            writes,
        };
        shell("echo 1", WRITTEN).run().await.unwrap();
        shell(":", b"").run().await.unwrap();
        assert!(shell("echo 2", WRITTEN).run().await.is_err());
        let text = shell("echo why >&2; exit 3", b"").run().await.unwrap_err().to_string();
        assert!(text.contains("exit status: 3") && text.ends_with("why"), "{text}");
    }
}
