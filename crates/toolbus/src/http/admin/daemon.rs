//! The daemon as a whole, as operators see and steer it: its status, and reloading its configuration.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::sync::{mpsc, oneshot};

use super::view::{DaemonStatus, Refusal};
use crate::http::health::{Health, ReloadReport};

/// Reloads that may wait for their turn.
const MAX_RELOADS: usize = 8;

/// A reload that an operator waits for; its report goes to the sender.
pub type ReloadRequest = oneshot::Sender<ReloadReport>;

/// What an operator can see and steer of the daemon as a whole.
#[derive(Debug, Clone)]
pub struct DaemonAdmin {
    health: Arc<Health>,
    files: Arc<[PathBuf]>,
    reloads: mpsc::Sender<ReloadRequest>,
}

/// Why the configuration was not reloaded.
#[derive(Debug, thiserror::Error)]
pub enum ReloadUnavailable {
    /// Too many wait.
    #[error("{MAX_RELOADS} reloads wait already; try again once they are done")]
    Busy,
    /// The daemon ends.
    #[error("the daemon is ending, and reloads nothing")]
    Ending,
}

impl DaemonAdmin {
    /// A daemon whose configuration is read from `files`. The requests for reloads come out of the receiver.
    #[must_use]
    pub fn new(health: Arc<Health>, files: &[PathBuf]) -> (Self, mpsc::Receiver<ReloadRequest>) {
        let (reloads, requests) = mpsc::channel(MAX_RELOADS);
        let absolute = |file: &PathBuf| std::path::absolute(file).unwrap_or_else(|_| file.clone());
        (Self { health, files: files.iter().map(absolute).collect(), reloads }, requests)
    }

    /// The daemon now.
    #[must_use]
    pub fn status(&self) -> DaemonStatus {
        DaemonStatus {
            files: self.files.to_vec(),
            blocked_by: self.health.readiness().blocked_by,
            status: self.health.status(),
        }
    }

    /// Reloads the configuration, and waits for what comes of it.
    ///
    /// # Errors
    ///
    /// If too many reloads wait, or the daemon ends first.
    pub async fn reload(&self) -> Result<ReloadReport, ReloadUnavailable> {
        let (sender, report) = oneshot::channel();
        self.reloads.try_send(sender).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => ReloadUnavailable::Busy,
            mpsc::error::TrySendError::Closed(_) => ReloadUnavailable::Ending,
        })?;
        report.await.map_err(|_| ReloadUnavailable::Ending)
    }
}

impl IntoResponse for ReloadUnavailable {
    fn into_response(self) -> Response {
        (StatusCode::SERVICE_UNAVAILABLE, Refusal::new(self.to_string())).into_response()
    }
}

/// The routes `/v1/status` and `/v1/reload`.
pub(super) fn routes(daemon: DaemonAdmin) -> Router {
    Router::new().route("/status", get(status)).route("/reload", post(reload)).with_state(daemon)
}

async fn status(State(daemon): State<DaemonAdmin>) -> Json<DaemonStatus> {
    Json(daemon.status())
}

async fn reload(State(daemon): State<DaemonAdmin>) -> Result<Json<ReloadReport>, ReloadUnavailable> {
    Ok(Json(daemon.reload().await?))
}
