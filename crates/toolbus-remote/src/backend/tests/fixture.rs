//! A bus on which the test is the daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use toolbus_broker::embedded::Embedded;
use toolbus_client::{Inbox, Sender};
use toolbus_core::bus::{Bus, BusState, Delivery, Outgoing, Ownership, PublishError, Routing, Subscription, Target};
use toolbus_core::caller::{AgentName, Caller};
use toolbus_mcp_server::{Backend as _, BackendCall};
use toolbus_protocol::{Envelope, Properties, message_type, topic};

use crate::backend::{self, BackendSettings};

/// Longest wait for anything; time is paused.
const PATIENCE: Duration = Duration::from_secs(3_600);
pub(super) const MAX_TIMEOUT: Duration = Duration::from_secs(120);

/// The embedded bus, which can lose its connection, and can report that it rejected what it took.
pub(super) struct Breakable {
    bus: Embedded,
    state: watch::Sender<BusState>,
    rejects: AtomicBool,
}

impl Bus for Breakable {
    fn consume(&self, subscription: Subscription) -> mpsc::Receiver<Delivery> {
        let consumer = (subscription.queue.clone(), true);
        self.state.send_modify(|state| state.consumers.push(consumer));
        self.bus.consume(subscription)
    }

    fn publish<'a>(&'a self, message: &'a Outgoing) -> BoxFuture<'a, Result<Routing, PublishError>> {
        // The bus itself does not show logins.
        assert_eq!(message.properties.user_id.as_deref(), Some("svc-ana"), "the broker knows the sender");
        async move {
            let published = self.bus.publish(message).await;
            match self.rejects.load(Ordering::Relaxed) {
                true => Err(PublishError::Rejected("another queue for it is full".to_owned())),
                false => published,
            }
        }
        .boxed()
    }

    fn has_queue<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<bool>> {
        self.bus.has_queue(name)
    }

    fn state(&self) -> watch::Receiver<BusState> {
        self.state.subscribe()
    }

    fn stop_consuming(&self) -> BoxFuture<'_, ()> {
        self.bus.stop_consuming()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.bus.close()
    }
}

/// Request that the daemon received.
pub(super) struct ReceivedRequest {
    pub(super) topic: String,
    pub(super) properties: Arc<Properties>,
    pub(super) body: Value,
}

impl ReceivedRequest {
    pub(super) fn header(&self, name: &str) -> String {
        self.properties.header(name).unwrap_or_default().to_owned()
    }
}

pub(super) struct Fixture {
    pub(super) remote: backend::BusBackend,
    pub(super) caller: Arc<Caller>,
    daemon: Option<mpsc::Receiver<Delivery>>,
    bus: Embedded,
    broken: Arc<Breakable>,
}

impl Fixture {
    /// A remote for the agent ana, and a daemon that has listed these tools.
    pub(super) async fn listed(tools: &Value) -> Self {
        let mut fixture = Self::new(Inbox::default());
        fixture.reply_with_tools("1", tools).await;
        fixture.remote.list(&fixture.caller).await.unwrap();
        fixture
    }

    pub(super) fn new(inbox: Inbox) -> Self {
        let mut fixture = Self::without_a_daemon(inbox);
        fixture.bring_a_daemon();
        fixture
    }

    /// A remote that receives replies on a queue which an operator declared.
    pub(super) async fn given(queue: &str, reply_to: &str) -> Self {
        let (embedded, topics) = (Embedded::new(), vec![topic::tools_changed("ana")]);
        let operator = embedded.connect();
        let bound = [&topics[..], &[reply_to.to_owned()]].concat();
        let (queue_name, ownership) = (queue.to_owned(), Ownership::Shared);
        let subscription = Subscription {
            queue: queue_name,
            topics: bound,
            prefetch: 1,
            max_body: usize::MAX,
            ownership,
            is_inbox: false,
        };
        drop(operator.consume(subscription));
        operator.stop_consuming().await;
        let mut fixture =
            Self::on(embedded, Inbox::Given { queue: queue.to_owned(), reply_to: reply_to.to_owned(), topics });
        fixture.bring_a_daemon();
        fixture
    }

    pub(super) fn without_a_daemon(inbox: Inbox) -> Self {
        Self::on(Embedded::new(), inbox)
    }

    fn on(embedded: Embedded, inbox: Inbox) -> Self {
        let state = watch::Sender::new(BusState { connected: true, ..BusState::default() });
        let broken = Arc::new(Breakable { bus: embedded.connect(), state, rejects: AtomicBool::new(false) });
        let sender = Sender {
            agent: Some(AgentName::parse("ana").unwrap()),
            login: Some("svc-ana".to_owned()),
            binding: Some("chat:one".to_owned()),
            ..Sender::default()
        };
        let settings =
            BackendSettings { topic: topic::TOOL_INVOKE.to_owned(), sender, inbox, max_timeout: MAX_TIMEOUT };
        let remote = backend::BusBackend::start(Arc::clone(&broken) as Arc<dyn Bus>, settings);
        let caller = Arc::new(remote.caller(Some(AgentName::parse("ana").unwrap()), "session".into()));
        Self { remote, caller, daemon: None, bus: embedded, broken }
    }

    pub(super) fn bring_a_daemon(&mut self) {
        let topics = [topic::TOOL_INVOKE, topic::TOOL_LIST, topic::TOOL_CANCEL, topic::TOOL_SESSION_END];
        self.daemon = Some(self.bus.consume(Subscription {
            queue: "daemon".to_owned(),
            topics: topics.map(str::to_owned).into(),
            prefetch: 100,
            max_body: usize::MAX,
            ownership: Ownership::Replica,
            is_inbox: false,
        }));
    }

    /// The next request that the daemon receives.
    pub(super) async fn next_request(&mut self) -> ReceivedRequest {
        let next = self.daemon.as_mut().unwrap().recv();
        let delivery = tokio::time::timeout(PATIENCE, next).await.expect("a request in time").unwrap();
        let request = ReceivedRequest {
            topic: delivery.routing_key.to_string(),
            properties: Arc::clone(&delivery.properties),
            body: serde_json::from_slice(&delivery.body).unwrap(),
        };
        delivery.settle.acknowledge().await;
        request
    }

    /// The next request on this topic; others are skipped.
    pub(super) async fn next_request_on(&mut self, topic: &str) -> ReceivedRequest {
        loop {
            let request = self.next_request().await;
            if request.topic == topic {
                return request;
            }
        }
    }

    /// Replies to a request.
    pub(super) async fn reply(&self, request: &ReceivedRequest, message_type: &str, body: &Value) {
        let to = request.properties.reply_to.clone().unwrap();
        self.publish(Target::Queue(to), message_type, request.properties.correlation_id.clone(), body).await;
    }

    /// Publishes anything.
    pub(super) async fn publish(&self, target: Target, kind: &str, correlation: Option<String>, body: &Value) {
        let envelope = Envelope {
            message_type: kind.to_owned(),
            correlation_id: correlation.unwrap_or_default(),
            ..Envelope::default()
        };
        let message = Outgoing {
            target,
            mandatory: true,
            proven: false,
            properties: envelope.into_properties().into(),
            body: body.to_string().into(),
        };
        assert_eq!(self.bus.publish(&message).await.unwrap(), Routing::Routed, "{kind}");
    }

    /// Waits for the request for tools, and replies with these.
    pub(super) async fn reply_with_tools(&mut self, version: &str, tools: &Value) -> ReceivedRequest {
        let request = self.next_request_on(topic::TOOL_LIST).await;
        let body = json!({"agent": "ana", "version": version, "tools": tools});
        self.reply(&request, message_type::TOOL_LIST_RESPONSE, &body).await;
        request
    }

    /// The names of the tools that are listed to clients.
    pub(super) async fn names(&self) -> Result<Vec<String>, String> {
        let listed = self.remote.list(&self.caller).await.map_err(|error| error.to_string())?;
        Ok(listed.tools.iter().map(|tool| tool.name.to_string()).collect())
    }

    /// A call of a tool, and what cancels it.
    pub(super) fn call(&self, tool: &str) -> (BackendCall, CancellationToken) {
        let cancelled = CancellationToken::new();
        let call = BackendCall {
            caller: Arc::clone(&self.caller),
            tool: tool.to_owned(),
            arguments: Some(r#"{"a":1}"#.to_owned()),
            cancelled: cancelled.clone(),
            trace: None,
            progress: None,
            idempotency_key: None,
        };
        (call, cancelled)
    }

    /// Another queue than the daemon's rejects what is published.
    pub(super) fn reject(&self) {
        self.broken.rejects.store(true, Ordering::Relaxed);
    }

    /// The connection is lost, and back at once.
    pub(super) fn lose(&self) {
        self.broken.state.send_modify(|state| state.reconnects += 1);
    }

    /// The connection is lost, for this reason.
    pub(super) fn disconnect(&self, reason: &str) {
        self.broken.state.send_modify(|state| {
            state.connected = false;
            state.last_error = Some(reason.to_owned());
        });
    }
}
