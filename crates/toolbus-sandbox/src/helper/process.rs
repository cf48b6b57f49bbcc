//! Forks, also into namespaces, and resets what a process inherits.
#![allow(
    unsafe_code,
    reason = "there is no safe interface to fork, clone, close_range and signals; the process has one thread"
)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::{fs, io};

use rustix::fs::Mode;
use rustix::process::{Pid, umask};

/// Which process this is after a fork.
pub(super) enum Forked {
    /// The process that forked, and its child.
    Parent(Pid),
    /// The child.
    Child,
}

/// Forks this process, with `namespaces` into new ones; with `network` also into one of the network.
pub(super) fn fork_into(namespaces: bool, network: bool) -> io::Result<Forked> {
    if !namespaces {
        return fork();
    }
    let own = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let network = if network { libc::CLONE_NEWNET } else { 0 };
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

/// Stack of a process that [`start`] begins with, in bytes: for what precedes its program.
const STACK: usize = 512 * 1024;

/// Runs `child` in a new process, and returns when that has executed a program or has ended, as vfork(2) does. The process
/// uses the memory of this one until then, so that none is copied.
///
/// What `child` allocates and does not free stays allocated here. It must own no descriptor of this process: each process
/// has its own, and this one would not close what `child` has closed for itself.
pub(super) fn start<F: Fn()>(child: F) -> io::Result<Pid> {
    extern "C" fn entry<F: Fn()>(child: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the pointer is that given to clone, to a closure that lives until this process has left its memory.
        let child = unsafe { &*child.cast::<F>() };
        child();
        leave(127)
    }
    let mut stack: Vec<MaybeUninit<u8>> = Vec::with_capacity(STACK);
    let unaligned = stack.spare_capacity_mut().as_mut_ptr_range().end;
    let top = unaligned.wrapping_sub(unaligned.addr() % 16).cast::<libc::c_void>();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is large enough and outlives the child's use of it, because the kernel lets this process, which has
    // one thread, go on only after the child has left this memory. No lock is held by another thread.
    let pid = unsafe { libc::clone(entry::<F>, top, flags, (&raw const child).cast_mut().cast()) };
    match forked(pid.into())? {
        Forked::Parent(pid) => Ok(pid),
        Forked::Child => Err(io::Error::other("clone returned in the child")),
    }
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

/// Ends this process at once, so that buffers of its parent are not written twice.
pub(super) fn leave(code: i32) -> ! {
    // SAFETY: takes no pointers and does not return.
    unsafe { libc::_exit(code) }
}

/// The first file descriptor that is no standard stream.
const FIRST: libc::c_uint = 3;

/// Closes every file descriptor but the standard streams and one more: the daemon may have inherited some that no program
/// may have.
///
/// Must be called before this process opens any other.
pub(super) fn close_inherited(kept: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let kept = kept.and_then(|kept| libc::c_uint::try_from(kept.as_raw_fd()).ok()).filter(|kept| *kept >= FIRST);
    let close = |first: libc::c_uint, last: libc::c_uint| {
        // SAFETY: takes no pointers; what it closes belongs to nothing in this process, which has just begun.
        let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    match kept {
        Some(FIRST) => close(FIRST + 1, libc::c_uint::MAX),
        Some(kept) => close(FIRST, kept - 1).and_then(|()| close(kept + 1, libc::c_uint::MAX)),
        None => close(FIRST, libc::c_uint::MAX),
    }
}

/// Resets signal handlers except `SIGPIPE`, which [`std`] sets itself here and in the program; sets the umask to 022; and
/// makes this process the first that the kernel ends when the machine runs out of memory.
///
/// A daemon may have been started with ignored signals: with `SIGCHLD` ignored, the status of a child is lost.
pub(super) fn reset_inherited() {
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: this process has just begun and has no handler. Signals that cannot be changed stay.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    umask(Mode::from_raw_mode(0o022));
    // Fails without /proc: then the priority of the kernel stays.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
}

/// Ends of children as a readable file descriptor. Programs that this process starts must [`Self::unblock`] the signal.
#[derive(Debug)]
pub(super) struct ChildSignals(OwnedFd);

impl ChildSignals {
    /// Blocks `SIGCHLD`, which the descriptor receives from now on.
    pub(super) fn block() -> io::Result<Self> {
        let set = Self::mask(libc::SIG_BLOCK)?;
        // SAFETY: the pointer is to a set of signals, and -1 asks for a new descriptor.
        let made = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open, and belongs to nothing else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(made) }))
    }

    /// Reads what has arrived.
    pub(super) fn clear(&self) {
        let mut arrived = [0; size_of::<libc::signalfd_siginfo>()];
        while matches!(rustix::io::read(&self.0, &mut arrived), Ok(1..)) {}
    }

    /// Unblocks `SIGCHLD`, in a child of the process that blocked it.
    pub(super) fn unblock(self) -> io::Result<()> {
        Self::mask(libc::SIG_UNBLOCK).map(drop)
    }

    fn mask(how: libc::c_int) -> io::Result<libc::sigset_t> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set, to whose memory all pointers are.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
            match libc::sigprocmask(how, set.as_ptr(), std::ptr::null_mut()) {
                0 => Ok(set.assume_init()),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }
}

impl AsFd for ChildSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
