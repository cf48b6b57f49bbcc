//! A caller on the bus, as an agent is one.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::watch;
use toolbus_bus::{Bus, BusState, Clock, Outgoing, PublishError, Routing, Target};
use toolbus_protocol::{
    Envelope, Properties, ToolError, ToolInvokeRequest, ToolInvokeResponse, TraceContext, header, message_type,
    new_message_id, topic,
};

use crate::inbox::{ClientError, Expectation, Expected, Inbox, Pending, Received};
use crate::sender::{Sender, SignedRequest};

/// Name of a sender that has none of its own.
pub const SOURCE: &str = "toolbus-cli";
/// Topics that are remembered to have taken a message; one that is forgotten has to prove itself again.
const MAX_PROVEN: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Publishes requests and receives their replies.
pub struct Client {
    bus: Arc<dyn Bus>,
    /// The queue that replies come to, and where they are to go.
    queue: String,
    reply_to: String,
    topic: String,
    pending: Arc<Pending>,
    news: watch::Receiver<u64>,
    sender: Sender,
    /// Topics that took a message: requests to these share a channel, many at a time.
    proven: Mutex<LruCache<String, ()>>,
}

/// A publish that has no good end yet. Dropped, also half-way, it has its topic prove itself again.
struct UnprovenTopic<'a> {
    proven: &'a Mutex<LruCache<String, ()>>,
    topic: &'a str,
}

impl Drop for UnprovenTopic<'_> {
    fn drop(&mut self) {
        self.proven.lock().pop(self.topic);
    }
}

/// A reply to a call, as it came.
#[derive(Debug, Clone)]
pub struct CallReply {
    /// The message's properties.
    pub properties: Arc<Properties>,
    /// The message's body.
    pub body: Bytes,
    /// Content of the reply.
    pub content: ReplyContent,
}

/// Content of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyContent {
    /// The tool ran.
    Result(ToolInvokeResponse),
    /// There is no result.
    Error(ToolError),
}

impl Client {
    /// Starts listening for replies on a queue of its own, and waits until the broker has confirmed it.
    ///
    /// # Errors
    ///
    /// As [`Self::ready`].
    pub async fn connect(bus: Arc<dyn Bus>, topic: &str, patience: Duration) -> Result<Self, ClientError> {
        let client = Self::start(bus, topic, Inbox::default());
        client.ready(patience).await?;
        Ok(client)
    }

    /// Starts listening for replies. Calls go to `topic`.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the task ends when the bus closes the reply queue")]
    pub fn start(bus: Arc<dyn Bus>, topic: &str, inbox: Inbox) -> Self {
        let pending = Arc::<Pending>::default();
        let (news, heard) = watch::channel(0);
        let opened = inbox.open(&*bus);
        let (queue, reply_to) = (opened.queue.clone(), opened.reply_to.clone());
        tokio::spawn(opened.receive(Arc::clone(&pending), news));
        Self {
            bus,
            queue,
            reply_to,
            topic: topic.to_owned(),
            pending,
            news: heard,
            sender: Sender::default(),
            proven: Mutex::new(LruCache::new(MAX_PROVEN)),
        }
    }

    /// Control topic of the daemons that take the calls: `control`, under the topic of the calls.
    #[must_use]
    pub fn control(&self, control: &str) -> String {
        topic::control_of(control, &self.topic).unwrap_or_else(|| control.to_owned())
    }

    /// Adds the sender to the requests of [`Self::invoke`], [`Self::list`] and [`Self::ping`].
    #[must_use]
    pub fn signed_by(self, sender: Sender) -> Self {
        Self { sender, ..self }
    }

    /// Adds the sender to a request.
    #[must_use]
    pub fn sign(&self, request: SignedRequest) -> SignedRequest {
        self.sender.sign(request)
    }

    /// Waits until requests can be sent and their replies heard, at most `patience`.
    ///
    /// # Errors
    ///
    /// If the broker cannot be reached in time, refuses the login, virtual host or exchange, or has a queue or exchange that
    /// only an operator can put right.
    pub async fn ready(&self, patience: Duration) -> Result<(), ClientError> {
        let mut state = self.bus.state();
        let settled = state.wait_for(|state| state.fatal.is_some() || state.refused.is_some() || self.listens(state));
        let is_settled = tokio::time::timeout(patience, settled).await.is_ok_and(|changed| changed.is_ok());
        if let Some(reason) = self.bus.state().borrow().fatal.clone() {
            return Err(ClientError::Fatal(reason));
        }
        if let Some(reason) = self.bus.state().borrow().refused.clone() {
            return Err(ClientError::Refused(reason));
        }
        if !is_settled {
            let why = self.bus.state().borrow().last_error.as_ref().map(|error| format!(": {error}"));
            return Err(ClientError::Unreachable(patience, why.unwrap_or_default()));
        }
        Ok(())
    }

    fn listens(&self, state: &BusState) -> bool {
        state.connected && state.consumers.iter().any(|(queue, confirmed)| *queue == self.queue && *confirmed)
    }

    /// Returns the state of the bus.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<BusState> {
        self.bus.state()
    }

    /// Changes with each announcement that the tools of the agent have changed.
    #[must_use]
    pub fn news(&self) -> watch::Receiver<u64> {
        self.news.clone()
    }

    /// Builds a request that grants the tool `budget`; without one, the daemon decides.
    #[must_use]
    pub fn request(
        &self,
        tool: &str,
        arguments: Option<&Map<String, Value>>,
        budget: Option<Duration>,
        trace: Option<TraceContext>,
    ) -> SignedRequest {
        let body = ToolInvokeRequest {
            tool_call_id: Some(new_message_id()),
            tool_name: tool.to_owned(),
            arguments: arguments.map(|fields| serde_json::to_string(fields).unwrap_or_default()),
            ..ToolInvokeRequest::default()
        };
        self.call(&body, budget, trace)
    }

    /// Builds the request of a call.
    #[must_use]
    pub fn call(
        &self,
        body: &ToolInvokeRequest,
        budget: Option<Duration>,
        trace: Option<TraceContext>,
    ) -> SignedRequest {
        let trust = (header::CONTENT_TRUST.to_owned(), header::TRUST_TOOL_REQUEST.to_owned());
        let timeout = budget.map(|budget| (header::TIMEOUT_MS.to_owned(), budget.as_millis().to_string()));
        let headers = [trust].into_iter().chain(timeout).collect();
        let envelope = Envelope { trace, headers, ..self.envelope(message_type::TOOL_INVOKE_REQUEST) };
        request(&self.topic, envelope, body)
    }

    /// Builds a request of another kind.
    #[must_use]
    pub fn ask(&self, topic: &str, message_type: &str, body: &impl Serialize) -> SignedRequest {
        request(topic, self.envelope(message_type), body)
    }

    /// Builds a message that expects no reply.
    #[must_use]
    pub fn tell(&self, topic: &str, message_type: &str, body: &impl Serialize) -> SignedRequest {
        request(topic, Envelope { reply_to: String::new(), ..self.envelope(message_type) }, body)
    }

    fn envelope(&self, message_type: &str) -> Envelope {
        Envelope {
            message_id: Some(new_message_id()),
            message_type: message_type.to_owned(),
            correlation_id: new_message_id(),
            reply_to: self.reply_to.clone(),
            timestamp: Some(Clock::SYSTEM.since_epoch().as_secs()),
            source: Some(SOURCE.to_owned()),
            ..Envelope::default()
        }
    }

    /// Publishes a request and waits for its reply, at most `patience`.
    ///
    /// # Errors
    ///
    /// If the request could not be published, or no readable reply came in time.
    pub async fn send(&self, request: &SignedRequest, patience: Duration) -> Result<CallReply, ClientError> {
        CallReply::read(self.exchange(request, patience).await?)
    }

    /// The same for a reply of any kind.
    ///
    /// # Errors
    ///
    /// If the request could not be published, or no reply came in time.
    pub async fn exchange(&self, request: &SignedRequest, patience: Duration) -> Result<Received, ClientError> {
        let mut expected = self.expect(request, Expectation::default());
        let exchange = async {
            self.publish(request).await?;
            expected.received().await
        };
        tokio::time::timeout(patience, exchange).await.unwrap_or(Err(ClientError::NoReply(patience)))
    }

    /// Registers interest in what follows a request that is about to be published.
    #[must_use]
    pub fn expect(&self, request: &SignedRequest, expectation: Expectation) -> Expected {
        self.pending.expect(request.properties.correlation_id.clone().unwrap_or_default(), expectation)
    }

    /// Publishes, and waits for the broker's confirm: without limit while the broker is away.
    ///
    /// # Errors
    ///
    /// If the broker does not confirm the message, or no queue takes it.
    pub async fn publish(&self, request: &SignedRequest) -> Result<(), ClientError> {
        let (bus, message) = self.outgoing(request);
        let proven = message.proven;
        let unproven = UnprovenTopic { proven: &self.proven, topic: &request.topic };
        let published = bus.publish(&message).await;
        // A rejection closes no channel, so the topic stays proven.
        if matches!(published, Ok(Routing::Routed)) || proven && matches!(published, Err(PublishError::Rejected(_))) {
            std::mem::forget(unproven);
            if !proven {
                self.proven.lock().put(request.topic.clone(), ());
            }
        }
        match published? {
            Routing::Routed => Ok(()),
            Routing::Unroutable => Err(ClientError::NoConsumer(request.topic.clone())),
        }
    }

    /// A request as the bus takes it, and the bus: for what is published when the client is gone.
    #[must_use]
    pub fn outgoing(&self, request: &SignedRequest) -> (Arc<dyn Bus>, Outgoing) {
        let message = Outgoing {
            target: Target::Topic(request.topic.clone()),
            mandatory: true,
            proven: self.proven.lock().get(&request.topic).is_some(),
            properties: Arc::clone(&request.properties),
            body: request.body.clone(),
        };
        (Arc::clone(&self.bus), message)
    }
}

fn request(topic: &str, envelope: Envelope, body: &impl Serialize) -> SignedRequest {
    SignedRequest {
        topic: topic.to_owned(),
        properties: envelope.into_properties().into(),
        body: serde_json::to_vec(body).unwrap_or_default().into(),
    }
}

impl CallReply {
    /// Reads the reply to a call.
    ///
    /// # Errors
    ///
    /// If the message is of another type, or its body cannot be read.
    pub fn read(received: Received) -> Result<Self, ClientError> {
        let Received { properties, body } = received;
        let unreadable = |error: serde_json::Error| ClientError::Unreadable(error.to_string());
        let content = match properties.message_type.as_deref() {
            Some(message_type::TOOL_INVOKE_RESPONSE) => {
                ReplyContent::Result(serde_json::from_slice(&body).map_err(unreadable)?)
            }
            Some(message_type::TOOL_ERROR) => ReplyContent::Error(serde_json::from_slice(&body).map_err(unreadable)?),
            other => return Err(ClientError::Unreadable(format!("unexpected type {:?}", other.unwrap_or_default()))),
        };
        Ok(Self { properties, body, content })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::future::BoxFuture;
    use tokio::sync::mpsc;
    use toolbus_broker::embedded::Embedded;
    use toolbus_bus::{Delivery, Subscription};

    use super::*;

    /// A broker that confirms each message as the test wants; `None` is no confirm.
    struct ScriptedBus {
        bus: Embedded,
        outcomes: Mutex<VecDeque<Option<Result<Routing, PublishError>>>>,
        proven: Mutex<Vec<bool>>,
    }

    impl Bus for ScriptedBus {
        fn consume(&self, subscription: Subscription) -> mpsc::Receiver<Delivery> {
            self.bus.consume(subscription)
        }

        fn publish<'a>(&'a self, message: &'a Outgoing) -> BoxFuture<'a, Result<Routing, PublishError>> {
            self.proven.lock().push(message.proven);
            match self.outcomes.lock().pop_front().unwrap() {
                Some(outcome) => Box::pin(std::future::ready(outcome)),
                None => Box::pin(std::future::pending()),
            }
        }

        fn has_queue<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<bool>> {
            self.bus.has_queue(name)
        }

        fn state(&self) -> watch::Receiver<BusState> {
            self.bus.state()
        }

        fn stop_consuming(&self) -> BoxFuture<'_, ()> {
            self.bus.stop_consuming()
        }

        fn close(&self) -> BoxFuture<'_, ()> {
            self.bus.close()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_that_took_a_message_is_proven_until_one_is_not_taken_or_given_up() {
        let (routed, text) = (Some(Ok(Routing::Routed)), || "no".to_owned());
        let script = [
            (false, routed.clone()),
            // A full queue closes no channel.
            (true, Some(Err(PublishError::Rejected(text())))),
            (true, Some(Ok(Routing::Unroutable))),
            (false, routed.clone()),
            (true, Some(Err(PublishError::Unavailable(text())))),
            (false, Some(Err(PublishError::Refused(text())))),
            (false, routed.clone()),
            (true, None),
            (false, Some(Err(PublishError::Rejected(text())))),
            (false, routed.clone()),
            (true, routed.clone()),
        ];
        let (expected, mut outcomes): (Vec<bool>, VecDeque<_>) = script.into_iter().unzip();
        outcomes.push_back(routed);
        let (outcomes, proven) = (Mutex::new(outcomes), Mutex::default());
        let bus = Arc::new(ScriptedBus { bus: Embedded::new(), outcomes, proven });
        let client = Client::start(Arc::clone(&bus) as Arc<dyn Bus>, "tool.invoke", Inbox::default());
        for _ in &expected {
            let request = client.request("echo", None, None, None);
            let _ = tokio::time::timeout(Duration::from_secs(1), client.publish(&request)).await;
        }
        assert_eq!(std::mem::take(&mut *bus.proven.lock()), expected);
        let other = client.tell("tool.cancel", message_type::TOOL_CANCEL_REQUEST, &());
        client.publish(&other).await.unwrap();
        assert_eq!(*bus.proven.lock(), [false], "each topic by itself");
    }
}
