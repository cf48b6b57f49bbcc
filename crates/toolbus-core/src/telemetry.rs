//! Events of a call, as the dispatcher reports them. Names are fixed in `docs/telemetry.md`; `toolbus-telemetry`
//! implements the trait.

use std::time::Duration;

use toolbus_protocol::TraceContext;

use crate::bus::Delivery;
use crate::caller::Caller;
use crate::events::Discard;
use crate::failure::{Cause, Status, ToolFailure};
pub use crate::load::{BusyTool, Load};
use crate::tool::{ToolDescriptor, ToolOutput};

/// Receives what happens. Implementations neither block nor fail.
pub trait Telemetry: Send + Sync + 'static {
    /// A request arrived; `parent` is the sender's trace. The span lives as long as the call.
    fn arrived(&self, delivery: &Delivery, parent: Option<&TraceContext>) -> Box<dyn CallSpan>;

    /// A call that no message brought began. `parent` is the trace that it belongs to, and `around` the
    /// [number](CallSpan::number) of the call around it. The span lives as long as the call.
    fn nested(&self, parent: Option<&TraceContext>, around: Option<u64>) -> Box<dyn CallSpan>;

    /// Messages of this queue are about to be taken. What is counted of it begins at zero, so that the first increase
    /// can be distinguished from a series that has just begun.
    fn consuming(&self, queue: &str);

    /// The daemon dead-lettered a message: a request that cannot have a reply, or a reply that cannot be delivered.
    fn dead_lettered(&self, queue: &str, reason: DeadReason);

    /// A request was recognised as one that is known, or the ledger could not do what it is for.
    fn ledger(&self, event: LedgerEvent);
}

/// One request on its way. Steps that a call does not reach are not reported.
pub trait CallSpan: Send + Sync {
    /// 32 hexadecimal digits, for the log.
    fn trace_id(&self) -> Option<&str>;

    /// Number of the call among those of this process, where calls are numbered: calls within it are reported with it.
    fn number(&self) -> Option<u64> {
        None
    }

    /// The call begins with these arguments, as its caller wrote them; absent: none.
    fn requested(&mut self, _arguments: Option<&str>) {}

    /// The call has a result, or none for this reason; secrets are removed from both.
    fn shaped(&mut self, _result: Result<&ToolOutput, &ToolFailure>) {}

    /// The tool is about to run. Returns the context that its own requests carry onwards.
    fn executing(&mut self, tool: &ToolDescriptor, call_id: &str, caller: &Caller) -> Option<TraceContext>;

    /// The tool has run, or was stopped.
    fn executed(&mut self, end: &CallEnd, duration: Duration);

    /// The reply is about to be published. Returns the context that it carries.
    fn publishing(&mut self, message_id: &str) -> Option<TraceContext>;

    /// The reply was confirmed by the broker, or given up.
    fn published(&mut self, delivered: bool, duration: Duration);

    /// The delivery is settled: the call is over.
    fn finished(self: Box<Self>, summary: &CallSummary<'_>);
}

/// End of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallEnd {
    /// As metrics label it.
    pub status: Status,
    /// Reason why there is no result, if there is none.
    pub cause: Option<Cause>,
}

/// Description of a call.
#[derive(Debug, Clone, Copy)]
pub struct CallSummary<'a> {
    /// The caller; absent when it is not known.
    pub caller: Option<&'a Caller>,
    /// The tool; absent when the name was not resolved.
    pub tool: Option<&'a ToolDescriptor>,
    /// Name of the requested tool.
    pub requested: &'a str,
    /// The caller's id of the call.
    pub call_id: &'a str,
    /// End of the call; absent when it has no reply (dead-lettered, requeued, or not a request at all).
    pub end: Option<CallEnd>,
    /// Whether the reply is a replay: of a call that was counted already.
    pub replayed: bool,
    /// Whether another call with its identity ran, and its reply is this one's.
    pub attached: bool,
    /// Key by which its caller identifies it, where one was given.
    pub idempotency_key: Option<&'a str>,
    /// From arrival to the finished reply, the tool's time included.
    pub invoke: Duration,
    /// From arrival to the settled delivery.
    pub total: Duration,
    /// Time that the call waited for a permit.
    pub waited: Duration,
    /// The daemon's own time: from arrival to the settled delivery, less the tool's, the wait for a permit, and the
    /// wait for the broker's confirm.
    pub overhead: Duration,
}

impl CallSummary<'_> {
    /// A message that was settled without a reply.
    #[must_use]
    pub fn unanswered(total: Duration) -> Self {
        Self {
            caller: None,
            tool: None,
            requested: "",
            call_id: "",
            end: None,
            replayed: false,
            attached: false,
            idempotency_key: None,
            invoke: total,
            total,
            waited: Duration::ZERO,
            overhead: total,
        }
    }
}

/// Reason why the daemon dead-lettered a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadReason {
    /// A request that cannot be read and has no address for a reply.
    Malformed,
    /// A request of a type that does not belong on this topic.
    UnknownType,
    /// A request whose reply would go where its sender may not write.
    ReplyToRefused,
    /// A reply that no queue took, or that the broker refused.
    Undeliverable,
}

impl DeadReason {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::Malformed, Self::UnknownType, Self::ReplyToRefused, Self::Undeliverable];

    /// Value of the header and of the metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed_request",
            Self::UnknownType => "unknown_type",
            Self::ReplyToRefused => "reply_to_refused",
            Self::Undeliverable => "undeliverable_answer",
        }
    }
}

/// Event on a request that is known, or that the ledger could not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LedgerEvent {
    /// The request got the kept reply.
    Replayed,
    /// The request gets the reply of a run that is under way.
    Attached,
    /// The request had begun, and its end is not known.
    Unknown,
    /// The key is that of a request for something else.
    Conflict,
    /// The ledger is full, and the request is refused.
    Full,
    /// The ledger could not be read or written.
    Failed,
}

impl LedgerEvent {
    /// Every event.
    pub const ALL: [Self; 6] =
        [Self::Replayed, Self::Attached, Self::Unknown, Self::Conflict, Self::Full, Self::Failed];

    /// Value of the metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replayed => "replayed",
            Self::Attached => "attached",
            Self::Unknown => "unknown",
            Self::Conflict => "conflict",
            Self::Full => "full",
            Self::Failed => "failed",
        }
    }
}

impl Telemetry for Discard {
    fn arrived(&self, _: &Delivery, parent: Option<&TraceContext>) -> Box<dyn CallSpan> {
        Box::new(Passing::new(parent))
    }

    fn nested(&self, parent: Option<&TraceContext>, _: Option<u64>) -> Box<dyn CallSpan> {
        Box::new(Passing::new(parent))
    }

    fn consuming(&self, _: &str) {}

    fn dead_lettered(&self, _: &str, _: DeadReason) {}

    fn ledger(&self, _: LedgerEvent) {}
}

/// A call of which nothing is recorded; its sender's context goes on to the tool and to the reply.
#[derive(Debug)]
pub struct Passing {
    sender: Option<TraceContext>,
}

impl Passing {
    /// Passes this context on.
    #[must_use]
    pub fn new(sender: Option<&TraceContext>) -> Self {
        Self { sender: sender.cloned() }
    }
}

impl CallSpan for Passing {
    fn trace_id(&self) -> Option<&str> {
        self.sender.as_ref().map(TraceContext::trace_id)
    }

    fn executing(&mut self, _: &ToolDescriptor, _: &str, _: &Caller) -> Option<TraceContext> {
        self.sender.clone()
    }

    fn executed(&mut self, _: &CallEnd, _: Duration) {}

    fn publishing(&mut self, _: &str) -> Option<TraceContext> {
        self.sender.clone()
    }

    fn published(&mut self, _: bool, _: Duration) {}

    fn finished(self: Box<Self>, _: &CallSummary<'_>) {}
}
