//! One script in one pod, from its creation to its result.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::AsyncReadExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{LogParams, PostParams};
use tokio::time::{sleep, timeout, timeout_at};
use toolbus_core::Clock;
use toolbus_protocol::Random;
use toolbus_sandbox::{Ending, Stop, Watcher};
use toolbus_scripts::runner::{Finished, RunFailure, Script, StartKind};

use crate::cleanup::{PodCleaner, PodGuard};
use crate::failure::{ApiFailure, ApiRequest, shortened};
use crate::log::LogReader;
use crate::pod::{CONTAINER, PodTemplate};
use crate::state::{PodEnd, PodState};
use crate::watch::{PodWatch, request, waits};

/// Names that are tried for a pod.
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

/// Where scripts run.
pub(crate) struct PodRuns {
    pub(crate) pods: Api<Pod>,
    pub(crate) namespace: std::sync::Arc<str>,
    pub(crate) template: PodTemplate,
    pub(crate) cleaner: PodCleaner,
}

/// What is known of a run at any moment, so that its deadline finds it.
struct PodRun<'a> {
    runs: &'a PodRuns,
    script: &'a Script,
    watcher: Option<&'a Watcher>,
    log: LogReader,
    /// What the pod waits for, for an operator.
    waits_for: String,
    /// When its container was seen to run.
    started: Option<Instant>,
}

/// What ends the reading of a log first.
enum Ended {
    /// The log.
    Log(Result<(), ApiFailure>),
    /// The container; `None`: the pod is gone.
    Pod(Result<Option<PodEnd>, ApiFailure>),
    /// Its time.
    Late,
}

impl PodRuns {
    /// Runs a script to its end. Its pod is deleted after that, also when the future is dropped.
    pub(crate) async fn run(&self, script: &Script, watcher: Option<&Watcher>) -> Result<Finished, RunFailure> {
        let pod = self.template.pod(script, Random::SYSTEM).map_err(|error| RunFailure::Refused(error.to_string()))?;
        let mut run = PodRun {
            runs: self,
            script,
            watcher,
            log: LogReader::new(self.template.limits, self.template.most_log()),
            waits_for: "the API server has not created it".to_owned(),
            started: None,
        };
        match timeout_at(script.deadline.into(), run.follow(pod)).await {
            Ok(result) => result,
            Err(_) => run.at_deadline(),
        }
    }

    fn about(&self, verb: &'static str, resource: &'static str) -> ApiRequest<'_> {
        ApiRequest { verb, resource, namespace: &self.namespace }
    }
}

impl PodRun<'_> {
    async fn follow(&mut self, pod: Pod) -> Result<Finished, RunFailure> {
        let (guard, mut pod) = self.create(pod).await?;
        let name = guard.name().to_owned();
        let runs = self.runs;
        let mut watch = PodWatch::new(&runs.pods, &runs.namespace, &name, &pod);
        let mut end = loop {
            match PodState::of(&pod) {
                PodState::Waiting(reason) => self.waits_for = reason,
                PodState::Hopeless(reason) => return Err(RunFailure::Misconfigured(reason)),
                PodState::Running => break None,
                PodState::Ended(end) => break Some(end),
            }
            let next = watch.next().await.map_err(not_started)?;
            pod = next.ok_or_else(|| {
                RunFailure::NotStarted("the pod of the script was deleted before its container ran".to_owned())
            })?;
        };
        self.started = Some(Clock::SYSTEM.now());
        if end.is_none() {
            let ended = self.watch_and_read(&name, &mut watch).await;
            end = match ended {
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
            self.read_again(&name).await?;
        }
        self.finish(end)
    }

    /// Creates the pod, as often as the API server asks for it.
    async fn create(&mut self, mut pod: Pod) -> Result<(PodGuard, Pod), RunFailure> {
        let runs = self.runs;
        let (mut names, mut is_unsure) = (1, false);
        let mut guard = runs.cleaner.guard(pod.metadata.name.as_deref().unwrap_or_default());
        let (params, mut waits) = (PostParams::default(), waits());
        loop {
            let created = runs.pods.create(&params, &pod);
            match request(runs.about("create", "pods"), created).await {
                Ok(created) => {
                    guard.is_created = true;
                    return Ok((guard, created));
                }
                // Of an attempt whose response was lost.
                Err(ApiFailure::Exists) if is_unsure => {
                    guard.is_created = true;
                    // Without a version, its state is asked for.
                    return Ok((guard, pod));
                }
                Err(ApiFailure::Exists) if names < NAMES => {
                    names += 1;
                    let name = crate::pod::name(&self.script.call_id, Random::SYSTEM);
                    // That pod is another's.
                    guard.rename(&name);
                    pod.metadata.name = Some(name);
                }
                Err(ApiFailure::Retryable { message, wait }) => {
                    self.waits_for = message;
                    is_unsure = true;
                    sleep(wait.or_else(|| waits.next()).unwrap_or(GRACE)).await;
                }
                Err(failure @ ApiFailure::Refused(_)) => return Err(RunFailure::Misconfigured(failure.to_string())),
                Err(failure) => return Err(RunFailure::NotStarted(failure.to_string())),
            }
        }
    }

    /// Reads the log while the container runs, until either ends.
    async fn watch_and_read(&mut self, name: &str, watch: &mut PodWatch<'_>) -> Ended {
        let time = self.script.time.saturating_add(GRACE);
        let mut reading = pin!(self.runs.read_log(name, true, &mut self.log, self.watcher));
        let ended = async {
            tokio::select! {
                biased;
                read = &mut reading => Ended::Log(read),
                end = end_of(watch) => Ended::Pod(end),
            }
        };
        let ended = timeout(time, ended).await.unwrap_or(Ended::Late);
        if let Ended::Pod(Ok(Some(_))) = ended {
            let _ = timeout(LAST_WORDS, reading).await;
        }
        ended
    }

    /// Waits for the end of the container, without its log.
    async fn end_of(&self, watch: &mut PodWatch<'_>) -> Result<Option<PodEnd>, RunFailure> {
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
                Ok(Ok(())) => return Ok(()),
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
            return Ok(Finished::new(outcome, StartKind::Cold, Duration::ZERO));
        }
        let reason = end.as_ref().map_or("its log has ended", |end| end.reason.as_str());
        let said = if other.is_empty() { String::new() } else { format!("; its log: {other}") };
        let text = format!("the pod of the script ended without a result ({reason}){said}");
        Err(match end {
            _ if has_begun => RunFailure::Unavailable(text),
            // Python, or what the image has for it, has ended by itself.
            Some(end) if !end.is_of_node => {
                RunFailure::Misconfigured(format!("{text}; check `script.kubernetes.image` and `script.python`"))
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
        let about = self.about("get", "pods/log");
        // More than is read, so that too much is noticed: the API server ends a log there without a word.
        let most = i64::try_from(self.template.most_log() + LIMIT_ROOM).ok();
        let container = Some(CONTAINER.to_owned());
        let params = LogParams { container, follow, limit_bytes: most, ..LogParams::default() };
        let mut bytes = pin!(request(about, self.pods.log_stream(name, &params)).await?);
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

/// Waits for the end of a pod's container; `None`: the pod is gone.
async fn end_of(watch: &mut PodWatch<'_>) -> Result<Option<PodEnd>, ApiFailure> {
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
