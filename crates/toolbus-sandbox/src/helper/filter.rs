//! The filter of system calls: what is not listed is refused with `EPERM`.
//!
//! The list holds what an interpreter and common programs need to compute, to work with their own files and to talk to
//! their own children. Left out on purpose: modes, owners, times and attributes of files by which Landlock does not go;
//! signals to others; sockets; everything that changes the system, and every younger interface to the kernel.

mod calls;

use std::collections::BTreeMap;
use std::io;

use rustix::process::getpid;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use crate::plan::Plan;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Flags of clone(2) that make namespaces.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
/// The part of a socket's type that is no flag.
const SOCKET_TYPE: u64 = 0xf;
/// Parts of fcntl(2) that concern nobody else.
const FCNTL: [i32; 13] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
    libc::F_GETPIPE_SZ,
];
/// Parts of ioctl(2) that ask about files and pipes.
const IOCTL: [u64; 6] = [
    libc::FIONREAD as _,
    libc::FIONBIO as _,
    libc::FIOCLEX as _,
    libc::FIONCLEX as _,
    libc::TCGETS as _,
    libc::TIOCGWINSZ as _,
];
/// Parts of prctl(2) that name threads and memory.
const PRCTL: [i32; 3] = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA];

/// Filters that were made before they are needed.
pub(super) struct Filters {
    arch: TargetArch,
    absent: BpfProgram,
    /// For most programs: without the network, and without what [`Plan::metadata`] allows.
    common: [BpfProgram; 2],
}

impl Filters {
    /// Makes them.
    pub(super) fn prepare() -> io::Result<Self> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(failed)?;
        // Its flags are behind a pointer, which no filter can follow; libraries use clone(2) where it is not there.
        let absent = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let absent = compile(arch, absent, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS.unsigned_abs()))?;
        let common = |has_namespaces| allow(arch, Shape { has_namespaces, metadata: false, network: false });
        Ok(Self { arch, absent, common: [common(false)?, common(true)?] })
    }

    /// Applies what a plan asks for to this process and all that it becomes or starts. `has_namespaces`: whether it sees
    /// no processes but its own, and may have some.
    pub(super) fn apply(&self, plan: &Plan, has_namespaces: bool) -> io::Result<()> {
        let shape = Shape { has_namespaces, metadata: has_namespaces && plan.metadata, network: plan.network };
        apply_filter(&self.absent).map_err(failed)?;
        if !has_namespaces {
            apply_filter(&self.signals()?).map_err(failed)?;
        }
        let [alone, with_namespaces] = &self.common;
        match shape {
            Shape { metadata: false, network: false, has_namespaces: false } => apply_filter(alone),
            Shape { metadata: false, network: false, has_namespaces: true } => apply_filter(with_namespaces),
            shape => apply_filter(&allow(self.arch, shape)?),
        }
        .map_err(failed)
    }

    /// Refuses signals to any process but this one.
    fn signals(&self) -> io::Result<BpfProgram> {
        let own = u64::from(getpid().as_raw_nonzero().get().unsigned_abs());
        let other = SeccompCondition::new(0, Length::Dword, Is::Ne, own).map_err(failed)?;
        let other = SeccompRule::new(vec![other]).map_err(failed)?;
        let calls = [libc::SYS_kill, libc::SYS_tgkill].map(|call| (call, vec![other.clone()]));
        let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
        compile(self.arch, BTreeMap::from(calls), SeccompAction::Allow, refused)
    }
}

/// What filters differ in.
#[derive(Debug, Clone, Copy)]
struct Shape {
    has_namespaces: bool,
    metadata: bool,
    network: bool,
}

fn allow(arch: TargetArch, shape: Shape) -> io::Result<BpfProgram> {
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    compile(arch, rules(shape).map_err(failed)?, refused, SeccompAction::Allow)
}

fn compile(arch: TargetArch, rules: Rules, otherwise: SeccompAction, action: SeccompAction) -> io::Result<BpfProgram> {
    let filter = SeccompFilter::new(rules, otherwise, action, arch).map_err(failed)?;
    BpfProgram::try_from(filter).map_err(failed)
}

fn rules(shape: Shape) -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = calls::ALWAYS.iter().chain(calls::OF_ARCHITECTURE).map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_clone3, Vec::new());
    rules.insert(libc::SYS_fcntl, any(1, &FCNTL.map(|command| command as u64))?);
    rules.insert(libc::SYS_ioctl, any(1, &IOCTL)?);
    rules.insert(libc::SYS_prctl, any(0, &PRCTL.map(|option| option as u64))?);
    // Its own limits, and only to be read.
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![is(0, 0)?, is_pointer(2, 0)?])?]);
    // Streams only: a datagram could be sent to the socket of somebody else.
    let stream = SeccompCondition::new(1, Length::Dword, Is::MaskedEq(SOCKET_TYPE), libc::SOCK_STREAM as u64)?;
    rules.insert(libc::SYS_socketpair, vec![SeccompRule::new(vec![is(0, libc::AF_UNIX as u64)?, stream])?]);
    let no_namespaces = SeccompCondition::new(0, Length::Dword, Is::MaskedEq(NAMESPACES as u64), 0)?;
    if shape.has_namespaces {
        rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![no_namespaces])?]);
        rules.extend(calls::OF_FAMILIES.iter().map(|call| (*call, Vec::new())));
    } else {
        let thread = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
        let thread = SeccompCondition::new(0, Length::Dword, Is::MaskedEq(thread as u64), thread as u64)?;
        rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![no_namespaces, thread])?]);
        // To itself: another filter looks at whom they are for.
        rules.extend([libc::SYS_kill, libc::SYS_tgkill].map(|call| (call, Vec::new())));
    }
    if shape.metadata {
        rules.extend(calls::OF_METADATA.iter().map(|call| (*call, Vec::new())));
    }
    if shape.network {
        rules.extend(calls::OF_NETWORK.iter().map(|call| (*call, Vec::new())));
        let families = [libc::AF_INET, libc::AF_INET6].map(|family| family as u64);
        rules.insert(libc::SYS_socket, any(0, &families)?);
    }
    Ok(rules)
}

/// Rules of which one argument, of 32 bits, must be one of these.
fn any(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    values.iter().map(|value| SeccompRule::new(vec![is(argument, *value)?])).collect()
}

fn is(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, Length::Dword, Is::Eq, value)
}

fn is_pointer(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, Length::Qword, Is::Eq, value)
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}
