//! What this process has from the one that started it.
#![allow(unsafe_code, reason = "there is no safe interface to close_range and to signals")]

use std::{fs, io};

use rustix::fs::Mode;
use rustix::process::umask;

/// The first file descriptor that is no standard stream.
const FIRST: libc::c_uint = 3;

/// Closes every file descriptor but the standard streams: whoever started the daemon may have left some open, and none of
/// them is a program's.
///
/// Call it while nothing of this process has a descriptor of its own.
pub(super) fn close() -> io::Result<()> {
    // SAFETY: takes no pointers; what it closes belongs to nothing in this process, which has just begun.
    let result = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives this process what any has that was started by nobody in particular: every signal does what it does by default, but for
/// `SIGPIPE`, which [`std`] sets itself here and in what this becomes; and what it makes, others can read. It is the first that the
/// kernel ends where the machine runs out of memory, whatever the daemon is.
///
/// A daemon may have been started with signals ignored: `SIGCHLD`, with which nobody learns how a child ended, or `SIGINT`.
pub(super) fn reset() {
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: no handler of this process is replaced, which has just begun. Those that cannot be changed stay.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    umask(Mode::from_raw_mode(0o022));
    // Fails where there is no /proc: then it is ended as others are.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
}
