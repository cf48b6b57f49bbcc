//! Memory, in every shape.

use toolbus_sandbox::{Ending, Outcome, Stop};

use crate::fixture::{LIMITS, assert_printed, both, ended, has_cgroups, named, script, text, without_cgroups};

/// Address space of one process, which bounds what is used between two looks.
const ADDRESSES: u64 = 4 * LIMITS.memory + (1 << 30);

fn assert_stopped(outcome: &Outcome) {
    assert_eq!(outcome.ending, Ending::Stopped(Stop::Memory), "{outcome:?}");
    let peak = outcome.usage.unwrap().peak_memory;
    assert!(peak > LIMITS.memory && peak < ADDRESSES, "{outcome:?}");
}

#[tokio::test]
async fn one_block_of_memory_ends_a_script() {
    both(script("block = b'x' * (700 << 20)\nimport time\ntime.sleep(600)")).await.iter().for_each(assert_stopped);
}

#[tokio::test]
async fn more_memory_than_there_are_addresses_is_refused() {
    let source = "
try:
    bytearray(8 << 30)
except MemoryError:
    print('refused')
";
    assert_printed(&both(script(source)).await, ["refused"; 2]);
}

#[tokio::test]
async fn many_small_objects_end_a_script() {
    let source = "
kept = []
while True:
    kept.append([0])
";
    both(script(source)).await.iter().for_each(assert_stopped);
}

/// Asserts that memory counts with cgroups and without.
async fn assert_counted(source: &str) {
    for outcome in both(script(source)).await.into_iter().chain(without_cgroups(script(source)).await) {
        assert_eq!(outcome.ending, Ending::Stopped(Stop::Memory), "{outcome:?}");
    }
}

/// Asserts that memory which no process shows is counted by cgroups, and cannot be had without them.
async fn assert_counted_or_refused(source: &str) {
    if has_cgroups() {
        for outcome in both(script(source)).await {
            assert_eq!(outcome.ending, Ending::Stopped(Stop::Memory), "{outcome:?}");
        }
    }
    for outcome in without_cgroups(script(source)).await {
        assert_eq!(outcome.ending, Ending::Exited(1), "{outcome:?}");
        assert!(text(&outcome.stderr).contains("PermissionError: [Errno"), "{outcome:?}");
    }
}

#[tokio::test]
async fn shared_memory_counts() {
    let source = "
import mmap, time
block = mmap.mmap(-1, 400 << 20)
for page in range(0, len(block), mmap.PAGESIZE):
    block[page] = 1
time.sleep(600)
";
    assert_counted_or_refused(source).await;
}

#[tokio::test]
async fn shared_memory_that_is_written_and_given_back_counts() {
    // Its pages stay while anything of it is mapped, and no process shows them.
    for give_back in ["block.madvise(mmap.MADV_DONTNEED)", "block.resize(mmap.PAGESIZE)"] {
        let source = format!(
            "
import mmap, time
kept = []
for _ in range(12):
    block = mmap.mmap(-1, 64 << 20)
    for page in range(0, len(block), mmap.PAGESIZE):
        block[page] = 1
    {give_back}
    kept.append(block)
time.sleep(600)
"
        );
        assert_counted_or_refused(&source).await;
    }
}

#[tokio::test]
async fn shared_mappings_of_dev_zero_count() {
    let source = "
import mmap, os, time
zero = os.open('/dev/zero', os.O_RDWR)
kept = []
for _ in range(12):
    block = mmap.mmap(zero, 64 << 20)
    for page in range(0, len(block), mmap.PAGESIZE):
        block[page] = 1
    block.madvise(mmap.MADV_DONTNEED)
    kept.append(block)
time.sleep(600)
";
    assert_counted_or_refused(source).await;
}

#[tokio::test]
async fn tables_of_very_many_mappings_count() {
    // One page each, so far apart that each needs a table of its own. A page that is only read counts for no process.
    let source = "
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
base = 0x100000000000
for number in range(60000):
    at = libc.mmap(base + (number << 21), 4096, 1, 0x22, -1, 0)
    ctypes.string_at(at, 1)
time.sleep(600)
";
    assert_counted(source).await;
}

#[tokio::test]
async fn buffers_of_sockets_count() {
    let source = "
import socket
def fill():
    kept = []
    try:
        while True:
            pair = socket.socketpair()
            kept.append(pair)
            for end in pair:
                end.setblocking(False)
                try:
                    while True:
                        end.send(bytes(65536))
                except BlockingIOError:
                    pass
    except OSError:
        pass
    time.sleep(600)
for _ in range(14):
    if os.fork() == 0:
        fill()
time.sleep(600)
";
    let script = script(named("atk-sockets", source));
    for [full, less] in [both(script.clone()).await, without_cgroups(script).await] {
        assert_eq!(full.ending, Ending::Stopped(Stop::Memory), "{full:?}");
        assert_eq!(less.ending, Ending::Exited(1), "no children there: {less:?}");
    }
    ended("atk-sockets").await;
}

#[tokio::test]
async fn a_process_whose_first_thread_has_ended_counts() {
    // It looks like one that is dead and was not waited for.
    let source = "
import ctypes, threading, time
def grow():
    time.sleep(0.3)
    kept = []
    while True:
        kept.append(b'x' * (1 << 20))
        time.sleep(0.001)
threading.Thread(target=grow).start()
ctypes.CDLL(None).syscall(60, 0)
";
    assert_counted(source).await;
}

#[tokio::test]
async fn what_processes_share_counts_once() {
    let source = "
import os, time
block = b'x' * (50 << 20)
children = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        time.sleep(0.5)
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
print('done')
";
    for [full, _] in [both(script(source)).await, without_cgroups(script(source)).await] {
        assert_eq!((full.ending, &*text(&full.stdout)), (Ending::Exited(0), "done\n"), "{full:?}");
    }
}

#[tokio::test]
async fn the_memory_of_children_counts_together() {
    let source = "
for _ in range(8):
    if os.fork() == 0:
        kept = b'x' * (40 << 20)
        time.sleep(600)
time.sleep(600)
";
    let [full, less] = both(script(named("atk-memory", source))).await;
    assert_stopped(&full);
    assert_eq!(less.ending, Ending::Exited(1), "no children there: {less:?}");
    ended("atk-memory").await;
}

#[tokio::test]
async fn memory_without_a_mapping_is_not_to_be_had() {
    let source = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(function, *arguments):
    return os.strerror(ctypes.get_errno()) if getattr(libc, function)(*arguments) < 0 else 'done'
print(attempt('memfd_create', b'x', 0), attempt('shmget', 0, 1 << 20, 0o1600), attempt('mlockall', 1), sep=', ')
";
    assert_printed(
        &both(script(source)).await,
        ["Operation not permitted, Operation not permitted, Operation not permitted"; 2],
    );
}

#[tokio::test]
async fn record_locks_count() {
    // Each byte range is memory of the kernel.
    let source = "
import fcntl
files = [open(str(number), 'w') for number in range(40)]
for at in range(0, 200000, 2):
    fcntl.lockf(files[at // 2 % 40], fcntl.LOCK_EX, 1, at)
";
    assert_counted(source).await;
}

#[tokio::test]
async fn locks_that_no_process_shows_are_refused() {
    let source = "
import ctypes, fcntl, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def attempt(call):
    return os.strerror(ctypes.get_errno()) if call() < 0 else 'done'
CLONE_FILES, CLOSE_RANGE_UNSHARE = 0x400, 2
range = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 1, 0)
file = open('locked', 'w').fileno()
print(attempt(lambda: libc.fcntl(file, 37, range)), attempt(lambda: libc.syscall(56, CLONE_FILES | 17, 0, 0, 0, 0)),
    attempt(lambda: libc.close_range(60, 60, CLOSE_RANGE_UNSHARE)), sep=', ')
";
    assert_printed(
        &both(script(source)).await,
        ["Operation not permitted, Operation not permitted, Operation not permitted"; 2],
    );
}

#[tokio::test]
async fn recursion_in_python_raises() {
    let source = "
def deeper():
    deeper()
try:
    deeper()
except RecursionError as error:
    print(error)
";
    assert_printed(&both(script(source)).await, ["maximum recursion depth exceeded"; 2]);
}

#[tokio::test]
async fn recursion_without_a_bound_ends_at_the_limit_of_memory_or_stack() {
    let source = "
import sys
sys.setrecursionlimit(1 << 30)
nested = []
for _ in range(1000000):
    nested = [nested]
repr(nested)
";
    for outcome in both(script(source)).await {
        assert!(matches!(outcome.ending, Ending::Signalled(11) | Ending::Stopped(Stop::Memory)), "{outcome:?}");
        assert_eq!(text(&outcome.stdout), "");
    }
}
