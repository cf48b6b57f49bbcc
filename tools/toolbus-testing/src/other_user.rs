//! Running tests once more as a user that is not root.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

/// Number of the unprivileged user and group that Linux names `nobody`.
const UNPRIVILEGED: &str = "65534";

/// Runs tests of this program, those whose names contain one of `filters`, as the user `nobody`, two at a time.
///
/// `examples` are the programs that they start, which cargo has built. They find them where cargo places them, beside a
/// copy of this program with the same name.
///
/// # Errors
///
/// If they cannot be started: this process must be root.
///
/// # Panics
///
/// If one of the tests fails, or fewer than `least` have run.
pub async fn as_nobody(examples: &[&Path], filters: &[&str], least: usize) -> io::Result<()> {
    // Where that user can read them.
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let (tests, programs, temporary) =
        (folder.path().join("deps"), folder.path().join("examples"), folder.path().join("tmp"));
    for (folder, mode) in [(folder.path(), 0o755), (&tests, 0o755), (&programs, 0o755), (&temporary, 0o1777)] {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, Permissions::from_mode(mode))?;
    }
    let own = std::env::current_exe()?;
    // Some tests use the program's name.
    let copy = tests.join(own.file_name().unwrap_or_default());
    fs::copy(&own, &copy)?;
    for example in examples {
        fs::copy(example, programs.join(example.file_name().unwrap_or_default()))?;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", UNPRIVILEGED, "--regid", UNPRIVILEGED, "--clear-groups"]).arg(&copy).args(filters);
    command.args(["--test-threads", "2"]).env("TMPDIR", &temporary).env("HOME", &temporary);
    let output = command.current_dir("/").stdin(Stdio::null()).kill_on_drop(true).output().await?;
    let [printed, complained] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let run = printed.matches(" ... ok").count();
    assert!(output.status.success() && run >= least, "{run} tests\n{printed}{complained}");
    Ok(())
}
