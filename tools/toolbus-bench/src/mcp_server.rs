//! `toolbus bench --mcp-server`: calls by MCP clients, beside the same call on the bus and the simplest page of the
//! same HTTP server; what idle sessions cost; and other proxies in front of the same MCP server.

mod idle;
mod peer;
mod peers;
mod report;
mod server;
mod sides;
mod tree;

use std::process::ExitCode;
use std::time::Duration;

use crate::figures::Figures;
use crate::usage::Usage;

use crate::args::MeasureArgs;
use crate::error::MeasureError;
use crate::figures::Row;
use crate::report::Report;
use crate::rounds::{self, Rounds};
use idle::Idle;
pub(crate) use peer::PeerCommand;
use peers::McpServerPeers;
use report::McpServerBench;
use server::Server;
use sides::{Callers, McpServerSide, McpServerSides};
use toolbus::commands::Context;

/// Measurement that does not count, before each that does.
const WARM_UP: Duration = Duration::from_millis(300);

/// Measures, and prints a table or JSON. Fails if the MCP server costs more than it may.
pub(crate) async fn run(args: &MeasureArgs, context: &Context) -> Result<ExitCode, MeasureError> {
    // Dropping the measurement ends every process.
    let report = rounds::in_a_task(measure(args.clone())).await?;
    report.finish(args, context.output)
}

async fn measure(args: MeasureArgs) -> Result<Report<McpServerBench>, MeasureError> {
    let turns = McpServerSide::ALL.len() * args.callers.len() + McpServerPeers::turns(&args);
    let bar = rounds::progress(u64::from(args.rounds) * turns as u64);
    // First what may not be able to start.
    let peers = McpServerPeers::measure(&args, &bar).await?;
    let idle = Idle::measure(args.sessions).await?;
    let sides = McpServerSides::start().await?;
    let mut rows = Vec::new();
    for callers in &args.callers {
        let mut connected = Vec::new();
        for side in McpServerSide::ALL {
            connected.push(sides.connect(side, usize::from(*callers)).await?);
        }
        let indexes: Vec<usize> = (0..connected.len()).collect();
        let mut rounds = Rounds::new(&indexes, args.rounds, &bar);
        while let Some(callers) = rounds.turn().and_then(|index| connected.get_mut(*index)) {
            rounds.add(one(callers, sides.process(), args.seconds).await?);
        }
        let names = McpServerSide::ALL.map(McpServerSide::name);
        let row = |(side, figures)| Row { side, callers: *callers, figures };
        rows.extend(names.into_iter().zip(rounds.medians().map(|(_, figures)| figures)).map(row));
    }
    sides.stop().await;
    bar.finish_and_clear();
    Ok(Report::new(&args, McpServerBench { rows, idle, peers }))
}

async fn one(callers: &mut Callers, daemon: u32, seconds: u64) -> Result<Figures, MeasureError> {
    callers.run(WARM_UP).await?.flawless()?;
    let this = std::process::id();
    let responder = if callers.are_on_the_bus() { this } else { daemon };
    let before = [Usage::read(responder)?, Usage::read(this)?];
    let sample = callers.run(Duration::from_secs(seconds)).await?.flawless()?;
    let [of_responder, of_this] = before;
    Ok(Figures::new(sample, [of_responder, Usage::read(responder)?], [of_this, Usage::read(this)?]))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::BenchCli;

    fn parsed(arguments: &[&str]) -> Option<MeasureArgs> {
        Some(BenchCli::try_parse_from([&["toolbus-bench"], arguments].concat()).ok()?.bench)
    }

    #[test]
    fn the_mcp_server_is_measured_at_one_and_thirty_two_connections_and_a_thousand_sessions_by_default() {
        let args = parsed(&["--mcp-server"]).unwrap();
        assert_eq!((&*args.callers, args.sessions, args.peer.len()), (&[1, 32][..], 1000, 0));
        let args = parsed(&["--mcp-server", "--callers", "4", "--sessions", "7"]).unwrap();
        assert_eq!((&*args.callers, args.sessions), (&[4][..], 7));
    }

    #[test]
    fn other_proxies_are_named_and_the_server_behind_all_of_them_can_be_chosen() {
        let args = parsed(&["--mcp-server", "--peer", "a=run a", "--peer", "b@/=run b", "--mcp-command", "node s.js"])
            .unwrap();
        assert_eq!(args.peer.iter().map(|peer| &*peer.path).collect::<Vec<_>>(), ["/mcp", "/"]);
        assert!(parsed(&["--peer", "a=run a"]).is_none() && parsed(&["--mcp-server", "--peer", "a"]).is_none());
        assert!(parsed(&["--mcp-server", "--mcp-command", "node s.js"]).is_none(), "there is nothing in front of it");
        assert!(parsed(&["--mcp-server", "--mcp"]).is_none() && parsed(&["--sessions", "7"]).is_none());
    }
}
