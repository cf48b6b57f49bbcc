//! The watchdog: a process outside of the confinement that ends everything when the daemon ends.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, getegid, geteuid, getpid, kill_process, pidfd_open,
    set_child_subreaper, set_dumpable_behavior, setsid, wait, waitpid,
};
use rustix::{stdio, thread};

use super::cgroup::Cgroup;
use super::init::{Task, ready_of};
use super::mounts::INSIDE;
use super::network::Network;
use super::process::{Forked, fork_into, leave};
use super::seccomp::Filters;
use super::tree::ProcessTree;
use super::work_folder::WorkFolder;
use super::{fork_name_of, init, mounts, name_of, process, template};
use crate::wire::{self, FilterOptions, HelperMessage, SandboxSpec, USERS_OF_FORKS};

/// Makes one sandbox for the daemon, and returns when all its processes have ended. A fork of the spawner.
///
/// `filters` are those that it most likely needs.
pub(super) fn run(filters: &Filters, network: Network) -> io::Result<()> {
    process::close_inherited(network.descriptor())?;
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    let _ = thread::set_name(c"toolbus-sandbox");
    let mut daemon = UnixStream::from(stdio::stdin().try_clone_to_owned()?);
    wire::send(&mut daemon, &HelperMessage::Made)?;
    let Some(order) = wire::receive::<SandboxSpec>(&mut daemon)? else { return Ok(()) };
    let told = serve(&daemon, &order, filters, network);
    if let Err(error) = &told {
        wire::send(&mut daemon, &HelperMessage::Failed { why: error.to_string(), has_begun: false })?;
    }
    told
}

fn serve(daemon: &UnixStream, order: &SandboxSpec, filters: &Filters, network: Network) -> io::Result<()> {
    // Both are removed when this function returns.
    let folder = (!order.layers.namespaces).then(|| WorkFolder::make(order)).transpose()?;
    // Without one, what only it can count is refused.
    let make = |spec| Cgroup::make(spec, &name_of(order.number), &order.plan.limits).ok();
    let cgroup = order.cgroup.as_ref().and_then(make);
    let options = FilterOptions::of(&order.plan, order.layers, order.user.is_some(), cgroup.is_some());
    // The cgroup may have been refused.
    let compiled = (options != filters.options()).then(|| Filters::prepare(options)).transpose()?;
    let filters = compiled.as_ref().unwrap_or(filters);
    let has_network = network.enter(order, cgroup.is_some())?;
    let (lifeline, tell_mapped) = pipe_with(PipeFlags::CLOEXEC)?;
    if order.layers.namespaces {
        // An unprivileged process cannot write the id maps of a hidden one.
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    }
    let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let init = match fork_into(order.layers.namespaces, has_network).map_err(mounts::unavailable)? {
        Forked::Parent(init) => init,
        Forked::Child => {
            drop((tell_mapped, control));
            let control = order.plan.forks.then_some(&theirs);
            let cgroup = cgroup.as_ref().map(|cgroup| &cgroup.files);
            let task = Task { order, folder: folder.as_ref(), cgroup, filters, lifeline, control };
            leave(init::run(daemon, &task));
        }
    };
    drop(theirs);
    // The output must end with the program, and not with this process.
    let nowhere = fs::File::options().read(true).write(true).open("/dev/null")?;
    stdio::dup2_stdout(&nowhere)?;
    stdio::dup2_stderr(&nowhere)?;
    let tell_mapped = fs::File::from(tell_mapped);
    let ended = || -> io::Result<()> {
        if order.layers.namespaces {
            map(init, order)?;
            // Nothing has begun yet that it could be hidden from within.
            hide()?;
        }
        (&tell_mapped).write_all(&[0])?;
        let init = pidfd_open(init, PidfdFlags::empty())?;
        if order.plan.forks && wait_for_template(daemon, &init, &control)? {
            return Forks { order, control: &control, running: Vec::new(), number: 0 }.serve(daemon, &init);
        }
        wait_for_end(daemon, &init)
    }();
    let _ = kill_process(init, Signal::KILL);
    let _ = waitpid(Some(init), WaitOptions::empty());
    // The init process may have been killed before it could end everything. What it leaves becomes a child of this process:
    // without one there is no process to look for among all of the system.
    if !order.layers.namespaces && !matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD)) {
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

/// Maps the one user of the init process to a user outside, and those of the forks of a template after it.
fn map(init: Pid, order: &SandboxSpec) -> io::Result<()> {
    let of = |file: &str| format!("/proc/{}/{file}", init.as_raw_nonzero());
    let (outer_user, outer_group) = match order.user {
        Some(user) => (user, user),
        None => {
            // An unprivileged process may map a group only after it denied setgroups(2).
            fs::write(of("setgroups"), "deny")?;
            (geteuid().as_raw(), getegid().as_raw())
        }
    };
    let count = if order.plan.forks && order.user.is_some() { 1 + USERS_OF_FORKS } else { 1 };
    fs::write(of("uid_map"), format!("{INSIDE} {outer_user} {count}"))?;
    fs::write(of("gid_map"), format!("{INSIDE} {outer_group} {count}"))
}

/// Waits until a template is ready, and tells the daemon; `false` if it, or the daemon, has ended instead.
fn wait_for_template(daemon: &UnixStream, init: &impl AsFd, control: &OwnedFd) -> io::Result<bool> {
    // Its init process reads what the daemon sends until then.
    let waited_for =
        [(daemon.as_fd(), PollFlags::empty()), (init.as_fd(), PollFlags::IN), (control.as_fd(), PollFlags::IN)];
    loop {
        match ready_of(waited_for, None)? {
            [false, false, true] => break,
            [false, false, false] => {}
            _ => return Ok(false),
        }
    }
    let is_ready = wire::receive_descriptors(control.as_fd(), &mut [0])?.is_some();
    if is_ready {
        wire::send(&mut &*daemon, &HelperMessage::Ready)?;
    }
    Ok(is_ready)
}

/// Most bytes of why a template ends.
const LONGEST_REASON: usize = 256;

/// The forks of a template.
struct Forks<'a> {
    order: &'a SandboxSpec,
    control: &'a OwnedFd,
    running: Vec<RunningFork>,
    /// Of the next one.
    number: u64,
}

/// One fork: its cgroup is removed when it has ended.
struct RunningFork {
    /// Closed by its end.
    ended: OwnedFd,
    _cgroup: Option<Cgroup>,
}

impl Forks<'_> {
    /// Serves the daemon until it, or the template, has ended.
    fn serve(mut self, daemon: &UnixStream, init: &impl AsFd) -> io::Result<()> {
        loop {
            let mut all: Vec<PollFd<'_>> = self
                .running
                .iter()
                .map(|fork| PollFd::from_borrowed_fd(fork.ended.as_fd(), PollFlags::empty()))
                .collect();
            all.push(PollFd::from_borrowed_fd(daemon.as_fd(), PollFlags::IN));
            all.push(PollFd::from_borrowed_fd(init.as_fd(), PollFlags::IN));
            all.push(PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN));
            match poll(&mut all, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let mut ready = all.iter().map(|one| !one.revents().is_empty()).collect::<Vec<_>>().into_iter();
            drop(all);
            self.running.retain(|_| !ready.next().unwrap_or_default());
            let [asked, has_ended, said] = [ready.next(), ready.next(), ready.next()].map(Option::unwrap_or_default);
            if has_ended {
                return Ok(());
            }
            if said {
                // The template has ended; its forks go on.
                let mut why = [0; LONGEST_REASON];
                let Some((length, _)) = wire::receive_descriptors(self.control.as_fd(), &mut why)? else {
                    return wait_for_end(daemon, init);
                };
                let why = String::from_utf8_lossy(why.get(..length).unwrap_or_default()).into_owned();
                wire::send(&mut &*daemon, &HelperMessage::Failed { why, has_begun: false })?;
            }
            if asked {
                let Some((streams, _)) = wire::receive_streams(daemon.as_fd())? else { return Ok(()) };
                // Its socket closes if it cannot be made, which says that it has not begun.
                let _ = self.start(&streams);
            }
        }
    }

    fn start(&mut self, streams: &wire::Streams) -> io::Result<()> {
        let name = fork_name_of(self.order.number, self.number);
        self.number += 1;
        let make = |spec| Cgroup::make(spec, &name, &self.order.plan.limits);
        let cgroup = self.order.cgroup.as_ref().map(make).transpose()?;
        let (ended, alive) = pipe_with(PipeFlags::CLOEXEC)?;
        template::request_fork(self.control, streams, &alive, cgroup.as_ref())?;
        self.running.push(RunningFork { ended, _cgroup: cgroup });
        Ok(())
    }
}
