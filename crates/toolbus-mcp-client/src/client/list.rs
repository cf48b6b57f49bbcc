//! The tools of a server, however badly it lists them.

use std::collections::HashSet;
use std::io::{self, Write};

use rmcp::model::{
    ClientRequest, ErrorCode, ListToolsRequest, ListToolsResult, PaginatedRequestParams, ServerResult, Tool,
};
use rmcp::service::ServiceError;
use serde::Serialize;
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::Connection;
use super::failure::shown;
use crate::status::HiddenTool;

/// The method that lists.
pub(super) const METHOD: &str = "tools/list";
/// Most tools that are taken of one server.
const MAX_TOOLS: usize = 10_000;
/// Most pages.
const MAX_PAGES: usize = 1_000;
/// Most bytes of definitions.
const MAX_BYTES: usize = 32 * 1024 * 1024;
/// Longest cursor, in bytes.
const MAX_CURSOR: usize = 64 * 1024;
/// Longest name that is shown, in characters.
const MAX_NAME: usize = 128;
/// Longest reason, in characters.
const MAX_REASON: usize = 300;

/// Tools that a server lists.
#[derive(Debug, Default)]
pub(crate) struct ServerListing {
    /// Tools that can be read, as they come: names may repeat.
    pub(crate) tools: Vec<Tool>,
    /// Tools that cannot be read.
    pub(crate) unreadable: Vec<HiddenTool>,
    /// Reason why there may be more than these, for an operator.
    pub(crate) cut: Option<String>,
}

/// Requests every page.
pub(super) async fn all(connection: &Connection) -> Result<ServerListing, ServiceError> {
    let (mut listed, mut bytes, mut seen) = (ServerListing::default(), 0, HashSet::new());
    let mut cursor: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let is_empty = cursor.as_deref() == Some("");
        let params = PaginatedRequestParams::default().with_cursor(cursor.take());
        let request =
            ListToolsRequest { method: Default::default(), params: Some(params), extensions: Default::default() };
        let page = match connection.request_timed(METHOD, ClientRequest::ListToolsRequest(request)).await {
            Err(ServiceError::McpError(error)) if error.code == ErrorCode::METHOD_NOT_FOUND => return Ok(listed),
            // Some servers end with an empty cursor, which is none to them.
            Err(ServiceError::McpError(_)) if is_empty => return Ok(listed),
            page => page?,
        };
        let before = listed.tools.len();
        // A page may hold thousands of definitions: they are measured beside the threads that calls run on.
        let taken = spawn_blocking(move || {
            let next = match page {
                ServerResult::ListToolsResult(page) => Ok(listed.add(page, &mut bytes)),
                // One unreadable definition makes the page a custom result to rmcp.
                ServerResult::CustomResult(page) => listed.add_each(page.0, &mut bytes),
                _ => Err(ServiceError::UnexpectedResponse),
            };
            (next, listed, bytes)
        });
        let next;
        (next, listed, bytes) = taken.await.map_err(|_| ServiceError::UnexpectedResponse)?;
        let next = next?;
        if listed.cut.is_some() {
            return Ok(listed);
        }
        if is_empty && listed.repeats_from(before) {
            listed.tools.truncate(before);
            return Ok(listed);
        }
        let Some(next) = next else { return Ok(listed) };
        if next.len() > MAX_CURSOR || !seen.insert(next.clone()) {
            listed.cut = Some("the server's pages lead back to where they were".to_owned());
            return Ok(listed);
        }
        cursor = Some(next);
    }
    listed.cut = Some(format!("the server has more than {MAX_PAGES} pages of tools"));
    Ok(listed)
}

impl ServerListing {
    /// A list that came as one.
    pub(crate) fn of(tools: Vec<Value>) -> Self {
        let (mut listed, mut bytes) = (Self::default(), 0);
        listed.add_definitions(tools, &mut bytes);
        listed
    }

    /// Whether all tools from `start` on are listed before it, too: to such a server, an empty cursor is the first
    /// page.
    fn repeats_from(&self, start: usize) -> bool {
        let (before, page) = self.tools.split_at(start.min(self.tools.len()));
        let names: HashSet<&str> = before.iter().map(|tool| &*tool.name).collect();
        page.iter().all(|tool| names.contains(&*tool.name))
    }

    fn add(&mut self, page: ListToolsResult, bytes: &mut usize) -> Option<String> {
        for tool in page.tools {
            *bytes += size(&tool);
            if self.is_full(*bytes) {
                return None;
            }
            self.tools.push(tool);
        }
        page.next_cursor
    }

    fn add_each(&mut self, mut page: Value, bytes: &mut usize) -> Result<Option<String>, ServiceError> {
        let Some(Value::Array(tools)) = page.get_mut("tools").map(Value::take) else {
            return Err(ServiceError::UnexpectedResponse);
        };
        self.add_definitions(tools, bytes);
        Ok(page.get("nextCursor").and_then(Value::as_str).map(str::to_owned))
    }

    /// Adds definitions until there is no more room.
    fn add_definitions(&mut self, definitions: Vec<Value>, bytes: &mut usize) {
        for definition in definitions {
            *bytes += size(&definition);
            if self.is_full(*bytes) {
                return;
            }
            let name = definition.get("name").and_then(Value::as_str).map(|name| shown(name, MAX_NAME));
            match serde_json::from_value(definition) {
                Ok(tool) => self.tools.push(tool),
                Err(error) => self.unreadable.push(HiddenTool {
                    name: name.unwrap_or_else(|| "(no name)".to_owned()),
                    reason: shown(&format!("its definition cannot be read: {error}"), MAX_REASON),
                }),
            }
        }
    }

    fn is_full(&mut self, bytes: usize) -> bool {
        if self.tools.len() + self.unreadable.len() >= MAX_TOOLS {
            self.cut = Some(format!("the server lists more than {MAX_TOOLS} tools"));
        } else if bytes > MAX_BYTES {
            self.cut = Some(format!("the server's definitions take more than {} MiB", MAX_BYTES >> 20));
        }
        self.cut.is_some()
    }
}

/// Bytes of JSON.
pub(crate) fn size(value: &impl Serialize) -> usize {
    let mut counter = Counter(0);
    // A counter accepts everything, and these types always serialise.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

struct Counter(usize);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
