//! `tool.list`: what the sender may use, as it may use it.

use std::sync::Arc;

use toolbus_protocol::{Format, ToolListRequest, ToolListResponse, gemini_name, message_type};

use super::{Asked, Desk, Refused, Said, body};
use crate::bus::Delivery;
use crate::caller::Caller;
use crate::listing::{Definition, cut_description, render};

/// Most tools that a notice names.
const MAX_NAMED: usize = 20;

impl Desk {
    /// The sender's tools; with the reason when there are none.
    pub(super) fn list(&self, delivery: &Delivery, asked: &Asked) -> Result<Option<Said>, Refused> {
        let request = ToolListRequest::parse(body(delivery)?)?;
        let format = request.format.unwrap_or_default();
        let mut caller = Caller::clone(&asked.caller);
        caller.profile = agreed("profile", caller.profile, request.profile)?;
        caller.binding = agreed("binding", caller.binding, request.binding)?;
        caller.session = request.session_id.filter(|session| !session.is_empty()).map(Arc::from);
        // Changes are told of what an agent has without a binding, and with its own profile.
        let mut is_whole = caller.profile.is_none() && caller.binding.is_none();
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
            let definitions: Vec<_> =
                definitions.filter(|definition| is_asked(&names, &definition.name, &definition.llm_name)).collect();
            response.tools = definitions.iter().map(|definition| render(definition, format)).collect();
            let nothing = effective.nothing().map(|reason| reason.to_string());
            response.notice = nothing.or_else(|| cut_notice(&definitions, format));
            is_whole &= names.is_empty();
        }
        if is_whole {
            self.parts.dispatcher.note_list(&caller, &effective);
        }
        Ok(Some(Said::new(message_type::TOOL_LIST_RESPONSE, &response)))
    }
}

/// Names the tools whose descriptions the format does not take whole.
fn cut_notice(definitions: &[Definition], format: Format) -> Option<String> {
    let cut: Vec<&str> = definitions
        .iter()
        .filter(|definition| cut_description(&definition.description, format).is_some())
        .map(|definition| &*definition.name)
        .collect();
    let more = if cut.len() > MAX_NAMED { ", …" } else { "" };
    let named = cut.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
    (!cut.is_empty()).then(|| {
        format!("{} descriptions are cut, because the format `{format}` takes no longer ones: {named}{more}", cut.len())
    })
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
