//! The processes between the daemon and a program that nobody trusts.
//!
//! The daemon starts itself again by a hidden word: that is the *watchdog* ([`watchdog`]), outside of the confinement, which
//! looks at time, memory and processor time, and ends everything when the daemon does. It forks the *init process*
//! ([`init`]), the first process inside of the namespaces, which puts the files in place, starts the *program*
//! ([`start`]), and collects what it leaves. All have one thread, so that forking is safe.

mod artifacts;
mod init;
mod landlock;
mod limits;
mod mounts;
mod process;
mod seccomp;
mod start;
mod tree;
mod usage;
mod watchdog;
mod work_folder;

use std::ffi::OsString;
use std::process::ExitCode;

/// The word that makes this executable a helper.
pub(crate) const SANDBOX: &str = "__sandbox";

/// Runs as a helper, where the arguments (with the program's name first) say so. Absent: they do not.
///
/// Call it first of all in `main`, while the process has one thread.
#[must_use]
pub fn take_over(mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let word = args.nth(1)?;
    (word == SANDBOX).then(|| match watchdog::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}
