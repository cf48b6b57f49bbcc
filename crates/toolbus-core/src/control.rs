//! Small requests beside calls: cancel, list, ping, the end of a session, and what others answer on topics of their own.
//! Each is obeyed in a task of its own, and answered when its sender left an address.

mod cancel;
mod handler;
mod list;
mod ping;
mod session;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::Instant;
use toolbus_protocol::message_type::{self, Kind};
use toolbus_protocol::{Code, Envelope, ParseError, Properties, ToolError, bounded, header, new_message_id, topic};

use crate::answer::{Answer, destination, whole_milliseconds};
use crate::bus::{Bus, Delivery};
use crate::dispatcher::Dispatcher;
use crate::failure::{Status, ToolFailure, verdict};
use crate::log::{Throttle, shown};
use crate::reply::{AddressRefused, Buried, Replies, ReplyRules};
use crate::telemetry::{DeadReason, End};
use crate::tool::Effect;
use crate::toolsets::SessionSets;

use self::list::ListCache;

pub use handler::{ControlError, ControlHandler, ControlReply, ControlRequest};

/// Longest body of a small request, in bytes.
const MAX_BODY: usize = 64 * 1024;
/// Longest wait for the confirm of an answer.
const REPLY_TIME: Duration = Duration::from_secs(5);

/// What a pong tells of the daemon.
#[derive(Debug, Clone)]
pub struct About {
    /// The daemon's name: the source of its answers.
    pub name: String,
    /// Its version.
    pub version: String,
    /// A hash of the configuration that runs, equal in replicas that are configured alike.
    pub config_digest: watch::Receiver<String>,
    /// What it does.
    pub roles: Vec<String>,
    /// When it started.
    pub started: std::time::Instant,
}

/// Answers small requests. Cheap to clone.
#[derive(Clone)]
pub struct ControlService {
    parts: Arc<Parts>,
    /// Who answers on topics that are not the service's own.
    answerers: Arc<HashMap<&'static str, Arc<dyn ControlHandler>>>,
}

struct Parts {
    about: About,
    replies: Replies,
    dispatcher: Dispatcher,
    sessions: SessionSets,
    undelivered: Throttle,
    lists: ListCache,
}

/// Why a request is not obeyed.
#[derive(Debug, thiserror::Error)]
enum Refused {
    /// Somebody else's, or nobody's: it is settled, and nothing more.
    #[error("it is nothing for this daemon")]
    NotOurs,
    #[error("its answer may not go where it says: {0}")]
    Address(#[from] AddressRefused),
    #[error("it has {0} bytes; at most {MAX_BODY} are read")]
    TooLarge(usize),
    #[error(transparent)]
    Unusable(#[from] ControlError),
    #[error("{0}")]
    Contradiction(String),
    /// It is none of the request's own fault.
    #[error("{}", .0.message)]
    Failed(ToolFailure),
}

impl From<ToolFailure> for Refused {
    fn from(failure: ToolFailure) -> Self {
        Self::Failed(failure)
    }
}

impl From<ParseError> for Refused {
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
        // A rejected answer ends at once: who asked can ask again, and waiting would hold up the others.
        let replies = Replies::new(bus, rules, 0);
        Self {
            parts: Arc::new(Parts {
                about,
                replies,
                dispatcher,
                sessions,
                undelivered: Throttle::default(),
                lists: ListCache::default(),
            }),
            answerers: Arc::default(),
        }
    }

    /// Has the requests of `topic` answered by somebody else.
    #[must_use]
    pub fn with(mut self, topic: &'static str, answerer: Arc<dyn ControlHandler>) -> Self {
        Arc::make_mut(&mut self.answerers).insert(topic, answerer);
        self
    }

    /// Obeys a request, answers it, and settles its delivery.
    pub(crate) async fn handle(self, delivery: Delivery) {
        match self.asked(&delivery) {
            Ok(asked) => match self.obey(&delivery, &asked).await {
                Ok(said) => self.answer(&asked, said).await,
                Err(refused) => self.refuse(Some(asked), &delivery, &refused).await,
            },
            Err(refused) => self.refuse(None, &delivery, &refused).await,
        }
        delivery.settle.acknowledge().await;
    }

    /// Does what the topic stands for.
    async fn obey(&self, delivery: &Delivery, asked: &ControlRequest) -> Result<Option<ControlReply>, Refused> {
        if let Some(answerer) = self.answerers.get(&*delivery.routing_key) {
            body(delivery)?;
            return Ok(answerer.answer(asked).await?);
        }
        match &*delivery.routing_key {
            topic::TOOL_CANCEL => self.cancel(delivery, asked),
            topic::TOOL_LIST => self.list(delivery, asked).await,
            topic::TOOL_PING => Ok(Some(self.ping(asked))),
            topic::TOOL_SESSION_END => self.end_session(delivery, asked),
            _ => Err(Refused::NotOurs),
        }
    }

    fn asked(&self, delivery: &Delivery) -> Result<ControlRequest, Refused> {
        let envelope = Envelope::read(&delivery.properties);
        let expected = match (self.answerers.get(&*delivery.routing_key), &*delivery.routing_key) {
            (Some(answerer), _) => answerer.message_type(),
            (None, topic::TOOL_CANCEL) => Some(message_type::TOOL_CANCEL_REQUEST),
            (None, topic::TOOL_LIST) => Some(message_type::TOOL_LIST_REQUEST),
            (None, topic::TOOL_PING) => Some(message_type::PING),
            (None, _) => Some(message_type::SESSION_END),
        };
        let access = self.parts.dispatcher.access();
        let user_id = delivery.properties.user_id.as_deref();
        let caller = access.identify(user_id, &envelope, &delivery.routing_key).ok_or(Refused::NotOurs)?;
        match message_type::kind(&envelope.message_type, expected.unwrap_or_default()) {
            Kind::Request | Kind::Plain => {}
            Kind::Answer => return Err(Refused::NotOurs),
            Kind::Foreign if expected.is_none() => {}
            Kind::Foreign => return Err(ControlError::Type(shown(&envelope.message_type)).into()),
        }
        let address = match &*envelope.reply_to {
            "" => None,
            reply_to => Some(self.parts.replies.rules().check(reply_to, &envelope.message_type, &caller)?),
        };
        Ok(ControlRequest { envelope, caller: Arc::new(caller), body: delivery.body.clone(), address })
    }

    /// Says why a request is not obeyed: to its sender, when that can be answered, and else to the log.
    async fn refuse(&self, asked: Option<ControlRequest>, delivery: &Delivery, refused: &Refused) {
        let topic = &delivery.routing_key;
        let caller = asked.as_ref().map(|asked| shown(&asked.caller.name));
        match (&asked, refused) {
            (_, Refused::NotOurs) => tracing::debug!(%topic, "settled a message that is no request of ours"),
            // What reaches every replica is answered by none, so that its sender does not hear as many refusals.
            (Some(asked), refused) if asked.address.is_some() && is_of_one(delivery) => {
                tracing::info!(%topic, caller, reason = %refused, "refused a request");
                self.answer(asked, Some(refusal(asked, delivery, refused))).await;
            }
            (_, refused) => {
                tracing::info!(%topic, caller, reason = %refused, "ignored a request that cannot be answered");
                let reason = match refused {
                    Refused::Unusable(ControlError::Type(_)) => DeadReason::UnknownType,
                    Refused::Address(_) => DeadReason::ReplyToRefused,
                    _ => DeadReason::Malformed,
                };
                self.bury(delivery, reason).await;
            }
        }
    }

    /// Puts a request aside. One that reached every replica has no queue for dead letters, and is dropped.
    async fn bury(&self, delivery: &Delivery, reason: DeadReason) {
        if !is_of_one(delivery) {
            return;
        }
        let (properties, body) = (Properties::clone(&delivery.properties), delivery.body.clone());
        let reply_to = properties.reply_to.clone().unwrap_or_default();
        let buried = self.parts.replies.dead_letter(&delivery.queue, reason, &reply_to, properties, body).await;
        if buried == Buried::Kept {
            self.parts.dispatcher.telemetry().dead_lettered(&delivery.queue, reason);
        }
    }

    async fn answer(&self, asked: &ControlRequest, said: Option<ControlReply>) {
        let (Some(address), Some(mut said)) = (&asked.address, said) else { return };
        let _turn = said.turn.take();
        let answer = self.message(asked, said);
        if let Err(reason) = self.parts.replies.deliver(address, &answer, Instant::now() + REPLY_TIME).await
            && let Some(left_out) = self.parts.undelivered.due()
        {
            let (reply_to, kind) = (shown(&address.written), &answer.properties.message_type);
            tracing::warn!(%reason, reply_to, kind, left_out, "an answer was not delivered");
        }
    }

    fn message(&self, asked: &ControlRequest, said: ControlReply) -> Answer {
        let envelope = &asked.envelope;
        let mut headers = vec![(header::CONTENT_TRUST.to_owned(), header::TRUST_TOOL_OUTPUT.to_owned())];
        headers.extend(said.provider.map(|provider| (header::TOOL_PROVIDER.to_owned(), provider.to_owned())));
        let mut properties = Envelope {
            message_id: Some(new_message_id()),
            message_type: said.message_type.into_owned(),
            correlation_id: bounded(&envelope.correlation_id).to_owned(),
            timestamp: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs()),
            source: Some(self.parts.about.name.clone()),
            destination: destination(envelope, &asked.caller),
            trace: envelope.trace.clone(),
            headers,
            ..Envelope::default()
        }
        .into_properties();
        properties.persistent = said.persistent;
        Answer {
            properties: properties.into(),
            body: said.body.into(),
            end: End { status: Status::Ok, cause: None },
            outcome: None,
        }
    }
}

/// Whether a request reaches one replica, and not all.
fn is_of_one(delivery: &Delivery) -> bool {
    !matches!(&*delivery.routing_key, topic::TOOL_CANCEL | topic::TOOL_SESSION_END)
}

/// The body of a request, if it is not too large.
fn body(delivery: &Delivery) -> Result<&[u8], Refused> {
    match delivery.body.len() {
        size if size > MAX_BODY => Err(Refused::TooLarge(size)),
        _ => Ok(&delivery.body),
    }
}

fn refusal(asked: &ControlRequest, delivery: &Delivery, refused: &Refused) -> ControlReply {
    let id = asked.envelope.message_id.as_deref().unwrap_or(&asked.envelope.correlation_id);
    let error = ToolError {
        tool_call_id: bounded(id).to_owned(),
        tool_name: delivery.routing_key.to_string(),
        code: Code::InvalidArguments,
        message: format!("The request is not usable: {refused}."),
        is_retryable: false,
        retry_after_ms: None,
        outcome: None,
    };
    let error = match refused {
        Refused::Failed(failure) => {
            let verdict = verdict(failure.cause, Effect::ReadOnly, false);
            ToolError {
                code: verdict.code,
                message: failure.message.clone(),
                is_retryable: verdict.is_retryable,
                retry_after_ms: failure.retry_after.map(whole_milliseconds),
                outcome: verdict.outcome,
                ..error
            }
        }
        _ => error,
    };
    ControlReply::new(message_type::TOOL_ERROR, &error)
}
