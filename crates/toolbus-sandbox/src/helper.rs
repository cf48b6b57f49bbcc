//! The processes between the daemon and an untrusted program.
//!
//! The daemon starts its executable again with a hidden argument, once: that is the *spawner* ([`spawner`]). For each
//! sandbox it forks a *watchdog* ([`watchdog`]), outside of the confinement, which ends everything when the daemon ends.
//! That forks the *init process* ([`init`]), the first process inside of the namespaces, which puts the files in place,
//! starts the *program* ([`start`]), checks its time, memory and CPU time, and collects the files that it leaves. All
//! have one thread, so that forking is safe.

mod artifacts;
mod bpf;
mod cgroup;
mod init;
mod jobs;
mod landlock;
mod limits;
mod mounts;
mod network;
mod process;
mod seccomp;
mod spawner;
mod start;
mod template;
mod tree;
mod usage;
mod watchdog;
mod work_folder;

use std::ffi::OsString;
use std::process::ExitCode;

pub use artifacts::CollectedFiles;

/// The argument that makes this executable a helper.
pub(crate) const SANDBOX: &str = "__sandbox";

/// Name of the work folder and of the cgroup of a sandbox with this number.
pub(crate) fn name_of(number: u64) -> String {
    format!("run-{number}")
}

/// Name of the cgroup of a fork of a template.
fn fork_name_of(number: u64, fork: u64) -> String {
    format!("run-{number}-{fork}")
}

/// Runs as a helper if the arguments (with the program's name first) say so; `None` otherwise.
///
/// Must be called first in `main`, while the process has one thread.
#[must_use]
pub fn take_over(mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let word = args.nth(1)?;
    (word == SANDBOX).then(|| match spawner::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}
