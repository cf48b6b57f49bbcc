//! Threads and coroutines.

use insta::assert_snapshot;

use crate::fixture::{result, result_at_both};

#[tokio::test]
async fn as_many_threads_run_as_are_promised() {
    let script = r#"
import threading

barrier = threading.Barrier(65)
arrived = []

def work(number):
    arrived.append(number)
    barrier.wait(timeout=20)

threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
for thread in threads:
    thread.start()
barrier.wait(timeout=20)
for thread in threads:
    thread.join()
print(len(set(arrived)), "threads at a time")
"#;
    assert_snapshot!(result_at_both(script).await, @"64 threads at a time");
}

#[tokio::test]
async fn one_thread_more_is_an_error_with_the_limit() {
    let script = r#"
import threading

done = threading.Event()
try:
    for number in range(1000):
        threading.Thread(target=done.wait).start()
finally:
    print(number)
    done.set()
"#;
    assert_snapshot!(result(script).await, @r#"
    isError: Script failed (exit 1):
    64
    stderr:
    Traceback (most recent call last):
      File "script.py", line 7, in <module>
        threading.Thread(target=done.wait).start()
      [library]
    RuntimeError: can't start new thread
    [A script may have 64 processes and threads at a time.]
    "#);
}

#[tokio::test]
async fn a_pool_of_threads_maps_and_reports_what_failed() {
    let script = r#"
import queue, threading, time
from concurrent.futures import ThreadPoolExecutor, as_completed

def fetch(number):
    time.sleep(0.01)
    if number == 13:
        raise ValueError(f"no page {number}")
    return number * number

with ThreadPoolExecutor(max_workers=64) as pool:
    futures = {pool.submit(fetch, number): number for number in range(200)}
    good, bad = 0, []
    for future in as_completed(futures):
        try:
            good += future.result()
        except ValueError as error:
            bad.append((futures[future], str(error)))
print(good, bad)
jobs, results, lock = queue.Queue(), [], threading.Lock()

def worker():
    while (job := jobs.get()) is not None:
        with lock:
            results.append(job * 2)

workers = [threading.Thread(target=worker) for _ in range(4)]
for thread in workers:
    thread.start()
for job in [*range(10), *[None] * 4]:
    jobs.put(job)
for thread in workers:
    thread.join()
print(sorted(results))
"#;
    assert_snapshot!(result_at_both(script).await, @"
    2646531 [(13, 'no page 13')]
    [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    ");
}

#[tokio::test]
async fn coroutines_run_together_and_end_in_time() {
    let script = r#"
import asyncio

async def work(name, delay):
    await asyncio.sleep(delay)
    return name

async def fail():
    raise RuntimeError("no luck")

async def main():
    print(await asyncio.gather(*(work(name, 0.01) for name in "abc")))
    print(await asyncio.gather(work("d", 0), fail(), return_exceptions=True))
    try:
        await asyncio.wait_for(work("late", 60), timeout=0.05)
    except asyncio.TimeoutError:
        print("timed out")
    queue = asyncio.Queue()
    producer = asyncio.create_task(asyncio.wait([asyncio.create_task(queue.put(n)) for n in range(3)]))
    print([await queue.get() for _ in range(3)], await asyncio.to_thread(sum, range(5)))
    await producer

if __name__ == "__main__":
    asyncio.run(main())
"#;
    assert_snapshot!(result_at_both(script).await, @"
    ['a', 'b', 'c']
    ['d', RuntimeError('no luck')]
    timed out
    [0, 1, 2] 10
    ");
}

#[tokio::test]
async fn a_coroutine_that_is_never_awaited_is_reported() {
    let forgotten = "async def main():\n    print('hello')\n\nmain()\nimport gc\n";
    let at_top = "import asyncio\n\nasync def main():\n    return 42\n\nprint(await main())\n";
    assert_snapshot!(result(forgotten).await, @"
    (no output)
    stderr:
    script.py:4: RuntimeWarning: coroutine 'main' was never awaited
      main()
    RuntimeWarning: Enable tracemalloc to get the object allocation traceback
    ");
    assert_snapshot!(result(at_top).await, @r#"
    isError: Script failed (exit 1):
      File "script.py", line 6
    SyntaxError: 'await' outside function
    [A script runs outside of an event loop. Put this into `async def main():`, and end with `asyncio.run(main())`.]
    "#);
    let last = result("async def main():\n    return 1\n\nmain()\n").await;
    assert!(last.starts_with("<coroutine object main at 0x") && last.contains("was never awaited"), "{last}");
}

#[tokio::test]
async fn an_error_in_a_thread_does_not_end_the_script() {
    let script = r#"
import threading

def work():
    raise ValueError("in the thread")

thread = threading.Thread(target=work, name="worker")
thread.start()
thread.join()
"#;
    assert_snapshot!(result_at_both(script).await, @r#"
    (no output)
    stderr:
    Exception in thread worker:
    Traceback (most recent call last):
      [library]
      File "script.py", line 5, in work
        raise ValueError("in the thread")
    ValueError: in the thread
    "#);
}
