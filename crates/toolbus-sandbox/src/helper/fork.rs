//! Forking, with namespaces.
#![allow(unsafe_code, reason = "there is no safe interface to fork and clone; the process has one thread")]

use std::io;

use rustix::process::Pid;

use crate::level::Level;

/// Who goes on after a fork.
pub(super) enum Forked {
    /// The process that forked, and its child.
    Parent(Pid),
    /// The child.
    Child,
}

/// Forks this process; with [`Level::Full`] into namespaces of its own, but for the network where it is wanted.
pub(super) fn fork_into(level: Level, network: bool) -> io::Result<Forked> {
    if level < Level::Full {
        return fork();
    }
    let own = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let network = if network { 0 } else { libc::CLONE_NEWNET };
    let flags = own | network | libc::SIGCHLD;
    // SAFETY: as fork(2), because no memory is shared and no stack is given; this process has one thread, so that no
    // lock is held by another one.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags as libc::c_ulong, 0, 0, 0, 0) };
    forked(pid)
}

/// Forks this process.
pub(super) fn fork() -> io::Result<Forked> {
    // SAFETY: this process has one thread, so that the child may do whatever its parent may.
    let pid = unsafe { libc::fork() };
    forked(pid.into())
}

fn forked(pid: libc::c_long) -> io::Result<Forked> {
    match pid {
        0 => Ok(Forked::Child),
        pid => i32::try_from(pid)
            .ok()
            .filter(|pid| *pid > 0)
            .and_then(Pid::from_raw)
            .map(Forked::Parent)
            .ok_or_else(io::Error::last_os_error),
    }
}

/// Ends this process at once: nothing that its parent has left in buffers is written twice.
pub(super) fn leave(code: i32) -> ! {
    // SAFETY: takes no pointers and does not return.
    unsafe { libc::_exit(code) }
}
