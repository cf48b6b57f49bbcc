//! Resource limits of the kernel for each process (rlimits).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::{Pid, Resource, Rlimit, geteuid, prlimit, setrlimit};

use crate::plan::Limits;

const MIB: u64 = 1024 * 1024;
/// Address space in addition to four times the memory: interpreters reserve more than they use.
const SPARE_ADDRESSES: u64 = 1024 * MIB;
/// Largest stack of the first thread, and the size of that of every other one, which is reserved as a whole.
const STACK: u64 = 8 * MIB;
/// Size that glibc reserves for the heap of a thread.
const THREAD_HEAP: u64 = 64 * MIB;
/// Number of programs of one user that may have all of their threads at a time.
const OF_OTHERS: u64 = 8;

/// Processes that a template may be allowed later: those of its forks count for its user, too.
const OF_FORKS: u64 = 1 << 20;

/// Largest core file: one byte means none. At zero bytes the system's handler (`core_pattern`) would still be started.
const NO_CORE: u64 = 1;

/// Disables core files, and the system's handler for them, for this process and those that it starts.
pub(super) fn no_core() -> io::Result<()> {
    let none = Rlimit { current: Some(NO_CORE), maximum: Some(NO_CORE) };
    // Raising it from zero needs a privilege.
    setrlimit(Resource::Core, none).map_err(io::Error::from).or_else(|_| lower(Resource::Core, NO_CORE))
}

/// Limits this process and those that it starts. `free`: processes of the program's user that its limit does not count;
/// `None` if that user may run any others. `forks`: whether the program is a template, of which [`with_forks`] raises the
/// limit of processes.
pub(super) fn apply(limits: &Limits, free: Option<u64>, forks: bool) -> io::Result<()> {
    let of_threads = limits.processes.saturating_mul(STACK + THREAD_HEAP);
    let addresses = limits.memory.saturating_mul(4).saturating_add(SPARE_ADDRESSES).saturating_add(of_threads);
    for (resource, most) in [
        (Resource::As, addresses),
        (Resource::Core, NO_CORE),
        (Resource::Fsize, limits.file_size),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
        (Resource::Nice, 0),
        (Resource::Nofile, limits.open_files),
        (Resource::Rtprio, 0),
        (Resource::Sigpending, 1024),
        (Resource::Stack, STACK),
    ] {
        lower(resource, most)?;
    }
    match free {
        Some(free) if forks => {
            Ok(setrlimit(Resource::Nproc, of_template(limits.processes.saturating_add(free), limits))?)
        }
        Some(free) => lower(Resource::Nproc, limits.processes.saturating_add(free)),
        None => Ok(()),
    }
}

/// Limits the processes and threads of a template to those that so many forks may have, and as many of its own.
pub(super) fn with_forks(template: Pid, limits: &Limits, forks: u64) -> rustix::io::Result<()> {
    let each = limits.processes.saturating_add(2);
    prlimit(Some(template), Resource::Nproc, of_template(each.saturating_mul(forks.saturating_add(1)), limits))?;
    Ok(())
}

/// A limit of processes for a template, which can be raised later without a privilege.
fn of_template(most: u64, limits: &Limits) -> Rlimit {
    let maximum = limits.processes.saturating_add(OF_FORKS);
    let maximum = rustix::process::getrlimit(Resource::Nproc).maximum.map_or(maximum, |own| own.min(maximum));
    Rlimit { current: Some(most.min(maximum)), maximum: Some(maximum) }
}

/// Limits the processes and threads of a program that another process has limited otherwise. `free`: as for [`apply`].
pub(super) fn processes(program: Pid, limits: &Limits, free: u64) -> rustix::io::Result<()> {
    let most = Some(limits.processes.saturating_add(free));
    prlimit(Some(program), Resource::Nproc, Rlimit { current: most, maximum: most })?;
    Ok(())
}

/// Limits the CPU time of a running program, a little above the limit of the init process, as a second safeguard.
/// `stays`: whether the limit is raised later, for another job.
pub(super) fn cpu(program: Pid, milliseconds: u64, stays: bool) -> rustix::io::Result<()> {
    let soft = milliseconds.div_ceil(1000) + 1;
    // The hard limit is greater, so that the program ends by SIGXCPU.
    let limit = Rlimit { current: Some(soft), maximum: (!stays).then_some(soft + 1) };
    prlimit(Some(program), Resource::Cpu, limit)?;
    Ok(())
}

/// Limits the processes and threads of a running program whose user runs others, too: what that user has now, and several
/// times `most`, because others begin and end meanwhile. The program is measured besides.
pub(super) fn tasks(program: Pid, most: u64) -> rustix::io::Result<()> {
    let most = most.saturating_mul(OF_OTHERS).saturating_add(tasks_of_user());
    prlimit(Some(program), Resource::Nproc, Rlimit { current: Some(most), maximum: Some(most) })?;
    Ok(())
}

/// Processes and threads of this process's user.
fn tasks_of_user() -> u64 {
    let own = geteuid().as_raw();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    let own = processes.filter(|entry| entry.metadata().is_ok_and(|found| found.uid() == own));
    own.map(|entry| entry.path().join("task").metadata().map_or(1, |tasks| tasks.nlink().saturating_sub(2))).sum()
}

/// Sets a limit, and never raises one.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let most = rustix::process::getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}
