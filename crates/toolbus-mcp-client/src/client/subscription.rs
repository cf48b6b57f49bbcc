//! How changes of the list of tools are heard of from a server of the stateless session_mode.

use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{
    ClientRequest, ErrorCode, SubscriptionFilter, SubscriptionsListenRequest, SubscriptionsListenRequestParams,
};
use rmcp::service::{Peer, PeerRequestOptions, ServiceError};
use tokio::time::{Instant, sleep};

use super::pending::PendingRequest;

/// Wait before a subscription that ended is opened again; doubled with each that is short.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Longest wait, and the time after which a subscription was not short.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// Keeps a subscription open, until the server says that it has none. What it tells is heard by the filter.
pub(super) async fn keep(peer: Peer<RoleClient>) {
    let mut wait = FIRST_WAIT;
    loop {
        let opened = Instant::now();
        if let Err(ServiceError::McpError(error)) = listen(&peer).await
            && error.code == ErrorCode::METHOD_NOT_FOUND
        {
            return;
        }
        if opened.elapsed() >= MAX_WAIT {
            wait = FIRST_WAIT;
        }
        sleep(wait).await;
        wait = (wait * 2).min(MAX_WAIT);
    }
}

async fn listen(peer: &Peer<RoleClient>) -> Result<(), ServiceError> {
    let filter = SubscriptionFilter::builder().tools_list_changed().build();
    let params = SubscriptionsListenRequestParams::new(filter);
    let request = ClientRequest::SubscriptionsListenRequest(SubscriptionsListenRequest::new(params));
    let handle = peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
    PendingRequest::new(handle).answer().await.map(drop)
}
