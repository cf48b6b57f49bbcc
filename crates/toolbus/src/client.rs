//! A caller on the bus, as an agent is one: for `toolbus call` and `toolbus demo`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};
use toolbus_core::bus::{Bus, Delivery, Outgoing, Ownership, PublishError, Routing, Subscription, Target};
use toolbus_protocol::{
    Envelope, Properties, ToolError, ToolInvokeRequest, ToolInvokeResponse, TraceContext, header, message_type,
    new_message_id,
};

/// Answers that may be on their way to one client at a time.
const PREFETCH: u16 = 64;

/// Publishes requests and receives their answers on a queue of its own.
pub struct Client {
    bus: Arc<dyn Bus>,
    reply_to: String,
    topic: String,
    pending: Arc<Pending>,
}

/// Who waits for which answer, by correlation id.
#[derive(Default)]
struct Pending(Mutex<HashMap<String, oneshot::Sender<Delivery>>>);

/// A request as it was sent.
#[derive(Debug, Clone)]
pub struct Request {
    /// The message's properties.
    pub properties: Properties,
    /// The message's body.
    pub body: Bytes,
}

/// An answer as it came.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The message's properties.
    pub properties: Properties,
    /// The message's body.
    pub body: Bytes,
    /// What it says.
    pub content: Content,
}

/// What an answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The tool ran.
    Result(ToolInvokeResponse),
    /// There is no result.
    Error(ToolError),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The broker did not take the request.
    #[error("the request could not be published: {0}")]
    Publish(#[from] PublishError),
    /// No daemon listens on the topic.
    #[error("nobody listens on topic `{0}`: is a daemon running with this topic in invoke.topics, on this exchange?")]
    Nobody(String),
    /// The broker could not be reached in time.
    #[error("the broker could not be reached within {0:.1?}{1}")]
    Unreachable(Duration, String),
    /// No answer came in time.
    #[error("no answer came within {0:.1?}")]
    NoAnswer(Duration),
    /// The answer is no message of the wire.
    #[error("the answer could not be read: {0}")]
    Unreadable(String),
    /// The broker holds something that no retry mends.
    #[error("the bus cannot be used: {0}")]
    Fatal(String),
    /// The bus was closed.
    #[error("the bus was closed")]
    Closed,
}

impl Client {
    /// Starts listening for answers, and waits until the broker has confirmed it.
    ///
    /// # Errors
    ///
    /// When the broker cannot be reached within `patience`, or holds something that no retry mends.
    pub async fn connect(bus: Arc<dyn Bus>, topic: &str, patience: Duration) -> Result<Self, ClientError> {
        let reply_to = format!("reply.{}", new_message_id());
        let answers = bus.consume(Subscription {
            queue: reply_to.clone(),
            topics: Vec::new(),
            prefetch: PREFETCH,
            ownership: Ownership::Replica,
        });
        let pending = Arc::<Pending>::default();
        tokio::spawn(receive(answers, Arc::clone(&pending)));
        let mut state = bus.state();
        let settled = state.wait_for(|state| {
            let listens = state.consumers.iter().any(|(queue, confirmed)| *queue == reply_to && *confirmed);
            state.fatal.is_some() || (state.connected && listens)
        });
        let is_settled = tokio::time::timeout(patience, settled).await.is_ok_and(|changed| changed.is_ok());
        if let Some(reason) = bus.state().borrow().fatal.clone() {
            return Err(ClientError::Fatal(reason));
        }
        if !is_settled {
            let why = bus.state().borrow().last_error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            return Err(ClientError::Unreachable(patience, why));
        }
        Ok(Self { bus, reply_to, topic: topic.to_owned(), pending })
    }

    /// Builds a request that grants the tool `budget`; without one, the daemon decides.
    #[must_use]
    pub fn request(
        &self,
        tool: &str,
        arguments: Option<&Map<String, Value>>,
        budget: Option<Duration>,
        trace: Option<TraceContext>,
    ) -> Request {
        let body = ToolInvokeRequest {
            tool_call_id: Some(new_message_id()),
            tool_name: tool.to_owned(),
            arguments: arguments.map(|members| Value::Object(members.clone()).to_string()),
            ..ToolInvokeRequest::default()
        };
        let trust = (header::CONTENT_TRUST.to_owned(), header::TRUST_TOOL_REQUEST.to_owned());
        let timeout = budget.map(|budget| (header::TIMEOUT_MS.to_owned(), budget.as_millis().to_string()));
        let headers = [trust].into_iter().chain(timeout).collect();
        let envelope = Envelope {
            message_id: Some(new_message_id()),
            message_type: message_type::TOOL_INVOKE_REQUEST.to_owned(),
            correlation_id: new_message_id(),
            reply_to: self.reply_to.clone(),
            timestamp: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs()),
            source: Some("toolbus-cli".to_owned()),
            trace,
            headers,
            ..Envelope::default()
        };
        Request { properties: envelope.into_properties(), body: serde_json::to_vec(&body).unwrap_or_default().into() }
    }

    /// Publishes a request and waits for its answer, at most `patience`.
    ///
    /// # Errors
    ///
    /// When the request could not be published, or no readable answer came in time.
    pub async fn send(&self, request: &Request, patience: Duration) -> Result<Answer, ClientError> {
        let correlation = request.properties.correlation_id.clone().unwrap_or_default();
        let (sender, answer) = oneshot::channel();
        self.pending.lock().insert(correlation.clone(), sender);
        let outcome = tokio::time::timeout(patience, self.exchange(request, answer)).await;
        self.pending.lock().remove(&correlation);
        outcome.unwrap_or(Err(ClientError::NoAnswer(patience)))
    }

    async fn exchange(&self, request: &Request, answer: oneshot::Receiver<Delivery>) -> Result<Answer, ClientError> {
        let message = Outgoing {
            target: Target::Topic(self.topic.clone()),
            mandatory: true,
            proven: false,
            properties: request.properties.clone(),
            body: request.body.clone(),
        };
        if self.bus.publish(&message).await? == Routing::Unroutable {
            return Err(ClientError::Nobody(self.topic.clone()));
        }
        let delivery = answer.await.map_err(|_| ClientError::Closed)?;
        let answer = Answer::read(delivery.properties, delivery.body);
        delivery.settle.acknowledge().await;
        answer
    }
}

async fn receive(mut answers: mpsc::Receiver<Delivery>, pending: Arc<Pending>) {
    while let Some(delivery) = answers.recv().await {
        let correlation = delivery.properties.correlation_id.as_deref().unwrap_or_default();
        let waiting = pending.lock().remove(correlation);
        let unclaimed = match waiting {
            Some(waiting) => waiting.send(delivery).err(),
            None => Some(delivery),
        };
        if let Some(late) = unclaimed {
            late.settle.acknowledge().await;
        }
    }
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<Delivery>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answer {
    fn read(properties: Properties, body: Bytes) -> Result<Self, ClientError> {
        let unreadable = |error: serde_json::Error| ClientError::Unreadable(error.to_string());
        let content = match properties.message_type.as_deref() {
            Some(message_type::TOOL_INVOKE_RESPONSE) => {
                Content::Result(serde_json::from_slice(&body).map_err(unreadable)?)
            }
            Some(message_type::TOOL_ERROR) => Content::Error(serde_json::from_slice(&body).map_err(unreadable)?),
            other => return Err(ClientError::Unreadable(format!("unexpected type {:?}", other.unwrap_or_default()))),
        };
        Ok(Self { properties, body, content })
    }
}
