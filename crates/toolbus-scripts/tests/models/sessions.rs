//! Scripts of one session, in which a model works step by step.

use std::fs;
use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt as _;
use insta::assert_snapshot;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use toolbus_core::toolsets::SessionLimits;
use toolbus_sandbox::Level;
use toolbus_testing::patience::eventually;

use crate::fixture::Steps;

const LEVELS: [Level; 2] = [Level::Full, Level::NoNamespaces];

/// The results of scripts, one after another in one session; the same at `full` and at `no-namespaces`.
async fn results(scripts: &[&str]) -> String {
    let at = async |level| {
        let steps = Steps::at(level).await;
        let mut results = Vec::new();
        for script in scripts {
            results.push(steps.result(script).await);
        }
        results.join("\n--\n")
    };
    let (full, less) = (at(Level::Full).await, at(Level::NoNamespaces).await);
    assert_eq!(full, less, "full and no-namespaces");
    full
}

#[tokio::test]
async fn the_next_script_finds_variables_functions_and_modules_of_the_one_before() {
    let scripts =
        ["x = 1", "x + 1", "import math\ndef area(r):\n    return math.pi * r * r", "print(f'{area(x):.2f}')"];
    assert_snapshot!(results(&scripts).await, @"
    (no output)
    --
    2
    --
    (no output)
    --
    3.14
    ");
}

#[tokio::test]
async fn each_script_has_its_own_input_on_standard_input() {
    for level in LEVELS {
        let steps = Steps::at(level).await;
        let mut results = Vec::new();
        for input in ["one\nleft", "two", ""] {
            let script = "import sys\nsys.stdin.readline().strip() or 'nothing'";
            results.push(steps.result_of(&json!({"script": script, "input_data": input})).await);
        }
        assert_eq!(results, ["'one'", "'two'", "'nothing'"], "{level}");
    }
}

#[tokio::test]
async fn files_stay_and_come_back_once() {
    let scripts = [
        "import os\nout = os.environ['TOOLBUS_OUTPUT']\nopen('notes.txt', 'w').write('kept')\nopen(out + '/a.csv', 'w').write('1')",
        "open('notes.txt').read(), sorted(os.listdir(out))",
        "open(out + '/b.csv', 'w').write('2')",
        "open(out + '/a.csv', 'a').write('3')",
    ];
    assert_snapshot!(results(&scripts).await, @r#"
    Files: a.csv
    [Saved in the work folder and not returned: notes.txt. Write to the folder that TOOLBUS_OUTPUT names.]
    [toolbus:output/a.csv text/csv: 1]
    --
    ('kept', ['a.csv'])
    --
    Files: b.csv
    [toolbus:output/b.csv text/csv: 2]
    --
    Files: a.csv
    [toolbus:output/a.csv text/csv: 13]
    "#);
}

#[tokio::test]
async fn a_script_that_raises_or_exits_leaves_the_session_usable() {
    let scripts = [
        "rows = [1, 2]\ndef half(x):\n    return x / 0",
        "half(rows[0])",
        "import sys\nsys.exit('gave up')",
        "sys.exit(3)",
        "if rows\n",
        "rows + [3]",
    ];
    assert_snapshot!(results(&scripts).await, @r#"
    (no output)
    --
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script-2.py", line 1, in <module>
        half(rows[0])
      File "script-1.py", line 3, in half
        return x / 0
    ZeroDivisionError: division by zero

    --
    isError: Script failed (exit 1):
    gave up

    --
    isError: Script failed (exit 3):
    (no output)
    --
    isError: Script failed (exit 1):
      File "script-5.py", line 1
        if rows
    SyntaxError: expected ':'

    --
    [1, 2, 3]
    "#);
}

/// The figure was drawn again at the end of each script, and ended the session where the script had ended by
/// `sys.exit`.
#[tokio::test]
async fn a_figure_that_cannot_be_drawn_fails_its_own_script_alone() {
    let library = r#"
import sys, types
class Figure:
    def savefig(self, path):
        raise ValueError("no figure")
plt = types.ModuleType("matplotlib.pyplot")
plt.figures = [1]
plt.get_fignums = lambda: list(plt.figures)
plt.figure = lambda number: Figure()
plt.close = lambda what: plt.figures.clear()
sys.modules["matplotlib.pyplot"] = plt
"#;
    let scripts = [library, "1 + 1", "plt.figures.append(1)\nsys.exit(0)", "plt.figures"];
    let shown = results(&scripts).await;
    assert_eq!(shown.matches("ValueError: no figure").count(), 2, "{shown}");
    let ends: Vec<&str> = shown.split("\n--\n").collect();
    assert_eq!((ends[1], ends[3]), ("2", "[]"), "{shown}");
}

#[tokio::test]
async fn an_exit_that_nothing_can_catch_ends_the_session_and_the_result_notes_it() {
    let scripts = ["x = 1", "import os\nprint('bye')\nos._exit(2)", "x"];
    assert_snapshot!(results(&scripts).await, @r#"
    (no output)
    --
    isError: Script failed (exit 2):
    bye
    [The session has ended: its variables and files are gone. The next script begins another.]
    --
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script-1.py", line 1, in <module>
        x
    NameError: name 'x' is not defined
    [This script is the first of its session: variables and files of earlier ones, if any, are gone.]
    "#);
}

#[tokio::test]
async fn a_timeout_or_too_much_memory_ends_the_session_and_the_result_notes_it() {
    for level in LEVELS {
        let steps = Steps::at(level).await;
        steps.result("x = 1").await;
        let late = json!({"script": "print('on')\nwhile True: pass", "timeout_seconds": 1});
        let late = steps.result_of(&late).await;
        assert!(late.contains("\non\n[The session has ended: its variables and files are gone."), "{level}: {late}");
        let next = steps.result("x").await;
        assert!(
            next.ends_with(
                "[This script is the first of its session: variables and files of earlier ones, if any, are gone.]"
            ),
            "{next}"
        );
        let large = steps.result("rows = []\nwhile True: rows.append(' ' * 10_000_000)").await;
        assert!(large.starts_with("isError: The script used more than 256 MiB of memory"), "{level}: {large}");
        assert!(large.ends_with("The next script begins another.]"), "{level}: {large}");
        eventually("the session has ended", async || (steps.sessions.sessions() == 0).then_some(())).await;
    }
}

#[tokio::test]
async fn each_script_has_its_own_time_input_and_limits() {
    for level in LEVELS {
        let steps = Steps::at(level).await;
        let spend = "import time\nend = time.process_time() + 0.7\nwhile time.process_time() < end: pass";
        for _ in 0..3 {
            // One second of CPU time each.
            let spent = steps.result_of(&json!({"script": spend, "timeout_seconds": 1})).await;
            assert!(spent == "(no output)" || spent.contains("timed out"), "{level}: {spent}");
        }
        let with_input = json!({"script": "import os\nos.environ['ROCKBOT_INPUT'], open('a').read()", "input_data": "in", "input_files": {"a": "1"}});
        assert_eq!(steps.result_of(&with_input).await, "('in', '1')", "{level}");
        let other = json!({"script": "import os\n'ROCKBOT_INPUT' in os.environ and os.environ['ROCKBOT_INPUT'], open('a').read()", "input_files": {"a": "2"}});
        assert_eq!(steps.result_of(&other).await, "('', '2')", "{level}");
        let key = "import os\nos.environ.get('TOOLBUS_IDEMPOTENCY_KEY', 'none')";
        for (given, expected) in [(json!({"key": "k7"}), "'k7'"), (json!({"key": "k8"}), "'k8'"), (json!({}), "'none'")]
        {
            let mut arguments = given;
            arguments["script"] = json!(key);
            assert_eq!(steps.result_of(&arguments).await, expected, "{level}");
        }
    }
}

#[tokio::test]
async fn an_input_file_that_cannot_be_written_is_refused_and_the_session_stays() {
    for level in LEVELS {
        let steps = Steps::at(level).await;
        let begin = "import os\nx = 1\nos.makedirs('data/part')\nopen('kept', 'w').write('kept')";
        steps.result(begin).await;
        let of_folder = json!({"script": "x = 2", "input_files": {"data": "1", "kept": "2", "more": "3"}});
        let refused = steps.result_of(&of_folder).await;
        insta::allow_duplicates! {
            assert_snapshot!(refused, @"InvalidArguments: The session has a folder named `data`, which an input file of this name does not replace. Give the file another name, or remove the folder first. The script did not run.");
        }
        assert_eq!(
            steps.result("x, open('kept').read(), os.listdir('data')").await,
            "(1, 'kept', ['part'])",
            "{level}"
        );

        steps.result("with open('large', 'wb') as file:\n    for _ in range(62): file.write(bytes(1 << 20))").await;
        let large = "x".repeat(1536 * 1024);
        let of_room = json!({"script": "x = 2", "input_files": {"one": large, "two": large}});
        let refused = steps.result_of(&of_room).await;
        insta::allow_duplicates! {
            assert_snapshot!(refused, @"InvalidArguments: The script and its input do not fit into its work folder, with the files that its session has there, if any. Give it less, or remove files first. The script did not run; files that its input replaces may be gone.");
        }
        let rest =
            steps.result_of(&json!({"script": "x, sorted(os.listdir())", "input_files": {"three": large}})).await;
        assert!(rest.starts_with("(1, ['data', 'kept', 'large', 'three'])"), "{level}: {rest}");
    }
}

#[tokio::test]
async fn disk_and_threads_are_limited_for_a_session_as_a_whole() {
    let write =
        |name: &str| format!("with open('{name}', 'wb') as file:\n    for _ in range(40): file.write(bytes(1 << 20))");
    let threads = "import threading\ndone = threading.Event()\nkept = []\nfor _ in range(40):\n    \
                   kept.append(threading.Thread(target=done.wait, daemon=True))\n    kept[-1].start()";
    for level in LEVELS {
        let steps = Steps::at(level).await;
        let first = steps.result(&write("one")).await;
        assert!(first.contains("[Saved in the work folder and not returned: one."), "{level}: {first}");
        let second = steps.result(&write("two")).await;
        let is_reported = second.contains("No space left on device") || second.contains("wrote more than 64 MiB");
        assert!(is_reported, "{level}: {second}");

        let steps = Steps::at(level).await;
        assert_eq!(steps.result(threads).await, "(no output)", "{level}");
        let more = steps.result(threads).await;
        let is_reported = more.contains("[A script may have 64 processes and threads at a time.]")
            || more.contains("had more than 64 processes and threads");
        assert!(is_reported, "{level}: {more}");
    }
}

#[tokio::test]
async fn too_much_output_ends_the_session_and_all_that_fits_does_not() {
    for level in LEVELS {
        let steps = Steps::at(level).await;
        let whole = steps.result("print('x' * (1024 * 1024 - 1))").await;
        assert_eq!(whole.len(), 1024 * 1024, "{level}");
        let flood = steps.result("for _ in range(100): print('x' * 1024 * 1024)").await;
        assert!(flood.ends_with("The next script begins another.]"), "{level}: {}", &flood[flood.len() - 200..]);
        assert_eq!(steps.result("print('again')").await, "again\n", "{level}");
    }
}

#[tokio::test]
async fn sessions_of_other_agents_and_with_other_ids_share_nothing() {
    for level in LEVELS {
        let steps = Steps::at(level).await;
        let keep = json!({"script": "import os\nsecret = 'mine'\nopen('secret', 'w').write('mine')\nopen(os.environ['TMPDIR'] + '/s', 'w').write('mine')"});
        let look = json!({"script": "import os\n'secret' in globals(), os.path.exists('secret'), os.listdir(os.environ['TMPDIR'])"});
        steps.call(("a", Some("s")), &keep).await;
        for of in [("a", Some("t")), ("b", Some("s"))] {
            assert_eq!(steps.call(of, &look).await, "(False, False, [])", "{level} {of:?}");
        }
        assert_eq!(steps.call(("a", Some("s")), &look).await, "(True, True, ['s'])", "{level}");
        assert_eq!(steps.sessions.sessions(), 3);
    }
}

#[tokio::test]
async fn a_call_without_a_session_id_is_refused_with_advice() {
    let steps = Steps::at(Level::NoNamespaces).await;
    assert_snapshot!(steps.call(("a", None), &json!({"script": "x = 1"})).await, @"InvalidArguments: Argument `session` keeps variables and files for the caller's session, and this call is in none. Give it a `sessionId`, or leave `session` out.");
}

#[tokio::test]
async fn packages_are_those_of_the_first_script() {
    let steps = Steps::at(Level::NoNamespaces).await;
    steps.result("x = 1").await;
    let none = steps.result_of(&json!({"script": "x", "pip_packages": []})).await;
    assert_eq!(none, "1");
    // The fixture allows none, so that another list is refused for that.
    let other = steps.result_of(&json!({"script": "x", "pip_packages": ["numpy"]})).await;
    assert!(other.starts_with("NotAllowed"), "{other}");
}

#[tokio::test]
async fn a_second_script_waits_for_the_first() {
    let steps = Steps::at(Level::NoNamespaces).await;
    steps.result("import time\nsteps = []").await;
    let slow = steps.begin(("a", Some("s")), &json!({"script": "time.sleep(1)\nsteps.append('slow')"}));
    let quick = steps.begin(("a", Some("s")), &json!({"script": "steps.append('quick')"}));
    let (slow, quick) = tokio::join!(slow, quick);
    slow.unwrap();
    quick.unwrap();
    assert_eq!(steps.result("steps").await, "['slow', 'quick']");
}

#[tokio::test]
async fn an_agent_may_have_half_of_all_sessions() {
    let steps = Steps::at(Level::NoNamespaces).await;
    for session in ["1", "2"] {
        steps.call(("a", Some(session)), &json!({"script": "x = 1"})).await;
    }
    assert_snapshot!(steps.call(("a", Some("3")), &json!({"script": "x = 1"})).await, @"Overloaded: Tool set 'Python sessions' has no room for another session of this agent, which has 2, the most. End one that is not needed any more, or try again later.");
    assert_eq!(steps.call(("b", Some("3")), &json!({"script": "1"})).await, "1");
}

#[tokio::test]
async fn a_session_ends_when_it_is_idle_when_it_is_old_and_when_it_is_ended() {
    let long = Duration::from_secs(600);
    let limits = |idle_timeout, max_lifetime| SessionLimits { idle_timeout, max_lifetime, max_sessions: 4 };
    for limits in [limits(Duration::from_millis(300), None), limits(long, Some(Duration::from_millis(500)))] {
        let steps = Steps::with(Level::NoNamespaces, limits).await;
        steps.result("x = 1").await;
        eventually("its end", async || (steps.sessions.sessions() == 0).then_some(())).await;
        assert!(steps.result("x").await.contains("NameError"), "{limits:?}");
    }
    let steps = Steps::at(Level::NoNamespaces).await;
    steps.result("x = 1").await;
    steps.sessions.end("a", "s");
    assert!(steps.result("x").await.contains("NameError"));
    steps.sessions.shutdown().await;
    assert_eq!(steps.sessions.sessions(), 0);
}

#[tokio::test]
async fn a_script_that_is_cancelled_ends_the_interpreter_and_the_next_one_runs() {
    for level in LEVELS {
        let steps = Steps::at(level).await;
        steps.result("x = 1").await;
        let mut cancelled = steps.begin(("a", Some("s")), &json!({"script": "import time\ntime.sleep(600)"}));
        assert!((&mut cancelled).now_or_never().is_none());
        let dropped = tokio::time::timeout(Duration::from_millis(300), cancelled).await;
        assert!(dropped.is_err());
        let next = steps.result("x").await;
        assert!(next.contains("NameError"), "{level}: {next}");
    }
}

#[tokio::test]
async fn threads_rest_between_two_scripts_and_processes_end_with_theirs() {
    let begin = "
import subprocess, threading, time

ticks = []
def tick():
    while True:
        ticks.append(time.monotonic())
        time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
child = subprocess.Popen(['sleep', '600'])
time.sleep(0.1)
last = len(ticks)
";
    let steps = Steps::at(Level::Full).await;
    assert_eq!(steps.result(begin).await, "(no output)");
    tokio::time::timeout(Duration::from_millis(1500), std::future::pending::<()>()).await.unwrap_err();
    let look = "
longest = max(b - a for a, b in zip(ticks, ticks[1:] + [time.monotonic()]))
longest > 1, child.wait()
";
    assert_eq!(steps.result(look).await, "(True, -9)");
}

#[tokio::test]
async fn a_session_that_goes_on_between_two_scripts_is_ended() {
    let steps = Steps::at(Level::NoNamespaces).await;
    let script = "
import os, threading

def spin():
    while True:
        pass
threading.Thread(target=spin, daemon=True).start()
print(os.getpid())
";
    let pid: i32 = steps.result(script).await.trim().parse().unwrap();
    eventually("its end", async || {
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::CONT);
        (!Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    })
    .await;
    eventually("another session", async || steps.result("threading").await.contains("NameError").then_some(())).await;
}

#[tokio::test]
async fn a_child_that_goes_on_with_the_script_reports_nothing_of_its_own() {
    let steps = Steps::at(Level::Full).await;
    assert_eq!(steps.result("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)").await, "(no output)");
    assert_eq!(steps.result("pid > 0").await, "True");
}

#[tokio::test]
async fn a_script_that_closes_every_descriptor_ends_its_session() {
    for level in LEVELS {
        let steps = Steps::at(level).await;
        let closed = steps.result("import os, time\nos.closerange(3, 100)\ntime.sleep(600)").await;
        assert!(closed.ends_with("The next script begins another.]"), "{level}: {closed}");
        assert_eq!(steps.result("print('again')").await, "again\n", "{level}");
    }
}

/// The processes of this name, as the machine numbers them.
fn processes(name: &str) -> Vec<Pid> {
    let stats = fs::read_dir("/proc").unwrap().flatten().map(|entry| fs::read_to_string(entry.path().join("stat")));
    let named = stats.flatten().filter_map(|stat| {
        let (pid, rest) = stat.split_once(' ')?;
        rest.starts_with(&format!("({name})")).then(|| Pid::from_raw(pid.parse().ok()?)).flatten()
    });
    named.collect()
}

#[tokio::test]
async fn a_session_lost_between_two_scripts_begins_anew_and_the_result_notes_it() {
    for level in LEVELS {
        let name = if level == Level::Full { "lost-full" } else { "lost-less" };
        let begin = format!("import ctypes\nx = 1\nctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\nprint('begun')");
        let steps = Steps::at(level).await;
        // At once, when the daemon may not have noticed, and when it has.
        for waits in [false, true] {
            assert!(steps.result(&begin).await.starts_with("begun\n"), "{level}");
            let pid = eventually("the interpreter", async || processes(name).into_iter().next()).await;
            kill_process(pid, Signal::KILL).unwrap();
            if waits {
                eventually("its end", async || processes(name).is_empty().then_some(())).await;
            }
            let lost = steps.result("print('x' in globals())").await;
            if waits || !lost.contains("SIGKILL") {
                assert_eq!(
                    lost,
                    "False\n[The session was lost since its last script: its variables and files are gone. This script \
                     began another.]",
                    "{level}"
                );
            } else {
                assert!(lost.ends_with("The next script begins another.]"), "{level}: {lost}");
            }
            assert_eq!(steps.result("print('x' in globals())").await, "False\n", "{level}: the note comes once");
        }
    }
}
