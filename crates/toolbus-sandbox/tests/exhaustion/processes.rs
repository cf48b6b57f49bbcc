//! Processes and threads: too many, and those that want to stay.

use std::time::Duration;

use toolbus_sandbox::{Ending, Level, Stop};
use toolbus_scripts::runner::Script;

use crate::fixture::{assert_printed, both, brief, ended, named, run, script, text, told, warm};

#[tokio::test]
async fn a_script_has_as_many_processes_as_it_may_or_none() {
    let source = "
import os, time
count = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(600)
        count += 1
except OSError as error:
    print(error.strerror, count)
";
    assert_printed(&both(script(source)).await, ["Resource temporarily unavailable 16", "Operation not permitted 0"]);
}

#[tokio::test]
async fn a_fork_bomb_ends_with_its_time_and_leaves_no_process() {
    let source = "
while True:
    try:
        os.fork()
    except OSError:
        pass
";
    for outcome in both(brief(named("atk-forkbomb", source), 2000)).await {
        assert!(matches!(outcome.ending, Ending::Stopped(Stop::Time | Stop::Processes | Stop::Memory)), "{outcome:?}");
    }
    ended("atk-forkbomb").await;
}

#[tokio::test]
async fn a_chain_of_processes_that_fork_and_end_does_not_escape() {
    // Who is looked at has gone already, and has a child by then.
    let source = "
if os.fork() == 0:
    while True:
        if os.fork() != 0:
            os._exit(0)
time.sleep(600)
";
    let chain = Script { cpu: Duration::from_secs(2), ..brief(named("atk-chain", source), 3000) };
    let [full, less] = both(chain).await;
    assert!(matches!(full.ending, Ending::Stopped(Stop::Time | Stop::Cpu)), "{full:?}");
    assert_eq!(less.ending, Ending::Exited(1));
    ended("atk-chain").await;
}

#[tokio::test]
async fn threads_end_at_the_limit() {
    let source = "
import threading
begun = 0
try:
    while begun < 1000:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        begun += 1
except RuntimeError:
    pass
if begun > 16:
    threading.Event().wait()
print(begun)
";
    let [full, less] = both(script(source)).await;
    assert_eq!(told(&full), (Ending::Exited(0), "16\n".to_owned(), String::new()));
    // Where other processes of the same user count as well, it is noticed later, and ends the script.
    assert!(text(&less.stdout) == "16\n" || less.ending == Ending::Stopped(Stop::Processes), "{less:?}");
}

#[tokio::test]
async fn a_daemon_of_a_script_does_not_outlive_it() {
    let source = "
if os.fork() == 0:
    try:
        os.setsid()
    except OSError:
        pass
    if os.fork() == 0:
        for descriptor in range(3):
            os.close(descriptor)
        time.sleep(600)
    os._exit(0)
os.wait()
print('done')
";
    for outcomes in [both(script(named("atk-daemon", source))).await, warm(script(named("atk-daemon", source))).await] {
        let [full, less] = outcomes;
        assert_eq!(told(&full), (Ending::Exited(0), "done\n".to_owned(), String::new()));
        assert_eq!(less.ending, Ending::Exited(1));
        assert!(text(&less.stderr).contains("Operation not permitted"), "{less:?}");
    }
    ended("atk-daemon").await;
}

#[tokio::test]
async fn children_in_sessions_and_groups_of_their_own_end_with_the_script() {
    let source = "
import subprocess
def attempt(**options):
    try:
        subprocess.Popen(['/bin/sleep', '600'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
        print('begun')
    except OSError as error:
        print(error.strerror)
attempt(start_new_session=True)
attempt(preexec_fn=lambda: os.setpgid(0, 0))
for leave in os.setsid, lambda: os.setpgid(0, 0):
    try:
        leave()
    except OSError as error:
        print(error.strerror)
";
    // The script itself is the first of its session, which cannot leave it anywhere.
    let refused = "Operation not permitted\nOperation not permitted";
    assert_printed(
        &both(script(named("atk-session", source))).await,
        [&format!("begun\nbegun\n{refused}"), &format!("{refused}\n{refused}")],
    );
    ended("atk-session").await;
}

#[tokio::test]
async fn other_programs_run_where_processes_are_its_own_and_not_elsewhere() {
    let source = "
import subprocess
print(subprocess.run(['/usr/bin/python3', '-c', 'print(6 * 7)'], capture_output=True, text=True).stdout.strip())
";
    let [full, less] = both(script(source)).await;
    println!("{full:?} {less:?}");
    assert_eq!(full.ending, Ending::Exited(0), "{full:?}");
    assert_eq!(less.ending, Ending::Exited(1));
    assert!(text(&less.stderr).ends_with("PermissionError: [Errno 1] Operation not permitted\n"), "{less:?}");
}

#[tokio::test]
async fn a_pool_of_processes_works_where_processes_are_its_own() {
    let source = "
import multiprocessing
def double(number):
    return 2 * number
with multiprocessing.get_context('fork').Pool(2) as pool:
    print(pool.map(double, range(4)))
";
    let full = run(Level::Full, script(source)).await;
    assert_eq!(told(&full), (Ending::Exited(0), "[0, 2, 4, 6]\n".to_owned(), String::new()));
    let less = run(Level::NoNamespaces, script(source)).await;
    assert_eq!(less.ending, Ending::Exited(1), "{less:?}");
}
