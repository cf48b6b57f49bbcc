//! The attacks against a daemon that is not root: scripts run as its own user, and nothing but the sandbox is between them.

use toolbus_testing::other_user::as_nobody;

use crate::fixture::{helper, is_root};

/// Modules whose tests are run again, and how many there are at the least.
const AGAIN: [&str; 5] = ["files::", "forks::", "neighbours::", "paths::", "processes::"];
const LEAST: usize = 32;

#[tokio::test]
async fn the_attacks_fail_against_a_daemon_that_is_not_root() {
    // Otherwise all of them have run as that user.
    if is_root() {
        as_nobody(&[&helper()], &AGAIN, LEAST).await.unwrap();
    }
}
