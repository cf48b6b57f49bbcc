//! Doors of the kernel that a script has no use for.

use crate::fixture::{LEVELS, assert_printed, printed, printed_unconfined};

/// Runs a script at both levels that has the numbers of these calls by their names, and leaves what came of its `attempts`:
/// each must have been refused, and there must be one for each call.
async fn all_refused(calls: &[(&str, i64)], source: &str) {
    let source = numbered(calls, source);
    for level in LEVELS {
        let found = printed(level, "", &source).await;
        let refused = found.split_whitespace().filter(|error| *error == "EPERM").count();
        assert!(refused >= calls.len() && refused == found.split_whitespace().count(), "{level}: {found}");
    }
}

/// The same, for calls that do no harm where nothing keeps them in: there most are not refused, so that it is the sandbox
/// that refuses.
async fn all_refused_by_the_sandbox(calls: &[(&str, i64)], source: &str) {
    let found = printed_unconfined("", &numbered(calls, source)).await;
    let refused = found.split_whitespace().filter(|error| *error == "EPERM").count();
    assert!(refused * 2 < found.split_whitespace().count(), "{found}");
    all_refused(calls, source).await;
}

fn numbered(calls: &[(&str, i64)], source: &str) -> String {
    let numbers: String = calls.iter().map(|(name, number)| format!("{name} = {number}\n")).collect();
    format!("{numbers}{source}\nprint(*attempts)\n")
}

macro_rules! calls {
    ($($name:ident),* $(,)?) => {
        &[$((stringify!($name), libc::$name)),*]
    };
}

#[tokio::test]
async fn namespaces_cannot_be_made_or_entered() {
    let source = "
flags = [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000]
attempts = [call(SYS_unshare, flag) for flag in flags] + [call(SYS_clone, flag | 17, 0, 0, 0, 0) for flag in flags]
attempts += [call(SYS_unshare, 0x80), call(SYS_setns, 0, 0), call(SYS_setns, 1, 0x10000000)]
";
    all_refused(calls![SYS_unshare, SYS_clone, SYS_setns], source).await;
    // Its flags are in memory, where no filter sees them: it is not there, as with an old kernel.
    let source = format!("print(call({}, (ctypes.c_uint64 * 11)(0x10000000), 88))", libc::SYS_clone3);
    assert_printed("", &source, ["ENOSYS\n"; 2]).await;
}

#[tokio::test]
async fn nothing_can_be_mounted_and_the_root_stays() {
    let calls = calls![
        SYS_mount,
        SYS_umount2,
        SYS_pivot_root,
        SYS_chroot,
        SYS_open_tree,
        SYS_move_mount,
        SYS_fsopen,
        SYS_fsmount,
        SYS_fspick,
        SYS_fsconfig,
        SYS_mount_setattr,
    ];
    let source = "
attempts = [call(SYS_mount, b'none', b'/tmp', b'tmpfs', 0, None), call(SYS_mount, b'/', b'/tmp', None, 4096, None), call(SYS_umount2, b'/', 2),
    call(SYS_pivot_root, b'.', b'.'), call(SYS_chroot, b'.'), call(SYS_open_tree, -100, b'/', 1), call(SYS_move_mount, -100, b'/', -100, b'/tmp', 0),
    call(SYS_fsopen, b'proc', 0), call(SYS_fsmount, 0, 0, 0), call(SYS_fspick, -100, b'/', 0), call(SYS_fsconfig, 0, 6, None, None, 0),
    call(SYS_mount_setattr, -100, b'/', 0, (ctypes.c_uint64 * 4)(), 32)]
";
    all_refused(calls, source).await;
}

#[tokio::test]
async fn keys_of_the_kernel_cannot_be_used() {
    let source = "
attempts = [call(SYS_keyctl, 0, -3, 1), call(SYS_keyctl, 11, -4, None, 0), call(SYS_add_key, b'user', b'mine', b'x', 1, -3),
    call(SYS_request_key, b'user', b'mine', None, 0)]
";
    all_refused(calls![SYS_keyctl, SYS_add_key, SYS_request_key], source).await;
}

#[tokio::test]
async fn bpf_io_uring_perf_and_userfaultfd_are_closed() {
    let calls = calls![
        SYS_bpf,
        SYS_io_uring_setup,
        SYS_io_uring_enter,
        SYS_io_uring_register,
        SYS_perf_event_open,
        SYS_userfaultfd,
    ];
    let source = "
zeros = (ctypes.c_uint64 * 32)()
attempts = [call(SYS_bpf, 0, zeros, 128), call(SYS_io_uring_setup, 8, zeros), call(SYS_io_uring_enter, 0, 0, 0, 0, None, 0),
    call(SYS_io_uring_register, 0, 0, None, 0), call(SYS_perf_event_open, (ctypes.c_uint32 * 32)(1, 128), 0, -1, -1, 0),
    call(SYS_userfaultfd, 1)]
";
    all_refused_by_the_sandbox(calls, source).await;
}

#[tokio::test]
async fn the_system_cannot_be_changed_or_stopped() {
    let calls = calls![
        SYS_kexec_load,
        SYS_init_module,
        SYS_finit_module,
        SYS_delete_module,
        SYS_reboot,
        SYS_swapon,
        SYS_swapoff,
        SYS_acct,
        SYS_quotactl,
        SYS_syslog,
        SYS_sethostname,
        SYS_setdomainname,
        SYS_settimeofday,
        SYS_clock_settime,
        SYS_adjtimex,
        SYS_clock_adjtime,
        SYS_vhangup,
        SYS_sync,
        SYS_syncfs,
    ];
    let source =
        "attempts = [call(number, -1, 0, 0, 0) for name, number in list(globals().items()) if name.startswith('SYS_')]";
    all_refused(calls, source).await;
}

#[tokio::test]
async fn files_cannot_be_opened_by_handles_or_watched() {
    let calls = calls![
        SYS_name_to_handle_at,
        SYS_open_by_handle_at,
        SYS_fanotify_init,
        SYS_fanotify_mark,
        SYS_inotify_init1,
        SYS_inotify_add_watch,
    ];
    let source = "
handle = (ctypes.c_uint32 * 40)(128)
attempts = [call(SYS_name_to_handle_at, -100, b'.', handle, (ctypes.c_int * 1)(), 0), call(SYS_open_by_handle_at, -100, handle, 0),
    call(SYS_fanotify_init, 0x200, 0), call(SYS_fanotify_mark, 0, 1, 2, -100, b'/'), call(SYS_inotify_init1, 0), call(SYS_inotify_add_watch, 0, b'/', 2)]
";
    all_refused_by_the_sandbox(calls, source).await;
}

#[tokio::test]
async fn the_confinement_cannot_be_changed_from_within() {
    let calls = calls![
        SYS_personality,
        SYS_seccomp,
        SYS_prctl,
        SYS_landlock_create_ruleset,
        SYS_landlock_add_rule,
        SYS_landlock_restrict_self,
        SYS_setrlimit,
        SYS_prlimit64,
    ];
    // Options of prctl: death signal, dumpable, seccomp, no new rights, subreaper, tracer, memory's map, timer slack.
    let source = "
more = (ctypes.c_uint64 * 2)(2 ** 64 - 1, 2 ** 64 - 1)
attempts = [call(SYS_personality, 0x40000), call(SYS_seccomp, 2, 0, (ctypes.c_uint32 * 1)(0)), call(SYS_landlock_create_ruleset, None, 0, 1),
    call(SYS_landlock_add_rule, 0, 1, None, 0), call(SYS_landlock_restrict_self, 0, 0), call(SYS_setrlimit, 7, more)]
attempts += [call(SYS_prctl, option, 0, 0, 0, 0) for option in (1, 4, 22, 38, 36, 0x59616d61, 35, 29)]
attempts += [call(SYS_prlimit64, 0, limit, more, None) for limit in range(16)]
";
    all_refused_by_the_sandbox(calls, source).await;
}

#[tokio::test]
async fn memory_and_messages_cannot_be_shared_by_name() {
    let calls = calls![
        SYS_shmget,
        SYS_shmat,
        SYS_shmctl,
        SYS_semget,
        SYS_semop,
        SYS_msgget,
        SYS_msgsnd,
        SYS_msgrcv,
        SYS_mq_open,
        SYS_mq_unlink,
    ];
    let source = "
attempts = [call(SYS_shmget, 0, 4096, 0o1600), call(SYS_shmat, 0, None, 0), call(SYS_shmctl, 0, 14, None), call(SYS_semget, 0, 1, 0o1600),
    call(SYS_semop, 0, None, 0), call(SYS_msgget, 0, 0o1600), call(SYS_msgsnd, 0, None, 0, 0), call(SYS_msgrcv, 0, None, 0, 0, 0),
    call(SYS_mq_open, b'mine', 0o102, 0o600, None), call(SYS_mq_unlink, b'mine')]
";
    all_refused(calls, source).await;
}

#[tokio::test]
async fn a_terminal_is_not_fed_and_descriptors_take_no_unusual_orders() {
    // Orders of ioctl: put a character into the terminal's input, take the terminal, paste, make the other side, write
    // to it, of a block device, of a namespace.
    let source = "
attempts = [call(SYS_ioctl, descriptor, order, (ctypes.c_uint64 * 8)()) for descriptor in (0, 1, 2) for order in
    (0x5412, 0x540e, 0x541c, 0x5441, 0x80045430, 0x1269, 0xb701, 0x6601, 0x6602)]
# Orders of fcntl: who gets signals, leases, notices, seals, sizes of pipes.
attempts += [call(SYS_fcntl, descriptor, order, 1 << 20) for descriptor in (0, 1) for order in (8, 10, 15, 1024, 1026, 1033, 1031)]
";
    all_refused(calls![SYS_ioctl, SYS_fcntl], source).await;
}

#[tokio::test]
async fn rare_calls_are_refused() {
    let calls = calls![
        SYS_vmsplice,
        SYS_mlock,
        SYS_mlockall,
        SYS_mlock2,
        SYS_mbind,
        SYS_set_mempolicy,
        SYS_remap_file_pages,
        SYS_setpriority,
        SYS_getpriority,
        SYS_sched_setscheduler,
        SYS_capget,
        SYS_nfsservctl,
        SYS_mknodat,
        SYS_setfsuid,
        SYS_setreuid,
        SYS_accept4,
        SYS_listen,
        SYS_bind,
        SYS_connect,
        SYS_process_vm_readv,
    ];
    let source = "attempts = [call(number, -1, -1, -1, -1, -1, -1) for name, number in list(globals().items()) if name.startswith('SYS_')]";
    all_refused_by_the_sandbox(calls, source).await;
    #[cfg(target_arch = "x86_64")]
    all_refused(calls![SYS_iopl, SYS_ioperm, SYS_modify_ldt, SYS_uselib, SYS_ustat, SYS_sysfs, SYS__sysctl], source)
        .await;
}

#[tokio::test]
async fn calls_that_are_younger_than_the_filter_are_refused() {
    let source = "print([number for number in range(442, 1024) if call(number, -1, -1, -1, -1, -1, -1) != 'EPERM'])";
    // The one that is listed waits for several locks, and finds none here.
    let allowed = format!("[{}]\n", libc::SYS_futex_waitv);
    assert_printed("", source, [&*allowed; 2]).await;
}
