//! Deletes pods: each with its run, and what another daemon has left behind.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbus_core::Clock;

use crate::failure::{ApiFailure, ApiRequest};
use crate::pod::{EXPIRES, MANAGED};
use crate::watch::{request, waits};

/// Time in which a pod is deleted, or left to its own deadline.
const DELETION_TIME: Duration = Duration::from_secs(15);
/// Attempts to delete a pod that is perhaps still being created.
const UNSURE_ATTEMPTS: u32 = 4;
/// Time between two sweeps.
const SWEEP_PERIOD: Duration = Duration::from_secs(300);
/// Time of one sweep.
const SWEEP_TIME: Duration = Duration::from_secs(60);
/// Most pods of one sweep.
const SWEEP_PODS: u32 = 500;
/// Time by which the clocks of daemons may differ.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);

/// Deletes pods of one namespace, beside what else happens. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PodCleaner {
    pods: Api<Pod>,
    namespace: Arc<str>,
    deletions: TaskTracker,
    stop: CancellationToken,
    runtime: Handle,
}

/// A pod that is deleted when this is dropped.
pub(crate) struct PodGuard {
    cleaner: PodCleaner,
    name: String,
    /// Whether it is known to exist.
    pub(crate) is_created: bool,
}

impl PodCleaner {
    pub(crate) fn new(pods: Api<Pod>, namespace: Arc<str>) -> Self {
        let (deletions, stop) = (TaskTracker::new(), CancellationToken::new());
        Self { pods, namespace, deletions, stop, runtime: Handle::current() }
    }

    /// Guards a pod that is about to be created.
    pub(crate) fn guard(&self, name: &str) -> PodGuard {
        PodGuard { cleaner: self.clone(), name: name.to_owned(), is_created: false }
    }

    /// Sweeps from time to time, until [`Self::shutdown`].
    pub(crate) fn start(&self) {
        let cleaner = self.clone();
        let sweeping = async move {
            loop {
                sleep(SWEEP_PERIOD).await;
                if let Err(failure) = cleaner.sweep().await {
                    tracing::warn!(error = %failure, "pods of scripts cannot be swept");
                }
            }
        };
        self.deletions.spawn(self.stop.clone().run_until_cancelled_owned(sweeping));
    }

    /// Deletes the pods for which no daemon waits any more.
    ///
    /// # Errors
    ///
    /// If they cannot be listed or deleted.
    pub(crate) async fn sweep(&self) -> Result<(), ApiFailure> {
        let selector = format!("{}={}", MANAGED.0, MANAGED.1);
        let params = ListParams::default().labels(&selector).limit(SWEEP_PODS);
        let pods = request(self.about("list"), self.pods.list(&params)).await?;
        let expired: Vec<String> =
            pods.items.into_iter().filter(is_expired).filter_map(|pod| pod.metadata.name).collect();
        let deletions = async {
            for name in &expired {
                match self.delete(name).await {
                    Ok(()) | Err(ApiFailure::Missing) => {
                        tracing::info!(pod = name, "deleted a pod that a script has left");
                    }
                    Err(failure) => return Err(failure),
                }
            }
            Ok(())
        };
        timeout(SWEEP_TIME, deletions).await.unwrap_or(Ok(()))
    }

    /// Waits until what was deleted is gone, for a while.
    pub(crate) async fn shutdown(&self) {
        self.stop.cancel();
        self.deletions.close();
        let _ = timeout(DELETION_TIME, self.deletions.wait()).await;
    }

    async fn delete(&self, name: &str) -> Result<(), ApiFailure> {
        let params = DeleteParams::background().grace_period(0);
        request(self.about("delete"), self.pods.delete(name, &params)).await.map(|_| ())
    }

    /// Deletes a pod for certain, or says that it could not.
    async fn delete_surely(self, name: String, is_created: bool) {
        let deletion = async {
            let mut last = None;
            for (attempt, wait) in (1..).zip(waits()) {
                match self.delete(&name).await {
                    Ok(()) => return None,
                    Err(ApiFailure::Missing) if is_created || attempt >= UNSURE_ATTEMPTS => return None,
                    Err(failure @ ApiFailure::Refused(_)) => return Some(failure),
                    Err(failure) => last = Some(failure),
                }
                sleep(wait).await;
            }
            last
        };
        let failure = match timeout(DELETION_TIME, deletion).await {
            Ok(None) => return,
            Ok(Some(failure)) => failure.to_string(),
            Err(_) => "the API server did not serve in time".to_owned(),
        };
        tracing::warn!(pod = name, error = failure, "a pod was not deleted; its own deadline ends it");
    }

    fn about(&self, verb: &'static str) -> ApiRequest<'_> {
        ApiRequest { verb, resource: "pods", namespace: &self.namespace }
    }
}

impl PodGuard {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Guards another pod instead.
    pub(crate) fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }
}

impl Drop for PodGuard {
    fn drop(&mut self) {
        let cleaner = self.cleaner.clone();
        let deletion = cleaner.delete_surely(std::mem::take(&mut self.name), self.is_created);
        self.cleaner.deletions.spawn_on(deletion, &self.cleaner.runtime);
    }
}

fn is_expired(pod: &Pod) -> bool {
    let expires = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(EXPIRES)?.parse().ok());
    Duration::from_secs(expires.unwrap_or_default()) + CLOCK_DIFFERENCE < Clock::SYSTEM.since_epoch()
}
