//! The attacks against a daemon that is not root: scripts run as its own user, and nothing but the sandbox is between them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use crate::fixture::{helper, is_root};

/// The user and group of nobody.
const NOBODY: &str = "65534";

#[tokio::test]
async fn the_attacks_fail_against_a_daemon_that_is_not_root() {
    if !is_root() {
        // Then all of them have run as this user.
        return;
    }
    // Where that user can read them, as cargo places them.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (tests, examples) = (folder.path().join("deps"), folder.path().join("examples"));
    for folder in [folder.path(), &tests, &examples] {
        fs::create_dir_all(folder).unwrap();
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    }
    fs::copy(std::env::current_exe().unwrap(), tests.join("attacks")).unwrap();
    fs::copy(helper(), examples.join("script_helper")).unwrap();
    let mut command = tokio::process::Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(tests.join("attacks"));
    command.args(["files::", "paths::", "neighbours::", "processes::"]).current_dir("/").kill_on_drop(true);
    let output = command.output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let run = said.matches(" ... ok").count();
    assert!(output.status.success() && run >= 25, "{said}");
}
