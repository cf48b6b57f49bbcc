//! Claims of sandboxes, and what may become of them instead of a script that runs.

use std::time::Duration;

use serde_json::{Value, json};
use toolbus_core::Clock;
use toolbus_kubernetes::ClusterError;
use toolbus_sandbox::{Ending, Stop};
use toolbus_scripts::runner::{RunFailure, Runner as _, Script, StartKind};
use toolbus_testing::kubernetes::{ApiRefusal, ApiServer, Node, bound, ready, refusal};
use toolbus_testing::patience::at_most;

use crate::failures::{BUSY, misconfigured, not_started, with_deleted_pod};
use crate::{Fixture, PATIENCE, script, short, start_with, text};

const NO_KIND: ApiRefusal = refusal(404, "NotFound", "404 page not found");

async fn with_states<const N: usize>(states: [Value; N]) -> Fixture {
    Fixture::with_pool(Node::States(states.into(), Vec::new())).await
}

#[tokio::test]
async fn a_script_claims_a_sandbox_of_the_pool_and_its_claim_ends_with_it() {
    let fixture = Fixture::with_pool(Node::Runs).await;
    let finished = fixture.runner.run(script("print('warm')")).await.unwrap();
    assert_eq!((text(&finished.outcome.stdout.bytes), finished.start), ("warm\n", StartKind::Warm));
    let created = fixture.server.created();
    insta::assert_json_snapshot!(created, {
        "[].metadata.annotations" => "[expires]",
        "[].metadata.name" => "[name]",
        "[].spec.lifecycle.shutdownTime" => "[time]",
    }, @r#"
    [
      {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxClaim",
        "metadata": {
          "annotations": "[expires]",
          "labels": {
            "app": "rockbot-script",
            "app.kubernetes.io/managed-by": "toolbus",
            "rockbot.dev/tool-call-id": "call_1"
          },
          "name": "[name]"
        },
        "spec": {
          "lifecycle": {
            "shutdownPolicy": "Delete",
            "shutdownTime": "[time]"
          },
          "warmPoolRef": {
            "name": "python"
          }
        }
      }
    ]
    "#);
    // The cluster ends it a little after its call.
    let shutdown = created[0]["spec"]["lifecycle"]["shutdownTime"].as_str().unwrap();
    let shutdown = shutdown.parse::<k8s_openapi::jiff::Timestamp>().unwrap().as_second();
    let expires: i64 = created[0]["metadata"]["annotations"]["toolbus.dev/expires"].as_str().unwrap().parse().unwrap();
    let now = i64::try_from(Clock::SYSTEM.since_epoch().as_secs()).unwrap();
    assert!(shutdown == expires && shutdown > now && shutdown <= now + 2 * PATIENCE.as_secs().cast_signed() + 6);
    fixture.server.is_empty().await;
    assert_eq!((fixture.server.requests("delete sandboxclaims"), fixture.server.requests("delete")), (1, 0));
}

#[tokio::test]
async fn a_claim_that_is_bound_late_is_waited_for() {
    let fixture = with_states([
        json!({}),
        json!({"conditions": ready("False", "SandboxMissing", "Sandbox does not exist")}),
        json!({"conditions": ready("False", "DependenciesNotReady", "Pod is Pending"), "sandbox": {"name": "python-1"}}),
        bound("python-1"),
    ])
    .await;
    fixture.server.cut_watches(&[1, 0]);
    assert_eq!(fixture.run(script("print(1)")).await.unwrap().ending, Ending::Exited(0));
    fixture.server.is_empty().await;
}

#[tokio::test]
async fn a_claim_that_is_never_bound_ends_with_its_call() {
    let waiting = json!({"conditions": ready("False", "DependenciesNotReady", "Pod exists with phase: Pending")});
    let fixture = with_states([waiting]).await;
    insta::assert_snapshot!(not_started(fixture.run(short(1500)).await.unwrap_err()), @"the pod of the script did not run in time: the warm pool `python` has given no sandbox: DependenciesNotReady: Pod exists with phase: Pending");
    fixture.server.is_empty().await;
    let unseen = with_states([]).await;
    insta::assert_snapshot!(not_started(unseen.run(short(500)).await.unwrap_err()), @"the pod of the script did not run in time: the warm pool `python` has given no sandbox: agent-sandbox has not seen the claim");
}

#[tokio::test]
async fn a_missing_pool_is_an_error_at_once() {
    let missing = ready("False", "WarmPoolNotFound", "SandboxWarmPool \"python\" not found");
    let fixture = with_states([json!({ "conditions": missing })]).await;
    insta::assert_snapshot!(misconfigured(fixture.failure().await), @r#"the warm pool `python` has given no sandbox: WarmPoolNotFound: SandboxWarmPool "python" not found"#);
    fixture.server.is_empty().await;
}

#[tokio::test]
async fn a_missing_right_names_verb_and_resource() {
    let forbidden = |message| refusal(403, "Forbidden", message);
    let fixture = Fixture::with_pool(Node::Runs).await;
    for (request, right) in [
        ("create sandboxclaims", "create sandboxclaims"),
        ("watch sandboxclaims", "watch sandboxclaims"),
        ("get sandboxes", "get sandboxes"),
        ("exec", "create pods/exec"),
    ] {
        fixture.server.refuse(request, [forbidden("is forbidden: User \"x\" cannot do that")]);
        let why = misconfigured(fixture.failure().await);
        let start = format!("the daemon may not {right} in namespace `rockbot-scripts`; bind the Role of ");
        assert!(why.starts_with(&start) && why.ends_with("cannot do that"), "{why}");
    }
    fixture.server.is_empty().await;
    fixture.server.refuse("list sandboxclaims", [forbidden("is forbidden")]);
    let Err(error @ ClusterError::Refused(_)) = start_with(&fixture.server, Some("python"), "python3").await else {
        panic!("it starts")
    };
    assert!(error.to_string().contains("may not list sandboxclaims"), "{error}");
}

#[tokio::test]
async fn a_cluster_without_agent_sandbox_is_an_error_at_the_start_and_of_each_script() {
    let fixture = Fixture::with_pool(Node::Runs).await;
    fixture.server.refuse("create sandboxclaims", [NO_KIND]);
    insta::assert_snapshot!(misconfigured(fixture.failure().await), @"the cluster has no sandboxclaims; install agent-sandbox 0.5 or later with its extensions: 404 page not found");
    fixture.server.refuse("list sandboxclaims", [NO_KIND]);
    let Err(error @ ClusterError::Refused(_)) = start_with(&fixture.server, Some("python"), "python3").await else {
        panic!("it starts")
    };
    insta::assert_snapshot!(error, @"script.kubernetes: the cluster has no sandboxclaims; install agent-sandbox 0.5 or later with its extensions: 404 page not found");
    let no_namespace = refusal(404, "NotFound", "namespaces \"rockbot-scripts\" not found");
    fixture.server.refuse("create sandboxclaims", [no_namespace]);
    insta::assert_snapshot!(misconfigured(fixture.failure().await), @r#"there is no namespace `rockbot-scripts` for scripts: namespaces "rockbot-scripts" not found"#);
}

#[tokio::test]
async fn a_request_to_a_busy_api_server_is_retried_at_every_step() {
    let fixture = Fixture::with_pool(Node::Runs).await;
    let conflict = refusal(409, "Conflict", "quota");
    let taken = refusal(409, "AlreadyExists", "sandboxclaims \"x\" already exists");
    fixture.server.refuse("create sandboxclaims", [taken, BUSY, conflict]);
    fixture.server.refuse("watch sandboxclaims", [BUSY, refusal(410, "Expired", "too old resource version")]);
    fixture.server.refuse("get sandboxes", [BUSY]);
    fixture.server.refuse("exec", [BUSY, refusal(500, "InternalError", "unable to upgrade connection")]);
    fixture.server.refuse("delete sandboxclaims", [BUSY]);
    let outcome = fixture.run(script("print('once')")).await.unwrap();
    assert_eq!((outcome.ending, text(&outcome.stdout.bytes)), (Ending::Exited(0), "once\n"));
    assert_eq!((fixture.server.requests("create sandboxclaims"), fixture.server.created().len()), (4, 1));
    fixture.server.is_empty().await;
}

#[tokio::test]
async fn a_pod_that_is_lost_during_a_script_is_a_failure_whose_effect_is_not_known() {
    let fixture = Fixture::with_pool(Node::Runs).await;
    let failure = with_deleted_pod(&fixture, script("import time\ntime.sleep(600)")).await;
    let RunFailure::Unavailable(why) = failure else { panic!("it ran") };
    assert_eq!(why, "the pod of the script was deleted while it ran");
    fixture.server.is_empty().await;
}

#[tokio::test]
async fn a_connection_that_is_lost_ends_the_script_and_its_claim() {
    let fixture = Fixture::with_pool(Node::Runs).await;
    fixture.server.cut_execs(&[20]);
    let begun = Clock::SYSTEM.now();
    let failure = fixture.run(script("print('x' * 50)\nimport time\ntime.sleep(600)")).await.unwrap_err();
    assert!(matches!(&failure, RunFailure::Unavailable(why) if why.contains("was lost")), "{failure:?}");
    assert!(Clock::SYSTEM.since(begun) < at_most(Duration::from_secs(10)));
    fixture.server.is_empty().await;
}

#[tokio::test]
async fn a_connection_that_is_lost_before_the_supervisor_is_ready_begins_no_script() {
    let fixture = Fixture::with_pool(Node::Runs).await;
    for (after, has_job) in [(0, false), ("\nr\n".len(), true)] {
        fixture.server.cut_execs(&[after]);
        let failure = fixture.failure().await;
        assert!(
            matches!(
                (&failure, has_job),
                (RunFailure::NotStarted(why), false) | (RunFailure::Unavailable(why), true) if why.contains("was lost")
            ),
            "after {after} bytes: {failure:?}"
        );
        fixture.server.is_empty().await;
    }
}

#[tokio::test]
async fn a_script_that_exceeds_a_limit_is_stopped_in_a_sandbox_too() {
    let fixture = Fixture::with_pool(Node::Runs).await;
    // Past the supervisor, to the streams of the connection.
    for stream in ["1", "2"] {
        let flood = format!(
            "import os\nstatus = dict(line.split(':', 1) for line in open('/proc/self/status'))\n\
             log = os.open(f'/proc/{{status[\"PPid\"].strip()}}/fd/{stream}', os.O_WRONLY)\n\
             while True: os.write(log, b'x' * 10000 + b'\\n')"
        );
        assert_eq!(fixture.run(script(&flood)).await.unwrap().ending, Ending::Stopped(Stop::Output));
        fixture.server.is_empty().await;
    }
    // A supervisor that does not keep the time.
    let stopped = "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(600)";
    let outcome = fixture.run(Script { time: Duration::from_secs(1), ..script(stopped) }).await.unwrap();
    assert_eq!(outcome.ending, Ending::Stopped(Stop::Time));
    fixture.server.is_empty().await;
}

#[tokio::test]
async fn a_script_for_which_a_pod_has_no_room_fits_into_a_sandbox() {
    let fixture = Fixture::with_pool(Node::Runs).await;
    let source = "import os\nprint(len(open(os.environ['TOOLBUS_INPUT_FILE']).read()))";
    let given = Script { input: Some("ß".repeat(3 << 20)), ..script(source) };
    let outcome = fixture.run(given).await.unwrap();
    assert_eq!(text(&outcome.stdout.bytes), "3145728\n", "{outcome:?}");
}

#[tokio::test]
async fn a_sandbox_runs_no_second_script() {
    let fixture = with_states([bound("python-1")]).await;
    assert_eq!(fixture.run(script("print(1)")).await.unwrap().ending, Ending::Exited(0));
    fixture.server.is_empty().await;
    let why = misconfigured(fixture.failure().await);
    assert!(why.contains("FileExistsError") && why.ends_with("check the SandboxTemplate and `script.python`"), "{why}");
}

#[tokio::test]
async fn an_image_without_python_is_the_operators_mistake() {
    let server = ApiServer::start(Node::Runs).await;
    let runner = start_with(&server, Some("python"), "no-such-python").await.unwrap();
    let why = misconfigured(runner.run(script("pass")).await.unwrap_err());
    assert!(why.contains("exit code 127") && why.contains("no-such-python"), "{why}");
    server.is_empty().await;
}

#[tokio::test]
async fn claims_for_which_no_daemon_waits_are_swept_at_the_start() {
    let server = ApiServer::start(Node::Runs).await;
    let claim = |name: &str, manager: &str, expires: u64| {
        json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": {"name": name,
            "labels": {"app.kubernetes.io/managed-by": manager}, "annotations": {"toolbus.dev/expires": expires.to_string()}}})
    };
    let now = Clock::SYSTEM.since_epoch().as_secs();
    server.add("sandboxclaims", claim("left", "toolbus", now - 3600));
    server.add("sandboxclaims", claim("of-another-daemon", "toolbus", now + 3600));
    server.add("sandboxclaims", claim("of-others", "kubectl", now - 3600));
    let _runner = start_with(&server, Some("python"), "python3").await.unwrap();
    assert_eq!(server.names("sandboxclaims"), ["of-another-daemon", "of-others"]);
}
