//! Becoming the server.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Exit code where a program was not found, as in a shell.
const NOT_FOUND: u8 = 127;
/// Exit code where a program could not be run, as in a shell.
const NOT_RUN: u8 = 126;

/// Replaces this process by the command, which then dies with its supervisor. Returns only where that fails.
pub(super) fn run(args: impl Iterator<Item = OsString>) -> io::Result<u8> {
    let (supervisor, command, arguments) = super::parse(args)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A supervisor that died before the line above has sent no signal.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get().unsigned_abs() != supervisor) {
        return Ok(NOT_RUN);
    }
    let error = Command::new(&command).args(arguments).exec();
    // A standard error that nobody reads is no reason to fail differently.
    let _ = writeln!(io::stderr(), "toolbus: cannot run '{}': {error}", command.to_string_lossy());
    Ok(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN })
}
