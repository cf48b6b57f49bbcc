use std::sync::Arc;

use toolbus_core::caller::Caller;
use toolbus_protocol::TraceContext;

use crate::sessions::Session;
use crate::version::Version;

/// Who is asking, in which revision of the protocol. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// The caller that its calls are made by.
    pub(crate) caller: Arc<Caller>,
    pub(crate) version: Version,
    /// `tcp` or `pipe`.
    pub(crate) transport: &'static str,
    /// Absent where each request stands alone.
    pub(crate) session: Option<Arc<Session>>,
    /// The trace that the transport tells; what a request says of itself goes before it.
    pub(crate) trace: Option<TraceContext>,
}

impl Peer {
    /// A peer whose request stands alone.
    pub(crate) const fn alone(caller: Arc<Caller>, transport: &'static str) -> Self {
        Self { caller, version: Version::V20260728, transport, session: None, trace: None }
    }

    /// The peer of a session.
    pub(crate) fn of(session: Arc<Session>) -> Self {
        Self {
            caller: Arc::clone(&session.caller),
            version: session.version,
            transport: session.transport,
            session: Some(session),
            trace: None,
        }
    }

    /// The same, in a trace that the transport tells.
    pub(crate) fn within(self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self }
    }

    /// Whether it is one of a revision whose results say how they are to be read, and for how long they may be kept.
    pub(crate) const fn is_alone(&self) -> bool {
        !self.version.has_sessions()
    }
}
