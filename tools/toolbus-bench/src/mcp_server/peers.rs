//! Toolbus and other proxies in front of the same MCP server.

use std::time::{Duration, Instant};

use crate::exchange::{Exchange as _, ExchangeError, closed_loop};
use crate::figures::Figures;
use crate::mcp_http::{McpCaller, McpClient, McpEndpoint, ToolUse};
use crate::usage::Usage;
use indicatif::ProgressBar;
use serde::Serialize;

use super::idle::mib;
use super::peer::RunningPeer;
use super::{Server, WARM_UP, tree};
use crate::args::MeasureArgs;
use crate::daemon::START_TIME;
use crate::daemon::TOOLBUS;
use crate::error::MeasureError;
use crate::mcp::processes::kill;
use crate::mcp::subject::MeasuredServer;
use crate::rounds::Rounds;

/// Interval of polls.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time for which a proxy is called after the death of its server.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measurements of one proxy.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Compared {
    pub(super) name: String,
    /// By number of connections.
    pub(super) calls: Vec<PeerCalls>,
    /// Resident memory of the proxy and its helpers after the calls, without the server, in MiB.
    pub(super) memory_mib: f64,
    pub(super) after_kill: AfterKill,
}

/// Calls at one number of connections.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PeerCalls {
    pub(super) callers: u16,
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// Responses that were not good, in all rounds.
    pub(super) failures: u64,
}

/// From the death of the server to the next good response, in milliseconds; absent: none came in time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AfterKill {
    /// In the session that was there before.
    pub(super) same_session_ms: Option<f64>,
    /// In new ones.
    pub(super) new_session_ms: Option<f64>,
}

/// All that are measured.
pub(super) struct McpServerPeers {
    sides: Vec<PeerSide>,
    /// The argument by which the server is known among processes.
    program: String,
    /// Held while they run.
    toolbus: Server,
    others: Vec<RunningPeer>,
}

/// A proxy that runs.
struct PeerSide {
    name: String,
    endpoint: McpEndpoint,
    process: u32,
    call: ToolUse,
}

impl McpServerPeers {
    /// Returns the number of measurements in each round.
    pub(super) fn turns(args: &MeasureArgs) -> usize {
        if args.peer.is_empty() { 0 } else { (args.peer.len() + 1) * args.callers.len() }
    }

    /// Nothing where there is none to compare with.
    pub(super) async fn measure(args: &MeasureArgs, bar: &ProgressBar) -> Result<Vec<Compared>, MeasureError> {
        if args.peer.is_empty() {
            return Ok(Vec::new());
        }
        let peers = Self::start(args).await?;
        let mut calls = vec![Vec::new(); peers.sides.len()];
        for callers in &args.callers {
            for (of_side, measured) in calls.iter_mut().zip(peers.calls(args, *callers, bar).await?) {
                of_side.push(measured);
            }
        }
        let mut compared = Vec::new();
        for (side, calls) in peers.sides.iter().zip(calls) {
            let memory_mib = mib(tree::resident(side.process, &tree::running(side.process, &peers.program)));
            let after_kill = side.after_kill(&peers.program).await?;
            compared.push(Compared { name: side.name.clone(), calls, memory_mib, after_kill });
        }
        drop(peers.others);
        peers.toolbus.stop().await;
        Ok(compared)
    }

    async fn start(args: &MeasureArgs) -> Result<Self, MeasureError> {
        let subject = MeasuredServer::of(args)?;
        let words: Vec<&str> = std::iter::once(&subject.command).chain(&subject.args).map(String::as_str).collect();
        let program = words.last().copied().unwrap_or_default().to_owned();
        let toolbus = Server::start(Some(&subject)).await?;
        let call = ToolUse {
            tool: subject.tool.to_string(),
            arguments: (*subject.arguments).clone(),
            text: subject.text.map(str::to_owned),
        };
        let side = |name: &str, endpoint: &McpEndpoint, process| PeerSide {
            name: name.to_owned(),
            endpoint: endpoint.clone(),
            process,
            call: call.clone(),
        };
        let mut sides = vec![side(TOOLBUS, toolbus.endpoint(), toolbus.process())];
        let mut others = Vec::new();
        for peer in &args.peer {
            let other = peer.start(&words.join(" ")).await?;
            sides.push(side(&peer.name, other.endpoint(), other.process()));
            others.push(other);
        }
        for (index, side) in sides.iter_mut().enumerate() {
            let process = index.checked_sub(1).and_then(|index| others.get_mut(index));
            side.ready(process).await?;
        }
        Ok(Self { sides, program, toolbus, others })
    }

    /// Every side at one number of connections.
    async fn calls(&self, args: &MeasureArgs, callers: u16, bar: &ProgressBar) -> Result<Vec<PeerCalls>, MeasureError> {
        let mut connected = Vec::new();
        for (index, side) in self.sides.iter().enumerate() {
            let mut clients = Vec::with_capacity(usize::from(callers));
            for _ in 0..callers {
                clients.push(side.connect().await.map_err(|error| side.failed(&error))?);
            }
            connected.push((index, clients, 0));
        }
        let indexes: Vec<usize> = (0..connected.len()).collect();
        let mut rounds = Rounds::new(&indexes, args.rounds, bar);
        while let Some((index, clients, failures)) = rounds.turn().and_then(|index| connected.get_mut(*index)) {
            let process = self.sides.get(*index).map_or(0, |side| side.process);
            closed_loop(clients, WARM_UP).await?;
            let this = std::process::id();
            let before = [Usage::read(process)?, Usage::read(this)?];
            let outcome = closed_loop(clients, Duration::from_secs(args.seconds)).await?;
            *failures += outcome.failures;
            let [of_proxy, of_this] = before;
            let used = ([of_proxy, Usage::read(process)?], [of_this, Usage::read(this)?]);
            rounds.add(Figures::new(outcome.sample, used.0, used.1));
        }
        let failures = connected.iter().map(|(_, _, failures)| *failures);
        let medians = rounds.medians().map(|(_, figures)| figures);
        Ok(medians.zip(failures).map(|(figures, failures)| PeerCalls { callers, figures, failures }).collect())
    }
}

impl PeerSide {
    /// Waits for a good response; learns what the tool is called there.
    async fn ready(&mut self, mut process: Option<&mut RunningPeer>) -> Result<(), MeasureError> {
        let begun = Instant::now();
        loop {
            let Err(error) = self.first_call().await else { return Ok(()) };
            if let Some(process) = &mut process {
                process.lives(&self.name).await?;
            }
            if begun.elapsed() > START_TIME {
                return Err(self.failed(&error));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn first_call(&mut self) -> Result<(), ExchangeError> {
        let mut client = McpClient::initialize(&self.endpoint).await?;
        self.call.tool = client.find(&self.call.tool).await?;
        client.repeating(&self.call)?.once().await
    }

    /// A session with a connection of its own.
    async fn connect(&self) -> Result<McpCaller, ExchangeError> {
        McpClient::initialize(&self.endpoint).await?.repeating(&self.call)
    }

    /// A session in which the call has succeeded.
    async fn call_anew(&self) -> Result<McpCaller, ExchangeError> {
        let mut caller = self.connect().await?;
        caller.once().await?;
        Ok(caller)
    }

    /// Kills the server, and looks for the next good response: in the session, then, after another death, in a new one.
    async fn after_kill(&self, program: &str) -> Result<AfterKill, MeasureError> {
        let mut caller = self.call_anew().await.map_err(|error| self.failed(&error))?;
        self.kill_server(program).await?;
        let same_session = async {
            while caller.once().await.is_err() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let same_session_ms = timed(same_session).await;
        if same_session_ms.is_some() {
            self.kill_server(program).await?;
        }
        let new_session = async {
            while self.call_anew().await.is_err() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        Ok(AfterKill { same_session_ms, new_session_ms: timed(new_session).await })
    }

    /// There may be one for each session.
    async fn kill_server(&self, program: &str) -> Result<(), MeasureError> {
        let servers = tree::running(self.process, program);
        if servers.is_empty() {
            return Err(MeasureError::McpServer(format!("{} keeps no process of the server", self.name)));
        }
        for server in servers {
            kill(server).await?;
        }
        Ok(())
    }

    fn failed(&self, error: &ExchangeError) -> MeasureError {
        MeasureError::McpServer(format!("{}: {error}", self.name))
    }
}

/// Milliseconds until it is good again; absent: it was not in time.
async fn timed(good_again: impl Future<Output = ()>) -> Option<f64> {
    let begun = Instant::now();
    tokio::time::timeout(PATIENCE, good_again).await.ok().map(|()| begun.elapsed().as_secs_f64() * 1e3)
}
