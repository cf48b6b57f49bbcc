//! `tool.cancel`: a caller takes back a call of its own.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use toolbus_protocol::message_type::{self, Kind};
use toolbus_protocol::{Envelope, ToolCancelRequest, ToolCancelResponse, bounded, new_message_id};

use crate::answer::Answer;
use crate::bus::{Bus, Delivery};
use crate::dispatcher::Dispatcher;
use crate::failure::Status;
use crate::reply::{Replies, ReplyRules};
use crate::telemetry::End;

/// Longest body of a request to cancel, in bytes.
const MAX_BODY: usize = 4096;
/// Longest wait for the confirm of an answer.
const REPLY_TIME: Duration = Duration::from_secs(5);

/// Answers requests to cancel.
pub struct CancelService {
    name: String,
    replies: Replies,
}

impl CancelService {
    /// A service that answers as `name`.
    #[must_use]
    pub fn new(name: String, bus: Arc<dyn Bus>, rules: ReplyRules) -> Self {
        Self { name, replies: Replies::new(bus, rules) }
    }

    /// Cancels what the delivery names, if its sender may, and says so when it left an address.
    ///
    /// A request that cannot be read is settled and logged: it reaches every replica, and has no queue for dead letters.
    pub(crate) async fn handle(&self, dispatcher: &Dispatcher, delivery: Delivery) {
        let envelope = Envelope::read(&delivery.properties);
        let kind = message_type::kind(&envelope.message_type, message_type::TOOL_CANCEL_REQUEST);
        if matches!(kind, Kind::Request | Kind::Plain) && delivery.body.len() <= MAX_BODY {
            match ToolCancelRequest::parse(&delivery.body) {
                Ok(request) => {
                    let caller = envelope.source.as_deref().unwrap_or("unknown");
                    let cancelled = dispatcher.cancel(caller, &request.tool_call_id);
                    self.answer(&envelope, request.tool_call_id, cancelled).await;
                }
                Err(error) => tracing::info!(%error, "ignored a request to cancel that cannot be read"),
            }
        }
        delivery.settle.acknowledge().await;
    }

    async fn answer(&self, envelope: &Envelope, tool_call_id: String, cancelled: bool) {
        if envelope.reply_to.is_empty() {
            return;
        }
        let Ok(address) = self.replies.rules().check(&envelope.reply_to, &envelope.message_type) else { return };
        let answer = Answer {
            properties: Envelope {
                message_id: Some(new_message_id()),
                message_type: message_type::TOOL_CANCEL_RESPONSE.to_owned(),
                correlation_id: bounded(&envelope.correlation_id).to_owned(),
                timestamp: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs()),
                source: Some(self.name.clone()),
                destination: envelope.source.clone(),
                ..Envelope::default()
            }
            .into_properties(),
            body: serde_json::to_vec(&ToolCancelResponse { tool_call_id, cancelled }).unwrap_or_default().into(),
            end: End { status: Status::Ok, cause: None },
        };
        if let Err(reason) = self.replies.deliver(&address, &answer, Instant::now() + REPLY_TIME).await {
            tracing::warn!(%reason, "an answer to a request to cancel was not delivered");
        }
    }
}
