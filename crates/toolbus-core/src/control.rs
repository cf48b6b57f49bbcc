//! Small requests beside calls: cancel, list, ping, the end of a session, and those that handlers take on topics of
//! their own. Each is obeyed in a task of its own, and has a reply when its sender left an address.

mod handler;
mod hints;
mod list;
mod reply;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use toolbus_protocol::message_type::{self, Kind};
use toolbus_protocol::{
    Envelope, ParseError, Pong, Properties, SessionEnd, ToolCancelRequest, ToolCancelResponse, TraceContext, topic,
};

use crate::bus::{Bus, Delivery};
use crate::dispatcher::Dispatcher;
use crate::failure::ToolFailure;
use crate::reply::{DeadLetter, Replies, ReplyPath};
use crate::reply_address::{AddressRefused, ReplyRules};
use crate::telemetry::DeadReason;
use crate::text::shown;
use crate::throttle::Throttle;
use crate::toolsets::SessionSets;

use self::list::ListCache;

pub use handler::{ControlError, ControlHandler, ControlReply, ControlRequest};
pub use hints::HintSource;
use reply::{message, refusal};

/// Longest body of a small request, in bytes.
pub const MAX_CONTROL_BODY: usize = 64 * 1024;
/// Longest wait for the confirm of a reply.
const REPLY_TIME: Duration = Duration::from_secs(5);
/// Replies to calls that are kept at a time; a request beyond them goes back to its queue. No prefetch bounds them:
/// where a connection was lost, its deliveries come again, and the replies to both are kept.
const MAX_KEPT: usize = 1024;

/// Description of the daemon in a pong.
#[derive(Debug, Clone)]
pub struct About {
    /// The daemon's name: the source of its replies.
    pub name: String,
    /// Version of the daemon.
    pub version: String,
    /// A hash of the configuration that runs, equal in replicas that are configured alike.
    pub config_digest: watch::Receiver<String>,
    /// Roles of the daemon.
    pub roles: Vec<String>,
    /// When it started.
    pub started: std::time::Instant,
}

/// Handles small requests. Cheap to clone.
#[derive(Clone)]
pub struct ControlService {
    parts: Arc<ControlParts>,
    /// Handlers of topics that are not the service's own.
    handlers: Arc<HashMap<Cow<'static, str>, Arc<dyn ControlHandler>>>,
    /// Handler of `tool.hints`.
    hints: Option<Arc<dyn HintSource>>,
    /// Whether requests of agents to all daemons are left to another one.
    leaves_agents: bool,
}

struct ControlParts {
    about: About,
    replies: Replies,
    dispatcher: Dispatcher,
    sessions: SessionSets,
    undelivered: Throttle,
    /// Slots for replies that are kept until the broker takes them.
    kept: Semaphore,
    lists: ListCache,
}

/// Reason why a request is not obeyed.
#[derive(Debug, thiserror::Error)]
enum ControlRefusal {
    /// For another daemon, or for none: it is acknowledged without a reply.
    #[error("it is nothing for this daemon")]
    NotOurs,
    #[error("its answer may not go where it says: {0}")]
    Address(#[from] AddressRefused),
    #[error("it has {0} bytes; at most {1} are read")]
    TooLarge(usize, usize),
    #[error(transparent)]
    Unusable(#[from] ControlError),
    /// The content of the request cannot be obeyed.
    #[error("{0}")]
    Content(String),
    /// The request failed through no fault of its own.
    #[error("{}", .0.message)]
    Failed(ToolFailure),
}

impl From<ToolFailure> for ControlRefusal {
    fn from(failure: ToolFailure) -> Self {
        Self::Failed(failure)
    }
}

impl From<ParseError> for ControlRefusal {
    fn from(error: ParseError) -> Self {
        Self::Unusable(error.into())
    }
}

impl ControlService {
    /// A service for the calls of `dispatcher`.
    #[must_use]
    pub fn new(
        about: About,
        bus: Arc<dyn Bus>,
        rules: ReplyRules,
        dispatcher: Dispatcher,
        sessions: SessionSets,
    ) -> Self {
        // A rejected reply is given up at once: the caller can repeat the request, and waiting would delay the others.
        let replies = Replies::new(bus, rules, 0);
        Self {
            parts: Arc::new(ControlParts {
                about,
                replies,
                dispatcher,
                sessions,
                undelivered: Throttle::default(),
                kept: Semaphore::new(MAX_KEPT),
                lists: ListCache::default(),
            }),
            handlers: Arc::default(),
            hints: None,
            leaves_agents: false,
        }
    }

    /// Leaves requests on `tool.list`, `tool.hints` and `tool.ping` to the daemon that takes the calls of agents. A
    /// queue may be bound to these topics from before.
    #[must_use]
    pub const fn without_agents(mut self) -> Self {
        self.leaves_agents = true;
        self
    }

    /// Passes the requests of `topic` to this handler.
    #[must_use]
    pub fn with(mut self, topic: impl Into<Cow<'static, str>>, handler: Arc<dyn ControlHandler>) -> Self {
        Arc::make_mut(&mut self.handlers).insert(topic.into(), handler);
        self
    }

    /// Replies to `tool.hints` with these hints.
    #[must_use]
    pub fn with_hints(mut self, hints: Arc<dyn HintSource>) -> Self {
        self.hints = Some(hints);
        self
    }

    /// Obeys a request, sends its reply, and settles its delivery.
    pub(crate) async fn handle(self, delivery: Delivery) {
        let is_over = match self.read(&delivery) {
            Ok(request) => match self.obey(&delivery, &request).await {
                Ok(reply) => self.send(&request, &delivery, reply).await,
                Err(refused) => self.refuse(Some(request), &delivery, &refused).await,
            },
            Err(refused) => self.refuse(None, &delivery, &refused).await,
        };
        if is_over {
            delivery.settle.acknowledge().await;
        } else {
            delivery.settle.requeue().await;
        }
    }

    /// Does what the topic stands for.
    async fn obey(
        &self,
        delivery: &Delivery,
        request: &ControlRequest,
    ) -> Result<Option<ControlReply>, ControlRefusal> {
        if let Some(handler) = self.handlers.get(&*delivery.routing_key) {
            body_up_to(delivery, handler.max_body())?;
            return Ok(handler.handle(request).await?);
        }
        match &*delivery.routing_key {
            topic::TOOL_CANCEL => self.cancel(delivery, request),
            topic::TOOL_SESSION_END => self.end_session(delivery, request),
            topic => match topic::control_in(topic) {
                Some(control) if self.leaves_agents && topic == control => Err(ControlRefusal::NotOurs),
                Some(topic::TOOL_LIST) => self.list(delivery, request).await,
                Some(topic::TOOL_HINTS) => self.hint(delivery, request).await,
                Some(topic::TOOL_PING) => Ok(Some(self.ping(request))),
                _ => Err(ControlRefusal::NotOurs),
            },
        }
    }

    /// Cancels what the request names, if it is the sender's.
    fn cancel(&self, delivery: &Delivery, request: &ControlRequest) -> Result<Option<ControlReply>, ControlRefusal> {
        let tool_call_id = ToolCancelRequest::parse(body(delivery)?)?.tool_call_id;
        let cancelled = self.parts.dispatcher.cancel(&request.caller, &tool_call_id, request.envelope.timestamp);
        let response = ToolCancelResponse { tool_call_id, cancelled };
        Ok(Some(ControlReply::new(message_type::TOOL_CANCEL_RESPONSE, &response)))
    }

    /// Reply to a ping: the daemon's description, and how many tools the sender may use.
    fn ping(&self, request: &ControlRequest) -> ControlReply {
        let about = &self.parts.about;
        let pong = Pong {
            name: about.name.clone(),
            version: about.version.clone(),
            config_digest: about.config_digest.borrow().clone(),
            roles: about.roles.clone(),
            uptime_seconds: self.parts.dispatcher.clock().since(about.started).as_secs(),
            in_flight: self.parts.dispatcher.load().in_flight() as u64,
            tools: self.parts.dispatcher.policy().effective(&request.caller).names().count() as u64,
            takes: None,
        };
        ControlReply { persistent: false, ..ControlReply::new(message_type::PONG, &pong) }
    }

    /// Ends a session of the sender's; there is no reply.
    fn end_session(
        &self,
        delivery: &Delivery,
        request: &ControlRequest,
    ) -> Result<Option<ControlReply>, ControlRefusal> {
        let session: Arc<str> = SessionEnd::parse(body(delivery)?)?.session_id.into();
        self.parts.dispatcher.policy().end_session(&request.caller, &session);
        self.parts.sessions.end_session(&request.caller.owner, &session);
        Ok(None)
    }

    fn read(&self, delivery: &Delivery) -> Result<ControlRequest, ControlRefusal> {
        let envelope = Envelope::read(&delivery.properties);
        let expected = match (self.handlers.get(&*delivery.routing_key), &*delivery.routing_key) {
            (Some(handler), _) => handler.message_type(),
            (None, topic::TOOL_CANCEL) => Some(message_type::TOOL_CANCEL_REQUEST),
            (None, topic) => match topic::control_in(topic) {
                Some(topic::TOOL_LIST) => Some(message_type::TOOL_LIST_REQUEST),
                Some(topic::TOOL_HINTS) => Some(message_type::TOOL_HINTS_REQUEST),
                Some(topic::TOOL_PING) => Some(message_type::PING),
                _ => Some(message_type::SESSION_END),
            },
        };
        let policy = self.parts.dispatcher.policy();
        let user_id = delivery.properties.user_id.as_deref();
        if self.is_listening(delivery) {
            let caller = Arc::new(policy.sender(user_id, &envelope));
            let clock = self.parts.dispatcher.clock();
            return Ok(ControlRequest { envelope, caller, body: delivery.body.clone(), address: None, clock });
        }
        let caller = policy.identify(user_id, &envelope, &delivery.routing_key).ok_or(ControlRefusal::NotOurs)?;
        match message_type::kind(&envelope.message_type, expected.unwrap_or_default()) {
            Kind::Request | Kind::Plain => {}
            Kind::Reply => return Err(ControlRefusal::NotOurs),
            Kind::Foreign if expected.is_none() => {}
            Kind::Foreign => return Err(ControlError::Type(shown(&envelope.message_type)).into()),
        }
        let address = match &*envelope.reply_to {
            "" => None,
            reply_to => Some(self.parts.replies.rules().check(reply_to, &envelope.message_type, &caller)?),
        };
        Ok(ControlRequest {
            envelope,
            caller: Arc::new(caller),
            body: delivery.body.clone(),
            address,
            clock: self.parts.dispatcher.clock(),
        })
    }

    /// Reports why a request is not obeyed: to its sender, if that can have a reply, and else to the log. Returns
    /// whether the request is over.
    async fn refuse(&self, request: Option<ControlRequest>, delivery: &Delivery, refused: &ControlRefusal) -> bool {
        let topic = &delivery.routing_key;
        let caller = request.as_ref().map(|request| shown(&request.caller.name));
        match (&request, refused) {
            (_, ControlRefusal::TooLarge(..)) if self.is_listening(delivery) => {
                tracing::debug!(%topic, reason = %refused, "ignored a message that is too large");
                true
            }
            (_, ControlRefusal::NotOurs) => {
                tracing::debug!(%topic, "settled a message that is no request of ours");
                true
            }
            (_, ControlRefusal::Unusable(ControlError::StoreAway)) => {
                tracing::debug!(%topic, caller, reason = %refused, "a request goes back to its queue");
                self.parts.dispatcher.replier().pause().await;
                false
            }
            // A request that reaches every replica has no reply, so that its sender does not get as many refusals.
            (Some(request), refused) if request.address.is_some() && is_of_one(delivery) => {
                tracing::info!(%topic, caller, reason = %refused, "refused a request");
                let handler = self.handlers.get(&**topic);
                let reply = handler.and_then(|handler| handler.refusal(request, &refused.to_string()));
                self.send(request, delivery, Some(reply.unwrap_or_else(|| refusal(request, delivery, refused)))).await
            }
            (_, refused) => {
                tracing::info!(%topic, caller, reason = %refused, "ignored a request that cannot be answered");
                let reason = match refused {
                    ControlRefusal::Unusable(ControlError::Type(_)) => DeadReason::UnknownType,
                    ControlRefusal::Address(_) => DeadReason::ReplyToRefused,
                    _ => DeadReason::Malformed,
                };
                self.dead_letter(delivery, reason).await
            }
        }
    }

    /// Dead-letters a request; whether it is over. One that reached every replica has no queue for dead letters, and is
    /// dropped.
    async fn dead_letter(&self, delivery: &Delivery, reason: DeadReason) -> bool {
        if !is_of_one(delivery) {
            return true;
        }
        let letter = DeadLetter {
            queue: &delivery.queue,
            topic: Some(&*delivery.routing_key),
            reason,
            reply_to: delivery.properties.reply_to.as_deref().unwrap_or_default(),
            properties: Properties::clone(&delivery.properties),
            body: delivery.body.clone(),
        };
        self.parts.dispatcher.replier().dead_letter(letter).await.is_over()
    }

    /// Whether the topic carries messages that never have a reply.
    fn is_listening(&self, delivery: &Delivery) -> bool {
        self.handlers.get(&*delivery.routing_key).is_some_and(|handler| handler.is_listening())
    }

    /// Sends a reply, for [`REPLY_TIME`] at most: the request was obeyed, and its sender can repeat it. A reply to a
    /// call is kept. Returns whether the request is over.
    async fn send(&self, request: &ControlRequest, delivery: &Delivery, reply: Option<ControlReply>) -> bool {
        let (Some(address), Some(mut reply)) = (&request.address, reply) else { return true };
        let _turn = reply.turn.take();
        let (dispatcher, now) = (&self.parts.dispatcher, self.parts.dispatcher.clock().now());
        let message = message(&self.parts.about.name, dispatcher.random(), request, reply);
        let is_call = self.handlers.get(&*delivery.routing_key).is_some_and(|handler| handler.runs_calls());
        let slot = is_call.then(|| self.parts.kept.try_acquire().ok()).flatten();
        if slot.is_some() {
            let (queue, call_id) = (&*delivery.queue, &*request.envelope.correlation_id);
            let trace_id = request.envelope.trace.as_ref().map(TraceContext::trace_id);
            return dispatcher
                .replier()
                .reply(&ReplyPath { address, queue, call_id, trace_id, deadline: now }, &message)
                .await;
        }
        let delivered = self.parts.replies.deliver(address, &message, Instant::from_std(now) + REPLY_TIME).await;
        if let Err(reason) = &delivered
            && let Some(left_out) = self.parts.undelivered.due()
        {
            let (reply_to, kind) = (shown(&address.written), &message.properties.message_type);
            tracing::warn!(%reason, reply_to, kind, left_out, "a reply was not delivered");
        }
        if is_call && delivered.is_err() {
            dispatcher.replier().pause().await;
            return false;
        }
        true
    }
}

/// Whether a request reaches one replica, and not all.
fn is_of_one(delivery: &Delivery) -> bool {
    !matches!(&*delivery.routing_key, topic::TOOL_CANCEL | topic::TOOL_SESSION_END)
}

/// The body of a request, if it is not too large.
fn body(delivery: &Delivery) -> Result<&[u8], ControlRefusal> {
    body_up_to(delivery, MAX_CONTROL_BODY)
}

fn body_up_to(delivery: &Delivery, limit: usize) -> Result<&[u8], ControlRefusal> {
    match delivery.size {
        size if size > limit => Err(ControlRefusal::TooLarge(size, limit)),
        _ => Ok(&delivery.body),
    }
}
