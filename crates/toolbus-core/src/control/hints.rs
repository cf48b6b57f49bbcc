//! `tool.hints`: which of the sender's services fit a text.

use std::time::Duration;

use toolbus_protocol::{MAX_HINTED_TEXT, ToolHintsRequest, ToolHintsResponse, message_type, topic};

use super::{ControlRefusal, ControlReply, ControlRequest, ControlService, body};
use crate::bus::Delivery;
use crate::caller::Caller;
use crate::policy::EffectiveTools;

/// Longest time until a hint is ready, whatever the sender's budget: a prompt waits for it.
const HINT_TIME: Duration = Duration::from_secs(5);

/// Finds services for a text.
pub trait HintSource: Send + Sync + 'static {
    /// Lines for a prompt about the services of this caller that fit a text, and about no others; empty if none fits.
    fn hints(&self, caller: &Caller, effective: &EffectiveTools, text: &str) -> String;
}

impl ControlService {
    /// Lines about the sender's services that fit its text.
    pub(super) async fn hint(
        &self,
        delivery: &Delivery,
        request: &ControlRequest,
    ) -> Result<Option<ControlReply>, ControlRefusal> {
        let hints = self.hints.clone().ok_or(ControlRefusal::NotOurs)?;
        let body = ToolHintsRequest::parse(body(delivery)?)?;
        let text = body.text;
        if text.trim().is_empty() {
            return Err(ControlRefusal::Content("its `text` is missing or empty".to_owned()));
        }
        if text.len() > MAX_HINTED_TEXT {
            let size = text.len();
            let text =
                format!("its `text` has {size} bytes; at most {MAX_HINTED_TEXT} are read, so send its beginning");
            return Err(ControlRefusal::Content(text));
        }
        let mut caller = Caller::clone(&request.caller);
        caller.session = body.session_id.filter(|session| !session.is_empty()).map(Into::into);
        let policy = self.parts.dispatcher.policy();
        let effective = policy.effective(&caller);
        self.parts.dispatcher.topic_rate(&effective, topic::TOOL_HINTS)?;
        let work = move || ToolHintsResponse { hints: hints.hints(&caller, &effective, &text) };
        let (response, _turn) =
            policy.turns().run(request.sharer(), delivery.body.len(), request.deadline(HINT_TIME), work).await?;
        let reply = ControlReply::new(message_type::TOOL_HINTS_RESPONSE, &response);
        Ok(Some(ControlReply { persistent: false, ..reply }))
    }
}
