//! The init process: the first one inside of the confinement. It starts the program, measures what the program uses, and
//! collects what it leaves.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open, set_child_subreaper,
    set_parent_process_death_signal, wait,
};
use rustix::stdio;

use super::artifacts::{CollectedFiles, SeenFiles};
use super::cgroup::{self, CgroupFiles};
use super::mounts::Proc;
use super::seccomp::Filters;
use super::start::{self, ProgramPipes};
use super::template::Control;
use super::tree::{MOST_LOCKS, ProcessTree, ProcessUsage, SeenCpuTime};
use super::work_folder::WorkFolder;
use super::{limits, mounts, process, template, usage, watchdog};
use crate::now;
use crate::outcome::{Ending, Stop, Usage};
use crate::wire::{self, DaemonMessage, HelperMessage, JobHeader, ProgramSpec, RunReport, SandboxSpec};

/// Time between two measurements of what a program uses: without a cgroup in its first [`YOUTH`], and otherwise.
const LOOKS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(25)];
/// The same while processes begin and end, without a cgroup: what they use after they were last seen does not count.
const BRIEF_LOOK: Duration = Duration::from_millis(2);
/// Time in which a program without a cgroup is measured more often.
const YOUTH: Duration = Duration::from_millis(200);
/// Time between two measurements of a work folder on disk.
const DISK_LOOK: Duration = Duration::from_millis(50);
/// Time that a program has to end once it has closed the pipe on which it reports.
const CLOSING: Duration = Duration::from_secs(1);
/// Time between two lines on a program's progress. Of those in between the last is passed on.
const PROGRESS_PERIOD: Duration = Duration::from_millis(50);
/// Most bytes that are read of these at a time: as many as a pipe holds.
const PROGRESS_PART: usize = 64 * 1024;
/// Longest of these lines that is passed on, in bytes.
const LONGEST_LINE: usize = 4096;

/// Data that an init process needs.
pub(super) struct Task<'a> {
    pub(super) order: &'a SandboxSpec,
    /// The work folder, where that is on a disk.
    pub(super) folder: Option<&'a WorkFolder>,
    pub(super) cgroup: Option<&'a CgroupFiles>,
    pub(super) filters: &'a Filters,
    /// Has a byte once the users of the namespace are mapped, and ends with the watchdog.
    pub(super) lifeline: OwnedFd,
    /// Of a template.
    pub(super) control: Option<&'a Control>,
}

/// Runs as the init process; returns its exit code.
pub(super) fn run(daemon: &UnixStream, task: &Task<'_>) -> i32 {
    let Ok(mut daemon) = daemon.try_clone() else { return 1 };
    let result = run_task(&mut daemon, task);
    i32::from(tell(&mut daemon, result).is_err())
}

/// Tells the daemon how a run went.
pub(super) fn tell(daemon: &mut UnixStream, result: Result<Report, JobFailure>) -> io::Result<()> {
    match result {
        Ok(Some((report, artifacts))) => send_report(daemon, &report, &artifacts),
        // The daemon has ended.
        Ok(None) => Ok(()),
        Err(JobFailure { error, has_begun }) => {
            wire::send(daemon, &HelperMessage::Failed { why: error.to_string(), has_begun })
        }
    }
}

pub(super) fn send_report(daemon: &mut UnixStream, report: &RunReport, artifacts: &[Bytes]) -> io::Result<()> {
    wire::send(daemon, &HelperMessage::Ended(report.clone()))?;
    artifacts.iter().try_for_each(|bytes| daemon.write_all(bytes))
}

/// Reason why there is no report.
pub(super) struct JobFailure {
    error: io::Error,
    has_begun: bool,
}

impl<E: Into<io::Error>> From<E> for JobFailure {
    fn from(error: E) -> Self {
        Self { error: error.into(), has_begun: false }
    }
}

/// The report of a run with the bytes of its files; `None` if the daemon or the watchdog has ended.
pub(super) type Report = Option<(RunReport, Vec<Bytes>)>;

fn run_task(daemon: &mut UnixStream, task: &Task<'_>) -> Result<Report, JobFailure> {
    let Task { order, folder, .. } = task;
    if order.layers.namespaces {
        // The kernel ends a namespace with its first process.
        set_parent_process_death_signal(Some(Signal::KILL))?;
    } else {
        // What a program without a namespace leaves becomes a child of this process, which ends it.
        set_child_subreaper(Some(getpid()))?;
    }
    // A watchdog that has died before has closed its end.
    if rustix::io::read(&task.lifeline, &mut [0])? == 0 {
        return Ok(None);
    }
    watchdog::hide()?;
    let (place, work) = match folder {
        None => (ProcView::Own(mounts::enter(order).map_err(mounts::unavailable)?), PathBuf::from(mounts::WORK)),
        Some(folder) => {
            let proc = open("/proc", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            (ProcView::Shared(proc), folder.path().to_owned())
        }
    };
    let Some(DaemonMessage::Start(program)) = wire::receive(daemon)? else { return Ok(None) };
    let stdin = start::stdin(daemon, program.stdin)?;
    let tree = match (place, task.control) {
        (ProcView::Own(proc), Some(control)) => {
            template::serve(task, proc, &program, stdin, control)?;
            return Ok(None);
        }
        (ProcView::Own(proc), None) => ProcessTree::of_namespace(proc)?,
        (ProcView::Shared(proc), _) => ProcessTree::of_descendants(proc)?,
    };
    // Never dropped: where the last descriptor of a file system is closed the kernel waits, and the report would, too.
    let mut init = ManuallyDrop::new(SandboxInit::new(task, tree, work));
    let result = init.serve(daemon, &program, stdin);
    // Also after an error, and when the watchdog or the daemon has ended.
    init.kill();
    if let Some(folder) = folder {
        folder.remove();
    }
    result.map_err(|error| JobFailure { error, has_begun: init.has_begun })
}

/// The `/proc` of a program.
enum ProcView {
    /// In namespaces of its own.
    Own(Proc),
    /// That of the daemon.
    Shared(OwnedFd),
}

pub(super) struct SandboxInit<'a> {
    pub(super) task: &'a Task<'a>,
    pub(super) order: &'a SandboxSpec,
    pub(super) tree: ProcessTree,
    /// Path of its work folder, as the program sees it.
    pub(super) work: PathBuf,
    pub(super) program: Option<Pid>,
    /// Whether the program may have begun with its job.
    pub(super) has_begun: bool,
    seen: SeenCpuTime,
    /// Memory without what processes share, and when it was measured.
    proportional: Option<(Instant, u64)>,
    /// The newest process when they were last measured, and whether there were others since the time before.
    newest: Option<u64>,
    is_changing: bool,
    /// When its job has to have ended.
    deadline: Option<Instant>,
    pub(super) before: Before,
}

/// Remains of earlier jobs of a program that stays.
#[derive(Default)]
pub(super) struct Before {
    files: SeenFiles,
    pub(super) cpu_ms: u64,
    /// When its files were looked at; `None` in its first job.
    pub(super) looked_at: Option<Instant>,
}

impl<'a> SandboxInit<'a> {
    pub(super) fn new(task: &'a Task<'a>, tree: ProcessTree, work: PathBuf) -> Self {
        let order = task.order;
        Self {
            task,
            order,
            tree,
            work,
            program: None,
            has_begun: false,
            seen: SeenCpuTime::default(),
            proportional: None,
            newest: None,
            is_changing: false,
            deadline: None,
            before: Before::default(),
        }
    }

    pub(super) const fn task(&self) -> &'a Task<'a> {
        self.task
    }

    pub(super) const fn tree(&self) -> &ProcessTree {
        &self.tree
    }

    pub(super) fn is_program(&self, pid: Pid) -> bool {
        self.program == Some(pid)
    }

    /// Takes a program that another process has started as a child of this one.
    pub(super) fn adopt(&mut self, program: Pid) {
        self.program = Some(program);
    }

    /// From now on measures the program, and what it starts, without its forks.
    pub(super) fn watch_alone(&mut self, program: i32) -> io::Result<()> {
        self.tree.keep_to_namespace_of(program)
    }

    /// Limits the processes of a template that has so many forks.
    pub(super) fn limit_forks(&self, forks: u64) -> io::Result<()> {
        let Some(program) = self.program else { return Ok(()) };
        Ok(limits::with_forks(program, &self.order.plan.limits, forks)?)
    }

    pub(super) const fn failure(&self, error: io::Error) -> JobFailure {
        JobFailure { error, has_begun: self.has_begun }
    }
}

impl SandboxInit<'_> {
    /// Starts the program, and gives it its job.
    fn serve(&mut self, daemon: &mut UnixStream, program: &ProgramSpec, stdin: File) -> io::Result<Report> {
        if self.order.plan.waits {
            let pipes = self.start(program, &stdin, None)?;
            drop(stdin);
            if Self::wait_until_ready(daemon, &pipes)? {
                wire::send(daemon, &HelperMessage::Ready)?;
                if !self.wait_for_job(daemon)? {
                    return Ok(None);
                }
            }
            return self.run_waiting(daemon, &pipes);
        }
        let Some(job) = self.take_job(daemon)? else { return Ok(None) };
        let (head, stdin) = match job {
            Ok(job) => job,
            Err(unplaced) => {
                wire::send(daemon, &HelperMessage::Unplaced(unplaced))?;
                return Ok(None);
            }
        };
        let pipes = self.start(program, &stdin, None)?;
        self.has_begun = true;
        self.limit(&head)?;
        self.attend(daemon, &head, &pipes)
    }

    /// Starts the program. A template gets the socket for its requests in place of the pipe for its job.
    pub(super) fn start(
        &mut self,
        program: &ProgramSpec,
        stdin: &File,
        requests: Option<OwnedFd>,
    ) -> io::Result<ProgramPipes> {
        let (go, tell_go) = pipe_with(PipeFlags::CLOEXEC)?;
        let go = requests.unwrap_or(go);
        let (ready, tell_ready) = pipe_with(PipeFlags::CLOEXEC)?;
        let (progress, tell_progress) = pipe_with(PipeFlags::CLOEXEC)?;
        let (failure, tell_failure) = pipe_with(PipeFlags::CLOEXEC)?;
        let pipes = [go.as_fd(), tell_ready.as_fd(), tell_progress.as_fd()];
        let started =
            process::start(|| start::run(self.task, program, &self.work, stdin, pipes, tell_failure.as_fd()))?;
        self.program = Some(started);
        drop((go, tell_ready, tell_progress, tell_failure));
        // Its output must end with it, and not with this process.
        let nowhere = File::options().write(true).open("/dev/null")?;
        stdio::dup2_stdout(&nowhere)?;
        stdio::dup2_stderr(&nowhere)?;
        let mut text = String::new();
        // The pipe closes empty when the program begins.
        File::from(failure).take(4096).read_to_string(&mut text)?;
        if text.is_empty() { Ok(ProgramPipes::new(tell_go, ready, progress)) } else { Err(io::Error::other(text)) }
    }

    /// Waits until the program has ended, by itself or because of a limit, or is done with its job and stays. Ends all its
    /// other processes.
    pub(super) fn attend(
        &mut self,
        daemon: &mut UnixStream,
        head: &JobHeader,
        pipes: &ProgramPipes,
    ) -> io::Result<Report> {
        let Some(program) = self.program else { return Ok(None) };
        let begun = now();
        let deadline = begun + Duration::from_millis(head.time_ms);
        self.deadline = Some(deadline);
        let exited = pidfd_open(program, PidfdFlags::empty())?;
        let (mut peak, mut next_disk) = (0, begun + DISK_LOOK);
        let mut progress = ProgressPipe { next: begun, is_open: true };
        let mut is_done = false;
        let mut ending = loop {
            let time = now();
            if deadline <= time {
                break Ending::Stopped(Stop::Time);
            }
            let [young, old] = LOOKS;
            // A cgroup limits memory by itself.
            let look = match self.task.cgroup {
                None if self.is_changing => BRIEF_LOOK,
                None if time - begun < YOUTH => young,
                _ => old,
            };
            let patience = look.min(deadline - time);
            let lifeline = self.task.lifeline.as_fd();
            // Another one that says nothing, where a descriptor is of no interest.
            let of_interest = |is_it, fd| if is_it { (fd, PollFlags::IN) } else { (lifeline, PollFlags::empty()) };
            let waited_for = [
                (daemon.as_fd(), PollFlags::IN),
                (exited.as_fd(), PollFlags::IN),
                (lifeline, PollFlags::empty()),
                of_interest(head.stays, pipes.ready()),
                of_interest(progress.is_due(time), pipes.progress()),
            ];
            let [said, ended, is_orphan, reported, has_progress] = ready_of(waited_for, Some(patience))?;
            if is_orphan {
                return Ok(None);
            }
            if has_progress && let Some(line) = progress.read(pipes)? {
                wire::send(daemon, &HelperMessage::Progress(line))?;
            }
            if reported && head.stays {
                if let Some(code) = pipes.report()? {
                    is_done = true;
                    break Ending::Exited(code.into());
                }
                // It has closed its end, mostly because it is ending. Otherwise it could not report any more.
                let [is_ending] = ready_of([(exited.as_fd(), PollFlags::IN)], Some(CLOSING))?;
                if !is_ending {
                    break Ending::Signalled(Signal::KILL.as_raw());
                }
            }
            if let Some(status) = reap(program)? {
                // Its number may be another process's from now on.
                self.program = None;
                break self.ending_of(status);
            }
            if said {
                match wire::receive::<DaemonMessage>(daemon) {
                    Ok(Some(DaemonMessage::Stop(stop))) => break Ending::Stopped(stop),
                    _ => return Ok(None),
                }
            }
            if ended {
                continue;
            }
            let used = self.used();
            peak = peak.max(used.memory);
            if let Some(stop) = self.exceeded(&used, head) {
                break Ending::Stopped(stop);
            }
            if let Some(folder) = self.task.folder.filter(|_| next_disk <= time) {
                if is_full(folder, program, self.order) {
                    break Ending::Stopped(Stop::Disk);
                }
                next_disk = now() + DISK_LOOK;
            }
        };
        self.deadline = None;
        let mut stays = is_done && matches!(ending, Ending::Exited(_)) && self.stop(program);
        let mut cpu_us = 0;
        if stays {
            let used = self.used();
            (peak, cpu_us) = (peak.max(used.memory), used.cpu_ms * 1000);
            let is_full = self.task.folder.is_some_and(|folder| is_full(folder, program, self.order));
            if let Some(stop) = self.exceeded(&used, head).or(is_full.then_some(Stop::Disk)) {
                (ending, stays) = (Ending::Stopped(stop), false);
            }
        }
        if let Some(line) = progress.read_last(pipes)? {
            wire::send(daemon, &HelperMessage::Progress(line))?;
        }
        if self.is_out_of_memory() {
            // The kernel may see it between two looks.
            peak = peak.max(cgroup::most(&self.order.plan.limits));
        }
        let mut usage = Usage { cpu_us, peak_memory: peak };
        if !stays {
            self.kill();
            let of_all = usage::of_children();
            usage = Usage { cpu_us: of_all.cpu_us, peak_memory: of_all.peak_memory.max(peak) };
        }
        usage.cpu_us = usage.cpu_us.saturating_sub(self.before.cpu_ms * 1000);
        let given: Vec<&str> = head.inputs.iter().map(|(name, _)| name.as_str()).collect();
        let CollectedFiles { artifacts, left_out, not_returned } =
            CollectedFiles::since(&self.work, self.order.plan.limits.artifacts, &given, &mut self.before.files);
        (self.before.cpu_ms, self.before.looked_at) = (cpu_us / 1000, Some(now()));
        let (artifacts, bytes) =
            artifacts.into_iter().map(|file| ((file.name, file.bytes.len() as u64), file.bytes)).unzip();
        Ok(Some((RunReport { ending, usage, artifacts, left_out, not_returned, stays }, bytes)))
    }

    /// Whether the program cannot have children: without namespaces, the seccomp filter refuses to start processes.
    pub(super) fn is_alone(&self) -> bool {
        self.order.layers.seccomp && !self.order.layers.namespaces
    }

    /// The program, if it cannot have children.
    fn alone(&self) -> Option<Pid> {
        self.program.filter(|_| self.is_alone())
    }

    /// Kills what is left of the program, and waits for it.
    pub(super) fn kill(&mut self) {
        match self.program.take() {
            Some(program) if self.is_alone() => {
                // Not reaped yet, so that the number is its own.
                let _ = kill_process(program, Signal::KILL);
            }
            None if self.is_alone() => {}
            _ => self.tree.kill(),
        }
        while !matches!(wait(WaitOptions::empty()), Err(Errno::CHILD)) {}
    }

    pub(super) fn used(&mut self) -> ProcessUsage {
        let mut used = self.tree.used(self.alone());
        let limit = self.order.plan.limits.memory;
        let sockets = match self.task.cgroup {
            Some(_) => 0,
            None => self.tree.socket_buffers(self.alone(), self.order.layers.namespaces && !self.order.plan.network),
        };
        if used.memory + sockets > limit && !self.is_alone() {
            used.memory = self.proportional_memory();
        }
        used.memory += sockets;
        used.cpu_ms = match self.task.cgroup.and_then(CgroupFiles::cpu_ms) {
            Some(cpu_ms) => cpu_ms,
            None => self.seen_cpu_ms(&mut used),
        };
        used
    }

    /// Resident memory of all processes, as of the last few milliseconds: all page tables are read for it.
    fn proportional_memory(&mut self) -> u64 {
        let [young, _] = LOOKS;
        if let Some((at, memory)) = self.proportional
            && now() - at < young
        {
            return memory;
        }
        // Twice: of processes that end while they are looked at, the others show a greater share.
        let memory = self.tree.proportional_memory(self.deadline).min(self.tree.proportional_memory(self.deadline));
        self.proportional = Some((now(), memory));
        memory
    }

    /// CPU time of all processes, as far as it can be seen without a cgroup.
    fn seen_cpu_ms(&mut self, used: &mut ProcessUsage) -> u64 {
        let newest = self.tree.newest();
        self.is_changing = self.newest.is_some_and(|before| newest != Some(before)) && !self.is_alone();
        self.newest = newest;
        for (pid, own) in &mut used.own_cpu_us {
            *own = self.tree.scheduled_us(*pid).map_or(*own, |scheduled| scheduled.max(*own));
        }
        // Of a template, forks are children of this process.
        let of_ended = if self.tree.is_of_one_namespace() { 0 } else { usage::of_children().cpu_us / 1000 };
        (used.cpu_ms + of_ended).max(self.seen.update(std::mem::take(&mut used.own_cpu_us)) / 1000)
    }

    /// The limit that the program exceeds, if its CPU time is limited to so much.
    pub(super) fn exceeded_so_far(&mut self, cpu_ms: u64) -> Option<Stop> {
        let used = self.used();
        self.exceeded(&used, &JobHeader { cpu_ms, ..JobHeader::default() })
    }

    fn exceeded(&self, used: &ProcessUsage, head: &JobHeader) -> Option<Stop> {
        let limits = &self.order.plan.limits;
        if used.memory > limits.memory || used.locks > MOST_LOCKS || self.is_out_of_memory() {
            Some(Stop::Memory)
        } else if used.cpu_ms > self.before.cpu_ms + head.cpu_ms {
            Some(Stop::Cpu)
        } else if used.tasks > limits.processes.saturating_add(1) {
            Some(Stop::Processes)
        } else {
            None
        }
    }

    pub(super) fn is_out_of_memory(&self) -> bool {
        self.task.cgroup.is_some_and(CgroupFiles::is_out_of_memory)
    }

    fn ending_of(&self, status: WaitStatus) -> Ending {
        match (status.exit_status(), status.terminating_signal()) {
            (_, Some(signal)) if signal == Signal::XCPU.as_raw() => Ending::Stopped(Stop::Cpu),
            (_, Some(signal)) if signal == Signal::KILL.as_raw() && self.is_out_of_memory() => {
                Ending::Stopped(Stop::Memory)
            }
            (_, Some(signal)) => Ending::Signalled(signal),
            (Some(code), None) => Ending::Exited(code),
            (None, None) => Ending::Exited(-1),
        }
    }
}

/// Reads what a program writes on its progress.
struct ProgressPipe {
    /// When it is read next.
    next: Instant,
    is_open: bool,
}

impl ProgressPipe {
    fn is_due(&self, time: Instant) -> bool {
        self.is_open && self.next <= time
    }

    /// Reads what is there; waits if nothing is. Returns the last whole line of it.
    fn read(&mut self, pipes: &ProgramPipes) -> io::Result<Option<String>> {
        let mut part = vec![0; PROGRESS_PART];
        let length = rustix::io::read(pipes.progress(), &mut part)?;
        self.is_open = length > 0;
        self.next = now() + PROGRESS_PERIOD;
        let text = String::from_utf8_lossy(part.get(..length).unwrap_or_default());
        let line = text.rsplit_once('\n').map(|(lines, _)| lines.rsplit('\n').next().unwrap_or_default());
        Ok(line.filter(|line| !line.is_empty() && line.len() <= LONGEST_LINE).map(str::to_owned))
    }

    /// Reads what the program has left, if anything.
    fn read_last(&mut self, pipes: &ProgramPipes) -> io::Result<Option<String>> {
        let [is_there] = ready_of([(pipes.progress(), PollFlags::IN)], Some(Duration::ZERO))?;
        if self.is_open && is_there { self.read(pipes) } else { Ok(None) }
    }
}

/// Whether a work folder on disk holds too much.
pub(super) fn is_full(folder: &WorkFolder, program: Pid, order: &SandboxSpec) -> bool {
    let limits = &order.plan.limits;
    let size = folder.size(limits.files);
    let unlinked = || usage::unlinked_bytes(program, folder.path(), limits.file_size);
    size.files > limits.files || size.bytes > limits.disk || size.bytes + unlinked() > limits.disk
}

/// Reaps ended children. Returns the status of `program`, if it has ended.
fn reap(program: Pid) -> io::Result<Option<WaitStatus>> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == program => return Ok(Some(status)),
            Ok(Some(_)) => {}
            Ok(None) | Err(Errno::CHILD) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until one of the descriptors is ready, or `patience` has passed. Returns which are ready.
pub(super) fn ready_of<const N: usize>(
    waited_for: [(BorrowedFd<'_>, PollFlags); N],
    patience: Option<Duration>,
) -> io::Result<[bool; N]> {
    let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
    let mut all = waited_for.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
    match poll(&mut all, patience.as_ref()) {
        Ok(_) => Ok(all.each_ref().map(|one| !one.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; N]),
        Err(error) => Err(error.into()),
    }
}
