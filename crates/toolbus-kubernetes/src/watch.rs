//! Follows one object by a watch, which is opened again when it ends.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Error, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use crate::failure::{ApiFailure, ApiRequest};

/// Seconds after which the API server ends a watch, so that a connection that is dead is noticed.
const WATCH_SECONDS: u32 = 30;
/// Time without an event after which a watch counts as dead.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// Time that the API server has for one request.
pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(10);

/// The objects of one kind in one namespace.
#[derive(Clone)]
pub(crate) struct Objects<K> {
    pub(crate) api: Api<K>,
    /// Their kind, as the rules of a Role name it.
    pub(crate) resource: &'static str,
    pub(crate) namespace: Arc<str>,
}

/// The states of one object, as they change.
pub(crate) struct ObjectWatch<'a, K> {
    objects: &'a Objects<K>,
    name: &'a str,
    /// Version that has been seen last; empty: nothing that the API server still knows.
    version: String,
    events: Option<BoxStream<'static, Result<WatchEvent<K>, Error>>>,
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

impl<K> Objects<K> {
    /// A request for them.
    pub(crate) fn about(&self, verb: &'static str) -> ApiRequest<'_> {
        self.about_part(verb, self.resource)
    }

    /// A request for a part of one.
    pub(crate) fn about_part(&self, verb: &'static str, resource: &'static str) -> ApiRequest<'_> {
        ApiRequest { verb, resource, namespace: &self.namespace }
    }
}

impl<'a, K: Resource + Clone + DeserializeOwned + Debug + Send + 'static> ObjectWatch<'a, K> {
    /// Follows an object from the version that was seen. Without one the first state is the present one.
    pub(crate) fn new(objects: &'a Objects<K>, name: &'a str, seen: Option<String>) -> Self {
        Self { objects, name, version: seen.unwrap_or_default(), events: None, waits: waits() }
    }

    /// The next state; `None`: the object does not exist any more. Waits for as long as the API server is away.
    ///
    /// # Errors
    ///
    /// If the API server refuses the watch.
    pub(crate) async fn next(&mut self) -> Result<Option<K>, ApiFailure> {
        loop {
            match self.attempt().await {
                Ok(Some(object)) => {
                    self.waits = waits();
                    return Ok(object);
                }
                Ok(None) => {}
                Err(ApiFailure::Missing) => return Ok(None),
                Err(ApiFailure::Expired) => {
                    self.events = None;
                    self.version.clear();
                }
                Err(failure @ (ApiFailure::Refused(_) | ApiFailure::Exists)) => return Err(failure),
                Err(ApiFailure::Retryable { message, wait }) => {
                    tracing::debug!(
                        resource = self.objects.resource,
                        name = self.name,
                        message,
                        "not watched for a moment"
                    );
                    self.events = None;
                    sleep(wait.or_else(|| self.waits.next()).unwrap_or(REQUEST_TIME)).await;
                }
            }
        }
    }

    /// Object of one event, or of a new list: the object, that there is none any more, or nothing.
    async fn attempt(&mut self) -> Result<Option<Option<K>>, ApiFailure> {
        let about = |verb| self.objects.about(verb);
        if self.events.is_none() && self.version.is_empty() {
            let object = request(about("get"), self.objects.api.get(self.name)).await?;
            self.version = object.resource_version().unwrap_or_default();
            return Ok(Some(Some(object)));
        }
        let events = match &mut self.events {
            Some(events) => events,
            none => {
                let params =
                    WatchParams::default().fields(&format!("metadata.name={}", self.name)).timeout(WATCH_SECONDS);
                let events = request(about("watch"), self.objects.api.watch(&params, &self.version)).await?;
                none.insert(events.boxed())
            }
        };
        let Ok(event) = timeout(SILENCE, events.next()).await else {
            self.events = None;
            return Ok(None);
        };
        match event {
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                self.version = object.resource_version().unwrap_or_default();
                Ok(Some(Some(object)))
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
