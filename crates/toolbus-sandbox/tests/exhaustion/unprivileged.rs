//! The same against a daemon that is not root: it may make no cgroups, and its scripts are of its own user.

use rustix::process::geteuid;
use toolbus_testing::other_user::as_nobody;

use crate::fixture::helper;

/// Modules whose tests are run again, and how many there are at the least.
const AGAIN: [&str; 6] = ["descriptors::", "disk::", "ends::", "memory::", "processes::", "time::"];
const LEAST: usize = 55;

#[tokio::test]
async fn the_limits_hold_for_a_daemon_that_is_not_root() {
    // Otherwise all of them have run as that user.
    if geteuid().is_root() {
        as_nobody(&[&helper()], &AGAIN, LEAST).await.unwrap();
    }
}
