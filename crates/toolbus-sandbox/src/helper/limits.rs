//! Limits that the kernel keeps for each process.

use std::io;

use rustix::process::{Pid, Resource, Rlimit, prlimit, setrlimit};

use crate::plan::Limits;

/// Address space beyond four times the memory: interpreters reserve more than they use.
const SPARE_ADDRESSES: u64 = 1024 * 1024 * 1024;
/// Largest stack.
const STACK: u64 = 64 * 1024 * 1024;

/// A size of core files at which there are none: a program of the system that takes them (`core_pattern`) is started at
/// zero bytes, and not at one.
const NO_CORE: u64 = 1;

/// Keeps this process, and those that it starts, from leaving a core file, and from having the system look at one.
pub(super) fn no_core() -> io::Result<()> {
    let none = Rlimit { current: Some(NO_CORE), maximum: Some(NO_CORE) };
    // From zero up, only who is privileged may go.
    setrlimit(Resource::Core, none).map_err(io::Error::from).or_else(|_| lower(Resource::Core, NO_CORE))
}

/// Limits this process, and those that it starts. `counts_processes`: whether nobody else's count as this user's.
pub(super) fn apply(limits: &Limits, counts_processes: bool) -> io::Result<()> {
    let addresses = limits.memory.saturating_mul(4).saturating_add(SPARE_ADDRESSES);
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
    if counts_processes {
        lower(Resource::Nproc, limits.processes)?;
    }
    Ok(())
}

/// Limits the processor time of a program that runs already, a little above what the watchdog allows: so that it is
/// ended even where nobody looks.
pub(super) fn cpu(program: Pid, milliseconds: u64) -> rustix::io::Result<()> {
    let soft = milliseconds.div_ceil(1000) + 1;
    // The hard limit is greater, so that SIGXCPU tells what happened.
    let limit = Rlimit { current: Some(soft), maximum: Some(soft + 1) };
    prlimit(Some(program), Resource::Cpu, limit)?;
    Ok(())
}

/// Never raises what the daemon itself may use.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let most = rustix::process::getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}
