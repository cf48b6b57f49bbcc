//! What several tests need.

use toolbus_sandbox::{Level, Sandbox};

/// The levels that are tested.
pub(crate) const LEVELS: [Level; 2] = [Level::Full, Level::NoNamespaces];

/// A sandbox at a level, whose helper `cargo test` builds as an example.
pub(crate) fn sandbox(level: Level) -> Sandbox {
    let tests = std::env::current_exe().unwrap();
    let helper = tests.ancestors().nth(2).unwrap().join("examples/script_helper");
    assert!(helper.exists(), "build {} first: cargo build -p toolbus-scripts --examples", helper.display());
    Sandbox::with_helper(helper, level).unwrap()
}
