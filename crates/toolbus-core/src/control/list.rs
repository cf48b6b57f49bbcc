//! `tool.list`: what the sender may use, as it may use it.

use parking_lot::Mutex;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;
use serde_json::value::{RawValue, to_raw_value};
use toolbus_protocol::{Format, ToolListRequest, ToolListResponse, gemini_name, message_type, topic};

use super::{ControlRefusal, ControlReply, ControlRequest, ControlService, body};
use crate::bus::Delivery;
use crate::caller::Caller;
use crate::failure::{Cause, ToolFailure};
use crate::listing::{self, ListedTool, cut_description, render};
use crate::policy::{AllowedTool, EffectiveTools, is_same_name};
use crate::reply::MAX_REPLY;

/// Most tools that OpenAI takes in one request.
const MAX_OPENAI_TOOLS: usize = 128;
/// Most tools that a notice names.
const MAX_NAMED: usize = 20;
/// Longest time until a list is ready, whatever the sender's budget.
const LIST_TIME: Duration = Duration::from_secs(25);
/// Lists that are kept. None is larger than a reply may be, so that this bounds their memory, too.
const MAX_KEPT: NonZeroUsize = NonZeroUsize::new(2).unwrap();

/// The lists that were requested last, by version and format: agents send equal requests, again and again.
pub(super) struct ListCache(Mutex<LruCache<ListKey, Arc<RenderedTools>>>);

/// Version and format.
type ListKey = (Arc<str>, Format);

/// Tools that are listed for a caller.
struct ListedSet<'a> {
    effective: &'a EffectiveTools,
    /// Whether the tools that other daemons list are left out: the caller is a daemon.
    leaves_out: bool,
}

/// Tools as a reply has them.
struct RenderedTools {
    tools: Vec<Box<RawValue>>,
    /// Notice of tools that the provider does not take as they are, if there are any.
    notice: Option<String>,
}

impl ControlService {
    /// The sender's tools; with the reason when there are none.
    pub(super) async fn list(
        &self,
        delivery: &Delivery,
        request: &ControlRequest,
    ) -> Result<Option<ControlReply>, ControlRefusal> {
        let body = ToolListRequest::parse(body(delivery)?)?;
        let mut caller = Caller::clone(&request.caller);
        caller.profile = agreed("profile", caller.profile, body.profile.clone(), is_same_name)?;
        caller.binding = agreed("binding", caller.binding, body.binding.clone(), str::eq)?;
        caller.session = body.session_id.clone().filter(|session| !session.is_empty()).map(Arc::from);
        let policy = self.parts.dispatcher.policy();
        let effective = policy.effective(&caller);
        self.parts.dispatcher.topic_rate(&effective, topic::TOOL_LIST)?;
        let control = self.clone();
        let work = move || control.listed(&caller, &effective, &body);
        let (reply, turn) =
            policy.turns().run(request.sharer(), delivery.body.len(), request.deadline(LIST_TIME), work).await?;
        Ok(Some(reply?.in_turn(turn)))
    }

    fn listed(
        &self,
        caller: &Caller,
        effective: &EffectiveTools,
        request: &ToolListRequest,
    ) -> Result<ControlReply, ToolFailure> {
        let set = ListedSet { effective, leaves_out: caller.hops > 0 };
        let version = set.version();
        let names = request.names.as_deref().unwrap_or_default();
        let not_modified = request.if_version.as_deref() == Some(&*version);
        let listed = match not_modified {
            true => None,
            false => Some(self.parts.lists.listed(&set, &version, request.format.unwrap_or_default(), names)),
        };
        let response = ToolListResponse {
            agent: caller.name.to_string(),
            version: version.to_string(),
            tools: listed.as_ref().map_or(&[][..], |listed| &listed.tools),
            notice: listed.as_ref().and_then(|listed| {
                // Not kept: there are several reasons for one empty list.
                set.empty_reason().or_else(|| listed.notice.clone())
            }),
            not_modified,
        };
        let reply = ControlReply::new(message_type::TOOL_LIST_RESPONSE, &response);
        if reply.size() > MAX_REPLY {
            let size = reply.size();
            let text = format!(
                "The list has {size} bytes, and one answer at most {MAX_REPLY}. Ask for some of the tools by `names`."
            );
            return Err(ToolFailure::new(Cause::ResultTooLarge, text));
        }
        // Changes are announced relative to what an agent has without a binding, and with its own profile.
        if caller.profile.is_none() && caller.binding.is_none() && (names.is_empty() || not_modified) {
            self.parts.dispatcher.note_list(caller, effective);
        }
        Ok(reply)
    }
}

impl Default for ListCache {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MAX_KEPT)))
    }
}

impl ListCache {
    /// The tools of these names, or all. `version` is that of `set`.
    fn listed(&self, set: &ListedSet<'_>, version: &Arc<str>, format: Format, names: &[String]) -> Arc<RenderedTools> {
        let lists = || self.0.lock();
        let key = (Arc::clone(version), format);
        if names.is_empty()
            && let Some(kept) = lists().get(&key)
        {
            return Arc::clone(kept);
        }
        let listed = Arc::new(RenderedTools::new(set, format, names));
        if names.is_empty() && listed.tools.iter().map(|tool| tool.get().len()).sum::<usize>() <= MAX_REPLY {
            lists().put(key, Arc::clone(&listed));
        }
        listed
    }
}

impl ListedSet<'_> {
    /// The tools, sorted by name.
    fn definitions(&self) -> impl Iterator<Item = ListedTool> {
        let tools = self.effective.tools().into_iter();
        let listed = tools.filter(|tool| !self.leaves_out || !is_learnt(tool));
        listed.map(|tool| self.effective.definition(tool))
    }

    /// A hash of the tools: what is left out does not change it.
    fn version(&self) -> Arc<str> {
        if !self.leaves_out || !self.effective.tools().iter().any(is_learnt) {
            return self.effective.version();
        }
        let definitions: Vec<ListedTool> = self.definitions().collect();
        listing::version(&definitions).into()
    }

    /// Reason why there are no tools, if there are none.
    fn empty_reason(&self) -> Option<String> {
        let nothing = self.effective.empty_reason().map(|reason| reason.to_string());
        let all_left_out = || {
            let text = "The tools for this daemon are those that other daemons list, and these are not passed on.";
            (self.leaves_out && self.definitions().next().is_none()).then(|| text.to_owned())
        };
        nothing.or_else(all_left_out)
    }
}

fn is_learnt(allowed: &AllowedTool<'_>) -> bool {
    allowed.tool.descriptor.is_learnt
}

impl RenderedTools {
    fn new(set: &ListedSet<'_>, format: Format, names: &[String]) -> Self {
        let is_requested = |definition: &ListedTool| {
            let ListedTool { name, llm_name, .. } = definition;
            let is_its =
                |wanted: &String| **wanted == **name || **wanted == **llm_name || **wanted == *gemini_name(name);
            names.is_empty() || names.iter().any(is_its)
        };
        let (mut tools, mut cut) = (Vec::new(), Vec::new());
        for definition in set.definitions().filter(is_requested) {
            if cut_description(&definition.description, format).is_some() {
                cut.push(Arc::clone(&definition.name));
            }
            // As text: values take many times the memory. They hold nothing that cannot be written.
            tools.extend(to_raw_value(&render(&definition, format)));
        }
        let notices = [number_notice(tools.len(), format), cut_notice(&cut, format)];
        let notices: Vec<String> = notices.into_iter().flatten().collect();
        Self { tools, notice: (!notices.is_empty()).then(|| notices.join(" ")) }
    }
}

/// Returns the notice that a provider refuses a request with so many tools.
fn number_notice(count: usize, format: Format) -> Option<String> {
    let is_limited = matches!(format, Format::OpenAi | Format::OpenAiResponses);
    (is_limited && count > MAX_OPENAI_TOOLS).then(|| {
        format!(
            "The list has {count} tools, and OpenAI takes at most {MAX_OPENAI_TOOLS} in one request. Ask for some of them \
             by `names`, or let the operator allow the agent fewer."
        )
    })
}

/// Names the tools whose descriptions the format does not take whole.
fn cut_notice(cut: &[Arc<str>], format: Format) -> Option<String> {
    let more = if cut.len() > MAX_NAMED { ", …" } else { "" };
    let named = cut.iter().take(MAX_NAMED).map(|name| &**name).collect::<Vec<_>>().join(", ");
    (!cut.is_empty()).then(|| {
        format!(
            "{} descriptions are cut, because the format `{format}` takes no longer ones: {named}{more}.",
            cut.len()
        )
    })
}

/// Value that header and body agree on.
fn agreed(
    what: &str,
    header: Option<Arc<str>>,
    body: Option<String>,
    is_same: fn(&str, &str) -> bool,
) -> Result<Option<Arc<str>>, ControlRefusal> {
    match (header, body.filter(|value| !value.is_empty())) {
        (Some(header), Some(body)) if !is_same(&header, &body) => {
            Err(ControlRefusal::Content(format!("its header and its body name different {what}s; name one")))
        }
        (header, body) => Ok(header.or(body.map(Arc::from))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(header: &str, body: &str) -> Option<String> {
        agreed("profile", Some(header.into()), Some(body.to_owned()), is_same_name).ok()?.map(|name| name.to_string())
    }

    #[test]
    fn a_list_for_openai_over_its_limit_has_a_notice() {
        for format in [Format::OpenAi, Format::OpenAiResponses] {
            assert_eq!(number_notice(128, format), None);
            assert!(number_notice(129, format).is_some_and(|notice| notice.contains("at most 128")));
        }
        assert_eq!(number_notice(10_000, Format::Anthropic), None);
    }

    #[test]
    fn two_spellings_of_a_profile_are_no_contradiction() {
        assert_eq!(profile("Main", "main").as_deref(), Some("Main"));
        assert_eq!(profile("a2a-synthesis", "A2ASynthesis").as_deref(), Some("a2a-synthesis"));
        assert_eq!(profile("main", "subagent"), None);
        assert_eq!(profile("main", "").as_deref(), Some("main"));
    }
}
