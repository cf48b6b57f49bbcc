//! The spawner: a process of the daemon that forks the watchdogs, so that no sandbox has to start this executable anew.
//!
//! It gets the streams of each watchdog from the daemon, and nothing else: what a program is given goes to its watchdog
//! alone.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{WaitOptions, getpid, set_child_subreaper, setsid, wait};
use rustix::{stdio, thread};

use super::network::Network;
use super::process::{self, ChildSignals, Forked, fork, leave};
use super::seccomp::Filters;
use super::{limits, watchdog};
use crate::wire::{self, HelperMessage, Streams};

/// Serves the daemon until it ends. Does not return in watchdogs, which end with their sandboxes.
pub(super) fn run() -> io::Result<()> {
    process::close_inherited(None)?;
    limits::no_core()?;
    process::reset_inherited();
    // Fails for the leader of a group, which does not need it.
    let _ = setsid();
    // What a killed watchdog leaves becomes a child of this process, which waits for it.
    set_child_subreaper(Some(getpid()))?;
    watchdog::hide()?;
    let _ = thread::set_name(c"toolbus-spawner");
    let network = Network::leave();
    match serve()? {
        None => Ok(()),
        Some(([socket, stdout, stderr], filters)) => {
            stdio::dup2_stdin(&socket)?;
            stdio::dup2_stdout(&stdout)?;
            stdio::dup2_stderr(&stderr)?;
            drop((socket, stdout, stderr));
            // Without the work of an orderly end, of which nothing is needed.
            leave(i32::from(watchdog::run(&filters, network).is_err()))
        }
    }
}

/// Forks a watchdog for each message of the daemon. Returns its streams and filters in the watchdog, and `None` in this
/// process once the daemon and all watchdogs have ended.
fn serve() -> io::Result<Option<(Streams, Rc<Filters>)>> {
    let daemon = stdio::stdin();
    // Compiled once for each kind of sandbox, of which there are few.
    let mut compiled: BTreeMap<u8, Rc<Filters>> = BTreeMap::new();
    let ended = ChildSignals::block()?;
    loop {
        let mut both = [
            PollFd::from_borrowed_fd(daemon.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN),
        ];
        match poll(&mut both, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !both[1].revents().is_empty() {
            ended.clear();
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        }
        if both[0].revents().is_empty() {
            continue;
        }
        let Some((streams, options)) = wire::receive_streams(daemon.as_fd())? else { break };
        let filters = match compiled.entry(options.bits()) {
            Entry::Occupied(found) => Rc::clone(found.get()),
            Entry::Vacant(entry) => Rc::clone(entry.insert(Rc::new(Filters::prepare(options)?))),
        };
        match fork() {
            Ok(Forked::Child) => {
                ended.unblock()?;
                return Ok(Some((streams, filters)));
            }
            Ok(Forked::Parent(_)) => {}
            Err(error) => {
                let [socket, ..] = streams;
                // The daemon may have given it up.
                let failed = HelperMessage::Failed { why: error.to_string(), has_begun: false };
                let _ = wire::send(&mut UnixStream::from(socket), &failed);
            }
        }
    }
    // Each watchdog ends with the daemon.
    while !matches!(wait(WaitOptions::empty()), Err(Errno::CHILD)) {}
    Ok(None)
}
