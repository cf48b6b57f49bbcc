//! The lists of system calls.

use libc::*;

/// What every program may do.
pub(super) const ALWAYS: &[i64] = &[
    // its own descriptors and files; Landlock decides which
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_preadv,
    SYS_pwritev,
    SYS_preadv2,
    SYS_pwritev2,
    SYS_openat,
    SYS_openat2,
    SYS_close,
    SYS_close_range,
    SYS_lseek,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_statfs,
    SYS_fstatfs,
    SYS_getdents64,
    SYS_readlinkat,
    SYS_getcwd,
    SYS_chdir,
    SYS_fchdir,
    SYS_mkdirat,
    SYS_unlinkat,
    SYS_renameat,
    SYS_renameat2,
    SYS_linkat,
    SYS_symlinkat,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_fsync,
    SYS_fdatasync,
    SYS_sync_file_range,
    SYS_copy_file_range,
    SYS_sendfile,
    SYS_splice,
    SYS_tee,
    SYS_flock,
    SYS_umask,
    SYS_dup,
    SYS_dup3,
    SYS_pipe2,
    SYS_fadvise64,
    // memory
    SYS_brk,
    SYS_mmap,
    SYS_munmap,
    SYS_mremap,
    SYS_mprotect,
    SYS_madvise,
    SYS_msync,
    SYS_mincore,
    SYS_membarrier,
    // itself
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getresuid,
    SYS_getresgid,
    SYS_getgroups,
    SYS_getpgid,
    SYS_getsid,
    SYS_uname,
    SYS_sysinfo,
    SYS_getrusage,
    SYS_times,
    SYS_getrandom,
    SYS_getcpu,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_execve,
    SYS_exit,
    SYS_exit_group,
    SYS_wait4,
    SYS_waitid,
    // threads and signals to itself
    SYS_futex,
    SYS_futex_waitv,
    SYS_set_robust_list,
    SYS_set_tid_address,
    SYS_rseq,
    SYS_restart_syscall,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigpending,
    SYS_rt_sigtimedwait,
    SYS_rt_sigsuspend,
    SYS_sigaltstack,
    // time
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_gettimeofday,
    SYS_getitimer,
    SYS_setitimer,
    SYS_timer_create,
    SYS_timer_settime,
    SYS_timer_gettime,
    SYS_timer_getoverrun,
    SYS_timer_delete,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_timerfd_gettime,
    // waiting, and streams to its own threads and children
    SYS_ppoll,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_eventfd2,
    SYS_signalfd4,
    SYS_sendto,
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_shutdown,
    SYS_getsockname,
    SYS_getpeername,
    SYS_getsockopt,
];

/// Older forms that this architecture has besides.
#[cfg(target_arch = "x86_64")]
pub(super) const OF_ARCHITECTURE: &[i64] = &[
    SYS_open,
    SYS_creat,
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_getdents,
    SYS_mkdir,
    SYS_rmdir,
    SYS_unlink,
    SYS_rename,
    SYS_link,
    SYS_symlink,
    SYS_dup2,
    SYS_pipe,
    SYS_poll,
    SYS_select,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_eventfd,
    SYS_alarm,
    SYS_pause,
    SYS_time,
    SYS_getpgrp,
    SYS_getrlimit,
    SYS_arch_prctl,
];
/// Older forms that this architecture has besides.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OF_ARCHITECTURE: &[i64] = &[SYS_getrlimit];

/// Processes of its own, where it sees no others.
#[cfg(target_arch = "x86_64")]
pub(super) const OF_FAMILIES: &[i64] =
    &[SYS_fork, SYS_vfork, SYS_kill, SYS_tgkill, SYS_tkill, SYS_pidfd_open, SYS_pidfd_send_signal];
/// Processes of its own, where it sees no others.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OF_FAMILIES: &[i64] = &[SYS_kill, SYS_tgkill, SYS_tkill, SYS_pidfd_open, SYS_pidfd_send_signal];

/// Modes, owners and times of files, where it sees no files of others.
#[cfg(target_arch = "x86_64")]
pub(super) const OF_METADATA: &[i64] = &[
    SYS_chmod,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_chown,
    SYS_fchown,
    SYS_lchown,
    SYS_fchownat,
    SYS_utime,
    SYS_utimes,
    SYS_futimesat,
    SYS_utimensat,
];
/// Modes, owners and times of files, where it sees no files of others.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OF_METADATA: &[i64] = &[SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat, SYS_utimensat];

/// Connections to others; a rule of its own says which sockets. Options of streams to itself could only make them hold
/// more memory, which nobody counts.
pub(super) const OF_NETWORK: &[i64] = &[SYS_connect, SYS_bind, SYS_sendmmsg, SYS_recvmmsg, SYS_setsockopt];
