//! One request that waits for its answer.

use rmcp::RoleClient;
use rmcp::model::ServerResult;
use rmcp::service::{RequestHandle, ServiceError};
use tokio::runtime::Handle;

use crate::transport::GIVEN_UP;

/// A request that was sent. The server is told when nobody waits for its answer any more.
pub(super) struct PendingRequest(Option<RequestHandle<RoleClient>>);

impl PendingRequest {
    pub(super) const fn new(handle: RequestHandle<RoleClient>) -> Self {
        Self(Some(handle))
    }

    /// Waits for the answer.
    pub(super) async fn answer(mut self) -> Result<ServerResult, ServiceError> {
        let Some(handle) = &mut self.0 else { return Err(ServiceError::TransportClosed) };
        let answer = (&mut handle.rx).await;
        self.0 = None;
        answer.unwrap_or(Err(ServiceError::TransportClosed))
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let Some(handle) = self.0.take() else { return };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                // It fails where the connection is over, and then there is nobody to tell.
                let _ = handle.cancel(Some(GIVEN_UP.to_owned())).await;
            });
        }
    }
}
