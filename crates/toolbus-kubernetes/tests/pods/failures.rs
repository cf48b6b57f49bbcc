//! Things that the API server and the node may do instead of running a script.

use std::time::Duration;

use serde_json::json;
use toolbus_core::Clock;
use toolbus_kubernetes::ClusterError;
use toolbus_sandbox::{Ending, Stop};
use toolbus_scripts::requirement::Requirement;
use toolbus_scripts::runner::{RunFailure, Runner as _, Script};
use toolbus_testing::kubernetes::{ApiRefusal, ApiServer, Node, ended, refusal, running, waiting};
use toolbus_testing::patience::eventually;

use crate::{Fixture, script, short, start, text};

/// The log of a script that has printed `ok`, without its end.
const LOG: &[u8] = b"b\no b2sK\n";
pub(crate) const BUSY: ApiRefusal = refusal(429, "TooManyRequests", "too many requests, please try again later");

/// A node that gives pods these states.
fn states<const N: usize>(states: [serde_json::Value; N], log: &[u8]) -> Node {
    Node::States(states.into(), log.to_owned())
}

/// Returns the error for an operator about a set-up that lets no script run.
pub(crate) fn misconfigured(failure: RunFailure) -> String {
    let RunFailure::Misconfigured(text) = failure else { panic!("{failure:?}") };
    text
}

pub(crate) fn not_started(failure: RunFailure) -> String {
    let RunFailure::NotStarted(text) = failure else { panic!("{failure:?}") };
    text
}

#[tokio::test]
async fn a_missing_right_names_verb_resource_and_namespace() {
    let fixture = Fixture::new(Node::Runs).await;
    fixture.server.refuse("create", [refusal(403, "Forbidden", "pods is forbidden: User \"x\" cannot create")]);
    insta::assert_snapshot!(misconfigured(fixture.failure().await), @r#"the daemon may not create pods in namespace `rockbot-scripts`; bind the Role of deploy/kubernetes/scripts.yaml, or claims.yaml with a warm pool, to its service account, or correct `script.kubernetes.namespace`: pods is forbidden: User "x" cannot create"#);
    assert_eq!(fixture.server.requests("create"), 1);
    fixture.server.refuse("log", [refusal(403, "Forbidden", "pods \"x\" is forbidden")]);
    let RunFailure::Unavailable(why) = fixture.run(script("import time\ntime.sleep(600)")).await.unwrap_err() else {
        panic!("it ran")
    };
    assert!(why.contains("may not get pods/log in namespace `rockbot-scripts`"), "{why}");
    fixture.server.is_empty().await;
}

#[tokio::test]
async fn a_right_that_is_missing_at_the_start_keeps_the_runner_from_starting() {
    let server = ApiServer::start(Node::Runs).await;
    server.refuse("list", [refusal(403, "Forbidden", "pods is forbidden"), refusal(503, "ServiceUnavailable", "etcd")]);
    let Err(error @ ClusterError::Refused(_)) = start(&server).await else { panic!("it starts") };
    assert!(error.to_string().contains("may not list pods in namespace `rockbot-scripts`"), "{error}");
    // An API server that is away for a moment does not.
    let runner = start(&server).await.unwrap();
    assert_eq!(runner.run(script("print(1)")).await.unwrap().outcome.ending, Ending::Exited(0));
}

#[tokio::test]
async fn a_pod_that_is_refused_is_the_operators_mistake() {
    let fixture = Fixture::new(Node::Runs).await;
    fixture
        .server
        .refuse("create", [refusal(422, "Invalid", "Pod \"x\" is invalid: spec.containers[0].image: Invalid")]);
    insta::assert_snapshot!(misconfigured(fixture.failure().await), @r#"the API server refused to create pods (422): Pod "x" is invalid: spec.containers[0].image: Invalid"#);
}

#[tokio::test]
async fn a_request_to_a_busy_api_server_is_retried() {
    let fixture = Fixture::new(Node::Runs).await;
    let busy = ApiRefusal { retry_after: Some(1), ..BUSY };
    fixture.server.refuse("create", [busy, refusal(500, "InternalError", "etcd"), refusal(409, "Conflict", "quota")]);
    let begun = Clock::SYSTEM.now();
    assert_eq!(fixture.run(script("print(1)")).await.unwrap().ending, Ending::Exited(0));
    assert_eq!(fixture.server.requests("create"), 4);
    assert!(Clock::SYSTEM.since(begun) >= Duration::from_secs(1), "it waits for the requested time");
}

#[tokio::test]
async fn an_api_server_that_stays_busy_ends_no_later_than_the_call() {
    for (fixture, request) in Fixture::of_each_kind().await.into_iter().zip(["create", "create sandboxclaims"]) {
        fixture.server.refuse(request, vec![BUSY; 1000]);
        let why = not_started(fixture.run(short(1500)).await.unwrap_err());
        assert!(why.contains("(429)"), "{request}: {why}");
    }
}

#[tokio::test]
async fn a_pod_whose_creation_timed_out_is_used_and_not_made_twice() {
    let fixture = Fixture::new(Node::Runs).await;
    fixture.server.refuse("create", [ApiRefusal { is_obeyed: true, ..refusal(504, "Timeout", "no answer in time") }]);
    let outcome = fixture.run(script("print('once')")).await.unwrap();
    assert_eq!((outcome.ending, text(&outcome.stdout.bytes)), (Ending::Exited(0), "once\n"));
    assert_eq!((fixture.server.created().len(), fixture.server.requests("create")), (1, 2));
    fixture.server.is_empty().await;
}

#[tokio::test]
async fn a_name_that_is_taken_is_replaced_and_its_pod_is_left_alone() {
    let fixture = Fixture::new(Node::Runs).await;
    fixture.server.add("pods", json!({"metadata": {"name": "other"}}));
    fixture.server.refuse("create", [refusal(409, "AlreadyExists", "pods \"x\" already exists")]);
    assert_eq!(fixture.run(script("print(1)")).await.unwrap().ending, Ending::Exited(0));
    eventually("only the other pod", async || (fixture.server.pods() == ["other"]).then_some(())).await;
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_an_error_at_once() {
    let states = [json!({"phase": "Pending"}), waiting("ContainerCreating", ""), waiting("ErrImagePull", "not found")];
    let fixture = Fixture::new(Node::States(states.into(), Vec::new())).await;
    insta::assert_snapshot!(misconfigured(fixture.failure().await), @"the container of the script cannot be started; check `script.kubernetes.image`, and whether the nodes may pull it: ErrImagePull: not found");
    fixture.server.is_empty().await;
}

#[tokio::test]
async fn a_pod_that_no_node_takes_ends_with_its_call() {
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient cpu."});
    let fixture = Fixture::new(states([json!({"phase": "Pending", "conditions": [condition]})], b"")).await;
    insta::assert_snapshot!(not_started(fixture.run(short(2000)).await.unwrap_err()), @"the pod of the script did not run in time: no node takes the pod; check the room of the cluster: Unschedulable: 0/3 nodes are available: 3 Insufficient cpu.");
    fixture.server.is_empty().await;
}

#[tokio::test]
async fn a_hanging_api_server_holds_nothing_after_the_deadline() {
    let fixture = Fixture::new(Node::Runs).await;
    fixture.server.be_silent();
    let why = not_started(fixture.run(short(500)).await.unwrap_err());
    assert_eq!(why, "the pod of the script did not run in time: the API server has not created it");
}

#[tokio::test]
async fn a_script_that_used_too_much_ends_with_the_reason_of_the_cluster() {
    let evicted = json!({"phase": "Failed", "reason": "Evicted",
        "message": "Usage of EmptyDir volume \"work\" exceeds the limit \"64Mi\"."});
    let late = json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "active longer than the deadline"});
    for (end, stop) in [(ended(137, "OOMKilled"), Stop::Memory), (evicted, Stop::Disk), (late, Stop::Time)] {
        let fixture = Fixture::new(states([running(), end], LOG)).await;
        let outcome = fixture.run(script("pass")).await.unwrap();
        assert_eq!((outcome.ending, text(&outcome.stdout.bytes)), (Ending::Stopped(stop), "ok\n"));
        fixture.server.is_empty().await;
    }
}

#[tokio::test]
async fn a_pod_that_ends_without_a_result_is_a_failure() {
    let fixture = Fixture::new(states([running(), ended(137, "Error")], LOG)).await;
    let failure = fixture.failure().await;
    assert!(matches!(failure, RunFailure::Unavailable(_)), "{failure:?}");
    let no_python = Fixture::new(states([running(), ended(1, "Error")], b"SyntaxError: invalid syntax\n")).await;
    insta::assert_snapshot!(misconfigured(no_python.failure().await), @"the pod of the script ended without a result (Error, exit code 1); its log: SyntaxError: invalid syntax; check `script.kubernetes.image` and `script.python`");
    let lost = json!({"phase": "Failed", "reason": "NodeLost"});
    let why = not_started(Fixture::new(states([lost], b"")).await.failure().await);
    assert!(why.contains("NodeLost"), "{why}");
}

/// Guards against the earlier report that the script may have run, so that it was not tried again.
#[tokio::test]
async fn a_pod_that_its_node_rejects_has_not_begun() {
    let no_log = || vec![refusal(400, "BadRequest", "container \"script\" in pod \"x\" is not available"); 10];
    let failed = |reason: &str| json!({"phase": "Failed", "reason": reason, "message": "Node didn't have enough cpu"});
    let fixture = Fixture::new(states([json!({"phase": "Pending"}), failed("OutOfcpu")], b"")).await;
    fixture.server.refuse("log", no_log());
    insta::assert_snapshot!(not_started(fixture.failure().await), @"the node did not take the pod of the script: OutOfcpu, Node didn't have enough cpu");
    // One that ran, and that the node did not admit again after a restart; and one of which that is not known.
    for states in [states([running(), failed("OutOfcpu")], b""), states([failed("Evicted")], b"")] {
        let fixture = Fixture::new(states).await;
        fixture.server.refuse("log", no_log());
        let failure = fixture.failure().await;
        assert!(matches!(failure, RunFailure::Unavailable(_)), "{failure:?}");
    }
    fixture.server.is_empty().await;
}

/// Guards against the earlier report that the script had not begun, so that its retry ran it a second time.
#[tokio::test]
async fn a_script_whose_log_cannot_be_read_may_have_run() {
    let unreadable = || vec![refusal(500, "InternalError", "dial tcp 10.0.0.1:10250: connection refused"); 100];
    let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."});
    for end in [ended(0, "Completed"), evicted] {
        let fixture = Fixture::new(states([running(), end], LOG)).await;
        fixture.server.refuse("log", unreadable());
        let failure = fixture.failure().await;
        assert!(matches!(failure, RunFailure::Unavailable(_)), "{failure:?}");
    }
}

/// Runs a script whose pod another deletes as soon as it is watched.
pub(crate) async fn with_deleted_pod(fixture: &Fixture, script: Script) -> RunFailure {
    let deletion = async {
        let name = eventually("a pod that is watched", async || {
            fixture.server.pods().pop().filter(|_| fixture.server.requests("watch") > 0)
        });
        fixture.server.remove(&name.await);
    };
    let (result, ()) = tokio::join!(fixture.run(script), deletion);
    result.unwrap_err()
}

#[tokio::test]
async fn a_pod_that_another_deletes_is_not_waited_for() {
    for (state, log) in [(waiting("ContainerCreating", ""), &b""[..]), (running(), LOG)] {
        let failure = with_deleted_pod(&Fixture::new(states([state], log)).await, script("pass")).await;
        assert!(failure.to_string().contains("deleted"), "{failure:?}");
    }
}

#[tokio::test]
async fn a_watch_with_an_expired_resource_version_starts_anew() {
    let fixture = Fixture::new(Node::Runs).await;
    fixture.server.refuse("watch", [refusal(410, "Expired", "too old resource version")]);
    assert_eq!(fixture.run(script("print(1)")).await.unwrap().ending, Ending::Exited(0));
    assert_eq!(fixture.server.requests("get"), 1);
}

#[tokio::test]
async fn a_deletion_that_fails_is_tried_again() {
    let fixture = Fixture::new(Node::Runs).await;
    fixture.server.refuse("delete", [refusal(500, "InternalError", "etcd"), BUSY]);
    fixture.run(script("print(1)")).await.unwrap();
    fixture.server.is_empty().await;
    assert_eq!(fixture.server.requests("delete"), 3);
}

#[tokio::test]
async fn pods_for_which_no_daemon_waits_are_swept_at_the_start() {
    let server = ApiServer::start(Node::Runs).await;
    let pod = |name: &str, manager: &str, expires: u64| {
        json!({"metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": manager},
            "annotations": {"toolbus.dev/expires": expires.to_string()}}})
    };
    let now = Clock::SYSTEM.since_epoch().as_secs();
    server.add("pods", pod("left", "toolbus", now - 3600));
    // The list comes in pages.
    for number in 0..600 {
        server.add("pods", pod(&format!("busy-{number:03}"), "toolbus", now + 3600));
    }
    server.add("pods", pod("of-another-daemon", "toolbus", now + 3600));
    server.add("pods", pod("of-rockbot", "rockbot", now - 3600));
    let _runner = start(&server).await.unwrap();
    let others: Vec<String> = server.pods().into_iter().filter(|name| !name.starts_with("busy-")).collect();
    assert_eq!(others, ["of-another-daemon", "of-rockbot"]);
}

#[tokio::test]
async fn packages_and_oversized_scripts_are_refused_without_a_pod() {
    let fixture = Fixture::new(Node::Runs).await;
    let packages = vec![Requirement::parse("numpy").unwrap()];
    let refused = fixture.run(Script { packages, ..script("pass") }).await.unwrap_err();
    insta::assert_snapshot!(refused, @"No packages can be installed here. Use the standard library, and packages that the operator has installed for all scripts.");
    let RunFailure::Refused(why) = fixture.run(script(&"#".repeat(2 << 20))).await.unwrap_err() else {
        panic!("it ran")
    };
    assert!(why.contains("is too large to be run here"), "{why}");
    assert_eq!(fixture.server.requests("create"), 0);
}
