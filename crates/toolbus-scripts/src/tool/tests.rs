//! The tool with a fake runner.

mod memory;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use toolbus_core::Clock;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::events::{ScriptEvents, ScriptRun};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{Tool, ToolCall, ToolOutput};
use toolbus_sandbox::{Ending, Level, Limits, Outcome, Stop, Usage, Watcher};

use super::text::tests::outcome;
use super::{Rights, ScriptMemory, ScriptTool, Settings};
use crate::packages::PackageError;
use crate::queue::{Bounds, FairQueue};
use crate::requirement::AllowedPackages;
use crate::runner::{Finished, RunFailure, Runner, RunnerStatus, Script, StartKind};
use crate::testing::{self, LIMITS};

/// Scripts of at most 300 s, half a processor, and two packages.
pub(super) fn settings() -> Settings {
    Settings {
        timeout: Duration::from_secs(30),
        max_timeout: Duration::from_secs(300),
        cpu_millis: 500,
        limits: LIMITS,
        packages: AllowedPackages::parse(&["requests", "numpy"]).unwrap(),
        package_timeout: Duration::from_secs(120),
        sessions: None,
        memory: None,
        language: None,
    }
}

/// Returns a prepared result, and records the scripts. Without a result it runs until it is notified.
#[derive(Default)]
struct FakeRunner {
    result: Mutex<Option<Result<Finished, RunFailure>>>,
    scripts: Mutex<Vec<Script>>,
    runs: Mutex<Vec<ScriptRun>>,
    go: Notify,
}

impl Runner for FakeRunner {
    fn run_watched<'a>(
        &'a self,
        script: Script,
        _: Option<&'a Watcher>,
    ) -> BoxFuture<'a, Result<Finished, RunFailure>> {
        self.scripts.lock().push(script);
        let result = self.result.lock().clone();
        async {
            match result {
                Some(result) => result,
                None => {
                    self.go.notified().await;
                    Ok(finished(Ending::Exited(0), "went on"))
                }
            }
        }
        .boxed()
    }

    fn status(&self) -> RunnerStatus {
        RunnerStatus {
            runner: "fake",
            level: Some(Level::Full),
            layers: vec!["namespaces", "landlock", "seccomp"],
            python: None,
            warm: 1,
            mode: Some("spawn"),
        }
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}

impl ScriptEvents for FakeRunner {
    fn run(&self, run: &ScriptRun) {
        self.runs.lock().push(*run);
    }
}

fn finished(ending: Ending, stdout: &str) -> Finished {
    let usage = Some(Usage { cpu_us: 1_500_000, peak_memory: 1 << 20 });
    let outcome = Outcome { usage, elapsed: Duration::from_secs(2), ..outcome(ending, stdout, "") };
    Finished { outcome, value: None, start: StartKind::Warm, installing: Duration::from_secs(1) }
}

/// The tool and what is behind it. One script runs at a time, and one of each agent may wait.
struct ToolFixture {
    fake: Arc<FakeRunner>,
    queue: FairQueue,
    tool: Tool,
}

impl ToolFixture {
    fn new() -> Self {
        Self::of(settings())
    }

    fn of(settings: Settings) -> Self {
        let fake = Arc::new(FakeRunner::default());
        let queue = FairQueue::new(Bounds { running: 1, waiting_per_owner: 1, waiting: 10 });
        let runner: Arc<dyn Runner> = Arc::clone(&fake) as _;
        let events: Arc<dyn ScriptEvents> = Arc::clone(&fake) as _;
        let tool = ScriptTool::new(runner, queue.clone(), events, settings).into_tool();
        Self { fake, queue, tool }
    }

    fn returning(result: Result<Finished, RunFailure>) -> Self {
        let fixture = Self::new();
        *fixture.fake.result.lock() = Some(result);
        fixture
    }

    fn call(
        &self,
        caller: Caller,
        time: Duration,
        arguments: Value,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
        let call = ToolCall {
            idempotency_key: Some("k7".into()),
            caller: Arc::new(caller),
            ..testing::call(&self.tool, time, arguments)
        };
        Arc::clone(&self.tool.executor).execute_boxed(call)
    }

    async fn run(&self, arguments: Value) -> Result<ToolOutput, ToolFailure> {
        self.call(agent("a"), Duration::from_secs(600), arguments).await
    }

    /// Begins a call of this agent, which then runs or waits.
    fn begin(&self, caller: Caller) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
        let mut call = self.call(caller, Duration::from_secs(600), json!({"script": "pass"}));
        assert!((&mut call).now_or_never().is_none(), "it ended at once");
        call
    }

    fn script(&self) -> Script {
        self.fake.scripts.lock().last().unwrap().clone()
    }

    fn outcomes(&self) -> Vec<&str> {
        self.fake.runs.lock().iter().map(|run| run.outcome).collect()
    }
}

fn agent(name: &str) -> Caller {
    Caller { agent: Some(AgentName::parse(name).unwrap()), name: name.into(), owner: name.into(), ..Caller::unknown() }
}

/// An unknown caller that gives itself a name.
fn unknown(name: &str) -> Caller {
    Caller { owner: format!("unknown:0::{name}").into(), name: name.into(), ..Caller::unknown() }
}

#[tokio::test]
async fn a_script_runs_with_its_arguments_and_its_output_is_the_result() {
    let fixture = ToolFixture::returning(Ok(finished(Ending::Exited(0), "42\n")));
    let arguments =
        json!({"script": "print(42)", "input_data": "{}", "timeout_seconds": "40", "pip_packages": ["Requests"]});
    let output = fixture.run(arguments).await.unwrap();
    assert_eq!((output.content.as_deref(), output.is_error), (Some("42\n"), false));
    let program = output.program.unwrap();
    assert_eq!((program.exit_code, program.stdout.as_deref()), (0, Some("42\n")));

    let script = fixture.script();
    assert_eq!((&*script.source, script.input.as_deref()), ("print(42)", Some("{}")));
    assert_eq!(script.idempotency_key.as_deref(), Some("k7"));
    assert_eq!((script.time, script.cpu), (Duration::from_secs(40), Duration::from_secs(20)));
    assert_eq!(script.packages.iter().map(|package| package.as_str()).collect::<Vec<_>>(), ["requests"]);
}

#[tokio::test]
async fn a_call_with_less_time_gives_its_script_less() {
    let fixture = ToolFixture::returning(Ok(finished(Ending::Stopped(Stop::Time), "")));
    let call = fixture.call(agent("a"), Duration::from_secs(10), json!({"script": "pass"}));
    let latest = Clock::SYSTEM.now() + Duration::from_secs(10);
    let output = call.await.unwrap();
    let script = fixture.script();
    let margin = latest - script.deadline;
    assert!(margin >= Duration::from_millis(400) && margin < Duration::from_secs(5), "{margin:?}");
    assert!(script.cpu < Duration::from_secs(5) && script.cpu > Duration::from_secs(2), "{:?}", script.cpu);
    assert!(output.is_error && output.content.unwrap().contains("timed out after 2s."));
}

#[tokio::test]
async fn a_failed_installation_is_an_error_result_of_the_tool() {
    let shown = async |error| {
        let output =
            ToolFixture::returning(Err(RunFailure::Packages(error))).run(json!({"script": "pass"})).await.unwrap();
        let program = output.program.unwrap();
        assert_eq!((output.is_error, program.stdout, program.stderr.as_ref()), (true, None, output.content.as_ref()));
        format!("{}: {}", program.exit_code, output.content.unwrap())
    };
    let failed = PackageError::Failed { exit_code: 2, stderr: "ERROR: no such package".to_owned() };
    insta::assert_snapshot!(shown(failed).await, @"
    2: pip install failed (exit 2):
    ERROR: no such package
    ");
    insta::assert_snapshot!(shown(PackageError::TimedOut { seconds: 120 }).await, @"-1: pip install timed out after 120s");
    insta::assert_snapshot!(shown(PackageError::Refused("No packages here.".to_owned())).await, @"-1: No packages here.");
}

#[tokio::test]
async fn a_failure_of_the_daemon_shows_its_details_to_the_operator_alone() {
    let shown = async |failure| {
        let failure = ToolFixture::returning(Err(failure)).run(json!({"script": "pass"})).await.unwrap_err();
        format!("{:?}: {} ({})", failure.cause, failure.message, failure.detail.unwrap())
    };
    let runner = RunFailure::NotStarted("no /bin/python".to_owned());
    insta::assert_snapshot!(shown(runner).await, @"ConnectFailed: Scripts cannot be run at the moment. Tell the operator if it stays so. (no /bin/python)");
    let helper = RunFailure::Unavailable("its helper ended".to_owned());
    insta::assert_snapshot!(shown(helper).await, @"Unavailable: Scripts cannot be run at the moment. Tell the operator if it stays so. (its helper ended)");
    let packages = RunFailure::Packages(PackageError::Unavailable("disk full".to_owned()));
    insta::assert_snapshot!(shown(packages).await, @"ConnectFailed: Packages cannot be installed at the moment. Tell the operator if it stays so. (disk full)");
    let set_up = RunFailure::Misconfigured("no right".to_owned());
    insta::assert_snapshot!(shown(set_up).await, @"Failed: Scripts cannot be run until the operator has corrected how they are run. Trying again does not help. (no right)");
}

#[tokio::test]
async fn a_misconfigured_runner_is_not_retryable() {
    let failure =
        async |failure| ToolFixture::returning(Err(failure)).run(json!({"script": "pass"})).await.unwrap_err();
    let set_up = failure(RunFailure::Misconfigured(String::new())).await.verdict.unwrap();
    assert_eq!((set_up.is_retryable, set_up.outcome), (false, Some(toolbus_protocol::Outcome::NotStarted)));
    let refused = failure(RunFailure::Refused("Send less.".to_owned())).await;
    assert_eq!((refused.cause, &*refused.message), (Cause::InvalidArguments, "Send less."));
}

#[tokio::test]
async fn arguments_are_checked_before_a_turn_is_taken() {
    let fixture = ToolFixture::new();
    let _running = fixture.begin(agent("a"));
    let failure = fixture.run(json!({"script": "pass", "pip_packages": "requests"})).await.unwrap_err();
    assert_eq!(failure.cause, Cause::InvalidArguments);
    let failure = fixture.run(json!({"script": "pass", "pip_packages": ["evil"]})).await.unwrap_err();
    assert_eq!(failure.cause, Cause::NotAllowed);
}

#[tokio::test]
async fn a_script_waits_for_its_turn_and_too_many_are_refused() {
    let fixture = ToolFixture::new();
    let running = fixture.begin(agent("a"));
    let waiting = fixture.begin(agent("a"));
    assert_eq!((fixture.queue.running(), fixture.queue.waiting(), fixture.fake.scripts.lock().len()), (1, 1, 1));
    let refused = fixture.run(json!({"script": "pass"})).await.unwrap_err();
    insta::assert_snapshot!(refused.message, @"Too many scripts are waiting to run. Wait for some to end, or run fewer.");
    assert_eq!((refused.cause, refused.retry_after), (Cause::Overloaded, Some(Duration::from_secs(1))));

    fixture.fake.go.notify_one();
    assert_eq!(running.await.unwrap().content.as_deref(), Some("went on"));
    fixture.fake.go.notify_one();
    assert!(waiting.await.is_ok());
    assert_eq!((fixture.queue.running(), fixture.queue.waiting()), (0, 0));
}

#[tokio::test]
async fn unknown_callers_share_one_share_of_the_queue() {
    let fixture = ToolFixture::new();
    let _running = fixture.begin(agent("a"));
    let _waiting = fixture.begin(unknown("one"));
    let refused =
        fixture.call(unknown("other"), Duration::from_secs(600), json!({"script": "pass"})).await.unwrap_err();
    assert_eq!(refused.cause, Cause::Overloaded);
    let _of_another = fixture.begin(agent("b"));
}

#[tokio::test(start_paused = true)]
async fn a_script_that_would_have_too_little_time_left_does_not_begin() {
    let fixture = ToolFixture::new();
    let _running = fixture.begin(agent("a"));
    let began = Clock::SYSTEM.now();
    let call = fixture.call(agent("b"), Duration::from_secs(100), json!({"script": "pass", "timeout_seconds": 60}));
    let failure = call.await.unwrap_err();
    insta::assert_snapshot!(failure.message, @"No place to run the script came free in time.");
    assert_eq!(failure.cause, Cause::Overloaded);
    // Half of what the call has, since the script requests more.
    assert_eq!(Clock::SYSTEM.since(began).as_secs_f64().round(), 50.0);
}

#[tokio::test]
async fn a_dropped_call_ends_the_run_and_frees_the_slot() {
    let fixture = ToolFixture::new();
    let running = fixture.begin(agent("a"));
    drop(running);
    assert_eq!((fixture.queue.running(), fixture.outcomes()), (0, vec!["cancelled"]));
}

#[tokio::test]
async fn every_run_is_reported_once_with_its_outcome() {
    let ending = |ending| Ok(finished(ending, ""));
    let stopped = Stop::ALL.map(|stop| (ending(Ending::Stopped(stop)), stop.as_str()));
    let others = [
        (ending(Ending::Exited(0)), "ok"),
        (ending(Ending::Exited(1)), "failed"),
        (ending(Ending::Signalled(11)), "signal"),
        (Err(RunFailure::Packages(PackageError::TimedOut { seconds: 1 })), "packages"),
        (Err(RunFailure::Unavailable(String::new())), "unavailable"),
    ];
    for (result, outcome) in others.into_iter().chain(stopped) {
        let fixture = ToolFixture::returning(result);
        let _ = fixture.run(json!({"script": "pass"})).await;
        assert_eq!(fixture.outcomes(), [outcome]);
        assert!(ScriptRun::OUTCOMES.contains(&outcome), "{outcome}");
    }
}

#[tokio::test]
async fn unmeasured_usage_of_a_run_is_absent() {
    for (usage, expected) in [
        (Some(Usage { cpu_us: 1_500_000, peak_memory: 1 << 20 }), (Some(Duration::from_millis(1500)), Some(1 << 20))),
        (Some(Usage { cpu_us: 0, peak_memory: 0 }), (None, None)),
        (None, (None, None)),
    ] {
        let mut finished = finished(Ending::Exited(0), "");
        finished.outcome.usage = usage;
        let fixture = ToolFixture::returning(Ok(finished));
        fixture.run(json!({"script": "pass"})).await.unwrap();
        let run = fixture.fake.runs.lock()[0];
        assert_eq!(((run.cpu, run.peak_memory), run.start), (expected, Some("warm")));
    }
}

#[test]
fn the_description_for_a_model() {
    let descriptor = ToolFixture::new().tool.descriptor;
    insta::assert_snapshot!(descriptor.description, @"Runs a Python script and returns what it prints to standard output. If it prints nothing, the value of its last expression is returned. Each script runs by itself, in a folder of its own that is gone afterwards, with no files but input_files. There is no network. Files that it writes to the folder named by the environment variable TOOLBUS_OUTPUT come back with the answer, at most 4 MiB together; so do figures of matplotlib that are open at the end. A script fails when it exits with another code than 0; its standard error is shown then. It may use 256 MiB of memory, 64 MiB of disk and 64 processes and threads, and print 1 MiB.");
    insta::assert_json_snapshot!(descriptor.parameters.as_deref(), @r#"
    {
      "additionalProperties": false,
      "properties": {
        "input_data": {
          "description": "Data for the script, for example JSON. The script finds it on standard input, in the file that the environment variable TOOLBUS_INPUT_FILE names, and, up to 128 KiB, in the variable ROCKBOT_INPUT.",
          "type": "string"
        },
        "input_files": {
          "description": "Files that the script finds in its current folder, by name: each a text, or bytes as {\"base64\": \"…\"}.",
          "type": "object"
        },
        "pip_packages": {
          "description": "Packages that the script imports beyond the standard library, such as [\"name\", \"name==1.2\"]; allowed are: numpy, requests. They are installed from wheels alone.",
          "items": {
            "type": "string"
          },
          "type": "array"
        },
        "script": {
          "description": "The text of the Python program. Print the answer to standard output.",
          "type": "string"
        },
        "timeout_seconds": {
          "description": "Seconds that the script may run; default 30, at most 300",
          "type": "integer"
        }
      },
      "required": [
        "script"
      ],
      "type": "object"
    }
    "#);
    assert_eq!(
        (&*descriptor.name, &*descriptor.source, descriptor.provider),
        ("execute_python_script", "script", "script")
    );
    // The script's own, its packages', and some to start and end it.
    assert_eq!(descriptor.timeout, Some(Duration::from_secs(300 + 120 + 10)));
    toolbus_core::check_schema(descriptor.parameters.as_deref().unwrap()).unwrap();
}

#[test]
fn the_description_for_another_language() {
    let descriptor = ToolFixture::of(settings().of_language("bash")).tool.descriptor;
    assert_eq!(&*descriptor.name, "execute_bash_script");
    insta::assert_snapshot!(descriptor.description, @"Runs a bash script and returns what it prints to standard output. Each script runs by itself, in a folder of its own that is gone afterwards, with no files but input_files. There is no network. Files that it writes to the folder named by the environment variable TOOLBUS_OUTPUT come back with the answer, at most 4 MiB together. A script fails when it exits with another code than 0; its standard error is shown then. It may use 256 MiB of memory, 64 MiB of disk and 64 processes and threads, and print 1 MiB.");
    let properties = descriptor.parameters.as_deref().unwrap()["properties"].as_object().unwrap();
    let names: Vec<&str> = properties.keys().map(String::as_str).collect();
    assert_eq!(names, ["input_data", "input_files", "script", "timeout_seconds"]);
    insta::assert_snapshot!(properties["script"]["description"], @r#""The text of the bash program. Print the answer to standard output.""#);
    assert_eq!(descriptor.timeout, Some(Duration::from_secs(300 + 10)));
}

#[test]
fn the_description_lists_only_limits_that_apply() {
    let none = Settings { packages: AllowedPackages::default(), ..settings() };
    let descriptor = super::descriptor::descriptor(&none, Rights { network: true, processes: true }, false);
    assert!(!descriptor.description.contains("network") && !descriptor.description.contains("other programs"));
    let packages = descriptor.parameters.unwrap()["properties"]["pip_packages"]["description"].clone();
    insta::assert_snapshot!(packages, @r#""Leave it out: no packages can be installed. The standard library is there.""#);
    assert_eq!(descriptor.timeout, Some(Duration::from_secs(310)));
    let any = Settings { packages: AllowedPackages::parse(&["*"]).unwrap(), ..settings() };
    let descriptor = super::descriptor::descriptor(&any, Rights { network: false, processes: false }, false);
    assert!(descriptor.description.contains(" There is no network. It has threads, and cannot start other programs"));
    let parameters = descriptor.parameters.unwrap();
    assert!(
        parameters["properties"]["pip_packages"]["description"]
            .as_str()
            .unwrap()
            .ends_with("; any is allowed. They are installed from wheels alone.")
    );
}
