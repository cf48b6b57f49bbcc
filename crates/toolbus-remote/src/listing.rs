//! Tools that the agent may use, as the daemon last listed them, and the requests for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use toolbus_client::{Client, ClientError, Sender};
use toolbus_core::Clock;
use toolbus_core::listing::ListedTool;
use toolbus_core::tool::Effect;
use toolbus_mcp_server::Unavailable;
use toolbus_protocol::{Format, ToolError, ToolListRequest, ToolListResponse, llm_name, message_type, topic};
use tracing::{info, warn};

use crate::calling::{lost, sentence};

/// Time for which a list counts without another request. The daemon announces changes.
const FRESH: Duration = Duration::from_secs(5);
/// Time between two checks whether a list has changed without an announcement: a daemon may have been replaced.
const LOOK_PERIOD: Duration = Duration::from_secs(60);
/// The same while there is no list.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Longest wait for the broker and the daemon together.
const LIST_TIME: Duration = Duration::from_secs(10);
/// Time for which a missing reply counts, so that two requests do not wait one after the other.
const FAILED_TIME: Duration = Duration::from_secs(1);

/// The lists of all sessions.
pub(crate) struct ListCaches {
    client: Arc<Client>,
    sender: Sender,
    clock: Clock,
    known: Mutex<HashMap<Arc<str>, Option<CachedList>>>,
    /// Held while the daemon is queried.
    querying: tokio::sync::Mutex<()>,
    /// When a reply was last missing, and why.
    failed: Mutex<Option<(Instant, Unavailable)>>,
    changes: watch::Sender<u64>,
    begun: Notify,
}

/// A list, as the daemon gave it.
#[derive(Debug, Clone)]
pub(crate) struct CachedList {
    /// The daemon's digest of it.
    pub(crate) version: String,
    /// The tools, sorted by name.
    pub(crate) tools: Arc<[ListedTool]>,
    queried_at: Instant,
}

impl CachedList {
    /// The tool that is meant by a name: its own, or the one that models know it by.
    pub(crate) fn tool(&self, name: &str) -> Option<&ListedTool> {
        let named = |is_it: fn(&ListedTool, &str) -> bool| self.tools.iter().find(|tool| is_it(tool, name));
        named(|tool, name| *tool.name == *name).or_else(|| named(|tool, name| *tool.llm_name == *name))
    }
}

impl ListCaches {
    pub(crate) fn new(client: Arc<Client>, sender: Sender) -> Self {
        Self {
            clock: Clock::SYSTEM,
            client,
            sender,
            known: Mutex::default(),
            querying: tokio::sync::Mutex::default(),
            failed: Mutex::default(),
            changes: watch::Sender::new(0),
            begun: Notify::new(),
        }
    }

    /// A session begins: its list will be wanted.
    pub(crate) fn begin(&self, session: &Arc<str>) {
        self.lock().insert(Arc::clone(session), None);
        self.begun.notify_one();
    }

    /// A session is over. Returns whether the daemon was ever reached for it.
    pub(crate) fn end(&self, session: &Arc<str>) -> bool {
        self.lock().remove(session).flatten().is_some()
    }

    /// The last known list of a session.
    pub(crate) fn known(&self, session: Option<&Arc<str>>) -> Option<CachedList> {
        self.lock().get(session?).cloned().flatten()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn fresh(&self, session: &Arc<str>) -> Option<CachedList> {
        self.known(Some(session)).filter(|list| self.clock.since(list.queried_at) < FRESH)
    }

    fn sessions(&self) -> Vec<Arc<str>> {
        self.lock().keys().cloned().collect()
    }

    fn is_complete(&self) -> bool {
        self.lock().values().all(Option::is_some)
    }

    fn learn(&self, session: &Arc<str>, list: &CachedList) {
        let before = match self.lock().get_mut(session) {
            Some(known) => known.replace(list.clone()),
            None => return,
        };
        if before.is_none_or(|before| before.version != list.version) {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// Reason why there was no reply, if that was a moment ago.
    fn failed(&self) -> Option<Unavailable> {
        let failed = self.failed.lock();
        failed.as_ref().filter(|(at, _)| self.clock.since(*at) < FAILED_TIME).map(|(_, error)| error.clone())
    }

    /// Notes that there was no reply. Returns whether the reason is new.
    fn fail(&self, error: &Unavailable) -> bool {
        let mut failed = self.failed.lock();
        let before = failed.replace((self.clock.now(), error.clone()));
        before.is_none_or(|(_, before)| before != *error)
    }

    fn recover(&self) {
        *self.failed.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Option<CachedList>>> {
        self.known.lock()
    }

    /// The list of a session: cached for a moment, then queried anew. Without a reply, the last known one.
    pub(crate) async fn list(&self, session: Option<&Arc<str>>) -> Result<CachedList, Unavailable> {
        let Some(session) = session else { return Err(Unavailable("A caller without a session has no list.".into())) };
        let error = match self.fresh(session) {
            Some(list) => return Ok(list),
            None => match self.query(session, false).await {
                Ok(list) => return Ok(list),
                Err(error) => error,
            },
        };
        self.known(Some(session)).ok_or(error)
    }

    /// Keeps the lists up to date until the backend is closed.
    pub(crate) async fn keep_lists(&self) {
        let mut news = self.client.news();
        let mut state = self.client.state();
        let mut losses = state.borrow().reconnects;
        loop {
            let period = if self.is_complete() { LOOK_PERIOD } else { RETRY_PERIOD };
            tokio::select! {
                () = tokio::time::sleep(period) => {}
                () = self.begun.notified() => {}
                Ok(()) = news.changed() => {}
                // Announcements sent while the connection was lost did not arrive.
                () = lost(&mut state, losses) => {}
            }
            losses = state.borrow_and_update().reconnects;
            for session in self.sessions() {
                let _ = self.query(&session, true).await;
            }
        }
    }

    /// Queries the daemon, unless another task has just done so; with `anew`, also if that one got a reply.
    async fn query(&self, session: &Arc<str>, anew: bool) -> Result<CachedList, Unavailable> {
        if let Some(error) = self.failed() {
            return Err(error);
        }
        let _querying = self.querying.lock().await;
        if let Some(error) = self.failed() {
            return Err(error);
        }
        if let Some(list) = self.fresh(session).filter(|_| !anew) {
            return Ok(list);
        }
        let error = match self.fetch(session).await {
            Ok(Ok(list)) => {
                self.learn(session, &list);
                self.recover();
                return Ok(list);
            }
            Ok(Err(refused)) => Unavailable(refused.message),
            Err(error) => unavailable(&error),
        };
        // Logged once, and again when the reason changes.
        if self.fail(&error) {
            warn!(reason = error.0, "the tools cannot be listed");
        }
        Err(error)
    }

    async fn fetch(&self, session: &Arc<str>) -> Result<Result<CachedList, ToolError>, ClientError> {
        let begun = self.clock.now();
        // Its own limit, so that what keeps the broker away is reported, and not that a reply is missing.
        self.client.ready(LIST_TIME).await?;
        let before = self.known(Some(session));
        let body = ToolListRequest {
            session_id: Some(session.as_ref().to_owned()),
            format: Some(Format::Mcp),
            if_version: before.as_ref().map(|list| list.version.clone()),
            ..ToolListRequest::default()
        };
        let queried_at = self.clock.now();
        let request = self.client.ask(&self.client.control(topic::TOOL_LIST), message_type::TOOL_LIST_REQUEST, &body);
        let left = LIST_TIME.saturating_sub(self.clock.since(begun));
        let received = self.client.exchange(&self.sender.sign(request), left).await?;
        let response: ToolListResponse = match received.read(message_type::TOOL_LIST_RESPONSE) {
            Ok(response) => response,
            Err(ClientError::Tool(refused)) => return Ok(Err(refused)),
            Err(error) => return Err(error),
        };
        if let Some(before) = before.filter(|before| response.not_modified && before.version == response.version) {
            return Ok(Ok(CachedList { queried_at, ..before }));
        }
        self.log_list(&response);
        let mut tools: Vec<ListedTool> = response.tools.iter().filter_map(definition).collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Ok(CachedList { version: response.version, tools: tools.into(), queried_at }))
    }

    fn log_list(&self, response: &ToolListResponse) {
        info!(agent = response.agent, tools = response.tools.len(), "the tools were listed");
        if let Some(notice) = &response.notice {
            warn!(agent = response.agent, notice, "there are no tools for this agent");
        }
        let claimed = self.sender.agent.as_ref().map(|agent| agent.as_str());
        if claimed.is_some_and(|claimed| claimed != response.agent) {
            warn!(
                claimed,
                agent = response.agent,
                "the daemon takes this client for another agent: name that one with --agent"
            );
        }
    }
}

fn unavailable(error: &ClientError) -> Unavailable {
    let advice = match error {
        ClientError::Unreachable(..) => " Check that the broker runs, and bus.url.",
        ClientError::NoReply(_) => " Check that `toolbus serve` runs, on the same broker and exchange.",
        _ => "",
    };
    Unavailable(format!("The tools cannot be listed: {}{advice}", sentence(error)))
}

/// The source of every definition: a list for MCP clients does not name it.
const SOURCE: &str = "bus";

/// Reads a tool as a daemon lists it for MCP clients; `None` if it has no name.
fn definition(tool: &Value) -> Option<ListedTool> {
    let text = |name: &str| tool.get(name).and_then(Value::as_str);
    let schema = |name: &str| tool.get(name).filter(|schema| schema.is_object()).cloned().map(Arc::new);
    let name = text("name").filter(|name| !name.is_empty())?;
    Some(ListedTool {
        name: name.into(),
        llm_name: llm_name(name).into(),
        title: text("title").map(str::to_owned),
        description: text("description").unwrap_or_default().to_owned(),
        parameters: schema("inputSchema"),
        output_schema: schema("outputSchema"),
        source: SOURCE.into(),
        effect: effect(tool),
        model_hints: None,
    })
}

/// Returns the effect that the hints declare; [`Effect::Undeclared`] without them.
fn effect(tool: &Value) -> Effect {
    let hint = |name: &str| tool.get("annotations").and_then(|hints| hints.get(name)).and_then(Value::as_bool);
    match (hint("readOnlyHint"), hint("idempotentHint")) {
        (Some(true), _) => Effect::ReadOnly,
        (_, Some(true)) => Effect::Idempotent,
        (Some(false), Some(false)) => Effect::Effectful,
        _ => Effect::Undeclared,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolbus_core::listing::{self, render};
    use toolbus_core::tool::ToolDescriptor;
    use toolbus_protocol::Format;

    use super::*;

    #[test]
    fn a_tool_is_the_same_on_both_sides_of_the_bus() {
        for effect in [Effect::ReadOnly, Effect::Idempotent, Effect::Effectful, Effect::Undeclared] {
            let here = listing::definition(&ToolDescriptor {
                title: Some("Read a file".to_owned()),
                description: "Reads a file.".to_owned(),
                parameters: Some(Arc::new(json!({"type": "object", "properties": {"path": {}}}))),
                output_schema: Some(Arc::new(json!({"type": "object"}))),
                effect,
                ..ToolDescriptor::new("fs.read", SOURCE, "mcp")
            });
            assert_eq!(definition(&render(&here, Format::Mcp)), Some(here), "{effect:?}");
        }
    }

    #[test]
    fn a_definition_without_a_name_is_no_tool() {
        for tool in [json!({}), json!({"name": ""}), json!({"name": 7}), json!([])] {
            assert_eq!(definition(&tool), None, "{tool}");
        }
        let bare = definition(&json!({"name": "a", "inputSchema": true, "annotations": 1})).unwrap();
        assert_eq!((bare.parameters, bare.effect), (None, Effect::Undeclared));
    }
}
