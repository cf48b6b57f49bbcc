//! `tool.session.end`: a caller's session is over, and with it the tool sets that were built for it.

use std::sync::Arc;

use toolbus_protocol::SessionEnd;

use super::{ControlReply, ControlRequest, ControlService, Refused, body};
use crate::bus::Delivery;

impl ControlService {
    /// Ends a session of the sender's; there is nothing to answer.
    pub(super) fn end_session(
        &self,
        delivery: &Delivery,
        asked: &ControlRequest,
    ) -> Result<Option<ControlReply>, Refused> {
        let session: Arc<str> = SessionEnd::parse(body(delivery)?)?.session_id.into();
        self.parts.dispatcher.access().end_session(&asked.caller, &session);
        self.parts.sessions.end_session(&asked.caller.owner, &session);
        Ok(None)
    }
}
