//! Scripts that do not end.

use std::time::Duration;

use toolbus_core::Clock;
use toolbus_sandbox::{Ending, Stop};
use toolbus_scripts::runner::Script;
use toolbus_testing::patience::at_most;

use crate::fixture::{both, brief, ended, named, script, text, warm, without_cgroups};

/// Asserts that a script that has 1.5 s is ended with them, however loaded the machine is.
async fn assert_out_of_time(name: &str, source: &str) {
    for (how, outcomes) in
        [("cold", both(brief(named(name, source), 1500)).await), ("warm", warm(brief(named(name, source), 1500)).await)]
    {
        for outcome in outcomes {
            assert_eq!(outcome.ending, Ending::Stopped(Stop::Time), "{how}: {outcome:?}");
            assert!(outcome.elapsed >= Duration::from_millis(1500), "{how}: {outcome:?}");
            assert!(outcome.elapsed < Duration::from_secs(60), "{how}: {outcome:?}");
        }
    }
    ended(name).await;
}

#[tokio::test]
async fn a_sleep_past_the_deadline_is_ended() {
    assert_out_of_time("atk-sleep", "time.sleep(600)").await;
}

#[tokio::test]
async fn a_script_that_ignores_signals_is_ended() {
    let source = "
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    time.sleep(600)
";
    assert_out_of_time("atk-ignores", source).await;
}

#[tokio::test]
async fn a_loop_in_python_is_ended() {
    assert_out_of_time("atk-loop", "while True:\n    pass").await;
}

#[tokio::test]
async fn a_regular_expression_that_never_ends_is_ended() {
    assert_out_of_time("atk-regex", "import re\nre.match('(a+)+$', 'a' * 64 + 'b')").await;
}

#[tokio::test]
async fn a_number_that_never_ends_is_ended() {
    assert_out_of_time("atk-power", "10 ** (10 ** 9)").await;
}

#[tokio::test]
async fn a_thread_that_goes_on_is_ended() {
    assert_out_of_time("atk-thread", "import threading\nthreading.Thread(target=time.sleep, args=(600,)).start()")
        .await;
}

#[tokio::test]
async fn what_is_to_happen_at_exit_is_ended_too() {
    assert_out_of_time("atk-atexit", "import atexit\natexit.register(time.sleep, 600)").await;
}

#[tokio::test]
async fn processor_time_ends_a_script_before_its_time() {
    let source = "while True:\n    pass";
    for outcome in both(Script { cpu: Duration::from_millis(500), ..script(source) }).await {
        assert_eq!(outcome.ending, Ending::Stopped(Stop::Cpu));
        assert!(outcome.usage.unwrap().cpu_us >= 400_000, "{outcome:?}");
    }
}

#[tokio::test]
async fn processor_time_of_children_and_threads_counts() {
    let children = "
import os
for _ in range(3):
    if os.fork() == 0:
        break
while True:
    pass
";
    let threads = "
import hashlib, threading
def work():
    while True:
        hashlib.sha256(bytes(1 << 20))
for _ in range(3):
    threading.Thread(target=work).start()
";
    let limited = |source: &str| Script { cpu: Duration::from_millis(800), ..script(source) };
    let [full, less] = both(limited(children)).await;
    assert_eq!((full.ending, less.ending), (Ending::Stopped(Stop::Cpu), Ending::Exited(1)));
    let [full, less] = both(limited(threads)).await;
    assert_eq!((full.ending, less.ending), (Ending::Stopped(Stop::Cpu), Ending::Stopped(Stop::Cpu)));
}

#[tokio::test]
async fn a_signal_of_the_processor_limit_that_is_ignored_changes_nothing() {
    let source = "
import signal
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
while True:
    pass
";
    for outcome in both(Script { cpu: Duration::from_millis(500), ..script(source) }).await {
        assert_eq!(outcome.ending, Ending::Stopped(Stop::Cpu));
    }
}

#[tokio::test]
async fn a_script_ends_when_nobody_waits_for_it_whatever_time_it_has() {
    let begun = Clock::SYSTEM.now();
    let script =
        || Script { deadline: Clock::SYSTEM.now() + Duration::from_secs(4), ..script("import time\ntime.sleep(600)") };
    for outcome in both(script()).await {
        assert_eq!(outcome.ending, Ending::Stopped(Stop::Time));
    }
    assert!(Clock::SYSTEM.since(begun) < Duration::from_secs(40));
}

#[tokio::test]
async fn a_process_whose_first_thread_has_ended_ends_with_its_time() {
    let source = "
threading = __import__('threading')
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(60, 0)
";
    for outcome in both(brief(named("atk-leader", source), 1000)).await {
        assert_eq!(outcome.ending, Ending::Stopped(Stop::Time), "{outcome:?}");
        assert!(outcome.elapsed < Duration::from_secs(60), "{outcome:?}");
    }
    ended("atk-leader").await;
}

#[tokio::test]
async fn processor_time_of_children_that_nobody_waits_for_counts() {
    let burn = "
def burn():
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    os._exit(0)
";
    // The kernel forgets what such a child has used.
    let ignored = format!(
        "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n{burn}
while True:
    try:
        if os.fork() == 0:
            burn()
    except BlockingIOError:
        time.sleep(0.01)
"
    );
    let zombies = format!(
        "{burn}
for _ in range(2):
    if os.fork() == 0:
        while True:
            try:
                if os.fork() == 0:
                    burn()
            except BlockingIOError:
                time.sleep(0.01)
time.sleep(600)
"
    );
    let limited = |source: &str| Script { cpu: Duration::from_secs(1), ..script(named("atk-burn", source)) };
    for script in [limited(&ignored), limited(&zombies)] {
        for [full, _] in [both(script.clone()).await, without_cgroups(script).await] {
            assert_eq!(full.ending, Ending::Stopped(Stop::Cpu), "{full:?}");
            assert!(full.elapsed < Duration::from_secs(20), "{full:?}");
        }
    }
    ended("atk-burn").await;
}

#[tokio::test]
async fn processor_time_of_very_short_children_that_nobody_waits_for_counts() {
    // Each ends before it would be seen twice.
    let source = "
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for number in range(2000):
    if os.fork() == 0:
        until = time.process_time() + 0.005
        while time.process_time() < until:
            pass
        os._exit(0)
    print(number)
    time.sleep(0.006)
";
    let script = Script { cpu: Duration::from_millis(1200), ..script(named("atk-short", source)) };
    for [full, _] in [both(script.clone()).await, without_cgroups(script).await] {
        assert_eq!(full.ending, Ending::Stopped(Stop::Cpu), "{full:?}");
        let used = Duration::from_millis(5) * u32::try_from(text(&full.stdout).lines().count()).unwrap();
        assert!(used < at_most(Duration::from_secs(2)), "{used:?}");
    }
    ended("atk-short").await;
}

#[tokio::test]
async fn a_script_with_very_many_mappings_ends_with_its_time() {
    // Neighbours differ in their rights, so that each is a mapping of its own; to look at them takes long.
    let source = "
import mmap
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
block = libc.mmap(None, ctypes.c_size_t(60000 * 4096), 0, 0x22, -1, 0)
for page in range(0, 60000, 2):
    libc.mprotect(block + page * 4096, 4096, 1)
kept = b'x' * (20 << 20)
for _ in range(10):
    if os.fork() == 0:
        kept = b'y' * (2 << 20)
        break
time.sleep(600)
";
    let script = brief(named("atk-maps", source), 3000);
    for [full, _] in [both(script.clone()).await, without_cgroups(script).await] {
        assert!(matches!(full.ending, Ending::Stopped(_)), "{full:?}");
        assert!(full.elapsed < at_most(Duration::from_secs(4)), "{full:?}");
    }
    ended("atk-maps").await;
}
