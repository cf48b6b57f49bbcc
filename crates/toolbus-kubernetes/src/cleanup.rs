//! Deletes pods or claims: each with its run, and what another daemon has left behind.

use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbus_core::Clock;

use crate::failure::ApiFailure;
use crate::pod::{EXPIRES, MANAGED};
use crate::watch::{Objects, request, waits};

/// Time in which an object is deleted, or left to its own deadline.
const DELETION_TIME: Duration = Duration::from_secs(15);
/// Attempts to delete an object that is perhaps still being created.
const UNSURE_ATTEMPTS: u32 = 4;
/// Time between two sweeps.
const SWEEP_PERIOD: Duration = Duration::from_secs(300);
/// Time of one sweep.
const SWEEP_TIME: Duration = Duration::from_secs(60);
/// Objects that are listed at a time.
const SWEEP_PAGE: u32 = 500;
/// Time by which the clocks of daemons may differ.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);

/// Deletes the objects of scripts in the background. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ObjectCleaner {
    objects: Objects<DynamicObject>,
    deletions: TaskTracker,
    stop: CancellationToken,
    runtime: Handle,
}

/// A pod or claim that is deleted when this is dropped.
pub(crate) struct ObjectGuard {
    cleaner: ObjectCleaner,
    name: String,
    /// Whether the object is known to exist.
    pub(crate) is_created: bool,
}

impl ObjectCleaner {
    pub(crate) fn new(objects: Objects<DynamicObject>) -> Self {
        let (deletions, stop) = (TaskTracker::new(), CancellationToken::new());
        Self { objects, deletions, stop, runtime: Handle::current() }
    }

    /// Guards an object that is about to be created.
    pub(crate) fn guard(&self, name: &str) -> ObjectGuard {
        ObjectGuard { cleaner: self.clone(), name: name.to_owned(), is_created: false }
    }

    /// Sweeps from time to time, until [`Self::shutdown`].
    pub(crate) fn start(&self) {
        let cleaner = self.clone();
        let sweeping = async move {
            loop {
                sleep(SWEEP_PERIOD).await;
                if let Err(failure) = cleaner.sweep().await {
                    tracing::warn!(error = %failure, "leftovers of scripts cannot be deleted");
                }
            }
        };
        self.deletions.spawn(self.stop.clone().run_until_cancelled_owned(sweeping));
    }

    /// Deletes the objects for which no daemon waits any more.
    ///
    /// # Errors
    ///
    /// If they cannot be listed or deleted.
    pub(crate) async fn sweep(&self) -> Result<(), ApiFailure> {
        let selector = format!("{}={}", MANAGED.0, MANAGED.1);
        let mut page = ListParams::default().labels(&selector).limit(SWEEP_PAGE);
        let sweeping = async {
            loop {
                let objects = request(self.objects.about("list"), self.objects.api.list(&page)).await?;
                for object in objects.items.iter().filter(|object| is_expired(object)) {
                    self.delete_left(&object.name_any()).await?;
                }
                match objects.metadata.continue_.filter(|next| !next.is_empty()) {
                    Some(next) => page = page.continue_token(&next),
                    None => return Ok(()),
                }
            }
        };
        timeout(SWEEP_TIME, sweeping).await.unwrap_or(Ok(()))
    }

    async fn delete_left(&self, name: &str) -> Result<(), ApiFailure> {
        match self.delete(name).await {
            Ok(()) | Err(ApiFailure::Missing) => {
                tracing::info!(resource = self.objects.resource, name, "deleted what a script has left");
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Waits until deleted objects are gone, for a while.
    pub(crate) async fn shutdown(&self) {
        self.stop.cancel();
        self.deletions.close();
        let _ = timeout(DELETION_TIME, self.deletions.wait()).await;
    }

    async fn delete(&self, name: &str) -> Result<(), ApiFailure> {
        let params = DeleteParams::background().grace_period(0);
        request(self.objects.about("delete"), self.objects.api.delete(name, &params)).await.map(|_| ())
    }

    /// Deletes an object for certain, or logs that it could not.
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
        let resource = self.objects.resource;
        tracing::warn!(resource, name, error = failure, "not deleted; its own deadline ends it");
    }
}

impl ObjectGuard {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Guards another object instead.
    pub(crate) fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }
}

impl Drop for ObjectGuard {
    fn drop(&mut self) {
        let cleaner = self.cleaner.clone();
        let deletion = cleaner.delete_surely(std::mem::take(&mut self.name), self.is_created);
        self.cleaner.deletions.spawn_on(deletion, &self.cleaner.runtime);
    }
}

fn is_expired(object: &DynamicObject) -> bool {
    let expires = object.metadata.annotations.as_ref().and_then(|annotations| annotations.get(EXPIRES)?.parse().ok());
    Duration::from_secs(expires.unwrap_or_default()) + CLOCK_DIFFERENCE < Clock::SYSTEM.since_epoch()
}
