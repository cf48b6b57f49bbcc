//! Processes of others.

use std::fs;
use std::process::Stdio;

use tokio::process::{Child, Command};
use toolbus_sandbox::Level;

use crate::fixture::{LEVELS, assert_printed, printed, printed_unconfined};

/// A process of the daemon's, which would live for long.
fn victim() -> Child {
    Command::new("sleep").arg("600").stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap()
}

/// Limits, priority and processors of a process, as `/proc` tells them.
fn settings_of(pid: u32) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // Numbered as in proc_pid_stat(5): priority, nice value, real-time priority and policy.
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    let chosen = [18, 19, 40, 41].map(|number| fields.clone().nth(number - 3));
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap();
    let oom = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    format!("{limits} {chosen:?} {allowed} {oom}")
}

#[tokio::test]
async fn processes_of_others_get_no_signals() {
    let mut victim = victim();
    let pids = format!("{}\n{}", victim.id().unwrap(), std::process::id());
    let source = "
import signal
victim, daemon = map(int, given)
for pid in victim, daemon, os.getppid(), 1, -1, 0, -victim:
    for number in (0, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP) if pid != 0 else (signal.SIGCHLD,):
        if (found := tried(lambda: os.kill(pid, number))) not in ('EPERM', 'ESRCH'): print(pid, number, found)
";
    for level in LEVELS {
        let found = printed(level, &pids, source).await;
        // With processes of its own, all that are there are its own.
        let expected = if level == Level::Full { "0 17 done\n" } else { "" };
        assert_eq!(found, expected, "{level}");
        assert!(victim.try_wait().unwrap().is_none(), "{level}");
    }
}

#[tokio::test]
async fn signals_by_other_ways_reach_nobody() {
    let mut victim = victim();
    let calls = [
        libc::SYS_tkill,
        libc::SYS_tgkill,
        libc::SYS_rt_sigqueueinfo,
        libc::SYS_rt_tgsigqueueinfo,
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_send_signal,
        libc::SYS_process_mrelease,
    ];
    let input = format!("{}\n{}", victim.id().unwrap(), calls.map(|call| call.to_string()).join("\n"));
    let source = "
victim, tkill, tgkill, queue, thread_queue, pidfd_open, send, release = map(int, given)
info = (ctypes.c_uint64 * 16)()
for pid in victim, os.getppid(), 1:
    found = [call(tkill, pid, 9), call(tgkill, pid, pid, 9), call(queue, pid, 9, info), call(thread_queue, pid, pid, 9, info)]
    descriptor = call(pidfd_open, pid, 0)
    found += [descriptor] if isinstance(descriptor, str) else [call(send, descriptor, 9, None, 0), call(release, descriptor, 0)]
    print(all(error in ('EPERM', 'ESRCH') for error in found) or found)
";
    for level in LEVELS {
        assert_eq!(printed(level, &input, source).await, "True\n".repeat(3), "{level}");
        assert!(victim.try_wait().unwrap().is_none(), "{level}");
    }
}

#[tokio::test]
async fn memory_of_others_cannot_be_read_or_written() {
    let mut victim = victim();
    let calls = [
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_pidfd_getfd,
        libc::SYS_kcmp,
        libc::SYS_process_madvise,
        libc::SYS_move_pages,
        libc::SYS_migrate_pages,
    ];
    let input = format!("{}\n{}", victim.id().unwrap(), calls.map(|call| call.to_string()).join("\n"));
    let source = "
victim, ptrace, *others = map(int, given)
for pid in victim, os.getppid(), os.getpid():
    # Trace me, attach, seize, look into memory.
    attempts = [call(ptrace, order, pid, 0, 0) for order in (0, 16, 0x4206, 2)] + [call(number, pid, 0, 0, 0, 0, 0) for number in others]
    print(*sorted(set(attempts)))
";
    for level in LEVELS {
        assert_eq!(printed(level, &input, source).await, "EPERM\n".repeat(3), "{level}");
        assert!(victim.try_wait().unwrap().is_none(), "{level}");
    }
}

#[tokio::test]
async fn limits_priority_and_processors_of_others_stay() {
    let victim = victim();
    let (pid, daemon) = (victim.id().unwrap(), std::process::id());
    let calls = [
        libc::SYS_prlimit64,
        libc::SYS_setpriority,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setattr,
        libc::SYS_sched_setparam,
        libc::SYS_ioprio_set,
        libc::SYS_setpgid,
    ];
    let input = format!("{pid}\n{daemon}\n{}", calls.map(|call| call.to_string()).join("\n"));
    let source = "
victim, daemon, prlimit, setpriority, affinity, scheduler, attributes, parameters, ioprio, setpgid = map(int, given)
one = (ctypes.c_uint64 * 16)(1, 1)
for pid in victim, daemon, os.getppid(), 1:
    print(call(prlimit, pid, 7, one, None), call(prlimit, pid, 7, None, one), call(setpriority, 0, pid, 19), call(setpriority, 2, 0, 19),
        call(affinity, pid, 8, one), call(scheduler, pid, 3, one), call(attributes, pid, one, 0), call(parameters, pid, one),
        call(ioprio, 1, pid, 3 << 13), call(setpgid, pid, 0))
";
    let before = [pid, daemon].map(settings_of);
    for level in LEVELS {
        // In a namespace there are no such processes for `setpgid`; the filter lets it through to its own.
        let of_group = if level == Level::Full { "ESRCH" } else { "EPERM" };
        let expected = format!("{}{of_group}\n", "EPERM ".repeat(calls.len() + 1)).repeat(4);
        assert_eq!(printed(level, &input, source).await, expected, "{level}");
        assert_eq!([pid, daemon].map(settings_of), before, "{level}");
    }
}

#[tokio::test]
async fn processes_of_others_are_seen_only_without_namespaces() {
    let victim = victim();
    let pid = victim.id().unwrap().to_string();
    // A session that was begun outside the container that the tests run in is told as 0.
    let source = "
pid = int(given[0])
print(tried(lambda: os.getsid(pid) >= 0), tried(lambda: len(os.sched_getaffinity(pid)) > 0), tried(lambda: os.stat('/proc/%d' % pid).st_uid))
";
    assert!(printed_unconfined(&pid, source).await.starts_with("True True"));
    for level in LEVELS {
        let found = printed(level, &pid, source).await;
        match level {
            Level::Full => assert_eq!(found, "ESRCH ESRCH ENOENT\n"),
            _ => assert!(found.starts_with("True True") && !found.contains("ENOENT"), "{found}"),
        }
    }
}

#[tokio::test]
async fn a_child_that_passes_for_the_keepers_changes_nothing() {
    // A copy of this process whose parent is its own parent, in several forms.
    let source = "
for flags in 0x8000, 0x8000 | 0x4000, 0x8000 | 0x800000:
    child = call(int(given[0]), flags | 17, 0, 0, 0, 0)
    if child == 0: os._exit(7)
    print(child if isinstance(child, str) else 'started')
";
    // It must end with the script's own code, which is 0.
    let expected = ["started\nstarted\nstarted\n", "EPERM\nEPERM\nEPERM\n"];
    assert_printed(&libc::SYS_clone.to_string(), source, expected).await;
}
