//! Replies of the bridges of the bus about one MCP server: each bridge replies, and one of them counts.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use toolbus_client::{ClientError, Expected, Received};
use toolbus_protocol::{McpGetServiceDetailsResponse, McpToolDefinition, header, message_type};

/// Most replies that are read to one request, with those of bridges that do not have the server.
pub(crate) const MAX_BRIDGES: usize = 64;
/// Time after the reply of a bridge that has the server in which others are waited for.
const OTHERS_TIME: Duration = Duration::from_secs(1);

/// The bridge that counts.
#[derive(Debug)]
pub(crate) struct ServerDetails {
    /// `rb-source` of the bridge, if it has one.
    pub(crate) bridge: Option<String>,
    /// The server's tools, as an MCP server lists them.
    pub(crate) tools: Vec<Value>,
    /// Other bridges that have a server of the name, by their `rb-source`.
    pub(crate) rivals: Vec<String>,
    /// A digest of all that.
    pub(crate) version: String,
}

/// A bridge that has the server.
struct BridgeReply {
    source: String,
    tools: Vec<Value>,
    /// A digest of the tools.
    digest: u64,
}

/// Waits for a bridge that has the server, and a moment for others. Of several, that counts whose name comes first, and of
/// several of one name, that of which the digest is the least: replies in another order change nothing. Why bridges do not
/// have the server is left in `problem`.
///
/// # Errors
///
/// If the bus is closed.
pub(crate) async fn details(
    expected: &mut Expected,
    max: usize,
    problem: &mut Option<String>,
) -> Result<ServerDetails, ClientError> {
    let mut replies = Vec::new();
    while replies.is_empty() {
        let received = expected.received().await;
        if matches!(received, Err(ClientError::Closed)) {
            return Err(ClientError::Closed);
        }
        match read(received, max).await {
            Ok(reply) => replies.push(reply),
            Err(reason) => *problem = Some(reason),
        }
    }
    let others = async {
        loop {
            let received = expected.received().await;
            if matches!(received, Err(ClientError::Closed)) {
                return;
            }
            replies.extend(read(received, max).await);
        }
    };
    let _ = tokio::time::timeout(OTHERS_TIME, others).await;
    replies.sort_by(|one, other| (&one.source, one.digest).cmp(&(&other.source, other.digest)));
    let mut hasher = DefaultHasher::new();
    let sources: Vec<&str> = replies.iter().map(|reply| &*reply.source).collect();
    sources.hash(&mut hasher);
    let mut replies = replies.into_iter();
    let first = replies.next().ok_or(ClientError::Closed)?;
    first.digest.hash(&mut hasher);
    Ok(ServerDetails {
        bridge: (!first.source.is_empty()).then_some(first.source),
        tools: first.tools,
        rivals: replies.map(|reply| reply.source).collect(),
        version: format!("{:016x}", hasher.finish()),
    })
}

/// Reads a bridge's reply.
///
/// # Errors
///
/// If the bridge does not have the server; the reason is for an operator.
async fn read(received: Result<Received, ClientError>, max: usize) -> Result<BridgeReply, String> {
    let received = received.map_err(|error| error.to_string())?;
    if received.body.len() > max {
        return Err(ClientError::TooLarge(received.body.len()).to_string());
    }
    let source = received.properties.header(header::SOURCE).unwrap_or_default().to_owned();
    // Thousands of definitions: not on a thread that calls run on.
    let reading = spawn_blocking(move || {
        let kind = message_type::MCP_GET_SERVICE_DETAILS_RESPONSE;
        let response: McpGetServiceDetailsResponse = received.read(kind).map_err(|error| error.to_string())?;
        match response.error.filter(|error| !error.is_empty()) {
            Some(error) => Err(error),
            None => {
                let tools: Vec<Value> = response.tools.into_iter().map(definition).collect();
                let mut hasher = DefaultHasher::new();
                tools.iter().for_each(|tool| tool.to_string().hash(&mut hasher));
                Ok((tools, hasher.finish()))
            }
        }
    });
    let (tools, digest) = reading.await.map_err(|error| error.to_string())??;
    Ok(BridgeReply { source, tools, digest })
}

/// A tool as an MCP server lists it. A schema that is no JSON stays what it is, so that the tool is hidden for it.
fn definition(tool: McpToolDefinition) -> Value {
    let McpToolDefinition { name, description, parameters_schema } = tool;
    let schema = parameters_schema.filter(|schema| !schema.trim().is_empty());
    let schema = schema.map_or_else(|| json!({}), |text| serde_json::from_str(&text).unwrap_or(Value::String(text)));
    json!({"name": name, "description": description, "inputSchema": schema})
}
