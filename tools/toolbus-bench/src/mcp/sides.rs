//! The two sides: the tool through the daemon, and the tool alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::broker::load::Sample;
use futures_util::future::try_join_all;
use serde_json::Map;
use toolbus_core::caller::Caller;
use toolbus_core::tool::ToolCall;
use toolbus_mcp_client::process::Launcher;
use toolbus_mcp_client::standalone::Direct;
use toolbus_mcp_client::status::PhaseName;
use toolbus_protocol::topic;

use super::processes::{kill, server_of};
use super::subject::MeasuredServer;
use super::{LOOK_EVERY, START_TIME};
use crate::error::MeasureError;
use toolbus::config::Config;
use toolbus::http::McpAdmin;
use toolbus::local_daemon::LocalDaemon;
use toolbus_client::{Client, ReplyContent};

/// Longest wait for one reply.
const REPLY_TIME: Duration = Duration::from_secs(30);

/// A way to the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum McpSide {
    /// From this process to the server and back.
    Direct,
    /// By a request on the embedded bus to the daemon in this process.
    Bridge,
}

impl McpSide {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Bridge => "toolbus",
        }
    }
}

/// A server of its own for each side.
pub(super) struct McpSides {
    direct: Direct,
    session: LocalDaemon,
    client: Client,
    subject: MeasuredServer,
}

impl McpSides {
    pub(super) async fn start(config: &Config, subject: MeasuredServer) -> Result<Self, MeasureError> {
        let failed = |error: &dyn ToString| MeasureError::Mcp(error.to_string());
        let servers = config.mcp_servers().specs;
        let spec = servers.first().ok_or_else(|| failed(&"no server is configured"))?;
        let launcher = Launcher::new()?;
        let started = Direct::start(spec, &launcher);
        let direct = tokio::time::timeout(START_TIME, started).await;
        let direct = direct.map_err(|_| failed(&"the server did not answer"))?.map_err(|error| failed(&error))?;

        let session = LocalDaemon::with_daemon(config, None).await.map_err(|error| failed(&error))?;
        session.ready(START_TIME).await.map_err(|error| failed(&error))?;
        all_ready(&*session.servers()).await?;
        let client = Client::connect(session.bus(), topic::TOOL_INVOKE, START_TIME).await;
        let client = client.map_err(|error| failed(&error))?;
        Ok(Self { direct, session, client, subject })
    }

    /// A closed loop: each of the callers calls, waits for its reply, and calls again, for about this long.
    pub(super) async fn run(&self, side: McpSide, callers: usize, time: Duration) -> Result<Sample, MeasureError> {
        let started = Instant::now();
        let caller = || async {
            let mut latencies = Vec::new();
            while started.elapsed() < time {
                let begun = Instant::now();
                match side {
                    McpSide::Direct => self.call_directly().await?,
                    McpSide::Bridge => self.call_on_the_bus().await?,
                }
                latencies.push(begun.elapsed());
            }
            Ok::<_, MeasureError>(latencies)
        };
        let latencies = try_join_all((0..callers).map(|_| caller())).await?.concat();
        Ok(Sample { latencies, elapsed: started.elapsed() })
    }

    async fn call_directly(&self) -> Result<(), MeasureError> {
        let call = ToolCall {
            arguments: Arc::clone(&self.subject.arguments),
            ..ToolCall::new(Arc::clone(&self.subject.tool), Caller::unknown(), Map::new(), REPLY_TIME)
        };
        let output = self.direct.call(&self.subject.tool, &call).await;
        let output = output.map_err(|failure| MeasureError::Mcp(failure.message))?;
        self.subject.check(output.content.as_deref(), output.is_error)
    }

    async fn call_on_the_bus(&self) -> Result<(), MeasureError> {
        let MeasuredServer { tool, arguments, .. } = &self.subject;
        let request = self.client.request(tool, Some(arguments), Some(REPLY_TIME), None);
        let reply = self.client.send(&request, REPLY_TIME).await;
        match reply.map_err(|error| MeasureError::Mcp(error.to_string()))?.content {
            ReplyContent::Result(result) => self.subject.check(result.content.as_deref(), result.is_error),
            ReplyContent::Error(error) => Err(MeasureError::Mcp(error.message)),
        }
    }

    /// The process of the server on a side.
    pub(super) fn server(&self, side: McpSide) -> Result<u32, MeasureError> {
        let supervisor = match side {
            McpSide::Direct => self.direct.pid(),
            McpSide::Bridge => self.session.servers().status().first().and_then(|server| server.pid),
        };
        let supervisor = supervisor.ok_or_else(|| MeasureError::Mcp("the server has no process".to_owned()))?;
        Ok(server_of(supervisor)?)
    }

    /// The median time from the death of the daemon's server to the next good reply, over so many deaths.
    pub(super) async fn recovery(&self, deaths: u16) -> Result<Duration, MeasureError> {
        let mut times = Vec::new();
        for _ in 0..deaths {
            all_ready(&*self.session.servers()).await?;
            kill(self.server(McpSide::Bridge)?).await?;
            let died = Instant::now();
            while let Err(error) = self.call_on_the_bus().await {
                if died.elapsed() > START_TIME {
                    return Err(error);
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
            times.push(died.elapsed());
        }
        times.sort_unstable();
        Ok(times.get(times.len() / 2).copied().unwrap_or_default())
    }

    pub(super) async fn stop(self) {
        self.session.close().await;
        self.direct.stop().await;
    }
}

/// Waits until every server takes calls.
pub(super) async fn all_ready(servers: &dyn McpAdmin) -> Result<(), MeasureError> {
    let begun = Instant::now();
    loop {
        let status = servers.status();
        if !status.is_empty() && status.iter().all(|server| server.phase == PhaseName::Ready) {
            return Ok(());
        }
        if begun.elapsed() > START_TIME {
            let late = status.iter().find(|server| server.phase != PhaseName::Ready);
            let why = late.and_then(|server| server.last_error.clone()).unwrap_or_default();
            return Err(MeasureError::Mcp(format!("not every server is ready: {why}")));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
