//! `tool.list`: what the sender may use, as it may use it.

use std::sync::Arc;

use toolbus_protocol::{ToolListRequest, ToolListResponse, gemini_name, message_type};

use super::{Asked, Desk, Refused, Said, body};
use crate::bus::Delivery;
use crate::caller::Caller;
use crate::listing::render;

impl Desk {
    /// The sender's tools; with the reason when there are none.
    pub(super) fn list(&self, delivery: &Delivery, asked: &Asked) -> Result<Option<Said>, Refused> {
        let request = ToolListRequest::parse(body(delivery)?)?;
        let format = request.format.unwrap_or_default();
        let mut caller = Caller::clone(&asked.caller);
        caller.profile = agreed("profile", caller.profile, request.profile)?;
        caller.binding = agreed("binding", caller.binding, request.binding)?;
        caller.session = request.session_id.filter(|session| !session.is_empty()).map(Arc::from);
        let effective = self.parts.dispatcher.access().effective(&caller);
        let version = effective.version().to_string();
        let agent = caller.name.to_string();
        let not_modified = request.if_version.as_deref() == Some(&*version);
        let mut response = ToolListResponse { agent, version, not_modified, ..ToolListResponse::default() };
        if !not_modified {
            let is_asked = |names: &[String], name: &str, llm_name: &str| {
                names.is_empty()
                    || names.iter().any(|asked| asked == name || asked == llm_name || **asked == *gemini_name(name))
            };
            let names = request.names.unwrap_or_default();
            let definitions = effective.tools().into_iter().map(|granted| effective.definition(granted));
            response.tools = definitions
                .filter(|definition| is_asked(&names, &definition.name, &definition.llm_name))
                .map(|definition| render(&definition, format))
                .collect();
            response.notice = effective.nothing().map(|reason| reason.to_string());
        }
        Ok(Some(Said::new(message_type::TOOL_LIST_RESPONSE, &response)))
    }
}

/// What header and body say, when they do not say different things.
fn agreed(what: &str, header: Option<Arc<str>>, body: Option<String>) -> Result<Option<Arc<str>>, Refused> {
    match (header, body.filter(|value| !value.is_empty())) {
        (Some(header), Some(body)) if *header != *body => {
            Err(Refused::Contradiction(format!("its header and its body name different {what}s; name one")))
        }
        (header, body) => Ok(header.or(body.map(Arc::from))),
    }
}
