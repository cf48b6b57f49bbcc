//! Tests of what a program has from who started the daemon.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use toolbus_sandbox::{Ending, Sandbox};

use crate::fixture::{LEVELS, helper, job, shell, text};

/// Starts the helper as a daemon would that was itself started carelessly.
const CARELESS: &str = "trap '' CHLD HUP INT USR1; umask 077";

#[tokio::test]
async fn ignored_signals_and_a_narrow_umask_of_the_daemon_are_none_of_a_programs() {
    let folder = tempfile::tempdir().unwrap();
    let careless = folder.path().join("helper");
    let written = folder.path().join("written");
    fs::write(&written, format!("#!/bin/sh\n{CARELESS}\nexec {} \"$@\"\n", helper().display())).unwrap();
    fs::set_permissions(&written, Permissions::from_mode(0o755)).unwrap();
    // By another process: a program that this one wrote may still be open in a child that a test beside begins.
    assert!(std::process::Command::new("cp").args([&written, &careless]).status().unwrap().success());
    for level in LEVELS {
        let sandbox = Sandbox::with_helper(&careless, level).unwrap();
        let mut plan = shell("umask; read line <$TOOLBUS_JOB/a.txt; echo \"$line\"; kill -INT $$; echo alive");
        plan.limits.processes = 8;
        let mut job = job();
        job.files = vec![("a.txt".to_owned(), "from a file".into())];
        let outcome = sandbox.start(&plan).await.unwrap().run(job).await.unwrap();
        assert_eq!(outcome.ending, Ending::Signalled(2), "{level}: {outcome:?}");
        assert_eq!(text(&outcome.stdout), "0022\nfrom a file\n", "{level}: {outcome:?}");
    }
}
