//! A daemon whose own files nobody else may read. By itself, because a umask is that of a whole process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, helpers outside test functions included")]

#[path = "sandbox/fixture.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod fixture;

use rustix::fs::Mode;
use toolbus_sandbox::Ending;

#[tokio::test]
async fn programs_run_whatever_the_umask_of_the_daemon_is() {
    rustix::process::umask(Mode::from_raw_mode(0o077));
    for level in fixture::LEVELS {
        let outcome = fixture::run(level, &fixture::shell("echo >own"), fixture::job()).await;
        assert_eq!(outcome.ending, Ending::Exited(0), "{level}: {outcome:?}");
    }
}
