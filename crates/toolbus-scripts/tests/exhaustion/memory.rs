//! Memory, in every shape.

use toolbus_sandbox::{Ending, Outcome, Stop};

use crate::fixture::{LIMITS, assert_printed, both, ended, named, script, text};

/// Address space of one process, which bounds what is used between two looks.
const ADDRESSES: u64 = 4 * LIMITS.memory + (1 << 30);

fn assert_stopped(outcome: &Outcome) {
    assert_eq!(outcome.ending, Ending::Stopped(Stop::Memory), "{outcome:?}");
    assert!(outcome.usage.peak_memory > LIMITS.memory && outcome.usage.peak_memory < ADDRESSES, "{outcome:?}");
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

#[tokio::test]
async fn shared_memory_counts() {
    let source = "
import mmap, time
block = mmap.mmap(-1, 400 << 20)
for page in range(0, len(block), mmap.PAGESIZE):
    block[page] = 1
time.sleep(600)
";
    both(script(source)).await.iter().for_each(assert_stopped);
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
