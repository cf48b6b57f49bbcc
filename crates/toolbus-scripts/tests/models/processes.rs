//! Processes of a script: `multiprocessing`, pools and limits.

use insta::assert_snapshot;
use serde_json::json;
use toolbus_sandbox::Level;

use crate::fixture::{result, result_at};

/// The result where a script can start no processes.
async fn without_processes(script: &str) -> String {
    result_at(Level::NoNamespaces, &json!({"script": script})).await
}

/// A script that maps in a pool with this start method.
fn pool(method: &str) -> String {
    format!(
        r#"
import multiprocessing

def square(n):
    return n * n

if __name__ == "__main__":
    multiprocessing.set_start_method("{method}")
    with multiprocessing.Pool(2) as pool:
        print(pool.map_async(square, range(5)).get(timeout=20))
"#
    )
}

#[tokio::test]
async fn a_pool_whose_processes_are_forked_or_spawned_maps() {
    assert_snapshot!(result(&pool("fork")).await, @"[0, 1, 4, 9, 16]");
    assert_snapshot!(result(&pool("spawn")).await, @"[0, 1, 4, 9, 16]");
}

#[tokio::test]
async fn a_pool_with_a_fork_server_is_refused_in_words() {
    assert_snapshot!(result(&pool("forkserver")).await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 9, in <module>
        with multiprocessing.Pool(2) as pool:
      [library]
    PermissionError: [Errno 1] Operation not permitted
    [`multiprocessing` has no sockets here: use its start method 'fork' or 'spawn', and no manager.]
    "#);
}

#[tokio::test]
async fn processes_share_queues_values_and_memory() {
    let script = r#"
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import Lock, Pipe, Process, Queue, Value, shared_memory

def count(queue, value, lock):
    for _ in range(100):
        with lock:
            value.value += 1
    queue.put("done")

def double(n):
    return 2 * n

def fill(name):
    memory = shared_memory.SharedMemory(name=name)
    memory.buf[0] = 42
    memory.close()

if __name__ == "__main__":
    queue, value, lock = Queue(), Value("i", 0), Lock()
    processes = [Process(target=count, args=(queue, value, lock)) for _ in range(3)]
    for process in processes:
        process.start()
    print([queue.get(timeout=20) for _ in processes])
    for process in processes:
        process.join()
    print([process.exitcode for process in processes], value.value)
    with ProcessPoolExecutor(max_workers=2) as pool:
        print(list(pool.map(double, range(4))), pool.submit(double, 21).result())
    memory = shared_memory.SharedMemory(create=True, size=16)
    process = Process(target=fill, args=(memory.name,))
    process.start()
    process.join()
    print(memory.buf[0])
    memory.close()
    memory.unlink()
"#;
    assert_snapshot!(result(script).await, @"
    ['done', 'done', 'done']
    [0, 0, 0] 300
    [0, 2, 4, 6] 42
    42
    ");
}

#[tokio::test]
async fn an_error_in_a_process_of_a_pool_is_the_scripts() {
    let script = r#"
from concurrent.futures import ProcessPoolExecutor

def invert(n):
    return 1 / n

if __name__ == "__main__":
    with ProcessPoolExecutor(max_workers=2) as pool:
        print(list(pool.map(invert, [1, 2, 0])))
"#;
    assert_snapshot!(result(script).await, @r#"
    isError: Script failed (exit 1):
    concurrent.futures.process._RemoteTraceback: 
    """
    Traceback (most recent call last):
      [library]
      File "script.py", line 5, in invert
        return 1 / n
    ZeroDivisionError: division by zero
    """

    The above exception was the direct cause of the following exception:

    Traceback (most recent call last):
      File "script.py", line 9, in <module>
        print(list(pool.map(invert, [1, 2, 0])))
      [library]
    ZeroDivisionError: division by zero
    "#);
}

#[tokio::test]
async fn a_manager_of_shared_objects_is_refused_in_words() {
    let script = r#"
from multiprocessing import Manager

if __name__ == "__main__":
    with Manager() as manager:
        shared = manager.dict()
        shared["a"] = 1
        print(shared)
"#;
    assert_snapshot!(result(script).await, @r#"
    isError: Script failed (exit 1):
    Process SyncManager-1:
    Traceback (most recent call last):
      [library]
    PermissionError: [Errno 1] Operation not permitted
    Traceback (most recent call last):
      File "script.py", line 5, in <module>
        with Manager() as manager:
      [library]
    EOFError
    [`multiprocessing` has no sockets here: use its start method 'fork' or 'spawn', and no manager.]
    "#);
}

#[tokio::test]
async fn without_processes_every_way_to_start_one_fails_with_advice() {
    assert_snapshot!(without_processes(&pool("fork")).await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 9, in <module>
        with multiprocessing.Pool(2) as pool:
      [library]
    PermissionError: [Errno 13] Permission denied
    [Scripts cannot start processes here. Use threads, or do the same in Python.]
    "#);
    let executor =
        "from concurrent.futures import ProcessPoolExecutor\nprint(list(ProcessPoolExecutor().map(abs, [-1])))\n";
    assert_snapshot!(without_processes(executor).await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 2, in <module>
        print(list(ProcessPoolExecutor().map(abs, [-1])))
      [library]
    PermissionError: [Errno 13] Permission denied
    [Scripts cannot start processes here. Use threads, or do the same in Python.]
    "#);
    let listed = "import subprocess\nprint(subprocess.check_output(['ls', '-l'], text=True))\n";
    assert_snapshot!(without_processes(listed).await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 2, in <module>
        print(subprocess.check_output(['ls', '-l'], text=True))
      [library]
    PermissionError: [Errno 1] Operation not permitted
    [Scripts cannot start processes here. Use threads, or do the same in Python.]
    "#);
    assert_snapshot!(without_processes("import os\nprint(os.system('ls'))\n").await, @"32512");
    assert_snapshot!(without_processes("import os\nprint(os.popen('date').read())\n").await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 2, in <module>
        print(os.popen('date').read())
      [library]
    PermissionError: [Errno 1] Operation not permitted
    [Scripts cannot start processes here. Use threads, or do the same in Python.]
    "#);
}
