//! Every way to end.

use toolbus_sandbox::{Ending, Level, Stop};
use toolbus_scripts::runner::Runner as _;

use crate::fixture::{both, runner, script, text, told};

#[tokio::test]
async fn every_exit_code_is_told_as_it_is() {
    for level in [Level::Full, Level::NoNamespaces] {
        let runner = runner(level, 0).await;
        for code in [0, 1, 2, 63, 126, 127, 128, 137, 255] {
            for source in [format!("import sys; sys.exit({code})"), format!("import os; os._exit({code})")] {
                let finished = runner.run(script(source)).await.unwrap();
                assert_eq!(finished.outcome.ending, Ending::Exited(code), "{level}");
            }
        }
        for (source, code) in
            [("exit(3)", 3), ("quit()", 0), ("raise SystemExit", 0), ("import sys; sys.exit(256 + 7)", 7)]
        {
            let finished = runner.run(script(source)).await.unwrap();
            assert_eq!(told(&finished.outcome), (Ending::Exited(code), String::new(), String::new()), "{level}");
        }
    }
}

#[tokio::test]
async fn an_exit_with_a_text_writes_it_as_an_error() {
    for outcome in both(script("import sys\nprint('said')\nsys.exit('too bad')")).await {
        assert_eq!(told(&outcome), (Ending::Exited(1), "said\n".to_owned(), "too bad\n".to_owned()));
    }
}

#[tokio::test]
async fn death_by_each_signal_is_told_as_that_signal() {
    // What a script does not do by itself: it goes on, or is told to wait.
    let goes_on = [17, 18, 23, 28];
    let waits = [19, 20, 21, 22];
    for level in [Level::Full, Level::NoNamespaces] {
        let runner = runner(level, 0).await;
        for signal in (1..=31).filter(|signal| !waits.contains(signal)) {
            let source = format!(
                "import os, signal\nif {signal} not in (9, 19): signal.signal({signal}, signal.SIG_DFL)\nos.kill(os.getpid(), {signal})\nprint('on')"
            );
            let outcome = runner.run(script(source)).await.unwrap().outcome;
            let expected = match signal {
                signal if goes_on.contains(&signal) => (Ending::Exited(0), "on\n"),
                24 => (Ending::Stopped(Stop::Cpu), ""),
                signal => (Ending::Signalled(signal), ""),
            };
            assert_eq!((outcome.ending, &*text(&outcome.stdout)), expected, "{level}, signal {signal}");
        }
    }
}

#[tokio::test]
async fn a_script_that_stops_itself_ends_with_its_time() {
    let source = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)";
    for outcome in both(crate::fixture::brief(source, 1500)).await {
        assert_eq!(outcome.ending, Ending::Stopped(Stop::Time));
    }
}

#[tokio::test]
async fn a_crash_is_told_as_its_signal_and_leaves_no_core() {
    let crashes = [("import os; os.abort()", 6), ("import ctypes; ctypes.string_at(0)", 11)];
    for (source, signal) in crashes {
        for outcome in both(script(source)).await {
            assert_eq!(outcome.ending, Ending::Signalled(signal), "{outcome:?}");
        }
    }
    // Of a byte, and not of none: then the kernel starts no program that takes it either.
    for outcome in both(script("import resource; print(resource.getrlimit(resource.RLIMIT_CORE))")).await {
        assert_eq!(text(&outcome.stdout), "(1, 1)\n", "{outcome:?}");
    }
}

#[tokio::test]
async fn handlers_at_exit_and_threads_finish_what_they_do() {
    let source = "
import atexit, threading, time
atexit.register(print, 'at exit')
def later():
    time.sleep(0.1)
    print('thread')
threading.Thread(target=later).start()
print('main')
";
    for outcome in both(script(source)).await {
        assert_eq!(told(&outcome), (Ending::Exited(0), "main\nthread\nat exit\n".to_owned(), String::new()));
    }
}

#[tokio::test]
async fn an_exception_shows_the_script_and_nothing_of_what_runs_it() {
    let source = "
def outer():
    inner()

def inner():
    raise ValueError('wrong')

outer()
";
    let [full, less] = both(script(source)).await;
    assert_eq!(told(&full), told(&less));
    assert_eq!((full.ending, text(&full.stdout)), (Ending::Exited(1), String::new()));
    insta::assert_snapshot!(text(&full.stderr), @r#"
    Traceback (most recent call last):
      File "script.py", line 8, in <module>
        outer()
      File "script.py", line 3, in outer
        inner()
      File "script.py", line 6, in inner
        raise ValueError('wrong')
    ValueError: wrong
    "#);
}
