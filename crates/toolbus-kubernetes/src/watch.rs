//! Follows one pod by a watch, which is opened again when it ends.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Error};
use tokio::time::{sleep, timeout};

use crate::failure::{ApiFailure, ApiRequest};

/// Seconds after which the API server ends a watch, so that a connection that is dead is noticed.
const WATCH_SECONDS: u32 = 30;
/// Time without an event after which a watch counts as dead.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// Time that the API server has for one request.
pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(10);

/// The states of one pod, as they change.
pub(crate) struct PodWatch<'a> {
    pods: &'a Api<Pod>,
    namespace: &'a str,
    name: &'a str,
    /// What has been seen last; empty: nothing that the API server still knows.
    version: String,
    events: Option<BoxStream<'static, Result<WatchEvent<Pod>, Error>>>,
    waits: ExponentialBackoff,
}

/// Waits between attempts, which become longer.
pub(crate) fn waits() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(3))
        .without_max_times()
        .with_jitter()
        .build()
}

/// Makes one request, within its time.
pub(crate) async fn request<T>(
    about: ApiRequest<'_>,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, ApiFailure> {
    match timeout(REQUEST_TIME, request).await {
        Ok(result) => result.map_err(|error| about.failure(&error)),
        Err(_) => {
            let message = format!("the API server did not respond within {} s", REQUEST_TIME.as_secs());
            Err(ApiFailure::Retryable { message, wait: None })
        }
    }
}

impl<'a> PodWatch<'a> {
    /// Follows a pod from the state that was seen.
    pub(crate) fn new(pods: &'a Api<Pod>, namespace: &'a str, name: &'a str, seen: &Pod) -> Self {
        let version = seen.metadata.resource_version.clone().unwrap_or_default();
        Self { pods, namespace, name, version, events: None, waits: waits() }
    }

    /// The next state; `None`: the pod does not exist any more. Waits for as long as the API server is away.
    ///
    /// # Errors
    ///
    /// If the API server refuses the watch.
    pub(crate) async fn next(&mut self) -> Result<Option<Pod>, ApiFailure> {
        loop {
            match self.attempt().await {
                Ok(Some(pod)) => {
                    self.waits = waits();
                    return Ok(pod);
                }
                Ok(None) => {}
                Err(ApiFailure::Missing) => return Ok(None),
                Err(ApiFailure::Expired) => {
                    self.events = None;
                    self.version.clear();
                }
                Err(failure @ (ApiFailure::Refused(_) | ApiFailure::Exists)) => return Err(failure),
                Err(ApiFailure::Retryable { message, wait }) => {
                    tracing::debug!(pod = self.name, message, "a pod is not watched for a moment");
                    self.events = None;
                    sleep(wait.or_else(|| self.waits.next()).unwrap_or(REQUEST_TIME)).await;
                }
            }
        }
    }

    /// One event, or what takes its place: the pod, that there is none any more, or nothing.
    async fn attempt(&mut self) -> Result<Option<Option<Pod>>, ApiFailure> {
        let about = |verb| ApiRequest { verb, resource: "pods", namespace: self.namespace };
        if self.events.is_none() && self.version.is_empty() {
            let pod = request(about("get"), self.pods.get(self.name)).await?;
            self.version = pod.metadata.resource_version.clone().unwrap_or_default();
            return Ok(Some(Some(pod)));
        }
        let events = match &mut self.events {
            Some(events) => events,
            none => {
                let params =
                    WatchParams::default().fields(&format!("metadata.name={}", self.name)).timeout(WATCH_SECONDS);
                let events = request(about("watch"), self.pods.watch(&params, &self.version)).await?;
                none.insert(events.boxed())
            }
        };
        let Ok(event) = timeout(SILENCE, events.next()).await else {
            self.events = None;
            return Ok(None);
        };
        match event {
            Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => {
                self.version = pod.metadata.resource_version.clone().unwrap_or_default();
                Ok(Some(Some(pod)))
            }
            Some(Ok(WatchEvent::Deleted(_))) => Ok(Some(None)),
            Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                self.version = bookmark.metadata.resource_version;
                Ok(None)
            }
            Some(Ok(WatchEvent::Error(status))) => Err(about("watch").refusal(&status)),
            Some(Err(error)) => Err(match about("watch").failure(&error) {
                // It has begun: it was not refused, but cut off.
                ApiFailure::Refused(message) => ApiFailure::Retryable { message, wait: None },
                failure => failure,
            }),
            None => Err(ApiFailure::Retryable { message: "the watch has ended".to_owned(), wait: None }),
        }
    }
}
