//! The seccomp filter: a system call that is not listed fails with `EPERM`.
//!
//! The list holds what an interpreter and common programs need to compute, to work with their own files and to talk to
//! their own children. Left out on purpose: modes, owners, times and attributes of files by which Landlock does not go;
//! signals to others; sockets; everything that changes the system, and every younger interface to the kernel.

use std::collections::BTreeMap;
use std::io;

use rustix::process::getpid;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is, SeccompCondition, SeccompRule,
    TargetArch, apply_filter,
};

use super::bpf::{SyscallRules, compile};
use crate::wire::FilterOptions;

/// Flags of clone(2) that make namespaces.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
/// Flags of clone(2) that are set together or not at all: descriptors that one process shares with another, or one
/// thread does not share with the others, are not where they are counted.
const SHARED_DESCRIPTORS: u64 = (libc::CLONE_FILES | libc::CLONE_THREAD) as u64;
/// The flag of close_range(2) by which a thread has descriptors of its own.
const UNSHARE: u64 = 1 << 1;
/// The part of a socket's type that is no flag.
const SOCKET_TYPE: u64 = 0xf;
/// Commands of fcntl(2) that affect only the process itself. Not locks of open files: one that travels between
/// processes is seen in none, and its locks hold memory that is not counted.
const FCNTL: [i32; 10] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_GETPIPE_SZ,
];
/// Requests of ioctl(2) about files and pipes.
const IOCTL: [u64; 6] = [
    libc::FIONREAD as _,
    libc::FIONBIO as _,
    libc::FIOCLEX as _,
    libc::FIONCLEX as _,
    libc::TCGETS as _,
    libc::TIOCGWINSZ as _,
];
/// Options of prctl(2) that name threads and memory.
const PRCTL: [i32; 3] = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA];

/// Options of prctl(2) by which forks of templates are confined.
const PRCTL_OF_TEMPLATES: [i32; 2] = [libc::PR_SET_DUMPABLE, libc::PR_SET_SECCOMP];
/// Calls by which forks of templates are confined.
const OF_TEMPLATES: [i64; 6] = [
    libc::SYS_setns,
    libc::SYS_setgroups,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_capset,
    libc::SYS_landlock_restrict_self,
];

/// Filters that are compiled before they are needed.
pub(super) struct Filters {
    arch: TargetArch,
    absent: BpfProgram,
    unsupported: BpfProgram,
    allowed: BpfProgram,
    /// Filter that a fork of a template adds: refuses what a template may do besides.
    of_fork: BpfProgram,
    options: FilterOptions,
}

/// Filters that [`Filters::apply`] adds where there are namespaces.
const FILTERS: u32 = 3;

impl Filters {
    /// Compiles what a program needs.
    pub(super) fn prepare(options: FilterOptions) -> io::Result<Self> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(failed)?;
        let has_namespaces = options.has_namespaces;
        // Their flags are behind pointers, which no filter can follow; libraries use the older calls where they are not
        // there.
        let absent = BTreeMap::from([(libc::SYS_clone3, Vec::new()), (libc::SYS_openat2, Vec::new())]);
        let error = |error: i32| SeccompAction::Errno(error.unsigned_abs());
        Ok(Self {
            arch,
            absent: compile(arch, absent, SeccompAction::Allow, error(libc::ENOSYS))?,
            unsupported: compile(
                arch,
                unsupported(has_namespaces).map_err(failed)?,
                SeccompAction::Allow,
                error(libc::EOPNOTSUPP),
            )?,
            allowed: compile(arch, rules(options).map_err(failed)?, error(libc::EPERM), SeccompAction::Allow)?,
            of_fork: if options.forks {
                compile(arch, of_templates().map_err(failed)?, SeccompAction::Allow, error(libc::EPERM))?
            } else {
                BpfProgram::new()
            },
            options,
        })
    }

    /// The filter that a fork of a template adds, as the kernel takes it.
    pub(super) fn of_fork(&self) -> Vec<u8> {
        let bytes = |it: &seccompiler::sock_filter| {
            let [c0, c1] = it.code.to_ne_bytes();
            let [k0, k1, k2, k3] = it.k.to_ne_bytes();
            [c0, c1, it.jt, it.jf, k0, k1, k2, k3]
        };
        self.of_fork.iter().flat_map(bytes).collect()
    }

    /// Returns the number of filters that a fork of a template has, beside those that this process has.
    pub(super) const fn count_of_fork() -> u32 {
        FILTERS + 1
    }

    /// Returns what the filters allow.
    pub(super) const fn options(&self) -> FilterOptions {
        self.options
    }

    /// Applies them to this process and all that it becomes or starts. With namespaces it sees no processes but its own,
    /// and may have some.
    pub(super) fn apply(&self) -> io::Result<()> {
        apply_filter(&self.absent).map_err(failed)?;
        apply_filter(&self.unsupported).map_err(failed)?;
        if !self.options.has_namespaces {
            apply_filter(&self.signals()?).map_err(failed)?;
        }
        apply_filter(&self.allowed).map_err(failed)
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

fn rules(shape: FilterOptions) -> Result<SyscallRules, seccompiler::BackendError> {
    let mut rules: SyscallRules = ALWAYS.iter().chain(OF_ARCHITECTURE).map(|call| (*call, Vec::new())).collect();
    // Refused by another filter, whose error is the one that programs expect.
    rules.extend([libc::SYS_clone3, libc::SYS_openat2].iter().chain(XATTR).map(|call| (*call, Vec::new())));
    rules.insert(libc::SYS_fcntl, any(1, &FCNTL.map(|command| command as u64))?);
    rules.insert(libc::SYS_ioctl, any(1, &IOCTL)?);
    let prctl = PRCTL.iter().chain(if shape.forks { &PRCTL_OF_TEMPLATES[..] } else { &[] });
    rules.insert(libc::SYS_prctl, any(0, &prctl.map(|option| *option as u64).collect::<Vec<_>>())?);
    if shape.forks {
        rules.extend(OF_TEMPLATES.iter().map(|call| (*call, Vec::new())));
    }
    // Its own limits, and only to be read.
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![is(0, 0)?, is_pointer(2, 0)?])?]);
    // Streams only: a datagram could be sent to the socket of another process.
    let stream = SeccompCondition::new(1, Length::Dword, Is::MaskedEq(SOCKET_TYPE), libc::SOCK_STREAM as u64)?;
    rules.insert(libc::SYS_socketpair, vec![SeccompRule::new(vec![is(0, libc::AF_UNIX as u64)?, stream])?]);
    if !shape.counts_all {
        // Memory that is shared and has no file stays when it is given back by all processes that show it.
        let shared = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u64;
        let kept = [0, libc::MAP_SHARED as u64, libc::MAP_ANONYMOUS as u64];
        let kept = kept.map(|flags| SeccompCondition::new(3, Length::Dword, Is::MaskedEq(shared), flags));
        let kept = kept.into_iter().map(|flags| SeccompRule::new(vec![flags?])).collect::<Result<_, _>>()?;
        rules.insert(libc::SYS_mmap, kept);
    }
    if !shape.counts_all && !shape.has_namespaces {
        // Sockets that travel in a message hold memory that no process shows.
        rules.remove(&libc::SYS_sendmsg);
    }
    let no_namespaces = SeccompCondition::new(0, Length::Dword, Is::MaskedEq(NAMESPACES as u64), 0)?;
    let shares = SeccompCondition::new(2, Length::Dword, Is::MaskedEq(UNSHARE), 0)?;
    rules.insert(libc::SYS_close_range, vec![SeccompRule::new(vec![shares])?]);
    if shape.has_namespaces {
        let shared = |flags| SeccompCondition::new(0, Length::Dword, Is::MaskedEq(SHARED_DESCRIPTORS), flags);
        let kinds = [0, SHARED_DESCRIPTORS].map(|flags| SeccompRule::new(vec![no_namespaces.clone(), shared(flags)?]));
        rules.insert(libc::SYS_clone, kinds.into_iter().collect::<Result<_, _>>()?);
        rules.extend(OF_FAMILIES.iter().map(|call| (*call, Vec::new())));
    } else {
        let thread = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_FILES;
        let thread = SeccompCondition::new(0, Length::Dword, Is::MaskedEq(thread as u64), thread as u64)?;
        rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![no_namespaces, thread])?]);
        // To itself: another filter looks at whom they are for.
        rules.extend([libc::SYS_kill, libc::SYS_tgkill].map(|call| (call, Vec::new())));
    }
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_creat, vec![SeccompRule::new(vec![without_set_id(1)?])?]);
    if shape.metadata {
        rules.extend(OF_METADATA.iter().map(|call| (*call, Vec::new())));
    }
    if shape.own_metadata {
        // The time of now may also be given to files that any user may write.
        let has_times = SeccompCondition::new(2, Length::Qword, Is::Ne, 0)?;
        rules.insert(libc::SYS_utimensat, vec![SeccompRule::new(vec![has_times])?]);
    }
    if shape.metadata || shape.own_metadata {
        for (call, argument) in OF_MODES {
            rules.insert(*call, vec![SeccompRule::new(vec![without_set_id(*argument)?])?]);
        }
    }
    // Who executes such a file would become the user of the program, which may be the daemon's.
    for (call, flags, mode) in CREATING {
        // Without these flags the mode is whatever was in the register.
        let creates = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u64;
        let opens = SeccompCondition::new(*flags, Length::Dword, Is::MaskedEq(creates), 0)?;
        let rules_of_call = vec![SeccompRule::new(vec![opens])?, SeccompRule::new(vec![without_set_id(*mode)?])?];
        rules.insert(*call, rules_of_call);
    }
    if shape.network {
        rules.extend(OF_NETWORK.iter().map(|call| (*call, Vec::new())));
        let families = [libc::AF_INET, libc::AF_INET6].map(|family| family as u64);
        rules.insert(libc::SYS_socket, any(0, &families)?);
    }
    Ok(rules)
}

/// Returns the rules for the system calls that templates may make and their forks may not.
fn of_templates() -> Result<SyscallRules, seccompiler::BackendError> {
    let mut rules: SyscallRules = OF_TEMPLATES.iter().map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_prctl, any(0, &PRCTL_OF_TEMPLATES.map(|option| option as u64))?);
    Ok(rules)
}

/// Calls that fail as if the file system did not have them: programs then do without.
fn unsupported(has_namespaces: bool) -> Result<SyscallRules, seccompiler::BackendError> {
    // Takes room at once, and beyond a file's size without a limit.
    let keeps_size = libc::FALLOC_FL_KEEP_SIZE as u64;
    let keeps_size = SeccompCondition::new(1, Length::Dword, Is::MaskedEq(keeps_size), keeps_size)?;
    let fallocate = if has_namespaces { vec![SeccompRule::new(vec![keeps_size])?] } else { Vec::new() };
    let mut rules = BTreeMap::from([(libc::SYS_fallocate, fallocate)]);
    rules.extend(XATTR.iter().map(|call| (*call, Vec::new())));
    Ok(rules)
}

/// That a mode has no set-user-id and no set-group-id bit.
fn without_set_id(argument: u8) -> Result<SeccompCondition, seccompiler::BackendError> {
    let bits = u64::from(libc::S_ISUID | libc::S_ISGID);
    SeccompCondition::new(argument, Length::Dword, Is::MaskedEq(bits), 0)
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

/// System calls that every program may make.
const ALWAYS: &[i64] = &[
    // its own descriptors and files; Landlock decides which
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_flock,
    libc::SYS_umask,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_fadvise64,
    // memory
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_msync,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    // itself
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_getrandom,
    libc::SYS_getcpu,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_wait4,
    libc::SYS_waitid,
    // threads and signals to itself
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_sigaltstack,
    // time
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getitimer,
    libc::SYS_setitimer,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_delete,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    // waiting, and streams to its own threads and children
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_signalfd4,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
];

/// Older forms that this architecture has besides.
#[cfg(target_arch = "x86_64")]
const OF_ARCHITECTURE: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_getdents,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_alarm,
    libc::SYS_pause,
    libc::SYS_time,
    libc::SYS_getpgrp,
    libc::SYS_getrlimit,
    libc::SYS_arch_prctl,
];
/// Older forms that this architecture has besides.
#[cfg(not(target_arch = "x86_64"))]
const OF_ARCHITECTURE: &[i64] = &[libc::SYS_getrlimit];

/// Processes of its own, where it sees no others.
#[cfg(target_arch = "x86_64")]
const OF_FAMILIES: &[i64] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_setpgid,
    libc::SYS_setsid,
];
/// Processes of its own, where it sees no others.
#[cfg(not(target_arch = "x86_64"))]
const OF_FAMILIES: &[i64] = &[
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_setpgid,
    libc::SYS_setsid,
];

/// Extended attributes, which programs that copy and list files ask for, and do without.
const XATTR: &[i64] = &[
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
];

/// Modes, owners and times of files, where it sees no files of others.
#[cfg(target_arch = "x86_64")]
const OF_METADATA: &[i64] = &[
    libc::SYS_chown,
    libc::SYS_fchown,
    libc::SYS_lchown,
    libc::SYS_fchownat,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_utimensat,
];
/// Modes, owners and times of files, where it sees no files of others.
#[cfg(not(target_arch = "x86_64"))]
const OF_METADATA: &[i64] = &[libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_utimensat];

/// The same for modes, each with the position of its mode.
#[cfg(target_arch = "x86_64")]
const OF_MODES: &[(i64, u8)] = &[(libc::SYS_chmod, 1), (libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2)];
/// The same for modes, each with the position of its mode.
#[cfg(not(target_arch = "x86_64"))]
const OF_MODES: &[(i64, u8)] = &[(libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2)];

/// Calls that open and create files, each with the positions of its flags and its mode.
#[cfg(target_arch = "x86_64")]
const CREATING: &[(i64, u8, u8)] = &[(libc::SYS_open, 1, 2), (libc::SYS_openat, 2, 3)];
/// Calls that open and create files, each with the positions of its flags and its mode.
#[cfg(not(target_arch = "x86_64"))]
const CREATING: &[(i64, u8, u8)] = &[(libc::SYS_openat, 2, 3)];

/// Connections to others; a rule of its own says which sockets. Not bind(2): a stream of a pair could take an abstract name,
/// by which others of the network namespace reach it.
const OF_NETWORK: &[i64] = &[libc::SYS_connect, libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_setsockopt];

#[cfg(test)]
mod tests {
    use seccompiler::SeccompFilter;

    use super::super::bpf::machine::{Call, decide};
    use super::*;

    /// Values of arguments: every bit, and what rules compare with.
    fn values() -> Vec<u64> {
        let bits = (0..64).map(|bit| 1 << bit);
        let constants = FCNTL.map(|it| it as u64).into_iter().chain(IOCTL).chain(PRCTL.map(|it| it as u64));
        let thread = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_FILES;
        let flags = [
            0,
            thread,
            libc::CLONE_THREAD | libc::CLONE_FILES,
            thread | libc::CLONE_NEWNS,
            libc::O_CREAT | libc::O_TMPFILE,
            0o7777,
            i32::MAX,
            -1,
        ];
        let families = [libc::AF_INET, libc::AF_INET6, libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::MAP_SHARED | 0x20];
        bits.chain(constants).chain(flags.into_iter().chain(families).map(|it| it as u64)).collect()
    }

    #[test]
    fn every_call_is_decided_as_the_list_of_rules_says() {
        let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let values = values();
        for bits in 0..64 {
            let options = FilterOptions::from_bits(bits);
            assert_eq!(options.bits(), bits);
            let rules = rules(options).unwrap();
            let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
            let ours = compile(arch, rules.clone(), refused.clone(), SeccompAction::Allow).unwrap();
            let whole = SeccompFilter::new(rules.clone(), refused, SeccompAction::Allow, arch).unwrap();
            let theirs = BpfProgram::try_from(whole).unwrap();
            assert!(ours.len() * 2 < theirs.len(), "{} of {}", ours.len(), theirs.len());
            let arch = ours[1].k;
            let same = |call: Call| assert_eq!(decide(&ours, &call), decide(&theirs, &call), "{bits}: {call:?}");
            let others = [u32::MAX, 0x4000_0000, 0x4000_0000 | 59, 0x4000_0000 | 520];
            for number in (0..600).chain(others) {
                same(Call { number, arch, args: [0; 6] });
                same(Call { number, arch: arch ^ 1, args: [0; 6] });
            }
            let with_rules = rules.iter().filter(|(_, rules)| !rules.is_empty());
            for number in with_rules.map(|(number, _)| u32::try_from(*number).unwrap()) {
                for one in &values {
                    for other in [0, *one, u64::MAX] {
                        for argument in 0..6 {
                            let mut args = [other; 6];
                            args[argument] = *one;
                            same(Call { number, arch, args });
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_fork_of_a_template_may_do_what_any_other_program_may() {
        for bits in 0..32 {
            let program = FilterOptions::from_bits(bits);
            let template = Filters::prepare(FilterOptions { forks: true, ..program }).unwrap();
            let program = Filters::prepare(program).unwrap();
            let arch = program.allowed[1].k;
            let allowed = u32::from(SeccompAction::Allow);
            // The kernel takes the strictest decision; each of these has two at most.
            let both = |call: &Call| match decide(&template.of_fork, call) {
                decision if decision == allowed => decide(&template.allowed, call),
                decision => decision,
            };
            for number in 0..600 {
                for value in [0].into_iter().chain(values()) {
                    let call = Call { number, arch, args: [value; 6] };
                    assert_eq!(both(&call), decide(&program.allowed, &call), "{bits}: {call:?}");
                }
            }
        }
    }
}
