//! The network namespace of sandboxes without a network: one for all of them, with nothing in it.
//!
//! To make one takes longer than all other namespaces together. Its sandboxes cannot reach each other by it: system call
//! filter and Landlock refuse sockets with names, and no user namespace of theirs owns it.
#![allow(unsafe_code, reason = "there is no safe interface to unshare and setns that says what they need")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::mounts;
use crate::wire::SandboxSpec;

/// Where this process is.
#[derive(Debug)]
pub(super) struct Network {
    /// The network namespace of the daemon, if this process has left it.
    daemon: Option<File>,
}

impl Network {
    /// Moves this process into an empty network namespace, if it may, and may return. Those that it forks are
    /// there, too.
    pub(super) fn leave() -> Self {
        let leave = |daemon: File| {
            // In a user namespace of a container, a process may leave its network and not come back: a process that may
            // not move to where it is stays.
            move_into_link_name_space(daemon.as_fd(), Some(LinkNameSpaceType::Network)).ok()?;
            // SAFETY: this process has one thread, and shares no descriptors.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.ok()?;
            Some(daemon)
        };
        Self { daemon: File::open("/proc/self/ns/net").ok().and_then(leave) }
    }

    /// Returns the descriptor that this process keeps open for the network.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.daemon.as_ref().map(File::as_fd)
    }

    /// Moves this process to where a sandbox may be made, and returns whether that needs a network namespace of its own.
    /// `counts_all`: whether memory of sockets is counted by a cgroup, and not by what the namespace has.
    pub(super) fn enter(self, order: &SandboxSpec, counts_all: bool) -> io::Result<bool> {
        let layers = order.layers;
        let is_hidden = layers.namespaces && !order.plan.network;
        let Some(daemon) = &self.daemon else { return Ok(is_hidden) };
        if is_hidden && counts_all && layers.seccomp && layers.landlock {
            return Ok(false);
        }
        move_into_link_name_space(daemon.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| mounts::unavailable(error.into()))?;
        Ok(is_hidden)
    }
}
