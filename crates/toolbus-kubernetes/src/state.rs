//! Meaning of the status of a pod for its script.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod, PodStatus};
use toolbus_sandbox::{Ending, Stop};

use crate::failure::shortened;
use crate::pod::CONTAINER;

/// Reasons of a waiting container that no waiting helps against: of the image, or of the pod.
const HOPELESS: [&str; 9] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RegistryUnavailable",
    "RunContainerError",
];
/// Reasons of a container that ended before its program began.
const NOT_BEGUN: [&str; 2] = ["ContainerCannotRun", "StartError"];
/// Beginnings of the reasons of a pod that its node did not admit. Newer nodes begin the message with [`REJECTED`], also
/// if the reason is that of a pod that ran.
const NOT_ADMITTED: [&str; 4] = ["NodeAffinity", "OutOf", "TopologyAffinityError", "UnexpectedAdmissionError"];
const REJECTED: &str = "Pod was rejected";

/// Progress of a pod. The texts are for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PodState {
    /// Pod whose container has not begun, for this reason.
    Waiting(String),
    /// Pod whose container will not begin until an operator has changed something.
    Hopeless(String),
    /// Pod whose container runs.
    Running,
    /// Pod whose container has ended.
    Ended(PodEnd),
}

/// End of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodEnd {
    /// End of the script with the container, as far as the end of the container shows it.
    pub(crate) ending: Option<Ending>,
    /// Reason that the cluster gives.
    pub(crate) reason: String,
    /// Whether the node or the cluster has ended it, and not its own program.
    pub(crate) is_of_node: bool,
    /// Whether the node did not admit the pod. Unless that was seen to run, as before a restart of the node's kubelet,
    /// it never had a container.
    pub(crate) is_rejected: bool,
}

impl PodEnd {
    /// The end of a pod whose script has no more time.
    pub(crate) fn late() -> Self {
        let ending = Some(Ending::Stopped(Stop::Time));
        Self { ending, reason: "its time is over".to_owned(), is_of_node: true, is_rejected: false }
    }
}

impl PodState {
    pub(crate) fn of(pod: &Pod) -> Self {
        let Some(status) = &pod.status else { return Self::Waiting("not scheduled yet".to_owned()) };
        let container = status.container_statuses.iter().flatten().find(|container| container.name == CONTAINER);
        let state = container.and_then(|container| container.state.as_ref());
        if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
            return Self::of_ended(status, Some(ended));
        }
        if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
            return Self::of_ended(status, None);
        }
        if state.is_some_and(|state| state.running.is_some()) {
            return Self::Running;
        }
        let waiting = state.and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
        let message = waiting.and_then(|waiting| waiting.message.as_deref());
        match reason {
            Some(reason) if HOPELESS.contains(&reason) => Self::Hopeless(format!(
                "the container of the script cannot be started; check `script.kubernetes.image`, and whether the nodes may \
                 pull it: {}",
                text(Some(reason), message)
            )),
            Some(reason) => Self::Waiting(text(Some(reason), message)),
            None => Self::Waiting(unscheduled(status)),
        }
    }

    fn of_ended(status: &PodStatus, container: Option<&ContainerStateTerminated>) -> Self {
        let of_container = container.and_then(|container| container.reason.as_deref());
        if of_container.is_some_and(|reason| NOT_BEGUN.contains(&reason)) {
            return Self::Hopeless(format!(
                "the container of the script cannot be started; check `script.kubernetes.image` and `script.python`: {}",
                text(of_container, container.and_then(|container| container.message.as_deref()))
            ));
        }
        let message = status.message.as_deref().unwrap_or_default();
        let is_of_disk =
            || message.contains("ephemeral") || message.contains("emptyDir") || message.contains("EmptyDir");
        let stop = match (status.reason.as_deref(), of_container) {
            (Some("DeadlineExceeded"), _) => Some(Stop::Time),
            (Some("Evicted"), _) if is_of_disk() => Some(Stop::Disk),
            (_, Some("OOMKilled")) => Some(Stop::Memory),
            _ => None,
        };
        let code = container.map(|container| format!("exit code {}", container.exit_code));
        let reasons = [status.reason.as_deref(), of_container, code.as_deref(), Some(message)];
        let reasons: Vec<&str> = reasons.into_iter().flatten().filter(|reason| !reason.is_empty()).collect();
        let is_of_node = container.is_none() || status.reason.as_deref().is_some_and(|reason| !reason.is_empty());
        let reason = status.reason.as_deref().unwrap_or_default();
        let is_rejected = container.is_none()
            && (message.starts_with(REJECTED) || NOT_ADMITTED.iter().any(|beginning| reason.starts_with(beginning)));
        let (ending, reason) = (stop.map(Ending::Stopped), shortened(&reasons.join(", ")));
        Self::Ended(PodEnd { ending, reason, is_of_node, is_rejected })
    }
}

/// Reason why the pod is on no node, or waits there.
fn unscheduled(status: &PodStatus) -> String {
    let conditions = status.conditions.iter().flatten();
    let refused = conditions.clone().find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    match refused {
        Some(condition) => format!(
            "no node takes the pod; check the room of the cluster: {}",
            text(condition.reason.as_deref(), condition.message.as_deref())
        ),
        None => text(status.reason.as_deref().or(Some("the node starts it")), status.message.as_deref()),
    }
}

fn text(reason: Option<&str>, message: Option<&str>) -> String {
    let parts: Vec<&str> = [reason, message].into_iter().flatten().filter(|part| !part.is_empty()).collect();
    shortened(&parts.join(": "))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn state(status: Value) -> PodState {
        PodState::of(&serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap())
    }

    fn container(state: Value) -> Value {
        json!([{"name": "script", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}])
    }

    #[test]
    fn each_phase_of_a_pod_has_its_meaning() {
        let pending = |state| json!({"phase": "Pending", "containerStatuses": container(state)});
        let failed = |reason: &str, message: &str, state| json!({"phase": "Failed", "reason": reason, "message": message, "containerStatuses": container(state)});
        let killed = || json!({"terminated": {"exitCode": 137, "reason": "Error"}});
        let unschedulable = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient cpu."});
        let states = [
            json!({"phase": "Pending"}),
            json!({"phase": "Pending", "conditions": [unschedulable]}),
            pending(json!({"waiting": {"reason": "ContainerCreating"}})),
            pending(json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}})),
            json!({"phase": "Running", "containerStatuses": container(json!({"running": {}}))}),
            json!({"phase": "Succeeded",
                "containerStatuses": container(json!({"terminated": {"exitCode": 0, "reason": "Completed"}}))}),
            failed("", "", json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})),
            failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline", killed()),
            failed("Evicted", "Usage of EmptyDir volume \"work\" exceeds the limit \"64Mi\". ", killed()),
            failed("Evicted", "The node was low on resource: memory.", killed()),
            failed("", "", json!({"terminated": {"exitCode": 128, "reason": "StartError", "message": "no python3"}})),
            json!({"phase": "Failed", "reason": "NodeLost"}),
            json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Pod Node didn't have enough resource: cpu"}),
            json!({"phase": "Failed", "reason": "Evicted", "message": "Pod was rejected: The node had condition: [MemoryPressure]. "}),
        ];
        let all: Vec<String> = states.into_iter().map(|status| format!("{:?}", state(status))).collect();
        insta::assert_snapshot!(all.join("\n"), @r#"
        Waiting("the node starts it")
        Waiting("no node takes the pod; check the room of the cluster: Unschedulable: 0/3 nodes are available: 3 Insufficient cpu.")
        Waiting("ContainerCreating")
        Hopeless("the container of the script cannot be started; check `script.kubernetes.image`, and whether the nodes may pull it: ErrImagePull: not found")
        Running
        Ended(PodEnd { ending: None, reason: "Completed, exit code 0", is_of_node: false, is_rejected: false })
        Ended(PodEnd { ending: Some(Stopped(Memory)), reason: "OOMKilled, exit code 137", is_of_node: false, is_rejected: false })
        Ended(PodEnd { ending: Some(Stopped(Time)), reason: "DeadlineExceeded, Error, exit code 137, Pod was active on the node longer than the specified deadline", is_of_node: true, is_rejected: false })
        Ended(PodEnd { ending: Some(Stopped(Disk)), reason: "Evicted, Error, exit code 137, Usage of EmptyDir volume \"work\" exceeds the limit \"64Mi\". ", is_of_node: true, is_rejected: false })
        Ended(PodEnd { ending: None, reason: "Evicted, Error, exit code 137, The node was low on resource: memory.", is_of_node: true, is_rejected: false })
        Hopeless("the container of the script cannot be started; check `script.kubernetes.image` and `script.python`: StartError: no python3")
        Ended(PodEnd { ending: None, reason: "NodeLost", is_of_node: true, is_rejected: false })
        Ended(PodEnd { ending: None, reason: "OutOfcpu, Pod Node didn't have enough resource: cpu", is_of_node: true, is_rejected: true })
        Ended(PodEnd { ending: None, reason: "Evicted, Pod was rejected: The node had condition: [MemoryPressure]. ", is_of_node: true, is_rejected: true })
        "#);
        assert_eq!(PodState::of(&Pod::default()), PodState::Waiting("not scheduled yet".to_owned()));
    }
}
