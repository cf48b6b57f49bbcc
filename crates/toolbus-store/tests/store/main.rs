//! The stores, ledgers and working memories, each held to the same contract; files in every state that one can be in;
//! and a server that goes away.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod contract;
mod files;
mod killed;
mod ledger_contract;
mod ledger_files;
mod ledger_model;
mod ledger_steps;
mod memory_contract;
mod memory_files;
mod power_loss;
mod redis;

/// A new folder, and the path of a file in it.
fn file_in_folder(name: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    (folder, path)
}
