//! The pod of a script: its name, its rights and its limits.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, EnvVar, Pod, PodSecurityContext, PodSpec, ResourceRequirements,
    SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;
use toolbus_core::Clock;
use toolbus_protocol::Random;
use toolbus_sandbox::Limits;
use toolbus_scripts::KEY_VARIABLE;
use toolbus_scripts::runner::Script;
use toolbus_scripts::runner::local::BOOTSTRAP;

/// Label of every pod of a script, as RockBot's scripts manager has it.
const APP: (&str, &str) = ("app", "rockbot-script");
/// Label of the pods that Toolbus made, and may sweep.
pub(crate) const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "toolbus");
/// Label with the call's id, as RockBot's scripts manager has it.
const CALL_ID: &str = "rockbot.dev/tool-call-id";
/// Annotation with the time, in seconds since 1970, after which no daemon waits for the pod.
pub(crate) const EXPIRES: &str = "toolbus.dev/expires";
/// The only container.
pub(crate) const CONTAINER: &str = "script";
/// Folder in which the container can write.
pub(crate) const WORK: &str = "/work";
/// Longest name of a pod, which is that of its host, too.
const MAX_NAME: usize = 63;
/// Longest value of a label.
const MAX_LABEL: usize = 63;
/// Characters of the call's id in the name of a pod.
const ID_IN_NAME: usize = 8;
/// Longest part of a job, in bytes: one variable has at most 128 KiB on Linux, with its name.
const MAX_PART: usize = 96 * 1024;
/// Longest job, in bytes: the API server stores at most about 1.5 MiB of a pod.
const MAX_JOB: usize = 1024 * 1024;
/// Time for which a pod outlives the deadline of its call, if no daemon deletes it.
const GRACE: Duration = Duration::from_secs(5);
/// The first and the number of the users of pods: each pod has one of its own, because the kernel counts the processes of
/// a user.
const FIRST_USER: i64 = 100_000;
const USERS: u32 = 1 << 30;
/// Size of the output of the supervisor in the log beside files, in bytes.
const LOG_ROOM: u64 = 1 << 20;
/// Bytes of log for reports of progress: the supervisor sends no more.
const REPORT_ROOM: u64 = 4 << 20;

/// Parts of which every pod of a runner is made.
#[derive(Debug, Clone)]
pub struct PodTemplate {
    /// The image, in which Python and all packages are.
    pub image: String,
    /// The interpreter in the image; a name is looked up in its `PATH`.
    pub python: String,
    /// Thousandths of a CPU.
    pub cpu_millis: u32,
    /// The most that a script may use.
    pub limits: Limits,
}

/// Reason why a script has no pod: it is too large to travel in one. The text is for its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "The script with its input_data and input_files is too large to be run here: {size} KiB, and at most {most} KiB can \
     be. Send less.",
    size = .0 / 1024,
    most = MAX_JOB / 1024
)]
pub(crate) struct ScriptTooLarge(usize);

impl PodTemplate {
    /// The pod of a script.
    ///
    /// # Errors
    ///
    /// If the script with its input and files is larger than [`MAX_JOB`].
    pub(crate) fn pod(&self, script: &Script, random: Random) -> Result<Pod, ScriptTooLarge> {
        let lifetime = lifetime(script);
        let metadata = metadata(script, Clock::SYSTEM.since_epoch() + lifetime, random);
        let user = FIRST_USER + i64::try_from(random.bits() % u128::from(USERS)).unwrap_or_default();
        let work = Volume {
            name: "work".to_owned(),
            empty_dir: Some(EmptyDirVolumeSource { size_limit: Some(bytes(self.limits.disk)), ..Default::default() }),
            ..Volume::default()
        };
        let spec = PodSpec {
            active_deadline_seconds: Some(i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX).max(1)),
            automount_service_account_token: Some(false),
            containers: vec![self.container(script)?],
            enable_service_links: Some(false),
            restart_policy: Some("Never".to_owned()),
            security_context: Some(PodSecurityContext {
                fs_group: Some(user),
                run_as_group: Some(user),
                run_as_non_root: Some(true),
                run_as_user: Some(user),
                seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..Default::default() }),
                ..PodSecurityContext::default()
            }),
            termination_grace_period_seconds: Some(0),
            volumes: Some(vec![work]),
            ..PodSpec::default()
        };
        Ok(Pod { metadata, spec: Some(spec), status: None })
    }

    fn container(&self, script: &Script) -> Result<Container, ScriptTooLarge> {
        // In JSON it stands in strings alone. Kubernetes would replace `$(NAME)` and `$$` in a variable.
        let parts = parts(&self.job(script, Some(self.limits.processes)).replace('$', "\\u0024"))?;
        let variable = |name: String, value: String| EnvVar { name, value: Some(value), ..EnvVar::default() };
        let count = variable("TOOLBUS_JOB_PARTS".to_owned(), parts.len().to_string());
        let parts = parts.into_iter().enumerate().map(|(at, part)| variable(format!("TOOLBUS_JOB_{at}"), part));
        let limits = [
            ("cpu", Quantity(format!("{}m", self.cpu_millis))),
            ("memory", bytes(self.limits.memory)),
            ("ephemeral-storage", bytes(self.limits.disk + self.most_log() + LOG_ROOM)),
        ];
        Ok(Container {
            name: CONTAINER.to_owned(),
            image: Some(self.image.clone()),
            command: Some(vec![self.python.clone(), "-I".to_owned(), "-c".to_owned(), SUPERVISOR.to_owned()]),
            args: Some(vec![WORK.to_owned()]),
            env: Some(std::iter::once(count).chain(parts).collect()),
            resources: Some(ResourceRequirements {
                limits: Some(limits.into_iter().map(|(name, limit)| (name.to_owned(), limit)).collect()),
                ..ResourceRequirements::default()
            }),
            security_context: Some(SecurityContext {
                allow_privilege_escalation: Some(false),
                capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Default::default() }),
                privileged: Some(false),
                read_only_root_filesystem: Some(true),
                ..SecurityContext::default()
            }),
            volume_mounts: Some(vec![VolumeMount {
                name: "work".to_owned(),
                mount_path: WORK.to_owned(),
                ..VolumeMount::default()
            }]),
            working_dir: Some(WORK.to_owned()),
            ..Container::default()
        })
    }

    /// Returns the job of the supervisor, as JSON; with at most so many processes, where its user has no others.
    pub(crate) fn job(&self, script: &Script, processes: Option<u64>) -> String {
        let Limits { output, artifacts, open_files, file_size, .. } = self.limits;
        let files: BTreeMap<&str, String> =
            script.files.iter().map(|(name, bytes)| (name.as_str(), STANDARD.encode(bytes))).collect();
        let variables: BTreeMap<&str, &str> =
            script.idempotency_key.as_deref().map(|key| (KEY_VARIABLE, key)).into_iter().collect();
        let job = json!({
            "program": BOOTSTRAP,
            "source": script.source,
            "input": script.input.as_deref().unwrap_or_default(),
            "files": files,
            "variables": variables,
            "seconds": script.time_left().as_secs_f64(),
            "limits": {
                "output": output,
                "artifacts": artifacts,
                "processes": processes,
                "open_files": open_files,
                "file_size": file_size,
            },
        });
        job.to_string()
    }

    /// The most bytes of log that a script can need: both streams, the files and reports, in Base64, with what is around
    /// them.
    pub(crate) fn most_log(&self) -> u64 {
        let results = self.limits.output.saturating_mul(2).saturating_add(self.limits.artifacts).saturating_mul(2);
        results + REPORT_ROOM + LOG_ROOM
    }
}

/// Program that the container runs.
pub(crate) const SUPERVISOR: &str = include_str!("supervisor.py");

/// The job in parts that fit into variables.
fn parts(job: &str) -> Result<Vec<String>, ScriptTooLarge> {
    if job.len() > MAX_JOB {
        return Err(ScriptTooLarge(job.len()));
    }
    let (mut parts, mut rest) = (Vec::new(), job);
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.floor_char_boundary(MAX_PART));
        parts.push(part.to_owned());
        rest = after;
    }
    Ok(parts)
}

/// Time for which the objects of a script may exist.
pub(crate) fn lifetime(script: &Script) -> Duration {
    script.deadline.saturating_duration_since(Clock::SYSTEM.now()) + GRACE
}

/// Metadata of the objects of a script: name, labels for the sweep, and the call. It expires so long after 1970.
pub(crate) fn metadata(script: &Script, expires: Duration, random: Random) -> ObjectMeta {
    let labels = [(APP.0, APP.1.to_owned()), (MANAGED.0, MANAGED.1.to_owned()), (CALL_ID, label(&script.call_id))];
    ObjectMeta {
        name: Some(name(&script.call_id, random)),
        labels: Some(labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        annotations: Some(BTreeMap::from([(EXPIRES.to_owned(), expires.as_secs().to_string())])),
        ..ObjectMeta::default()
    }
}

/// A name that no other pod has: the beginning of the call's id, as far as a name may have it, and a random part.
pub(crate) fn name(call_id: &str, random: Random) -> String {
    let id: String = call_id.chars().filter(char::is_ascii_alphanumeric).take(ID_IN_NAME).collect();
    let id = if id.is_empty() { String::new() } else { format!("{}-", id.to_ascii_lowercase()) };
    let mut name = format!("rockbot-script-{id}{}", random.id());
    name.truncate(MAX_NAME);
    name
}

/// The call's id as far as a label may have it.
fn label(call_id: &str) -> String {
    let fit = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    let id: String = call_id.chars().map(|character| if fit(character) { character } else { '_' }).collect();
    let id = id.trim_start_matches(['-', '_', '.']);
    id.get(..MAX_LABEL).unwrap_or(id).trim_end_matches(['-', '_', '.']).to_owned()
}

fn bytes(bytes: u64) -> Quantity {
    Quantity(bytes.to_string())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use toolbus_scripts::config::ScriptConfig;

    use super::*;

    fn script() -> Script {
        Script {
            call_id: "call_1".into(),
            owner: Some("ana".into()),
            source: "print('$(HOME) costs $$5')".to_owned(),
            input: Some("{}".to_owned()),
            files: vec![("a.csv".to_owned(), Bytes::from_static(b"1,2"))],
            packages: Vec::new(),
            time: Duration::from_secs(30),
            cpu: Duration::from_secs(15),
            deadline: Clock::SYSTEM.now() + Duration::from_secs(59),
            idempotency_key: Some("k7".into()),
        }
    }

    fn template() -> PodTemplate {
        PodTemplate {
            image: "python:3.12-slim".to_owned(),
            python: "python3".to_owned(),
            cpu_millis: 500,
            limits: ScriptConfig::default().limits(),
        }
    }

    #[test]
    fn a_pod_has_no_rights_and_the_limits_of_its_script() {
        let pod = template().pod(&script(), Random::seeded(1)).unwrap();
        insta::assert_json_snapshot!(pod, {
            ".metadata.annotations" => "[expires]",
            ".spec.activeDeadlineSeconds" => "[deadline]",
            ".spec.containers[0].command[3]" => "[supervisor.py]",
            ".spec.containers[0].env[1].value" => "[job]",
        }, @r#"
        {
          "apiVersion": "v1",
          "kind": "Pod",
          "metadata": {
            "annotations": "[expires]",
            "labels": {
              "app": "rockbot-script",
              "app.kubernetes.io/managed-by": "toolbus",
              "rockbot.dev/tool-call-id": "call_1"
            },
            "name": "rockbot-script-call1-910a2dec89024cc1beeb8da1658eec67"
          },
          "spec": {
            "activeDeadlineSeconds": "[deadline]",
            "automountServiceAccountToken": false,
            "containers": [
              {
                "args": [
                  "/work"
                ],
                "command": [
                  "python3",
                  "-I",
                  "-c",
                  "[supervisor.py]"
                ],
                "env": [
                  {
                    "name": "TOOLBUS_JOB_PARTS",
                    "value": "1"
                  },
                  {
                    "name": "TOOLBUS_JOB_0",
                    "value": "[job]"
                  }
                ],
                "image": "python:3.12-slim",
                "name": "script",
                "resources": {
                  "limits": {
                    "cpu": "500m",
                    "ephemeral-storage": "85983232",
                    "memory": "268435456"
                  }
                },
                "securityContext": {
                  "allowPrivilegeEscalation": false,
                  "capabilities": {
                    "drop": [
                      "ALL"
                    ]
                  },
                  "privileged": false,
                  "readOnlyRootFilesystem": true
                },
                "volumeMounts": [
                  {
                    "mountPath": "/work",
                    "name": "work"
                  }
                ],
                "workingDir": "/work"
              }
            ],
            "enableServiceLinks": false,
            "restartPolicy": "Never",
            "securityContext": {
              "fsGroup": 776228779,
              "runAsGroup": 776228779,
              "runAsNonRoot": true,
              "runAsUser": 776228779,
              "seccompProfile": {
                "type": "RuntimeDefault"
              }
            },
            "terminationGracePeriodSeconds": 0,
            "volumes": [
              {
                "emptyDir": {
                  "sizeLimit": "67108864"
                },
                "name": "work"
              }
            ]
          }
        }
        "#);
        let spec = pod.spec.unwrap();
        assert!((60..=64).contains(&spec.active_deadline_seconds.unwrap()));
    }

    #[test]
    fn each_pod_has_a_name_and_a_user_of_its_own() {
        let random = Random::seeded(1);
        let [one, other] = [(); 2].map(|()| template().pod(&script(), random).unwrap());
        assert_ne!(one.metadata.name, other.metadata.name);
        let user = |pod: Pod| pod.spec.unwrap().security_context.unwrap().run_as_user.unwrap();
        let (one, other) = (user(one), user(other));
        assert!(one != other && one >= FIRST_USER && other >= FIRST_USER, "{one} {other}");
    }

    #[test]
    fn any_id_of_a_call_makes_a_valid_name_and_label() {
        let long = "x".repeat(500);
        for id in ["", "call_1", "CALL-1", "-._", "ä/ö?", "a\0b\nc", "____a____", "1", "\u{202e}..", "a b c", &long] {
            let name = name(id, Random::SYSTEM);
            let is_fit = |character: char| matches!(character, 'a'..='z' | '0'..='9' | '-');
            assert!(name.len() <= 63 && name.chars().all(is_fit) && !name.ends_with('-'), "{id:?}: {name}");
            assert!(name.starts_with("rockbot-script-") && name.len() >= 40, "{id:?}: {name}");
            let label = label(id);
            let is_fit = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
            let has_ends = |ends: Option<char>| ends.is_none_or(|character| character.is_ascii_alphanumeric());
            assert!(label.len() <= 63 && label.chars().all(is_fit), "{id:?}: {label}");
            assert!(has_ends(label.chars().next()) && has_ends(label.chars().last()), "{id:?}: {label}");
        }
        assert_eq!((label("call_1"), label("a/b")), ("call_1".to_owned(), "a_b".to_owned()));
    }

    #[test]
    fn a_job_travels_whole_in_variables_that_nothing_replaces() {
        let long = Script { source: "ä$".repeat(100_000), ..script() };
        let pod = template().pod(&long, Random::SYSTEM).unwrap();
        let variables = pod.spec.unwrap().containers.remove(0).env.unwrap();
        let values: Vec<String> = variables.into_iter().map(|variable| variable.value.unwrap()).collect();
        assert!(values.iter().all(|value| value.len() <= MAX_PART && !value.contains('$')));
        let (count, parts) = values.split_first().unwrap();
        assert_eq!((count.as_str(), parts.len() > 1), (&*parts.len().to_string(), true));
        let job: serde_json::Value = serde_json::from_str(&parts.concat()).unwrap();
        assert_eq!(job["source"], long.source);
        // Kubernetes replaces the same in the command.
        assert!(!SUPERVISOR.contains('$'));
    }

    #[test]
    fn a_script_that_is_too_large_for_a_pod_is_refused() {
        let large = Script { input: Some("x".repeat(MAX_JOB)), ..script() };
        insta::assert_snapshot!(template().pod(&large, Random::SYSTEM).unwrap_err(), @"The script with its input_data and input_files is too large to be run here: 1031 KiB, and at most 1024 KiB can be. Send less.");
    }
}
