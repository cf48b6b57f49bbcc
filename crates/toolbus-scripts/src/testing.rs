//! Helpers for several tests.

use std::path::PathBuf;

use toolbus_sandbox::{Level, Sandbox};

/// The levels that are tested.
pub(crate) const LEVELS: [Level; 2] = [Level::Full, Level::NoNamespaces];

/// The program that confines, which `cargo test` builds as an example.
pub(crate) fn helper() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let helper = tests.ancestors().nth(2).unwrap().join("examples/script_helper");
    assert!(helper.exists(), "build {} first: cargo build -p toolbus-scripts --examples", helper.display());
    helper
}

/// A sandbox at a level.
pub(crate) fn sandbox(level: Level) -> Sandbox {
    Sandbox::with_helper(helper(), level).unwrap()
}
