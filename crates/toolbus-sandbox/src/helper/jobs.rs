//! Jobs: how a program gets its own, and, if it is kept, one after another.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, fchown, open, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::init::{Report, SandboxInit, is_full, ready_of, send_report};
use super::limits;
use super::start::{self, ProgramPipes, copy};
use super::work_folder::{HOME, JOB};
use crate::now;
use crate::outcome::Unplaced;
use crate::removal::{self, FOLDER};
use crate::wire::{self, DaemonMessage, HelperMessage, JobHeader};

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
            match self.take_job(daemon)? {
                None => return Ok(None),
                Some(Ok((head, _))) => {
                    self.limit(&head)?;
                    self.has_begun = true;
                    self.go_on(pipes)?;
                    match self.attend(daemon, &head, pipes)? {
                        Some((report, bytes)) if report.stays => send_report(daemon, &report, &bytes)?,
                        report => return Ok(report),
                    }
                    // Nothing of another one.
                    self.has_begun = false;
                }
                Some(Err(unplaced)) => {
                    wire::send(daemon, &HelperMessage::Unplaced(unplaced))?;
                    if self.before.looked_at.is_none() {
                        // It has nothing that would be lost.
                        return Ok(None);
                    }
                }
            }
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

    /// Waits for the job and puts its files in place. Returns it with its standard input, or why they cannot be there.
    pub(super) fn take_job(&self, daemon: &mut UnixStream) -> io::Result<Option<Result<(JobHeader, File), Unplaced>>> {
        let Some(DaemonMessage::Job(head)) = wire::receive(daemon)? else { return Ok(None) };
        let length: u64 = head.files.iter().chain(&head.inputs).map(|(_, length)| length).sum();
        let mut bytes = daemon.take(length + head.stdin);
        if let Some(unplaced) = self.place(&head, &mut bytes)? {
            // Another job may follow.
            io::copy(&mut bytes, &mut io::sink())?;
            return Ok(Some(Err(unplaced)));
        }
        let stdin = start::stdin(&mut bytes, head.stdin)?;
        Ok(Some(Ok((head, stdin))))
    }

    /// Puts the files of a job in place. Inputs that do not fit are removed again.
    fn place(&self, head: &JobHeader, bytes: &mut impl Read) -> io::Result<Option<Unplaced>> {
        let [job, home] = [JOB, HOME].map(|part| open(self.work.join(part), FOLDER, Mode::empty()));
        let (job, home) = (job?, home?);
        let is_later = self.before.looked_at.is_some();
        let is_folder = |name: &str| is_later && removal::is_folder(&home, name.as_bytes()).unwrap_or(false);
        if let Some((name, _)) = head.inputs.iter().find(|(name, _)| is_folder(name)) {
            return Ok(Some(Unplaced::IsFolder(name.clone())));
        }
        let files = head.files.iter().map(|file| (false, file));
        let mut placed = Vec::new();
        let put =
            files.chain(head.inputs.iter().map(|file| (true, file))).try_for_each(|(is_input, (name, length))| {
                let folder = if is_input { &home } else { &job };
                placed.extend(is_input.then_some(name));
                if is_later {
                    // Of the job before.
                    let _ = unlinkat(folder, name.as_str(), AtFlags::empty());
                }
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let file = openat(folder, name.as_str(), flags, Mode::from_raw_mode(0o644))?;
                if is_input && !self.order.layers.namespaces {
                    // Without namespaces this process is not the program's user, which may write to what it is given.
                    let (user, group) = (self.order.user.map(Uid::from_raw), self.order.user.map(Gid::from_raw));
                    fchown(&file, user, group)?;
                }
                copy(bytes, &mut File::from(file), *length)
            });
        let is_full = match (&put, self.task.folder, self.program) {
            // A disk that is full is not the job's fault.
            (Err(error), None, _) => error.kind() == io::ErrorKind::StorageFull,
            (Ok(()), Some(folder), Some(program)) => is_later && is_full(folder, program, self.order),
            _ => false,
        };
        if !is_full {
            return put.map(|()| None);
        }
        for name in placed {
            let _ = unlinkat(&home, name.as_str(), AtFlags::empty());
        }
        Ok(Some(Unplaced::NoRoom))
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
