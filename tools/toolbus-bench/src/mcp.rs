//! `toolbus bench --mcp`: calls of an MCP server's tool through the daemon, and directly.

mod crowd;
pub(crate) mod echo;
pub(crate) mod processes;
mod report;
mod sides;
pub(crate) mod subject;

use std::process::ExitCode;
use std::time::Duration;

use crate::figures::Figures;
use crate::usage::Usage;

use crate::args::MeasureArgs;
use crate::error::MeasureError;
use crate::figures::Row;
use crate::report::Report;
use crate::rounds::{self, Rounds};
use report::Bridge;
use sides::{McpSide, McpSides};
use subject::MeasuredServer;
use toolbus::commands::Context;
use toolbus::config::{Config, Override, Sources};

/// Measurement that does not count, before each that does.
const WARM_UP: Duration = Duration::from_millis(300);
/// Longest wait for servers to start.
const START_TIME: Duration = Duration::from_secs(60);
/// Interval at which what is waited for is looked at: also the accuracy of times that end with it.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Measures, and prints a table or JSON.
pub(crate) async fn run(args: &MeasureArgs, context: &Context) -> Result<ExitCode, MeasureError> {
    // Dropping the measurement ends every server.
    let report = rounds::in_a_task(measure(args.clone())).await?;
    report.finish(args, context.output)
}

async fn measure(args: MeasureArgs) -> Result<Report<Bridge>, MeasureError> {
    let bar = rounds::progress(u64::from(args.rounds) * 2 * args.callers.len() as u64);
    let subject = MeasuredServer::of(&args)?;
    let config = configuration(1, &subject)?;
    let sides = McpSides::start(&config, subject.clone()).await?;
    let mut rows = Vec::new();
    for callers in &args.callers {
        let mut rounds = Rounds::new(&[McpSide::Direct, McpSide::Bridge], args.rounds, &bar);
        while let Some(side) = rounds.turn() {
            rounds.add(one(&sides, *side, usize::from(*callers), args.seconds).await?);
        }
        rows.extend(rounds.medians().map(|(side, figures)| Row { side: side.name(), callers: *callers, figures }));
    }
    let recovery = sides.recovery(args.rounds).await?;
    sides.stop().await;
    bar.finish_and_clear();
    let crowd = crowd::measure(&configuration(crowd::SERVERS, &subject)?).await?;
    Ok(Report::new(&args, Bridge::new(&args, rows, recovery, crowd)))
}

async fn one(sides: &McpSides, side: McpSide, callers: usize, seconds: u64) -> Result<Figures, MeasureError> {
    sides.run(side, callers, WARM_UP).await?;
    let (server, this) = (sides.server(side)?, std::process::id());
    let before = [Usage::read(server)?, Usage::read(this)?];
    let sample = sides.run(side, callers, Duration::from_secs(seconds)).await?;
    let [of_server, of_this] = before;
    Ok(Figures::new(sample, [of_server, Usage::read(server)?], [of_this, Usage::read(this)?]))
}

/// A daemon on the embedded bus, with so many servers of this kind, and nothing else.
fn configuration(servers: usize, subject: &MeasuredServer) -> Result<Config, MeasureError> {
    let args = serde_json::to_string(&subject.args).unwrap_or_default();
    let of_server = |number: usize| {
        let key = |key: &str| format!("mcp.servers.bench-{number:03}.{key}");
        [Override::new(&key("command"), &subject.command), Override::new(&key("args"), &args)]
    };
    let plain = [Override::new("tools.time", "false"), Override::new("bus.url", "embedded")];
    let overrides = plain.into_iter().chain((0..servers).flat_map(of_server)).collect();
    let loaded = Config::load(&Sources { overrides, ..Sources::default() });
    loaded.map(|loaded| loaded.config).map_err(|problems| MeasureError::Mcp(problems.to_string()))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::BenchCli;

    fn callers(arguments: &[&str]) -> Vec<u16> {
        let cli = BenchCli::try_parse_from([&["toolbus-bench"], arguments].concat()).unwrap();
        cli.bench.callers
    }

    #[test]
    fn servers_are_measured_at_one_and_at_thirty_two_in_flight_by_default() {
        assert_eq!(callers(&["--mcp"]), [1, 32]);
        assert_eq!(callers(&["--mcp", "--callers", "4"]), [4]);
        assert_eq!(callers(&[]), [1, 64]);
    }

    #[test]
    fn another_server_is_a_command_line_and_a_call() {
        let parsed = |arguments: &[&str]| {
            let cli = BenchCli::try_parse_from([&["toolbus-bench", "--mcp"], arguments].concat()).unwrap();
            MeasuredServer::of(&cli.bench)
        };
        let subject = parsed(&["--mcp-command", "node  server.js", "--mcp-tool", "say"]).unwrap();
        assert_eq!((&*subject.command, &*subject.args, &*subject.tool), ("node", &["server.js".to_owned()][..], "say"));
        assert!(subject.check(Some("anything"), false).is_ok() && subject.check(Some("anything"), true).is_err());
        assert!(parsed(&["--mcp-command", " "]).is_err());
        assert!(parsed(&["--mcp-command", "a", "--mcp-arguments", "[]"]).is_err());
        assert!(parsed(&[]).unwrap().check(Some("anything"), false).is_err(), "its result is known");
    }

    #[test]
    fn each_server_of_the_measurement_is_this_program_again() {
        let found = configuration(3, &MeasuredServer::smallest().unwrap()).unwrap().mcp_servers();
        assert_eq!((found.specs.len(), found.warnings.len(), found.problems.len()), (3, 0, 0));
    }
}
