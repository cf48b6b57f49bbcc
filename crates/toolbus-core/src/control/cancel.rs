//! `tool.cancel`: a caller takes back a call of its own.

use toolbus_protocol::{ToolCancelRequest, ToolCancelResponse, message_type};

use super::{ControlReply, ControlRequest, ControlService, Refused, body};
use crate::bus::Delivery;

impl ControlService {
    /// Cancels what the request names, if it is the sender's.
    pub(super) fn cancel(&self, delivery: &Delivery, asked: &ControlRequest) -> Result<Option<ControlReply>, Refused> {
        let request = ToolCancelRequest::parse(body(delivery)?)?;
        let tool_call_id = request.tool_call_id;
        let cancelled = self.parts.dispatcher.cancel(&asked.caller, &tool_call_id);
        let response = ToolCancelResponse { tool_call_id, cancelled };
        Ok(Some(ControlReply::new(message_type::TOOL_CANCEL_RESPONSE, &response)))
    }
}
