//! Remains of a script, a daemon, or a process between them that has ended. One test at a time, because they compare
//! what the whole process has. `docs/sandbox.md` lists every test here.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, helpers outside test functions included"
)]

mod container;
#[allow(dead_code, reason = "tests of exhaustion use more of it")]
#[path = "../exhaustion/fixture.rs"]
mod fixture;
mod left;
mod many;
mod other_daemon;
mod other_user;
mod spawner;
mod sudden;
