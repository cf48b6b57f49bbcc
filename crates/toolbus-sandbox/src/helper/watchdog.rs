//! The watchdog: a process outside of the confinement that ends everything when the daemon ends.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, getegid, geteuid, getpid, kill_process, pidfd_open,
    set_child_subreaper, set_dumpable_behavior, setsid, wait, waitpid,
};
use rustix::{stdio, thread};

use super::cgroup::Cgroup;
use super::init::Task;
use super::process::{Forked, fork_into, leave};
use super::seccomp::Filters;
use super::tree::ProcessTree;
use super::work_folder::WorkFolder;
use super::{init, mounts, process};
use crate::wire::{self, HelperMessage, SandboxSpec};

/// User and group of a program within namespaces of its own.
const INSIDE: u32 = 1000;

/// Makes one sandbox for the daemon, and returns when all its processes have ended. A fork of the spawner.
pub(super) fn run() -> io::Result<()> {
    process::close_inherited()?;
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    let _ = thread::set_name(c"toolbus-sandbox");
    let mut daemon = UnixStream::from(stdio::stdin().try_clone_to_owned()?);
    wire::send(&mut daemon, &HelperMessage::Made)?;
    let Some(order) = wire::receive::<SandboxSpec>(&mut daemon)? else { return Ok(()) };
    let told = serve(&daemon, &order);
    if let Err(error) = &told {
        wire::send(&mut daemon, &HelperMessage::Failed { why: error.to_string(), has_begun: false })?;
    }
    told
}

fn serve(daemon: &UnixStream, order: &SandboxSpec) -> io::Result<()> {
    // Both are removed when this function returns.
    let folder = (!order.layers.namespaces).then(|| WorkFolder::make(order)).transpose()?;
    // Without one, what only it can count is refused.
    let cgroup = order.cgroup.as_ref().and_then(|spec| Cgroup::make(spec, order.number, &order.plan.limits).ok());
    // Before the daemon waits for the program.
    let filters = Filters::prepare(order, cgroup.is_some())?;
    let (lifeline, tell_mapped) = pipe_with(PipeFlags::CLOEXEC)?;
    if order.layers.namespaces {
        // An unprivileged process cannot write the id maps of a hidden one.
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    }
    let init = match fork_into(order.layers.namespaces, order.plan.network).map_err(mounts::unavailable)? {
        Forked::Parent(init) => init,
        Forked::Child => {
            drop(tell_mapped);
            let task = Task { order, folder: folder.as_ref(), cgroup: cgroup.as_ref(), filters: &filters, lifeline };
            leave(init::run(daemon, &task));
        }
    };
    // The output must end with the program, and not with this process.
    let nowhere = fs::File::options().read(true).write(true).open("/dev/null")?;
    stdio::dup2_stdout(&nowhere)?;
    stdio::dup2_stderr(&nowhere)?;
    let tell_mapped = fs::File::from(tell_mapped);
    let ended = || -> io::Result<()> {
        if order.layers.namespaces {
            map(init, order.user)?;
            // Nothing has begun yet that it could be hidden from within.
            hide()?;
        }
        (&tell_mapped).write_all(&[0])?;
        let init = pidfd_open(init, PidfdFlags::empty())?;
        wait_for_end(daemon, &init)
    }();
    let _ = kill_process(init, Signal::KILL);
    let _ = waitpid(Some(init), WaitOptions::empty());
    if !order.layers.namespaces {
        // The init process may have been killed before it could do this. What it leaves becomes a child of this process.
        let proc = rustix::fs::open("/proc", rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC, 0.into())?;
        ProcessTree::of_descendants(proc)?.kill();
        // A cgroup is not empty before all of them are waited for.
        while !matches!(wait(WaitOptions::empty()), Err(Errno::CHILD)) {}
    }
    ended
}

/// Waits until the init process or the daemon has ended.
fn wait_for_end(daemon: &UnixStream, init: &impl std::os::fd::AsFd) -> io::Result<()> {
    let mut both = [
        PollFd::from_borrowed_fd(daemon.as_fd(), PollFlags::empty()),
        PollFd::from_borrowed_fd(init.as_fd(), PollFlags::IN),
    ];
    loop {
        match poll(&mut both, None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Hides the memory of this process from others of its user.
pub(super) fn hide() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Maps the one user of the init process to a user outside.
fn map(init: Pid, user: Option<u32>) -> io::Result<()> {
    let of = |file: &str| format!("/proc/{}/{file}", init.as_raw_nonzero());
    let (outer_user, outer_group) = match user {
        Some(user) => (user, user),
        None => {
            // An unprivileged process may map a group only after it denied setgroups(2).
            fs::write(of("setgroups"), "deny")?;
            (geteuid().as_raw(), getegid().as_raw())
        }
    };
    fs::write(of("uid_map"), format!("{INSIDE} {outer_user} 1"))?;
    fs::write(of("gid_map"), format!("{INSIDE} {outer_group} 1"))
}
