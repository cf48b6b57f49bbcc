//! The ways that are compared: a page of the HTTP server, a call of an MCP client, and the call without a network.

use std::sync::Arc;
use std::time::Duration;

use crate::broker::load::TEXT;
use crate::exchange::{Exchange, ExchangeError, LoopResult, closed_loop};
use crate::http::MeasuredPage;
use crate::mcp_http::{McpCaller, McpClient, ToolUse};
use serde_json::{Map, Value, json};
use toolbus_protocol::topic;

use super::Server;
use crate::daemon::START_TIME;
use crate::error::MeasureError;
use toolbus::config::{Config, Override, Sources};
use toolbus::local_daemon::LocalDaemon;
use toolbus_client::{Client, ReplyContent};

/// The tool that is called.
const TOOL: &str = "echo";
/// Longest wait for one reply on the bus.
const REPLY_TIME: Duration = Duration::from_secs(30);

/// Request that is made again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum McpServerSide {
    /// The call as a request on the embedded bus to a daemon in this process.
    Bus,
    /// The simplest page of the HTTP server.
    Page,
    /// The call in a session, one for each connection.
    Session,
    /// The call in the version of MCP without sessions.
    Stateless,
}

impl McpServerSide {
    pub(super) const ALL: [Self; 4] = [Self::Bus, Self::Page, Self::Session, Self::Stateless];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bus => "bus",
            Self::Page => "/healthz",
            Self::Session => "MCP session",
            Self::Stateless => "MCP stateless",
        }
    }
}

/// A daemon in a process of its own with an MCP server, and one in this process without.
pub(super) struct McpServerSides {
    server: Server,
    session: LocalDaemon,
    client: Arc<Client>,
}

/// Connected callers.
pub(super) enum Callers {
    Bus(Vec<BusCaller>),
    Page(Vec<MeasuredPage>),
    Clients(Vec<McpCaller>),
}

/// Calls on the embedded bus.
pub(super) struct BusCaller {
    client: Arc<Client>,
    arguments: Map<String, Value>,
}

impl McpServerSides {
    pub(super) async fn start() -> Result<Self, MeasureError> {
        let failed = |error: &dyn ToString| MeasureError::McpServer(error.to_string());
        let plain = [("tools.echo", "true"), ("tools.time", "false"), ("bus.url", "embedded")];
        let overrides = plain.map(|(key, value)| Override::new(key, value)).into();
        let loaded =
            Config::load(&Sources { overrides, ..Sources::default() }).map_err(|problems| failed(&problems))?;
        let session = LocalDaemon::with_daemon(&loaded.config, None).await.map_err(|error| failed(&error))?;
        session.ready(START_TIME).await.map_err(|error| failed(&error))?;
        let client = Client::connect(session.bus(), topic::TOOL_INVOKE, START_TIME).await;
        let client = Arc::new(client.map_err(|error| failed(&error))?);
        Ok(Self { server: Server::start(None).await?, session, client })
    }

    pub(super) async fn connect(&self, side: McpServerSide, callers: usize) -> Result<Callers, MeasureError> {
        let endpoint = self.server.endpoint();
        Ok(match side {
            McpServerSide::Bus => Callers::Bus((0..callers).map(|_| BusCaller::new(&self.client)).collect()),
            McpServerSide::Page => {
                let page = |_| MeasuredPage::new(endpoint.address, "/healthz");
                Callers::Page((0..callers).map(page).collect::<Result<_, _>>()?)
            }
            McpServerSide::Session => {
                let mut clients = Vec::with_capacity(callers);
                for _ in 0..callers {
                    clients.push(McpClient::initialize(endpoint).await?.repeating(&call())?);
                }
                Callers::Clients(clients)
            }
            McpServerSide::Stateless => {
                let client = |_| McpClient::stateless(endpoint)?.repeating(&call());
                Callers::Clients((0..callers).map(client).collect::<Result<_, _>>()?)
            }
        })
    }

    /// The daemon's process.
    pub(super) fn process(&self) -> u32 {
        self.server.process()
    }

    pub(super) async fn stop(self) {
        self.session.close().await;
        self.server.stop().await;
    }
}

impl Callers {
    pub(super) async fn run(&mut self, time: Duration) -> Result<LoopResult, MeasureError> {
        Ok(match self {
            Self::Bus(callers) => closed_loop(callers, time).await?,
            Self::Page(callers) => closed_loop(callers, time).await?,
            Self::Clients(callers) => closed_loop(callers, time).await?,
        })
    }

    pub(super) const fn are_on_the_bus(&self) -> bool {
        matches!(self, Self::Bus(_))
    }
}

impl BusCaller {
    fn new(client: &Arc<Client>) -> Self {
        Self { client: Arc::clone(client), arguments: call().arguments }
    }
}

impl Exchange for BusCaller {
    async fn once(&mut self) -> Result<(), ExchangeError> {
        let request = self.client.request(TOOL, Some(&self.arguments), Some(REPLY_TIME), None);
        let reply = self.client.send(&request, REPLY_TIME).await;
        match reply.map_err(|error| ExchangeError::Other(error.to_string()))?.content {
            ReplyContent::Result(result) if !result.is_error && result.content.as_deref() == Some(TEXT) => Ok(()),
            other => Err(ExchangeError::Other(format!("the tool answered {other:?}"))),
        }
    }
}

/// A call of `echo`.
pub(super) fn call() -> ToolUse {
    let arguments = Map::from_iter([("text".to_owned(), json!(TEXT))]);
    ToolUse { tool: TOOL.to_owned(), arguments, text: Some(TEXT.to_owned()) }
}
