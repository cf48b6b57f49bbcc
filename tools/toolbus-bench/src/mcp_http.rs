use std::borrow::Cow;
use std::net::SocketAddr;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::exchange::{Exchange, ExchangeError};
use crate::http::{HttpConnection, HttpResponse, OpenStream, host};

/// The version with sessions that is requested; the one of the server's response is spoken.
const WITH_SESSIONS: &str = "2025-06-18";
/// The version without.
const STATELESS: &str = "2026-07-28";

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Endpoint of an MCP server for Streamable HTTP.
#[derive(Debug, Clone)]
pub(crate) struct McpEndpoint {
    /// Address and port.
    pub(crate) address: SocketAddr,
    /// The path, such as `/mcp`.
    pub(crate) path: String,
    /// The bearer token, where one is required.
    pub(crate) token: Option<String>,
}

/// A call that is repeated.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ToolUse {
    /// The tool's name.
    pub(crate) tool: String,
    /// Arguments of the tool.
    pub(crate) arguments: Map<String, Value>,
    /// The text of its result; absent: anything that is no error.
    pub(crate) text: Option<String>,
}

/// A client of an MCP server, with one connection and at most one request at a time.
pub(crate) struct McpClient {
    connection: HttpConnection,
    uri: Uri,
    headers: HeaderMap,
    /// Metadata that every request carries in its parameters.
    meta: Option<Value>,
    next_id: u64,
}

/// A client with the call that it repeats.
pub(crate) struct McpCaller {
    client: McpClient,
    headers: HeaderMap,
    /// The request after its id.
    request: String,
    text: Option<String>,
}

#[derive(Deserialize)]
struct RpcResponse<T> {
    id: Option<u64>,
    result: Option<T>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct ToolResult<'a> {
    #[serde(borrow)]
    content: Vec<ToolContent<'a>>,
    #[serde(default, rename = "isError")]
    is_error: bool,
}

#[derive(Deserialize)]
struct ToolContent<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
}

impl McpClient {
    /// Begins a session, as clients do until 2025-11-25.
    ///
    /// # Errors
    ///
    /// If the server does not respond, or not as MCP demands.
    pub(crate) async fn initialize(endpoint: &McpEndpoint) -> Result<Self, ExchangeError> {
        let mut client = Self::new(endpoint)?;
        let info = json!({"name": "toolbus-bench", "version": env!("CARGO_PKG_VERSION")});
        let params = json!({"protocolVersion": WITH_SESSIONS, "capabilities": {}, "clientInfo": info});
        let (result, headers) = client.exchange("initialize", params).await?;
        let version = result.get("protocolVersion").and_then(Value::as_str).unwrap_or(WITH_SESSIONS);
        client.headers.insert(VERSION, value(version)?);
        if let Some(session) = headers.get(SESSION) {
            client.headers.insert(SESSION, session.clone());
        }
        let body = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
        let response = client.connection.send(client.post(client.headers.clone(), body)).await?;
        if response.status.is_success() { Ok(client) } else { Err(response.refusal()) }
    }

    /// Speaks the version without sessions: every request has its own metadata.
    ///
    /// # Errors
    ///
    /// If the endpoint's path is not the path of a URI.
    pub(crate) fn stateless(endpoint: &McpEndpoint) -> Result<Self, ExchangeError> {
        let mut client = Self::new(endpoint)?;
        client.headers.insert(VERSION, value(STATELESS)?);
        client.meta = Some(json!({
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "toolbus-bench", "version": env!("CARGO_PKG_VERSION")},
        }));
        Ok(client)
    }

    fn new(endpoint: &McpEndpoint) -> Result<Self, ExchangeError> {
        let uri = endpoint.path.parse();
        let uri = uri.map_err(|_| ExchangeError::Unreadable(format!("{:?} is no path", endpoint.path)))?;
        let mut headers = HeaderMap::from_iter([
            (HOST, host(endpoint.address)?),
            (ACCEPT, HeaderValue::from_static("application/json, text/event-stream")),
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        ]);
        if let Some(token) = &endpoint.token {
            let mut bearer = value(&format!("Bearer {token}"))?;
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        Ok(Self { connection: HttpConnection::new(endpoint.address), uri, headers, meta: None, next_id: 1 })
    }

    /// The name under which a tool is listed: servers before other servers put something before it.
    ///
    /// # Errors
    ///
    /// If the server does not list the tool.
    pub(crate) async fn find(&mut self, tool: &str) -> Result<String, ExchangeError> {
        let (list, _) = self.exchange("tools/list", json!({})).await?;
        let tools = list.get("tools").and_then(Value::as_array).into_iter().flatten();
        let names: Vec<&str> = tools.filter_map(|tool| tool.get("name")?.as_str()).collect();
        let found = names.iter().find(|name| **name == tool).or_else(|| names.iter().find(|name| name.ends_with(tool)));
        let absent = || ExchangeError::Unreadable(format!("{tool} is not among the tools {names:?}"));
        found.map(|name| (*name).to_owned()).ok_or_else(absent)
    }

    /// Opens the stream on which a server with sessions sends its notifications and requests.
    ///
    /// # Errors
    ///
    /// If the server offers no stream.
    pub(crate) async fn listen(&self) -> Result<OpenStream, ExchangeError> {
        let mut request = self.post(self.headers.clone(), String::new());
        *request.method_mut() = Method::GET;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        request.headers_mut().remove(CONTENT_TYPE);
        self.connection.stream(request).await
    }

    /// Closes the connection, and leaves the session.
    pub(crate) fn disconnect(&mut self) {
        self.connection = HttpConnection::new(self.connection.address());
    }

    /// Has this client repeat a call.
    ///
    /// # Errors
    ///
    /// If the tool's name cannot be the value of a header.
    pub(crate) fn repeating(self, call: &ToolUse) -> Result<McpCaller, ExchangeError> {
        let mut headers = self.headers.clone();
        let mut params = json!({"name": call.tool, "arguments": call.arguments});
        if let Some(meta) = &self.meta {
            headers.insert(METHOD, HeaderValue::from_static("tools/call"));
            headers.insert(NAME, value(&call.tool)?);
            put(&mut params, "_meta", meta.clone());
        }
        let request = format!(r#","method":"tools/call","params":{params}}}"#);
        Ok(McpCaller { client: self, headers, request, text: call.text.clone() })
    }

    async fn exchange(&mut self, method: &'static str, mut params: Value) -> Result<(Value, HeaderMap), ExchangeError> {
        let mut headers = self.headers.clone();
        if let Some(meta) = &self.meta {
            headers.insert(METHOD, HeaderValue::from_static(method));
            put(&mut params, "_meta", meta.clone());
        }
        let id = self.id();
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        let response = self.connection.send(self.post(headers, body)).await?;
        let result = result_of(&response, id)?;
        Ok((result, response.headers))
    }

    const fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn post(&self, headers: HeaderMap, body: String) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = headers;
        request
    }
}

impl Exchange for McpCaller {
    async fn once(&mut self) -> Result<(), ExchangeError> {
        let id = self.client.id();
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id}{}"#, self.request);
        let request = self.client.post(self.headers.clone(), body);
        let response = self.client.connection.send(request).await?;
        let result: ToolResult<'_> = result_of(&response, id)?;
        let text = result.content.first().and_then(|content| content.text.as_deref());
        let is_wanted = self.text.as_deref().is_none_or(|wanted| text == Some(wanted));
        if result.is_error || !is_wanted { Err(response.refusal()) } else { Ok(()) }
    }
}

/// The result of the request with this id, from JSON or from a stream of events that ends with it.
fn result_of<'a, T: Deserialize<'a>>(response: &'a HttpResponse, id: u64) -> Result<T, ExchangeError> {
    if response.status != StatusCode::OK {
        return Err(response.refusal());
    }
    let kind = response.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let reply = if kind.starts_with(b"text/event-stream") {
        let lines = response.body.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:"));
        // Notifications may come before it.
        lines.filter_map(|data| serde_json::from_slice::<RpcResponse<T>>(data).ok()).find(|reply| reply.id == Some(id))
    } else {
        serde_json::from_slice::<RpcResponse<T>>(&response.body).ok().filter(|reply| reply.id == Some(id))
    };
    match reply {
        Some(RpcResponse { result: Some(result), error: None, .. }) => Ok(result),
        _ => Err(response.refusal()),
    }
}

fn value(text: &str) -> Result<HeaderValue, ExchangeError> {
    HeaderValue::from_str(text).map_err(|_| ExchangeError::Unreadable("a header cannot hold that".to_owned()))
}

fn put(params: &mut Value, field: &str, value: Value) {
    if let Value::Object(fields) = params {
        fields.insert(field.to_owned(), value);
    }
}
