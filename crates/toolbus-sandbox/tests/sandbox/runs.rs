//! Tests of what a run is given, and what comes of it.

use std::time::Duration;

use toolbus_sandbox::{Ending, Job, Plan, Stop};

use crate::fixture::{LEVELS, job, run, sandbox, shell, text};

#[tokio::test]
async fn a_program_runs_and_its_streams_are_kept_apart() {
    for level in LEVELS {
        let outcome = run(level, &shell("echo out; echo err >&2; exit 3"), job()).await;
        assert_eq!(outcome.ending, Ending::Exited(3), "{level}: {outcome:?}");
        assert_eq!((text(&outcome.stdout), text(&outcome.stderr)), ("out\n".to_owned(), "err\n".to_owned()), "{level}");
    }
}

#[tokio::test]
async fn a_job_brings_files_and_standard_input_and_takes_files_back() {
    for level in LEVELS {
        let job = Job {
            files: vec![("a.txt".to_owned(), "from a file".into())],
            stdin: "from standard input".into(),
            ..job()
        };
        let command = "read line <$TOOLBUS_JOB/a.txt; echo \"$line\" >$TOOLBUS_OUTPUT/b.txt; read line; echo \"$line\"";
        let outcome = run(level, &shell(command), job).await;
        assert_eq!(text(&outcome.stdout), "from standard input\n", "{level}: {outcome:?}");
        let files: Vec<_> = outcome.artifacts.iter().map(|file| (file.name.as_str(), &*file.bytes)).collect();
        assert_eq!(files, [("b.txt", &b"from a file\n"[..])], "{level}");
    }
}

#[tokio::test]
async fn a_program_that_waits_reads_the_standard_input_of_its_plan() {
    for level in LEVELS {
        // More than a part that is copied at a time.
        let stdin = format!("{}\nthe end\n", "-".repeat(100_000));
        let command = "read long; read short; printf . >&4; read -d '' -u 3; echo ${#long} $short";
        // No other shell reads up to the byte that says that the job is there.
        let plan = Plan { program: "/bin/bash".into(), waits: true, stdin: stdin.into(), ..shell(command) };
        let outcome = run(level, &plan, job()).await;
        assert_eq!(text(&outcome.stdout), "100000 the end\n", "{level}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_program_that_ends_while_it_waits_is_known_to_be_gone() {
    for level in LEVELS {
        let plan = Plan { waits: true, ..shell("printf . >&4; exit 0") };
        let sandbox = sandbox(level);
        let mut waiting = sandbox.start(&plan).await.unwrap();
        waiting.ready().await.unwrap();
        let gone = async {
            while !waiting.is_gone() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.expect("nobody noticed");
    }
}

#[tokio::test]
async fn a_program_that_takes_too_long_is_ended() {
    for level in LEVELS {
        let job = Job { time: Duration::from_millis(300), ..job() };
        let outcome = run(level, &shell("while :; do :; done"), job).await;
        assert_eq!(outcome.ending, Ending::Stopped(Stop::Time), "{level}");
        assert!(outcome.elapsed < Duration::from_secs(60), "{level}: {outcome:?}");
    }
}
