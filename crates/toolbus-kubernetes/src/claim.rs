//! Claims: a script in a sandbox that agent-sandbox keeps ready in a warm pool.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use serde::Deserialize;
use serde_json::json;
use toolbus_core::Clock;
use toolbus_protocol::Random;
use toolbus_scripts::runner::{Script, StartKind};

use crate::failure::shortened;
use crate::pod::{lifetime, metadata};
use crate::watch::Objects;

/// The groups and the version of agent-sandbox.
const CLAIM_GROUP: &str = "extensions.agents.x-k8s.io";
const SANDBOX_GROUP: &str = "agents.x-k8s.io";
const VERSION: &str = "v1beta1";
/// Annotation of a sandbox with the name of its pod, if that is not its own.
const POD_NAME: &str = "agents.x-k8s.io/pod-name";
/// Label of a sandbox that was in a pool, with the value `warm`.
const LAUNCH_TYPE: &str = "agents.x-k8s.io/launch-type";
/// Reasons of a claim that no waiting helps against.
const HOPELESS: [&str; 2] = ["TemplateNotFound", "WarmPoolNotFound"];

/// A warm pool of sandboxes, each of which runs one script.
pub(crate) struct WarmPool {
    pub(crate) name: String,
    pub(crate) claims: Objects<DynamicObject>,
    pub(crate) sandboxes: Objects<DynamicObject>,
}

/// Progress of a claim. The texts are for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClaimState {
    /// Claim that has no sandbox that is ready, for this reason.
    Waiting(String),
    /// Claim that will have no sandbox that is ready until an operator has changed something.
    Hopeless(String),
    /// The sandbox of this name is its own, and ready.
    Bound(String),
}

/// Pod in which a script of a claim runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimedPod {
    pub(crate) name: String,
    /// Whether the pod was waiting in the pool.
    pub(crate) start: StartKind,
}

/// The status of a claim, as far as it is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClaimStatus {
    conditions: Vec<Condition>,
    sandbox: NamedSandbox,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
    reason: String,
    message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedSandbox {
    name: String,
}

impl WarmPool {
    pub(crate) fn new(client: &Client, namespace: &Arc<str>, name: &str) -> Self {
        let objects = |group, kind, resource| Objects {
            api: Api::namespaced_with(client.clone(), namespace, &api_resource(group, kind, resource)),
            resource,
            namespace: Arc::clone(namespace),
        };
        Self {
            name: name.to_owned(),
            claims: objects(CLAIM_GROUP, "SandboxClaim", "sandboxclaims"),
            sandboxes: objects(SANDBOX_GROUP, "Sandbox", "sandboxes"),
        }
    }

    /// The claim of a script. The cluster deletes it, its sandbox and its pod, if no daemon does.
    pub(crate) fn claim(&self, script: &Script, random: Random) -> DynamicObject {
        let expires = Clock::SYSTEM.since_epoch() + lifetime(script);
        let metadata = metadata(script, expires, random);
        let seconds = expires.as_secs().try_into().unwrap_or(i64::MAX);
        let shutdown = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
        let spec = json!({
            "warmPoolRef": {"name": self.name},
            "lifecycle": {"shutdownTime": shutdown.to_string(), "shutdownPolicy": "Delete"},
        });
        let resource = api_resource(CLAIM_GROUP, "SandboxClaim", "sandboxclaims");
        let claim = DynamicObject::new("", &resource).data(json!({ "spec": spec }));
        DynamicObject { metadata, ..claim }
    }
}

impl ClaimState {
    pub(crate) fn of(claim: &DynamicObject) -> Self {
        let status = claim.data.get("status").cloned().unwrap_or_default();
        let status: ClaimStatus = serde_json::from_value(status).unwrap_or_default();
        let ready = status.conditions.into_iter().find(|condition| condition.r#type == "Ready");
        let Some(Condition { status: is_ready, reason, message, .. }) = ready else {
            return Self::Waiting("agent-sandbox has not seen the claim".to_owned());
        };
        if is_ready == "True" && !status.sandbox.name.is_empty() {
            return Self::Bound(status.sandbox.name);
        }
        let text = shortened(&format!("{reason}: {message}"));
        if HOPELESS.contains(&&*reason) { Self::Hopeless(text) } else { Self::Waiting(text) }
    }
}

impl ClaimedPod {
    pub(crate) fn of(sandbox: &DynamicObject) -> Self {
        let annotated = sandbox.annotations().get(POD_NAME).filter(|name| !name.is_empty());
        let name = annotated.cloned().unwrap_or_else(|| sandbox.name_any());
        let is_warm = sandbox.labels().get(LAUNCH_TYPE).is_some_and(|kind| kind == "warm");
        Self { name, start: if is_warm { StartKind::Warm } else { StartKind::Cold } }
    }
}

fn api_resource(group: &str, kind: &str, resource: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, VERSION, kind), resource)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_claim_has_its_sandbox_once_it_is_ready() {
        let ready = |status: &str, reason: &str, message: &str| json!([{"type": "Finished", "status": "False"}, {"type": "Ready", "status": status, "reason": reason, "message": message}]);
        let states = [
            json!({}),
            json!({"status": {}}),
            json!({"status": {"conditions": "of another version"}}),
            json!({"status": {"conditions": ready("False", "SandboxMissing", "Sandbox does not exist")}}),
            json!({"status": {"conditions": ready("True", "DependenciesReady", ""), "sandbox": {}}}),
            json!({"status": {"conditions": ready("False", "DependenciesNotReady", "Pod is Pending"),
                "sandbox": {"name": "python-1"}}}),
            json!({"status": {"conditions": ready("False", "WarmPoolNotFound", "SandboxWarmPool \"x\" not found")}}),
            json!({"status": {"conditions": ready("True", "DependenciesReady", ""), "sandbox": {"name": "python-1"}}}),
        ];
        let all: Vec<String> =
            states.into_iter().map(|state| format!("{:?}", ClaimState::of(&object(state)))).collect();
        insta::assert_snapshot!(all.join("\n"), @r#"
        Waiting("agent-sandbox has not seen the claim")
        Waiting("agent-sandbox has not seen the claim")
        Waiting("agent-sandbox has not seen the claim")
        Waiting("SandboxMissing: Sandbox does not exist")
        Waiting("DependenciesReady: ")
        Waiting("DependenciesNotReady: Pod is Pending")
        Hopeless("WarmPoolNotFound: SandboxWarmPool \"x\" not found")
        Bound("python-1")
        "#);
    }

    #[test]
    fn a_sandbox_that_took_a_pod_of_the_pool_names_it() {
        let pod = |metadata: Value| {
            let ClaimedPod { name, start } = ClaimedPod::of(&object(json!({ "metadata": metadata })));
            format!("{name} {}", start.as_str())
        };
        assert_eq!(pod(json!({"name": "a"})), "a cold");
        let adopted = json!({"name": "a", "annotations": {POD_NAME: "b"}, "labels": {LAUNCH_TYPE: "warm"}});
        assert_eq!(pod(adopted), "b warm");
        assert_eq!(pod(json!({"name": "a", "annotations": {POD_NAME: ""}, "labels": {LAUNCH_TYPE: "cold"}})), "a cold");
    }
}
