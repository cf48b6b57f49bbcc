//! One script in one pod, from its creation, or from the claim of a sandbox, to its result.

use std::fmt::Debug;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::AsyncReadExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{LogParams, PostParams};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout, timeout_at};
use toolbus_core::Clock;
use toolbus_protocol::Random;
use toolbus_sandbox::{Ending, Stop, Watcher};
use toolbus_scripts::runner::{Finished, RunFailure, Script, StartKind};

use crate::claim::{ClaimState, ClaimedPod, WarmPool};
use crate::cleanup::{ObjectCleaner, ObjectGuard};
use crate::exec::ScriptExec;
use crate::failure::{ApiFailure, shortened};
use crate::log::LogReader;
use crate::pod::{CONTAINER, PodTemplate};
use crate::state::{PodEnd, PodState};
use crate::watch::{ObjectWatch, Objects, request, waits};

/// Names that are tried for a pod or a claim.
const NAMES: usize = 3;
/// Time that a script has beyond its own, which the supervisor keeps.
const GRACE: Duration = Duration::from_secs(3);
/// Time in which the rest of a log comes after the end of its container.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Attempts to read the log of a container that has ended.
const LOG_ATTEMPTS: usize = 3;
/// Bytes by which the API server may miss the limit of a log.
const LIMIT_ROOM: u64 = 64 * 1024;
/// Bytes that are read of a log at a time.
const READ: usize = 16 * 1024;

/// Set-up in which scripts run.
pub(crate) struct PodRuns {
    pub(crate) pods: Objects<Pod>,
    /// Source of the pods; absent: one is made for each script.
    pub(crate) warm_pool: Option<WarmPool>,
    pub(crate) template: PodTemplate,
    pub(crate) cleaner: ObjectCleaner,
}

/// Knowledge of a run at any moment, so that its deadline finds it.
struct PodRun<'a> {
    runs: &'a PodRuns,
    script: &'a Script,
    watcher: Option<&'a Watcher>,
    log: LogReader,
    /// Whether the log was read to its end. Only then a log without the mark of the beginning means that the script did
    /// not begin.
    is_log_whole: bool,
    /// Reason why the pod waits, for an operator.
    waits_for: String,
    /// Whether the pod was waiting in a pool.
    start: StartKind,
    /// Time at which its container was seen to run.
    started: Option<Instant>,
}

/// First cause that ends the reading of a log, or of an output.
enum Ended<T> {
    /// The log.
    Log(T),
    /// The container; `None`: the pod is gone.
    Pod(Result<Option<PodEnd>, ApiFailure>),
    /// Time of the reading.
    Late,
}

impl PodRuns {
    /// Runs a script to its end. Its pod or claim is deleted after that, also when the future is dropped.
    pub(crate) async fn run(&self, script: &Script, watcher: Option<&Watcher>) -> Result<Finished, RunFailure> {
        let mut run = PodRun {
            runs: self,
            script,
            watcher,
            log: LogReader::new(self.template.limits, self.template.most_log()),
            is_log_whole: false,
            waits_for: "the API server has not created it".to_owned(),
            start: StartKind::Cold,
            started: None,
        };
        let following = async {
            match &self.warm_pool {
                None => run.follow_pod().await,
                Some(pool) => run.follow_claim(pool).await,
            }
        };
        match timeout_at(script.deadline.into(), following).await {
            Ok(result) => result,
            Err(_) => run.at_deadline(),
        }
    }
}

impl PodRun<'_> {
    /// Runs the script in a pod that is made for it.
    async fn follow_pod(&mut self) -> Result<Finished, RunFailure> {
        let runs = self.runs;
        let pod = runs.template.pod(self.script, Random::SYSTEM);
        let pod = pod.map_err(|error| RunFailure::Refused(error.to_string()))?;
        let (guard, seen) = self.create(&runs.pods, pod).await?;
        let name = guard.name();
        let mut watch = ObjectWatch::new(&runs.pods, name, seen);
        let mut end = loop {
            let pod = watch.next().await.map_err(not_started)?.ok_or_else(|| {
                RunFailure::NotStarted("the pod of the script was deleted before its container ran".to_owned())
            })?;
            match PodState::of(&pod) {
                PodState::Waiting(reason) => self.waits_for = reason,
                PodState::Hopeless(reason) => return Err(RunFailure::Misconfigured(reason)),
                PodState::Running => break None,
                // There is no log: the node refuses to serve that of a container that it does not have.
                PodState::Ended(end) if end.is_rejected => {
                    let reason = end.reason;
                    return Err(RunFailure::NotStarted(format!(
                        "the node did not take the pod of the script: {reason}"
                    )));
                }
                PodState::Ended(end) => break Some(end),
            }
        };
        self.started = Some(Clock::SYSTEM.now());
        if end.is_none() {
            let reading = runs.read_log(name, true, &mut self.log, self.watcher);
            end = match first_end(reading, &mut watch, self.script.time).await {
                Ended::Log(_) if self.log.is_over() => None,
                Ended::Log(Err(failure @ ApiFailure::Refused(_))) => return Err(unavailable(&failure)),
                // Its connection was cut off, or the node does not serve it: the rest is read at the end.
                Ended::Log(_) => self.end_of(&mut watch).await?,
                Ended::Pod(Ok(Some(end))) => Some(end),
                Ended::Pod(_) if self.log.is_over() => None,
                Ended::Pod(Ok(None)) => return Err(lost()),
                Ended::Pod(Err(failure)) => return Err(unavailable(&failure)),
                Ended::Late => Some(PodEnd::late()),
            };
        }
        if !self.log.is_over() && end.as_ref().is_none_or(|end| end.ending != Some(Ending::Stopped(Stop::Time))) {
            self.read_again(name).await?;
        }
        self.finish(end)
    }

    /// Runs the script in a sandbox of a warm pool. A sandbox runs no second one.
    async fn follow_claim(&mut self, pool: &WarmPool) -> Result<Finished, RunFailure> {
        let runs = self.runs;
        let (guard, seen) = self.create(&pool.claims, pool.claim(self.script, Random::SYSTEM)).await?;
        let pod = self.claimed_pod(pool, guard.name(), seen).await?;
        self.start = pod.start;
        let mut process = self.attach(&pod.name).await?;
        let job = runs.template.job(self.script, None);
        self.started = Some(Clock::SYSTEM.now());
        let mut watch = ObjectWatch::new(&runs.pods, &pod.name, None);
        let reading = process.run(&job, &mut self.log, self.watcher);
        let end = match first_end(reading, &mut watch, self.script.time).await {
            _ if self.log.is_over() => None,
            // The node may know why.
            Ended::Log(()) => match timeout(LAST_WORDS, end_of(&mut watch)).await {
                Ok(Ok(Some(end))) => Some(end),
                Ok(Ok(None)) => return Err(lost()),
                _ => {
                    let end = process.end().await.ok_or_else(|| {
                        let text = "the connection to the sandbox of the script was lost".to_owned();
                        // It is given its job when it is ready.
                        let has_job = self.log.is_ready();
                        if has_job { RunFailure::Unavailable(text) } else { RunFailure::NotStarted(text) }
                    })?;
                    self.is_log_whole = !end.is_of_node;
                    Some(end)
                }
            },
            Ended::Pod(Ok(Some(end))) => Some(end),
            Ended::Pod(Ok(None)) => return Err(lost()),
            Ended::Pod(Err(failure)) => return Err(unavailable(&failure)),
            Ended::Late if !self.log.is_ready() => {
                let text = "the supervisor in the sandbox of the script was not ready in time";
                return Err(RunFailure::NotStarted(text.to_owned()));
            }
            Ended::Late => Some(PodEnd::late()),
        };
        self.finish(end)
    }

    /// Waits until a claim has a sandbox that is ready.
    async fn claimed_pod(
        &mut self,
        pool: &WarmPool,
        claim: &str,
        seen: Option<String>,
    ) -> Result<ClaimedPod, RunFailure> {
        let gone = |what| RunFailure::NotStarted(format!("the {what} of the script was deleted before it ran"));
        let mut watch = ObjectWatch::new(&pool.claims, claim, seen);
        let about = |reason| format!("the warm pool `{}` has given no sandbox: {reason}", pool.name);
        self.waits_for = about("agent-sandbox has not seen the claim".to_owned());
        let sandbox = loop {
            let claim = watch.next().await.map_err(not_started)?.ok_or_else(|| gone("claim"))?;
            match ClaimState::of(&claim) {
                ClaimState::Waiting(reason) => self.waits_for = about(reason),
                ClaimState::Hopeless(reason) => return Err(RunFailure::Misconfigured(about(reason))),
                ClaimState::Bound(sandbox) => break sandbox,
            }
        };
        let sandbox = ObjectWatch::new(&pool.sandboxes, &sandbox, None).next().await.map_err(not_started)?;
        Ok(ClaimedPod::of(&sandbox.ok_or_else(|| gone("sandbox"))?))
    }

    /// Starts a supervisor in the pod, as often as the API server requests it.
    async fn attach(&mut self, pod: &str) -> Result<ScriptExec, RunFailure> {
        let runs = self.runs;
        let mut waits = waits();
        loop {
            match ScriptExec::start(&runs.pods, pod, &runs.template.python).await {
                Ok(process) => return Ok(process),
                Err(ApiFailure::Retryable { message, wait }) => {
                    self.waits_for = message;
                    sleep(wait.or_else(|| waits.next()).unwrap_or(GRACE)).await;
                }
                Err(ApiFailure::Missing) => {
                    let text = "the pod of the sandbox was deleted before the script ran";
                    return Err(RunFailure::NotStarted(text.to_owned()));
                }
                Err(failure) => return Err(not_started(failure)),
            }
        }
    }

    /// Creates an object, as often as the API server requests it. Returns its version, if that is known.
    async fn create<K>(
        &mut self,
        objects: &Objects<K>,
        mut object: K,
    ) -> Result<(ObjectGuard, Option<String>), RunFailure>
    where
        K: Resource + Clone + Serialize + DeserializeOwned + Debug,
    {
        let (mut names, mut is_unsure) = (1, false);
        let mut guard = self.runs.cleaner.guard(&object.name_any());
        let (params, mut waits) = (PostParams::default(), waits());
        loop {
            match request(objects.about("create"), objects.api.create(&params, &object)).await {
                Ok(created) => {
                    guard.is_created = true;
                    return Ok((guard, created.resource_version()));
                }
                // Of an attempt whose response was lost.
                Err(ApiFailure::Exists) if is_unsure => {
                    guard.is_created = true;
                    return Ok((guard, None));
                }
                Err(ApiFailure::Exists) if names < NAMES => {
                    names += 1;
                    let name = crate::pod::name(&self.script.call_id, Random::SYSTEM);
                    // That object is another's.
                    guard.rename(&name);
                    object.meta_mut().name = Some(name);
                }
                Err(ApiFailure::Retryable { message, wait }) => {
                    self.waits_for = message;
                    is_unsure = true;
                    sleep(wait.or_else(|| waits.next()).unwrap_or(GRACE)).await;
                }
                Err(failure) => return Err(not_started(failure)),
            }
        }
    }

    /// Waits for the end of the container, without its log.
    async fn end_of(&self, watch: &mut ObjectWatch<'_, Pod>) -> Result<Option<PodEnd>, RunFailure> {
        let started = self.started.unwrap_or_else(|| Clock::SYSTEM.now());
        let until = started + self.script.time.saturating_add(GRACE);
        match timeout_at(until.into(), end_of(watch)).await {
            Ok(Ok(Some(end))) => Ok(Some(end)),
            Ok(Ok(None)) => Err(lost()),
            Ok(Err(failure)) => Err(unavailable(&failure)),
            Err(_) => Ok(Some(PodEnd::late())),
        }
    }

    /// Reads the log of a container that has ended from its beginning, instead of what came of it.
    async fn read_again(&mut self, name: &str) -> Result<(), RunFailure> {
        let template = &self.runs.template;
        let mut last = None;
        for wait in waits().take(LOG_ATTEMPTS) {
            let mut log = LogReader::new(template.limits, template.most_log());
            let read = timeout(LAST_WORDS * 5, self.runs.read_log(name, false, &mut log, None)).await;
            let is_more = log.is_over() || !self.log.has_begun();
            if is_more {
                self.log = log;
            }
            match read {
                Ok(Ok(())) => {
                    self.is_log_whole = true;
                    return Ok(());
                }
                Ok(Err(failure @ ApiFailure::Refused(_))) => return Err(unavailable(&failure)),
                Ok(Err(failure)) => last = Some(failure.to_string()),
                Err(_) => last = Some("it did not come in time".to_owned()),
            }
            sleep(wait).await;
        }
        tracing::debug!(pod = name, error = last, "the log of a pod was not read to its end");
        Ok(())
    }

    /// The result of a run that has ended.
    fn finish(&mut self, end: Option<PodEnd>) -> Result<Finished, RunFailure> {
        let limits = self.runs.template.limits;
        let log = std::mem::replace(&mut self.log, LogReader::new(limits, 0));
        let elapsed = self.started.map_or(Duration::ZERO, |started| Clock::SYSTEM.since(started));
        let (has_begun, other) = (log.has_begun(), shortened(&log.other()));
        let ending = end.as_ref().and_then(|end| end.ending);
        if let Some(outcome) = log.outcome(ending, elapsed) {
            return Ok(Finished::new(outcome, self.start, Duration::ZERO));
        }
        let reason = end.as_ref().map_or("its log has ended", |end| end.reason.as_str());
        let rest = if other.is_empty() { String::new() } else { format!("; its log: {other}") };
        let text = format!("the pod of the script ended without a result ({reason}){rest}");
        Err(match end {
            _ if has_begun || !self.is_log_whole => RunFailure::Unavailable(text),
            // Python, or what the image has for it, has ended by itself.
            Some(end) if !end.is_of_node => {
                let image =
                    if self.runs.warm_pool.is_some() { "the SandboxTemplate" } else { "`script.kubernetes.image`" };
                RunFailure::Misconfigured(format!("{text}; check {image} and `script.python`"))
            }
            _ => RunFailure::NotStarted(text),
        })
    }

    /// The result of a run whose call has no more time.
    fn at_deadline(mut self) -> Result<Finished, RunFailure> {
        if self.started.is_none() {
            let waits_for = &self.waits_for;
            return Err(RunFailure::NotStarted(format!("the pod of the script did not run in time: {waits_for}")));
        }
        self.finish(Some(PodEnd::late()))
    }
}

impl PodRuns {
    /// Reads the log of a pod to its end, or as far as it is wanted.
    async fn read_log(
        &self,
        name: &str,
        follow: bool,
        log: &mut LogReader,
        watcher: Option<&Watcher>,
    ) -> Result<(), ApiFailure> {
        let about = self.pods.about_part("get", "pods/log");
        // More than is read, so that too much is noticed: the API server ends a log there without a word.
        let most = i64::try_from(self.template.most_log() + LIMIT_ROOM).ok();
        let container = Some(CONTAINER.to_owned());
        let params = LogParams { container, follow, limit_bytes: most, ..LogParams::default() };
        let mut bytes = pin!(request(about, self.pods.api.log_stream(name, &params)).await?);
        let mut buffer = vec![0; READ];
        loop {
            let read = bytes.read(&mut buffer).await.map_err(|error| {
                let message = format!("the log was cut off: {error}");
                ApiFailure::Retryable { message, wait: None }
            })?;
            match buffer.get(..read) {
                Some(new) if read > 0 && log.take(new, watcher) => {}
                _ => return Ok(()),
            }
        }
    }
}

/// Reads a log or an output while the container runs, until either ends.
async fn first_end<T>(reading: impl Future<Output = T>, watch: &mut ObjectWatch<'_, Pod>, time: Duration) -> Ended<T> {
    let mut reading = pin!(reading);
    let ended = async {
        tokio::select! {
            biased;
            read = &mut reading => Ended::Log(read),
            end = end_of(watch) => Ended::Pod(end),
        }
    };
    let ended = timeout(time.saturating_add(GRACE), ended).await.unwrap_or(Ended::Late);
    if let Ended::Pod(Ok(Some(_))) = ended {
        let _ = timeout(LAST_WORDS, reading).await;
    }
    ended
}

/// Waits for the end of a pod's container; `None`: the pod is gone.
async fn end_of(watch: &mut ObjectWatch<'_, Pod>) -> Result<Option<PodEnd>, ApiFailure> {
    while let Some(pod) = watch.next().await? {
        if let PodState::Ended(end) = PodState::of(&pod) {
            return Ok(Some(end));
        }
    }
    Ok(None)
}

fn not_started(failure: ApiFailure) -> RunFailure {
    match failure {
        ApiFailure::Refused(message) => RunFailure::Misconfigured(message),
        failure => RunFailure::NotStarted(failure.to_string()),
    }
}

fn unavailable(failure: &ApiFailure) -> RunFailure {
    RunFailure::Unavailable(failure.to_string())
}

fn lost() -> RunFailure {
    RunFailure::Unavailable("the pod of the script was deleted while it ran".to_owned())
}
