//! `tool.cancel`: a caller takes back a call of its own.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use toolbus_protocol::message_type::{self, Kind};
use toolbus_protocol::{Envelope, ParseError, ToolCancelRequest, ToolCancelResponse, bounded, header, new_message_id};

use crate::answer::Answer;
use crate::bus::{Bus, Delivery};
use crate::decode::UNKNOWN_CALLER;
use crate::dispatcher::Dispatcher;
use crate::failure::Status;
use crate::log::shown;
use crate::reply::{Address, Replies, ReplyRules};
use crate::telemetry::End;

/// Longest body of a request to cancel, in bytes.
const MAX_BODY: usize = 4096;
/// Longest wait for the confirm of an answer.
const REPLY_TIME: Duration = Duration::from_secs(5);

/// Why a request to cancel is ignored.
#[derive(Debug, thiserror::Error)]
enum Ignored {
    #[error("its type {0} does not belong on this topic")]
    Type(String),
    #[error("it has {0} bytes; at most {MAX_BODY} are read")]
    TooLarge(usize),
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] ParseError),
}

/// Answers requests to cancel.
pub struct CancelService {
    name: String,
    replies: Arc<Replies>,
}

impl CancelService {
    /// A service that answers as `name`.
    #[must_use]
    pub fn new(name: String, bus: Arc<dyn Bus>, rules: ReplyRules) -> Self {
        Self { name, replies: Arc::new(Replies::new(bus, rules)) }
    }

    /// Cancels at once what the delivery names, if its sender may. What is returned says so, when the sender left an
    /// address, and settles the delivery.
    ///
    /// A request that cannot be read is settled and logged: it reaches every replica, and has no queue for dead letters.
    pub(crate) fn handle(
        &self,
        dispatcher: &Dispatcher,
        delivery: Delivery,
    ) -> impl Future<Output = ()> + Send + use<> {
        let answer = match self.cancel(dispatcher, &delivery) {
            Ok(answer) => answer,
            Err(reason) => {
                let sender = delivery.properties.header(header::SOURCE).map(shown);
                tracing::info!(caller = sender, %reason, "ignored a request to cancel");
                None
            }
        };
        let replies = Arc::clone(&self.replies);
        async move {
            if let Some((address, answer)) = answer
                && let Err(reason) = replies.deliver(&address, &answer, Instant::now() + REPLY_TIME).await
            {
                tracing::warn!(%reason, reply_to = shown(&address.written), "an answer to a request to cancel was not delivered");
            }
            delivery.settle.acknowledge().await;
        }
    }

    /// Cancels what the delivery names; gives the answer, when there is an address for it.
    fn cancel(&self, dispatcher: &Dispatcher, delivery: &Delivery) -> Result<Option<(Address, Answer)>, Ignored> {
        let envelope = Envelope::read(&delivery.properties);
        let kind = message_type::kind(&envelope.message_type, message_type::TOOL_CANCEL_REQUEST);
        if !matches!(kind, Kind::Request | Kind::Plain) {
            return Err(Ignored::Type(shown(&envelope.message_type)));
        }
        if delivery.body.len() > MAX_BODY {
            return Err(Ignored::TooLarge(delivery.body.len()));
        }
        let request = ToolCancelRequest::parse(&delivery.body)?;
        let caller = envelope.source.as_deref().unwrap_or(UNKNOWN_CALLER);
        let cancelled = dispatcher.cancel(caller, &request.tool_call_id);
        if envelope.reply_to.is_empty() {
            return Ok(None);
        }
        match self.replies.rules().check(&envelope.reply_to, &envelope.message_type) {
            Ok(address) => Ok(Some((address, self.answer(&envelope, request.tool_call_id, cancelled)))),
            Err(reason) => {
                let reply_to = shown(&envelope.reply_to);
                tracing::info!(reply_to, %reason, "obeyed a request to cancel and did not answer it");
                Ok(None)
            }
        }
    }

    fn answer(&self, envelope: &Envelope, tool_call_id: String, cancelled: bool) -> Answer {
        Answer {
            properties: Envelope {
                message_id: Some(new_message_id()),
                message_type: message_type::TOOL_CANCEL_RESPONSE.to_owned(),
                correlation_id: bounded(&envelope.correlation_id).to_owned(),
                timestamp: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs()),
                source: Some(self.name.clone()),
                destination: envelope.source.as_deref().map(|name| bounded(name).to_owned()),
                trace: envelope.trace.clone(),
                headers: vec![(header::CONTENT_TRUST.to_owned(), header::TRUST_TOOL_OUTPUT.to_owned())],
                ..Envelope::default()
            }
            .into_properties(),
            body: serde_json::to_vec(&ToolCancelResponse { tool_call_id, cancelled }).unwrap_or_default().into(),
            end: End { status: Status::Ok, cause: None },
        }
    }
}
