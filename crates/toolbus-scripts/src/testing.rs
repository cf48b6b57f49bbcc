//! Helpers for several tests.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use toolbus_core::caller::Caller;
use toolbus_core::tool::{Tool, ToolCall};
use toolbus_sandbox::{Level, Limits, Sandbox};

/// The levels that are tested.
pub(crate) const LEVELS: [Level; 2] = [Level::Full, Level::NoNamespaces];

/// Limits of scripts, unless a test is about them.
pub(crate) const LIMITS: Limits = Limits {
    memory: 256 << 20,
    disk: 64 << 20,
    files: 4096,
    file_size: 64 << 20,
    open_files: 256,
    processes: 64,
    output: 1 << 20,
    artifacts: 4 << 20,
};

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

/// A call by an unknown caller, which has so much time.
pub(crate) fn call(tool: &Tool, time: Duration, arguments: Value) -> ToolCall {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    ToolCall::new(Arc::clone(&tool.descriptor.name), Caller::unknown(), arguments, time)
}
