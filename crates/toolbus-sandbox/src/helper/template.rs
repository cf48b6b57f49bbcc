//! Templates: programs that run no job, and fork a copy of themselves for each.
//!
//! A template is started like any program, in namespaces of its own. Its init process ([`serve`]) serves the watchdog: for
//! each run it forks another init process into namespaces within these ([`run_fork`]), with a work folder of its own. That
//! asks the template for a fork, which enters its namespaces, gives up what it may do there, and applies Landlock rules and
//! a filter that the init process has made. Only then, and if the kernel says the same of it, it gets its job.
//!
//! The template has no capabilities. It may enter those namespaces because it has the user that made them, and nothing else
//! lies in them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, openat, readlinkat};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, set_dumpable_behavior, set_parent_process_death_signal, wait,
};

use super::cgroup::{Cgroup, CgroupFiles};
use super::init::{self, JobFailure, Report, SandboxInit, Task, ready_of};
use super::limits;
use super::mounts::{self, INSIDE, Proc};
use super::process::{ChildSignals, Forked, fork_into, leave};
use super::seccomp::Filters;
use super::start::{ProgramPipes, naming};
use super::tree::{ProcessTree, ProcessUsage};
use super::{landlock, watchdog};
use crate::plan::Limits;
use crate::wire::{self, HelperMessage, PROGRESS, ProgramSpec, SandboxSpec, USERS_OF_FORKS};

/// Longest time in which a template forks, or a fork is confined.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two measurements of a template that is not ready yet.
const LOOK: Duration = Duration::from_millis(10);
/// The namespaces of a fork. It enters them in this order: the first gives it the right to enter the others.
const NAMESPACES: [&str; 6] = ["user", "pid", "mnt", "ipc", "uts", NETWORK];
/// The one that it may share with its template.
const NETWORK: &str = "net";
/// Time between two looks at a template that is ready.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// CPU time that a template may use after it is ready, in milliseconds, and besides for each fork.
const IDLE_CPU_MS: u64 = 500;
const FORK_CPU_MS: u64 = 100;
/// The reason for which a template ends that has more memory than a script may have.
const TAKES_MEMORY: &str = "an import goes on to take memory";
/// Looks in a row at which a template may have a process besides: the one by which it forks is there for a moment.
const BUSY_LOOKS: u32 = 3;
/// Longest thing that a fork reports, in bytes.
const LONGEST: u64 = 512;
/// Most bytes of a file in `/proc` that is read.
const LONGEST_STATUS: u64 = 8192;

/// The init process's end of the socket on which the watchdog asks for forks.
pub(super) type Control = OwnedFd;

/// Request that one run gets from the watchdog.
struct ForkRequest {
    socket: UnixStream,
    stdout: OwnedFd,
    stderr: OwnedFd,
    /// Closed when the run has ended.
    _alive: OwnedFd,
    cgroup: Option<CgroupFiles>,
}

impl ForkRequest {
    fn receive(control: &Control) -> io::Result<Option<Self>> {
        let Some((_, descriptors)) = wire::receive_descriptors(control.as_fd(), &mut [0])? else { return Ok(None) };
        let mut rest = VecDeque::from(descriptors);
        let mut next = || rest.pop_front().ok_or_else(|| io::Error::other("a message without its descriptors"));
        let (socket, stdout, stderr, alive) = (UnixStream::from(next()?), next()?, next()?, next()?);
        Ok(Some(Self { socket, stdout, stderr, _alive: alive, cgroup: CgroupFiles::received(rest) }))
    }
}

/// Sends what one run needs to the init process of its template.
pub(super) fn request_fork(
    control: &Control,
    streams: &wire::Streams,
    alive: &OwnedFd,
    cgroup: Option<&Cgroup>,
) -> io::Result<()> {
    let cgroup = cgroup.into_iter().flat_map(|cgroup| cgroup.files.descriptors());
    let all: Vec<BorrowedFd<'_>> = streams.iter().chain([alive]).map(|it| it.as_fd()).chain(cgroup).collect();
    wire::send_descriptors(control.as_fd(), &[0], &all, SendFlags::DONTWAIT)
}

/// Starts a template, and serves the watchdog until that, or the daemon, has ended. Returns in the init process of each fork
/// as well, when that has ended.
pub(super) fn serve(
    task: &Task<'_>,
    proc: Proc,
    program: &ProgramSpec,
    stdin: File,
    control: &Control,
) -> io::Result<()> {
    let outer = proc.outer()?;
    let tree = ProcessTree::of_namespace(proc)?;
    let mut init = SandboxInit::new(task, tree, PathBuf::from(mounts::WORK));
    let (requests, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let pipes = init.start(program, &stdin, Some(theirs))?;
    // Not before, because programs inherit what is blocked. The end of one that ends until then is seen by its pipes.
    let ended = ChildSignals::block()?;
    drop(stdin);
    let begun = crate::now();
    loop {
        let waited_for = [
            (pipes.ready(), PollFlags::IN),
            (control.as_fd(), PollFlags::empty()),
            (task.lifeline.as_fd(), PollFlags::empty()),
        ];
        match ready_of(waited_for, Some(LOOK))? {
            [true, false, false] => break,
            [_, false, false] => {}
            _ => return Ok(()),
        }
        // It has no limit of time: the daemon ends one that takes too long.
        let elapsed = u64::try_from((crate::now() - begun).as_millis()).unwrap_or(u64::MAX);
        if let Some(stop) = init.exceeded_so_far(elapsed.saturating_add(1000)) {
            return Err(io::Error::other(format!("its imports exceed the limit of {}", stop.as_str())));
        }
    }
    if pipes.report()?.is_none() {
        return Err(io::Error::other("it ended before it was ready"));
    }
    let ([program], 1) = (&init.tree().living_pids()[..], init.used().tasks) else {
        return Err(io::Error::other("an import has started threads or processes"));
    };
    if init.tree().shares_memory(*program) {
        return Err(io::Error::other("an import has made memory or a lock that its forks would share"));
    }
    if init.tree().highest_descriptor(*program) > Some(PROGRESS) {
        return Err(io::Error::other("an import has opened files, which its forks do not have"));
    }
    let program = *program;
    rustix::io::write(control, &[0])?;

    // As this `/proc` numbers it, which may be that of an outer namespace.
    let cgroup_of = || read(&outer, &format!("{program}/cgroup"));
    let own = cgroup_of()?;
    init.watch_alone(program)?;
    let mut idleness = Idleness { before_ms: init.used().cpu_ms, busy_looks: 0 };
    let (mut forks, mut is_gone, mut next_look) = (0, false, crate::now() + IDLE_LOOK);
    let mut running: Vec<Pid> = Vec::new();
    loop {
        let waited_for = [
            (control.as_fd(), PollFlags::IN),
            (task.lifeline.as_fd(), PollFlags::empty()),
            (ended.as_fd(), PollFlags::IN),
        ];
        let patience = (!is_gone).then(|| next_look.saturating_duration_since(crate::now()));
        let [asked, is_orphan, has_ended] = ready_of(waited_for, patience)?;
        if is_orphan {
            return Ok(());
        }
        if !is_gone && next_look <= crate::now() {
            next_look = crate::now() + IDLE_LOOK;
            if let Some(why) = idleness.end(&init.used(), init.is_out_of_memory(), &task.order.plan.limits, forks) {
                end_template(&init, control, why)?;
                is_gone = true;
            }
        }
        if has_ended {
            ended.clear();
            loop {
                match wait(WaitOptions::NOHANG) {
                    Ok(Some((pid, _))) => {
                        if !is_gone && init.is_program(pid) {
                            is_gone = true;
                            // The kernel may see it between two looks.
                            if init.is_out_of_memory() {
                                rustix::io::write(control, TAKES_MEMORY.as_bytes())?;
                            }
                        }
                        running.retain(|fork| *fork != pid);
                    }
                    Ok(None) => break,
                    // The template has ended, and the last of its forks.
                    Err(_) => return Ok(()),
                }
            }
        }
        if asked {
            let Some(request) = ForkRequest::receive(control)? else { return Ok(()) };
            // Closing its socket says that it has not begun.
            if is_gone || task.cgroup.is_some() != request.cgroup.is_some() {
                continue;
            }
            // It sees the files by which its forks enter theirs.
            if cgroup_of().ok().as_ref() != Some(&own) {
                // One that is ending has left it, too.
                let why = if init.is_out_of_memory() { TAKES_MEMORY } else { "it has left its cgroup" };
                end_template(&init, control, why)?;
                is_gone = true;
                continue;
            }
            let user = if task.order.user.is_some() { INSIDE + 1 + forks % USERS_OF_FORKS } else { INSIDE };
            forks = forks.wrapping_add(1);
            init.limit_forks(running.len() as u64 + 1)?;
            match start_fork(task, &outer, user, &request) {
                Ok(StartedFork::Above(fork)) => running.push(fork),
                Ok(StartedFork::Within(mapped)) => {
                    ended.unblock()?;
                    let ended = run_fork(task, &outer, &mapped, request, &requests);
                    leave(i32::from(ended.is_err()));
                }
                Err(error) => {
                    let failed = HelperMessage::Failed { why: error.to_string(), has_begun: false };
                    // The daemon may have given it up.
                    let _ = wire::send(&mut &request.socket, &failed);
                }
            }
        }
    }
}

/// Kills a template, whose forks go on, and tells the watchdog why.
fn end_template(init: &SandboxInit<'_>, control: &Control, why: &str) -> io::Result<()> {
    if !init.tree().kill_each() {
        return Err(io::Error::other(why));
    }
    rustix::io::write(control, why.as_bytes())?;
    Ok(())
}

/// Use of resources by a template since it is ready, when it should only fork.
struct Idleness {
    /// CPU time that it had used when it became ready, in milliseconds.
    before_ms: u64,
    busy_looks: u32,
}

impl Idleness {
    /// Returns the reason for which the template must end, if there is one.
    fn end(
        &mut self,
        used: &ProcessUsage,
        is_out_of_memory: bool,
        limits: &Limits,
        forks: u32,
    ) -> Option<&'static str> {
        self.busy_looks = if used.tasks > 1 { self.busy_looks + 1 } else { 0 };
        let cpu_ms = IDLE_CPU_MS + FORK_CPU_MS * u64::from(forks);
        if used.tasks > 2 || self.busy_looks >= BUSY_LOOKS {
            Some("an import has started threads or processes later")
        } else if used.cpu_ms > self.before_ms + cpu_ms {
            Some("an import goes on to use CPU time")
        } else if used.memory > limits.memory || is_out_of_memory {
            Some(TAKES_MEMORY)
        } else {
            None
        }
    }
}

/// Which process this is after the init process of a fork was started.
enum StartedFork {
    /// That of the template, with the one of the fork.
    Above(Pid),
    /// That of the fork, with a pipe that has a byte once its user is mapped.
    Within(OwnedFd),
}

/// Forks an init process into namespaces within those of this one, with `user` as its only user.
fn start_fork(task: &Task<'_>, proc: &Proc, user: u32, request: &ForkRequest) -> io::Result<StartedFork> {
    let (mapped, tell_mapped) = pipe_with(PipeFlags::CLOEXEC)?;
    let (number, tell_number) = pipe_with(PipeFlags::CLOEXEC)?;
    // The id maps of a hidden process can be written by root alone.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let forked = fork_into(true, has_network(task.order, request.cgroup.as_ref()));
    match forked {
        Ok(Forked::Child) => {
            drop((tell_mapped, number));
            let own = readlinkat(proc, "self", Vec::new())?.into_bytes();
            File::from(tell_number).write_all(&own)?;
            Ok(StartedFork::Within(mapped))
        }
        Ok(Forked::Parent(fork)) => {
            watchdog::hide()?;
            drop(tell_number);
            let mut own = String::new();
            File::from(number).take(LONGEST).read_to_string(&mut own)?;
            for file in ["uid_map", "gid_map"] {
                let map = openat(proc, format!("{own}/{file}"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
                File::from(map).write_all(format!("{INSIDE} {user} 1").as_bytes())?;
            }
            File::from(tell_mapped).write_all(&[0])?;
            Ok(StartedFork::Above(fork))
        }
        Err(error) => {
            watchdog::hide()?;
            Err(mounts::unavailable(error))
        }
    }
}

/// Whether a fork has a network namespace of its own: without a cgroup the memory of its sockets is counted by what
/// that has.
fn has_network(order: &SandboxSpec, cgroup: Option<&CgroupFiles>) -> bool {
    !order.plan.network && cgroup.is_none()
}

/// Runs as the init process of a fork.
fn run_fork(
    task: &Task<'_>,
    proc: &Proc,
    mapped: &OwnedFd,
    request: ForkRequest,
    template: &OwnedFd,
) -> io::Result<()> {
    let ForkRequest { mut socket, stdout, stderr, _alive, cgroup } = request;
    // What ends the template ends its forks.
    let lifeline = task.lifeline.try_clone()?;
    let task = Task { cgroup: cgroup.as_ref(), lifeline, folder: None, control: None, ..*task };
    let report = run_job(&task, proc, mapped, &mut socket, [stdout, stderr], template);
    init::tell(&mut socket, report)
}

fn run_job(
    task: &Task<'_>,
    proc: &Proc,
    mapped: &OwnedFd,
    daemon: &mut UnixStream,
    streams: [OwnedFd; 2],
    template: &OwnedFd,
) -> Result<Report, JobFailure> {
    // The kernel ends a namespace with its first process.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::io::read(mapped, &mut [0])? == 0 {
        return Ok(None);
    }
    watchdog::hide()?;
    wire::send(daemon, &HelperMessage::Made)?;
    mounts::enter_fork(task.order).map_err(naming("a work folder"))?;
    let tree = ProcessTree::of_namespace(proc.outer()?)?;
    let mut init = SandboxInit::new(task, tree, PathBuf::from(mounts::WORK));
    let result = serve_job(&mut init, proc, daemon, streams, template);
    init.kill();
    result.map_err(|error| init.failure(error))
}

fn serve_job(
    init: &mut SandboxInit<'_>,
    proc: &Proc,
    daemon: &mut UnixStream,
    streams: [OwnedFd; 2],
    template: &OwnedFd,
) -> io::Result<Report> {
    let Some((pipes, program)) = fork_program(init, proc, streams, template)? else { return Ok(None) };
    init.adopt(program);
    wire::send(daemon, &HelperMessage::Ready)?;
    if !init.wait_for_job(daemon)? {
        return Ok(None);
    }
    init.run_waiting(daemon, &pipes)
}

/// Has the template fork, and returns when the fork is confined; `None` if this process is to end.
fn fork_program(
    init: &SandboxInit<'_>,
    proc: &Proc,
    streams: [OwnedFd; 2],
    template: &OwnedFd,
) -> io::Result<Option<(ProgramPipes, Pid)>> {
    let task = init.task();
    let order = task.order;
    let has_network = has_network(task.order, task.cgroup);
    let entered = NAMESPACES.into_iter().filter(|kind| *kind != NETWORK || has_network);
    let open = |kind| openat(proc, format!("self/ns/{kind}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let namespaces = entered.map(open).collect::<Result<Vec<_>, _>>()?;
    let rules = landlock::rules_of_fork(&order.plan, Path::new(mounts::WORK), task.cgroup.is_some())
        .map_err(naming("Landlock"))?;
    let (go, tell_go) = pipe_with(PipeFlags::CLOEXEC)?;
    let (ready, tell_ready) = pipe_with(PipeFlags::CLOEXEC)?;
    let (progress, tell_progress) = pipe_with(PipeFlags::CLOEXEC)?;
    let movers = task.cgroup.map_or(&[][..], CgroupFiles::self_movers);
    let mut message = vec![u8::from(order.user.is_some()), u8::from(!movers.is_empty())];
    message.extend(task.filters.of_fork());
    let [stdout, stderr] = &streams;
    let given = [stdout, stderr, &go, &tell_ready, &tell_progress, &rules].map(|it| it.as_fd());
    let movers = movers.iter().map(|it| it.as_fd());
    let all: Vec<BorrowedFd<'_>> =
        given.into_iter().chain(movers).chain(namespaces.iter().map(|it| it.as_fd())).collect();
    wire::send_descriptors(template.as_fd(), &message, &all, SendFlags::empty()).map_err(naming("the template"))?;
    // Its output ends with it.
    drop(all);
    drop((streams, go, tell_ready, tell_progress, rules, namespaces));

    let mut ready = File::from(ready);
    let waited_for = [(ready.as_fd(), PollFlags::IN), (task.lifeline.as_fd(), PollFlags::empty())];
    match ready_of(waited_for, Some(PATIENCE))? {
        [_, true] => return Ok(None),
        [true, false] => {}
        [false, false] => return Err(io::Error::other("the template did not fork in time")),
    }
    let mut bytes = [0; LONGEST as usize];
    let length = ready.read(&mut bytes)?;
    let reported = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default()).into_owned();
    let number: i32 =
        reported.parse().map_err(|_| io::Error::other(format!("the template did not fork: {reported}")))?;
    let program = Pid::from_raw(number).ok_or_else(|| io::Error::other("the template reports no process"))?;
    if let Some(cgroup) = task.cgroup {
        if cgroup.self_movers().is_empty() {
            cgroup.add(number).map_err(naming("its cgroup"))?;
        }
        if !cgroup.has(number) {
            return Err(io::Error::other("the fork is not confined: its cgroup"));
        }
    }
    limits::processes(program, &order.plan.limits, 2).map_err(|error| naming("limits")(error.into()))?;
    verify(init, proc, number)?;
    Ok(Some((ProgramPipes::new(tell_go, ready.into(), progress), program)))
}

/// Fails unless the kernel says that the only process of the namespace but this one is confined as every program is. What it
/// says of Landlock cannot be read.
fn verify(init: &SandboxInit<'_>, proc: &Proc, number: i32) -> io::Result<()> {
    let [outer] = init.tree().living_pids()[..] else {
        return Err(io::Error::other("the template has not forked one process"));
    };
    let own = read(proc, "self/status")?;
    let status = read(proc, &format!("{outer}/status"))?;
    let wrong = |what: &str| io::Error::other(format!("the fork is not confined: {what}"));
    for (name, expected) in expected(init.task().order.user.is_some()) {
        let found = value(&status, name).ok_or_else(|| wrong(name))?;
        if found != expected {
            return Err(wrong(&format!("{name} {found}")));
        }
    }
    let filters = |status: &str| value(status, "Seccomp_filters").and_then(|count| count.parse::<u32>().ok());
    // Kernels before 5.9 do not say how many there are.
    let expected = filters(&own).map(|own| own + Filters::count_of_fork());
    if filters(&status) != expected {
        return Err(wrong("Seccomp_filters"));
    }
    if value(&status, "NSpid").and_then(|pids| pids.rsplit(' ').next().map(str::to_owned)) != Some(number.to_string()) {
        return Err(wrong("NSpid"));
    }
    for kind in NAMESPACES {
        let of = |process: &str| readlinkat(proc, format!("{process}/ns/{kind}"), Vec::new());
        if of(&outer.to_string())? != of("self")? {
            return Err(wrong(kind));
        }
    }
    Ok(())
}

/// Returns what proc_pid_status(5) says of a confined process.
fn expected(drops_groups: bool) -> impl Iterator<Item = (&'static str, String)> {
    let ids = [INSIDE; 4].map(|id| id.to_string()).join(" ");
    let none = "0".repeat(16);
    let capabilities = ["CapInh", "CapPrm", "CapEff", "CapAmb"].map(|name| (name, none.clone()));
    let rest = [
        ("Uid", ids.clone()),
        ("Gid", ids),
        ("NoNewPrivs", "1".into()),
        ("Seccomp", "2".into()),
        ("Threads", "1".into()),
    ];
    rest.into_iter().chain(capabilities).chain(drops_groups.then(|| ("Groups", String::new())))
}

/// A value of a status, with one blank between its parts.
fn value(status: &str, name: &str) -> Option<String> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn read(proc: &Proc, path: &str) -> io::Result<String> {
    let file = openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    File::from(file).take(LONGEST_STATUS).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_a_status_is_read_by_its_whole_name() {
        let status = "Name:\tpython3\nSeccomp:\t2\nSeccomp_filters:\t4\nUid:\t1000\t1000\t1000\t1000\nGroups:\t \n";
        assert_eq!(value(status, "Seccomp").as_deref(), Some("2"));
        assert_eq!(value(status, "Seccomp_filters").as_deref(), Some("4"));
        assert_eq!(value(status, "Uid").as_deref(), Some("1000 1000 1000 1000"));
        assert_eq!(value(status, "Groups").as_deref(), Some(""));
        assert_eq!(value(status, "Sec"), None);
        assert!(expected(true).any(|(name, _)| name == "Groups") && !expected(false).any(|(name, _)| name == "Groups"));
    }
}
