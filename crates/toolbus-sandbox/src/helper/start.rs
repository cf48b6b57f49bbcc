//! Confines a process and executes the program in it.

use std::fs::File;
use std::io::{self, Read, Seek as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, IntoRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Gid, MemfdFlags, OFlags, Uid, fcntl_setfl, memfd_create};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use rustix::stdio::dup2_stdin;
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

use super::init::Task;
use super::work_folder::{HOME, JOB, OUT, TEMPORARY};
use super::{landlock, limits};
use crate::wire::{GO, PROGRESS, ProgramSpec, READY};

/// The init process's ends of the pipes between it and the program.
pub(super) struct ProgramPipes {
    go: File,
    ready: File,
    progress: OwnedFd,
}

impl ProgramPipes {
    pub(super) fn new(go: OwnedFd, ready: OwnedFd, progress: OwnedFd) -> Self {
        Self { go: go.into(), ready: ready.into(), progress }
    }

    pub(super) fn progress(&self) -> BorrowedFd<'_> {
        self.progress.as_fd()
    }

    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// The byte with which the program reports that it is ready, or done; `None` if it closed its end instead.
    pub(super) fn report(&self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        Ok(((&self.ready).read(&mut byte)? == 1).then_some(byte[0]))
    }

    /// Reads what a program has reported that is not waited for.
    pub(super) fn forget_reports(&self) -> io::Result<()> {
        fcntl_setfl(&self.ready, OFlags::NONBLOCK)?;
        while matches!((&self.ready).read(&mut [0; 64]), Ok(1..)) {}
        Ok(fcntl_setfl(&self.ready, OFlags::empty())?)
    }

    /// Signals that the job is there. Succeeds also if the program has ended.
    pub(super) fn go(&self) -> io::Result<()> {
        match (&self.go).write_all(&[0]) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }
}

/// A standard input of so many bytes, which follow.
pub(super) fn stdin(daemon: &mut impl Read, length: u64) -> io::Result<File> {
    if length == 0 {
        return File::open("/dev/null");
    }
    let mut stdin = File::from(memfd_create("stdin", MemfdFlags::CLOEXEC)?);
    copy(daemon, &mut stdin, length)?;
    stdin.rewind()?;
    Ok(stdin)
}

/// Copies exactly `length` bytes.
pub(super) fn copy(from: &mut impl Read, to: &mut File, length: u64) -> io::Result<()> {
    match io::copy(&mut from.take(length), to)? {
        copied if copied == length => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Confines this process and executes the program; returns if that fails. It may use the memory of the process that
/// started it until then ([`super::process::start`]).
pub(super) fn run(
    task: &Task<'_>,
    program: &ProgramSpec,
    work: &Path,
    stdin: &File,
    pipes: [BorrowedFd<'_>; 3],
    failure: BorrowedFd<'_>,
) {
    // Above the numbers of the pipes.
    if let Ok(failure) = fcntl_dupfd_cloexec(failure, PROGRESS + 1) {
        let Err(error) = become_program(task, program, work, stdin, pipes);
        let _ = File::from(failure).write_all(error.to_string().as_bytes());
    }
}

enum Never {}

fn become_program(
    task: &Task<'_>,
    program: &ProgramSpec,
    work: &Path,
    stdin: &File,
    pipes: [BorrowedFd<'_>; 3],
) -> Result<Never, io::Error> {
    let order = task.order;
    let plan = &order.plan;
    setsid()?;
    if let Some(cgroup) = task.cgroup {
        cgroup.join().map_err(naming("its cgroup"))?;
    }
    dup2_stdin(stdin)?;
    let mut command = Command::new(&program.program);
    command.args(&program.args).env_clear().envs(&program.env);
    let home = work.join(HOME);
    command.env("HOME", &home).env("TMPDIR", work.join(TEMPORARY));
    command.env("TOOLBUS_OUTPUT", work.join(OUT)).env("TOOLBUS_JOB", work.join(JOB));
    command.env("TOOLBUS_PROGRESS_FD", PROGRESS.to_string());
    std::env::set_current_dir(&home)?;
    hand_over(pipes, plan.waits || plan.forks)?;

    let has_namespaces = order.layers.namespaces;
    // The first thread of the program; and the init process, which is of the same user in a namespace.
    let free = match (has_namespaces, order.user) {
        (true, _) => Some(2),
        (false, Some(_)) => Some(1),
        (false, None) => None,
    };
    limits::apply(&plan.limits, free, plan.forks).map_err(naming("limits"))?;
    if let (false, Some(user)) = (has_namespaces, order.user) {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)?;
    }
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let nothing = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing })?;
    set_no_new_privs(true)?;
    if plan.forks {
        // Its forks apply the rules for files: each has another work folder.
        landlock::restrict_but_for_files(plan).map_err(naming("Landlock"))?;
    } else if order.layers.landlock {
        landlock::restrict(plan, work, task.cgroup.is_some()).map_err(naming("Landlock"))?;
    }
    if order.layers.seccomp {
        task.filters.apply().map_err(naming("seccomp"))?;
    }
    Err(naming("the program")(command.exec()))
}

/// Gives the pipes the numbers that the program expects, the first two only if it waits; nothing else is inherited.
fn hand_over(pipes: [BorrowedFd<'_>; 3], waits: bool) -> io::Result<()> {
    // To higher numbers first, so that none replaces another.
    let pipes = pipes.map(|pipe| fcntl_dupfd_cloexec(pipe, PROGRESS + 1));
    for (pipe, at) in pipes.into_iter().zip([GO, READY, PROGRESS]) {
        let pipe = pipe?;
        if waits || at == PROGRESS {
            place(pipe, at)?;
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "file descriptors with numbers that were agreed on")]
fn place(pipe: OwnedFd, at: i32) -> io::Result<()> {
    use std::os::fd::FromRawFd as _;
    // SAFETY: a descriptor with this number belongs to this process, which executes another program and uses it no more.
    let mut target = unsafe { OwnedFd::from_raw_fd(at) };
    rustix::io::dup2(&pipe, &mut target)?;
    fcntl_setfd(&target, FdFlags::empty())?;
    let _ = target.into_raw_fd();
    Ok(())
}

pub(super) fn naming(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}
