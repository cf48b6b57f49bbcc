//! Messages that are being posted. A server may hold the answer to a post until it has the result, so the post of a
//! request that is cancelled must end with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::{ClientJsonRpcMessage, ClientNotification, RequestId};
use tokio_util::sync::CancellationToken;

type Running = HashMap<RequestId, CancellationToken>;

/// The posts of requests that are on their way.
#[derive(Clone, Default)]
pub(super) struct Posts(Arc<Mutex<Running>>);

/// One message on its way.
pub(super) struct Posting {
    posts: Posts,
    request: Option<(RequestId, CancellationToken)>,
}

impl Posts {
    /// Begins with a message. One that cancels a request ends the post of that request.
    pub(super) fn begin(&self, message: &ClientJsonRpcMessage) -> Posting {
        let mut request = None;
        match message {
            ClientJsonRpcMessage::Request(begun) => {
                let token = CancellationToken::new();
                self.running().insert(begun.id.clone(), token.clone());
                request = Some((begun.id.clone(), token));
            }
            ClientJsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                    && let Some(token) = self.running().remove(id)
                {
                    token.cancel();
                }
            }
            _ => {}
        }
        Posting { posts: self.clone(), request }
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Posting {
    /// Runs `post`; nothing comes back when the request was cancelled meanwhile.
    pub(super) async fn unless_cancelled<T>(&self, post: impl Future<Output = T>) -> Option<T> {
        match &self.request {
            Some((_, cancelled)) => cancelled.run_until_cancelled(post).await,
            None => Some(post.await),
        }
    }
}

impl Drop for Posting {
    fn drop(&mut self) {
        if let Some((id, _)) = &self.request {
            self.posts.running().remove(id);
        }
    }
}
