//! Jobs: how a program gets its own, and, if it is kept, one after another.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, fchown, open};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::init::{Report, SandboxInit, ready_of, send_report};
use super::limits;
use super::start::{self, ProgramPipes, copy};
use super::work_folder::{HOME, JOB};
use crate::now;
use crate::removal::FOLDER;
use crate::wire::{self, DaemonMessage, JobHeader};

/// Time between two looks at a program that is stopped between two jobs.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// CPU time that a program may use between two jobs, in milliseconds: what stops takes a moment.
const IDLE_CPU_MS: u64 = 500;
/// Time between two looks at the files of a program: a change in the tick of the clock in which the kernel noted the last
/// one is not seen.
const TICK: Duration = Duration::from_millis(12);

impl SandboxInit<'_> {
    /// Gives the program, which waits, its job, and those that follow if it stays.
    pub(super) fn run_waiting(&mut self, daemon: &mut UnixStream, pipes: &ProgramPipes) -> io::Result<Report> {
        loop {
            let Some((head, _)) = self.take_job(daemon)? else { return Ok(None) };
            self.limit(&head)?;
            self.has_begun = true;
            self.go_on(pipes)?;
            match self.attend(daemon, &head, pipes)? {
                Some((report, bytes)) if report.stays => send_report(daemon, &report, &bytes)?,
                report => return Ok(report),
            }
            // Nothing of another one.
            self.has_begun = false;
            if !self.wait_between_jobs(daemon)? {
                return Ok(None);
            }
        }
    }

    /// Waits until the program reports that it is ready; `false` if the daemon sent the job first.
    pub(super) fn wait_until_ready(daemon: &UnixStream, pipes: &ProgramPipes) -> io::Result<bool> {
        loop {
            let [has_job, said] = ready_of([(daemon.as_fd(), PollFlags::IN), (pipes.ready(), PollFlags::IN)], None)?;
            if has_job {
                return Ok(false);
            }
            if said {
                return match pipes.report()? {
                    Some(_) => Ok(true),
                    None => Err(io::Error::other("it ended before it was ready")),
                };
            }
        }
    }

    /// Waits for a message of the daemon, or its end; `false` if the watchdog has ended.
    ///
    /// # Errors
    ///
    /// If the program ends before that; the daemon then starts another one for the job.
    pub(super) fn wait_for_job(&self, daemon: &UnixStream) -> io::Result<bool> {
        let Some(program) = self.program else { return Ok(true) };
        let program = pidfd_open(program, PidfdFlags::empty())?;
        let lifeline = self.task.lifeline.as_fd();
        let waited_for =
            [(daemon.as_fd(), PollFlags::IN), (program.as_fd(), PollFlags::IN), (lifeline, PollFlags::empty())];
        loop {
            match ready_of(waited_for, None)? {
                [_, _, true] => return Ok(false),
                [true, ..] => return Ok(true),
                [false, true, _] => return Err(gone()),
                [false, false, _] => {}
            }
        }
    }

    /// Waits for the next job of a program that is stopped; `false` if the watchdog has ended.
    ///
    /// # Errors
    ///
    /// If the program ends before that, or does not stay stopped. It has not begun with another job.
    fn wait_between_jobs(&mut self, daemon: &UnixStream) -> io::Result<bool> {
        let Some(program) = self.program else { return Err(gone()) };
        let ended = pidfd_open(program, PidfdFlags::empty())?;
        loop {
            let lifeline = self.task.lifeline.as_fd();
            let waited_for =
                [(daemon.as_fd(), PollFlags::IN), (ended.as_fd(), PollFlags::IN), (lifeline, PollFlags::empty())];
            match ready_of(waited_for, Some(IDLE_LOOK))? {
                [_, _, true] => return Ok(false),
                [_, true, _] => return Err(gone()),
                [true, ..] => return Ok(true),
                [false, false, false] => {}
            }
            // A signal may have let it go on.
            let used = self.used();
            let is_idle = used.cpu_ms <= self.before.cpu_ms + IDLE_CPU_MS && !self.is_out_of_memory();
            if !is_idle || used.memory > self.order.plan.limits.memory || !self.stop(program) {
                return Err(io::Error::other("it went on between two jobs"));
            }
        }
    }

    /// Tells the program that a job is there, and lets it go on if it was stopped.
    fn go_on(&self, pipes: &ProgramPipes) -> io::Result<()> {
        if let (Some(program), Some(before)) = (self.program, self.before.looked_at) {
            ready_of::<0>([], Some(TICK.saturating_sub(now() - before)))?;
            pipes.forget_reports()?;
            ignore_refusal(kill_process(program, Signal::CONT))?;
        }
        pipes.go()
    }

    /// Stops the program, and kills what it has started. Returns whether that succeeded.
    pub(super) fn stop(&self, program: Pid) -> bool {
        if self.is_alone() { kill_process(program, Signal::STOP).is_ok() } else { self.tree.stop(program) }
    }

    /// Waits for the job and puts its files in place. Returns it with its standard input.
    pub(super) fn take_job(&self, daemon: &mut UnixStream) -> io::Result<Option<(JobHeader, File)>> {
        let Some(DaemonMessage::Job(head)) = wire::receive(daemon)? else { return Ok(None) };
        for (part, files) in [(JOB, &head.files), (HOME, &head.inputs)] {
            let folder = open(self.work.join(part), FOLDER, Mode::empty())?;
            for (name, length) in files {
                if self.before.looked_at.is_some() {
                    // Of the job before.
                    let _ = rustix::fs::unlinkat(&folder, name.as_str(), AtFlags::empty());
                }
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let file = rustix::fs::openat(&folder, name.as_str(), flags, Mode::from_raw_mode(0o644))?;
                if part == HOME && !self.order.layers.namespaces {
                    // Without namespaces this process is not the program's user, which may write to what it is given.
                    let (user, group) = (self.order.user.map(Uid::from_raw), self.order.user.map(Gid::from_raw));
                    fchown(&file, user, group)?;
                }
                copy(daemon, &mut File::from(file), *length)?;
            }
        }
        let stdin = start::stdin(daemon, head.stdin)?;
        Ok(Some((head, stdin)))
    }

    pub(super) fn limit(&self, head: &JobHeader) -> io::Result<()> {
        let Some(program) = self.program else { return Ok(()) };
        ignore_refusal(limits::cpu(program, self.before.cpu_ms + head.cpu_ms, head.stays))?;
        if self.before.looked_at.is_none() && !self.order.layers.namespaces && self.order.user.is_none() {
            ignore_refusal(limits::tasks(program, self.order.plan.limits.processes))?;
        }
        Ok(())
    }
}

/// A program that has ended already, or that this user may not limit, is limited by measurements alone.
fn ignore_refusal(limited: rustix::io::Result<()>) -> io::Result<()> {
    match limited {
        Err(Errno::SRCH | Errno::PERM) => Ok(()),
        limited => Ok(limited?),
    }
}

fn gone() -> io::Error {
    io::Error::other("it ended while it waited for its job")
}
