//! Scripts that run, in a process that the node of the API server starts in their pod; most of them in pods of both kinds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use toolbus_sandbox::{Ending, Stop, Watcher, Written};
use toolbus_scripts::runner::{Runner as _, Script};
use toolbus_testing::kubernetes::Node;
use toolbus_testing::patience::eventually;

use crate::{Fixture, script, text};

#[tokio::test]
async fn a_script_runs_in_a_pod_and_returns_its_output_and_files() {
    for fixture in Fixture::of_each_kind().await {
        let source = "import os, sys\nprint(os.environ['ROCKBOT_INPUT'], open('a.csv').read(), '$(HOME) $$')\n\
                  print('err', file=sys.stderr)\nopen('here.txt', 'w').close()\n\
                  open(os.environ['TOOLBUS_OUTPUT'] + '/b.bin', 'wb').write(bytes(range(256)))\nsys.exit(3)";
        let files = vec![("a.csv".to_owned(), Bytes::from_static(b"1,2"))];
        let outcome = fixture.run(Script { input: Some("ä$".to_owned()), files, ..script(source) }).await.unwrap();
        assert_eq!(outcome.ending, Ending::Exited(3), "{outcome:?}");
        assert_eq!((text(&outcome.stdout.bytes), text(&outcome.stderr.bytes)), ("ä$ 1,2 $(HOME) $$\n", "err\n"));
        let [file] = &*outcome.artifacts else { panic!("one file: {outcome:?}") };
        assert_eq!((&*file.name, &*file.bytes), ("b.bin", &*(0..=255).collect::<Vec<u8>>()));
        assert_eq!((outcome.usage, outcome.left_out, &*outcome.not_returned), (None, 0, &["here.txt".to_owned()][..]));
        fixture.server.is_empty().await;
    }
}

#[tokio::test]
async fn the_value_of_the_last_expression_comes_back() {
    for fixture in Fixture::of_each_kind().await {
        let finished = fixture.runner.run(script("x = 20\nx + 1")).await.unwrap();
        assert_eq!(finished.value.as_deref(), Some("21"));
        assert_eq!(finished.outcome.artifacts, []);
    }
}

#[tokio::test]
async fn a_large_script_and_its_input_travel_without_other_rights() {
    let fixture = Fixture::new(Node::Runs).await;
    let source =
        format!("# {}\nimport os\nprint(len(open(os.environ['TOOLBUS_INPUT_FILE']).read()))", "é".repeat(100_000));
    let given = Script { input: Some("ß".repeat(200_000)), ..script(&source) };
    let outcome = fixture.run(given).await.unwrap();
    assert_eq!(text(&outcome.stdout.bytes), "200000\n", "{outcome:?}");
}

#[tokio::test]
async fn of_many_reports_some_and_the_last_arrive_and_none_is_output() {
    for fixture in Fixture::of_each_kind().await {
        let source = "import os, time\nreports = int(os.environ['TOOLBUS_PROGRESS_FD'])\n\
                  for number in range(20_000):\n    \
                  os.write(reports, b'{\"progress\": %d, \"message\": \"%s\"}\\n' % (number, b'x' * 1_000))";
        let seen = Arc::new(Mutex::new(Vec::new()));
        let watcher: Watcher = {
            let seen = Arc::clone(&seen);
            Arc::new(move |written| match written {
                Written::Progress(line) => seen.lock().push(line.to_owned()),
                Written::Stdout(bytes) => panic!("{}", text(bytes)),
            })
        };
        let outcome = fixture.runner.run_watched(script(source), Some(&watcher)).await.unwrap().outcome;
        assert_eq!(outcome.ending, Ending::Exited(0), "{outcome:?}");
        let seen = std::mem::take(&mut *seen.lock());
        assert!(seen.last().unwrap().starts_with("{\"progress\": 19999,"), "{}", seen.len());
        // Of 20 MB in some seconds at most 20 lines a second.
        assert!(seen.len() < 2_000, "{}", seen.len());
    }
}

#[tokio::test]
async fn lines_and_reports_of_progress_come_while_a_script_runs() {
    for fixture in Fixture::of_each_kind().await {
        let source = "import os, time\nprint('begun')\n\
                  os.write(int(os.environ['TOOLBUS_PROGRESS_FD']), b'{\"progress\": 1}\\n')\ntime.sleep(600)";
        let seen = Arc::new(Mutex::new(Vec::new()));
        let watcher: Watcher = {
            let seen = Arc::clone(&seen);
            Arc::new(move |written| {
                seen.lock().push(match written {
                    Written::Stdout(bytes) => text(bytes).to_owned(),
                    Written::Progress(line) => line.to_owned(),
                });
            })
        };
        let mut run = fixture.runner.run_watched(script(source), Some(&watcher));
        let both = eventually("both parts", async || (seen.lock().len() == 2).then_some(()));
        tokio::select! {
            result = &mut run => panic!("it has ended: {result:?}"),
            () = both => {}
        }
        let mut parts = seen.lock().clone();
        parts.sort();
        assert_eq!(parts, ["begun\n", "{\"progress\": 1}"]);
        // The runner deletes the pod of a run that is dropped.
        drop(run);
        fixture.server.is_empty().await;
    }
}

#[tokio::test]
async fn a_script_that_takes_too_long_is_stopped_with_its_output_so_far() {
    for fixture in Fixture::of_each_kind().await {
        let slow = Script { time: Duration::from_secs(2), ..script("import time\nprint('begun')\ntime.sleep(600)") };
        let outcome = fixture.run(slow).await.unwrap();
        assert_eq!((outcome.ending, text(&outcome.stdout.bytes)), (Ending::Stopped(Stop::Time), "begun\n"));
        fixture.server.is_empty().await;
    }
}

#[tokio::test]
async fn a_script_that_floods_its_reports_gains_nothing_and_returns_its_files() {
    for fixture in Fixture::of_each_kind().await {
        // Several processes, and a pipe of 1 MiB (`F_SETPIPE_SZ`) if the user may have one, in which there always is
        // something.
        let source = "import fcntl, os\nopen(os.environ['TOOLBUS_OUTPUT'] + '/a.txt', 'w').write('kept')\n\
                  reports = int(os.environ['TOOLBUS_PROGRESS_FD'])\n\
                  try: fcntl.fcntl(reports, 1031, 1 << 20)\n\
                  except OSError: pass\n\
                  for _ in range(2): os.fork()\n\
                  while True: os.write(reports, b'{\"progress\": 1}\\n' * 4096)";
        let outcome = fixture.run(Script { time: Duration::from_secs(2), ..script(source) }).await.unwrap();
        assert_eq!(outcome.ending, Ending::Stopped(Stop::Time), "{outcome:?}");
        // The daemon itself cuts one off without its files, and later.
        assert_eq!(outcome.artifacts.len(), 1, "{outcome:?}");
    }
}

#[tokio::test]
async fn processes_that_a_script_has_left_and_that_have_ended_do_not_count_any_more() {
    let fixture = Fixture::new(Node::Runs).await;
    // Also one that is not waited for has its number until then.
    let source = "import os, subprocess, time\n\
              left = [int(subprocess.check_output('sleep 0 >/dev/null & echo $!', shell=True)) for _ in range(20)]\n\
              def is_there(pid):\n    \
              try: os.kill(pid, 0)\n    \
              except ProcessLookupError: return False\n    \
              return True\n\
              while any(map(is_there, left)): time.sleep(0.01)\nprint('none')";
    let outcome = fixture.run(Script { time: Duration::from_secs(20), ..script(source) }).await.unwrap();
    assert_eq!((outcome.ending, text(&outcome.stdout.bytes)), (Ending::Exited(0), "none\n"), "{outcome:?}");
}

#[tokio::test]
async fn a_script_that_has_closed_its_streams_goes_on_to_its_end() {
    for fixture in Fixture::of_each_kind().await {
        let source = "import os, time\nos.closerange(1, 64)\ntime.sleep(0.3)\n\
                  open(os.environ['TOOLBUS_OUTPUT'] + '/a.txt', 'w').write('done')\nos._exit(0)";
        let outcome = fixture.run(script(source)).await.unwrap();
        assert_eq!((outcome.ending, outcome.artifacts.len()), (Ending::Exited(0), 1), "{outcome:?}");
        let endless = "import os, time\nos.closerange(1, 64)\ntime.sleep(600)";
        let outcome = fixture.run(Script { time: Duration::from_secs(1), ..script(endless) }).await.unwrap();
        assert_eq!(outcome.ending, Ending::Stopped(Stop::Time));
    }
}

#[tokio::test]
async fn a_script_that_prints_too_much_is_stopped() {
    for fixture in Fixture::of_each_kind().await {
        let outcome = fixture.run(script("while True: print('x' * 1000)")).await.unwrap();
        assert_eq!(outcome.ending, Ending::Stopped(Stop::Output));
        assert_eq!(outcome.stdout.bytes.len() as u64, crate::OUTPUT);
    }
}

#[tokio::test]
async fn a_signal_ends_a_script_as_it_does_elsewhere() {
    for fixture in Fixture::of_each_kind().await {
        let outcome = fixture.run(script("import os\nos.kill(os.getpid(), 11)")).await.unwrap();
        assert_eq!(outcome.ending, Ending::Signalled(11));
    }
}

#[tokio::test]
async fn a_run_that_is_dropped_leaves_no_pod() {
    for fixture in Fixture::of_each_kind().await {
        let mut run = fixture.runner.run(script("import time\ntime.sleep(600)"));
        tokio::select! {
            result = &mut run => panic!("it has ended: {result:?}"),
            () = eventually("a pod", async || (!fixture.server.pods().is_empty()).then_some(())) => {}
        }
        drop(run);
        fixture.server.is_empty().await;
        // One that has not begun makes none.
        let _ = fixture.runner.run(script("pass")).now_or_never();
        fixture.runner.shutdown().await;
        assert_eq!(fixture.server.pods(), [""; 0]);
    }
}

#[tokio::test]
async fn a_log_that_is_cut_off_is_read_again_at_the_end() {
    let fixture = Fixture::new(Node::Runs).await;
    fixture.server.cut_logs(&[10]);
    let outcome = fixture.run(script("print('x' * 50)\nprint('end')")).await.unwrap();
    assert_eq!(outcome.ending, Ending::Exited(0));
    assert!(text(&outcome.stdout.bytes).ends_with("end\n"), "{outcome:?}");
    assert_eq!(fixture.server.requests("log"), 2);
}

#[tokio::test]
async fn a_watch_that_is_cut_off_is_opened_again() {
    let fixture = Fixture::new(Node::Runs).await;
    fixture.server.cut_watches(&[0, 1, 0, 1]);
    let outcome = fixture.run(script("print(1)")).await.unwrap();
    assert_eq!((outcome.ending, text(&outcome.stdout.bytes)), (Ending::Exited(0), "1\n"));
    assert!(fixture.server.requests("watch") > 1);
}

#[tokio::test]
async fn a_script_that_forges_its_log_changes_only_its_own_result() {
    for fixture in Fixture::of_each_kind().await {
        // To the log of the container, past the supervisor: too long, no part, a file elsewhere, and much too much.
        let log = "import os\nstatus = dict(line.split(':', 1) for line in open('/proc/self/status'))\n\
               log = os.open(f'/proc/{status[\"PPid\"].strip()}/fd/1', os.O_WRONLY)\n";
        let source = format!(
            "{log}os.write(log, b'x' * 100000 + b'\\nf Li4vZXRjL3Bhc3N3ZA==\\nd eHg=\\no !!\\n')\nprint('still')"
        );
        let outcome = fixture.run(script(&source)).await.unwrap();
        assert_eq!((outcome.ending, text(&outcome.stdout.bytes)), (Ending::Exited(0), "still\n"));
        assert_eq!(outcome.artifacts, []);
        let flood = format!("{log}while True: os.write(log, b'x' * 10000 + b'\\n')");
        assert_eq!(fixture.run(script(&flood)).await.unwrap().ending, Ending::Stopped(Stop::Output));
        fixture.server.is_empty().await;
    }
}
