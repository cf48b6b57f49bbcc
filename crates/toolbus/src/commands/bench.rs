//! `toolbus bench`: the daemon and a bare responder, measured in turn on the same broker; or MCP servers with and without it.

mod children;
mod errors;
pub mod mcp;
mod report;
mod sink;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::ArgPredicate;
use indicatif::{ProgressBar, ProgressStyle};
use toolbus_bench::{BenchError, Figures, Load, Responder, Site, Summary, Usage, UsageError};
use toolbus_protocol::new_message_id;

use super::Context;
use crate::config::{BusUrl, QueueType};
use crate::printed::unless_gone;
use crate::signals::Signals;
use children::{Daemon, Floor};
use report::{Report, Row};
use sink::Sink;

/// Longest measurement of one side in one round, in seconds.
const MAX_SECONDS: u64 = 600;
/// Name of the side that is the floor.
const BARE: &str = "bare responder";
/// Name of the side that is measured.
const TOOLBUS: &str = "toolbus";

/// Measures the daemon against a bare responder on the same broker.
///
/// Both sides take requests from a durable queue of the same type, answer persistently and confirmed on the same queue
/// of the caller's, and acknowledge afterwards; the bare responder does nothing else. They are measured in turn within
/// each round, and the figures are medians over the rounds. Exchange and queues are made for the measurement and removed
/// after it. Needs RabbitMQ: give --bus-url.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Calls in flight, measured one after the other; with --mcp 1,32 if not given.
    #[arg(long, value_delimiter = ',', default_value = "1,64", default_value_if("mcp", ArgPredicate::IsPresent, "1,32"), value_parser = clap::value_parser!(u16).range(1..=4096))]
    callers: Vec<u16>,
    /// Rounds; each measures both sides once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS))]
    seconds: u64,
    /// Tools to register beside `echo`: shows that their number costs nothing per call.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=10_000))]
    tools: u16,
    /// Agents with rules of their own, of 200 patterns each, beside the caller's: shows what the policy costs per call.
    /// Needs --tools, for the patterns to match.
    #[arg(long, default_value_t = 0, requires = "tools", value_parser = clap::value_parser!(u16).range(0..=1_000))]
    agents: u16,
    /// Share of calls to trace, from 0 to 1, exported over OTLP/HTTP to a sink inside this command, metrics with them.
    /// Absent: nothing is exported.
    #[arg(long, value_name = "SHARE")]
    trace_ratio: Option<f64>,
    /// Measure calls of an MCP server's tool instead, without a broker: through the daemon on the embedded bus, and directly
    /// from this process. Then what many idle servers cost, and how long a killed one is away.
    #[arg(long, conflicts_with_all = ["tools", "agents", "trace_ratio"])]
    mcp: bool,
    /// With --mcp: the server to measure with, as a command line that is split at spaces. Absent: the smallest that there can
    /// be, which is part of this program.
    #[arg(long, requires = "mcp", value_name = "COMMAND")]
    mcp_command: Option<String>,
    /// With --mcp-command: the tool to call.
    #[arg(long, requires = "mcp_command", value_name = "NAME", default_value = "echo")]
    mcp_tool: String,
    /// With --mcp-command: the tool's arguments, as a JSON object.
    #[arg(long, requires = "mcp_command", value_name = "JSON", default_value = r#"{"message": "hello"}"#)]
    mcp_arguments: String,
    /// Internal: be the bare responder of this site.
    #[arg(long, hide = true)]
    responder: Option<String>,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The embedded bus has no floor to compare with.
    #[error("a measurement needs a RabbitMQ broker: give --bus-url amqp://USER:PASSWORD@HOST:5672/%2f")]
    NoBroker,
    /// Certificates that neither side would use.
    #[error("bench does not use bus.tls: measure on a broker without certificates of its own")]
    Tls,
    /// Ended by the user.
    #[error("interrupted")]
    Interrupted,
    /// A share that is none.
    #[error("--trace-ratio takes a number from 0 to 1")]
    Ratio,
    /// A side did not start.
    #[error("{0} did not start: {1}")]
    Start(&'static str, String),
    /// The broker or a side did not take part.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// A process could not be measured.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// An MCP server or the daemon beside it.
    #[error("MCP servers cannot be measured: {0}")]
    Mcp(String),
    /// Nothing can be printed or started.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Measures, and prints a table or JSON.
///
/// # Errors
///
/// When the broker cannot be reached, the user interrupts, a side does not start, or a call is not answered.
pub async fn run(args: BenchArgs, context: &Context) -> Result<ExitCode, MeasureError> {
    if args.mcp {
        return mcp::run(&args, context).await;
    }
    let site = site(context)?;
    if let Some(queue) = &args.responder {
        let responder = Responder { site, queue: queue.clone(), topic: queue.clone() };
        responder.run(|| println!("{}", children::READY)).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.trace_ratio.is_some_and(|ratio| !(0.0..=1.0).contains(&ratio)) {
        return Err(MeasureError::Ratio);
    }
    let tls = &context.config.bus.tls;
    if tls.ca.is_some() || tls.cert.is_some() {
        return Err(MeasureError::Tls);
    }
    let mut signals = Signals::listen()?;
    let id = new_message_id();
    let site = Site { exchange: format!("toolbus.bench.{id}"), ..site };
    // Dropping the measurement ends both sides; only then can their queues go.
    let result = tokio::select! {
        result = measure(&args, context, &site, &id) => result,
        _ = signals.stop() => Err(MeasureError::Interrupted),
    };
    let of_daemon = ["invoke", "invoke.dlq", "control", "control.dlq"].map(|queue| format!("bench-{id}.{queue}"));
    let bare = bare_queue(&id);
    let queues: Vec<&str> = of_daemon.iter().chain([&bare]).map(String::as_str).collect();
    let removed = site.remove(&[&site.exchange, &format!("{}.dlx", site.exchange)], &queues).await;
    // A measurement that failed says more than a clean-up that failed after it.
    let report = result?;
    removed?;
    unless_gone(report.print(context.output))?;
    Ok(ExitCode::SUCCESS)
}

async fn measure(args: &BenchArgs, context: &Context, site: &Site, id: &str) -> Result<Report, MeasureError> {
    let sink = match args.trace_ratio {
        Some(_) => Some(Sink::start().await?),
        None => None,
    };
    let mut floor = Floor::start(site, &bare_queue(id), context).await?;
    let mut daemon = Daemon::start(site, id, args, sink.as_ref(), context).await?;
    let idle = Usage::read(daemon.process())?;

    let bar = progress(args);
    let mut rows = Vec::new();
    for callers in &args.callers {
        let mut load = Load::connect(site, usize::from(*callers)).await?;
        let (mut bare, mut toolbus) = (Summary::default(), Summary::default());
        for round in 0..args.rounds {
            // Who is first changes every round, so that neither side always finds the broker warm.
            let sides = [(&mut bare, floor.process(), bare_queue(id)), (&mut toolbus, daemon.process(), topic(id))];
            let mut sides = Vec::from(sides);
            if round % 2 == 1 {
                sides.reverse();
            }
            for (summary, process, topic) in sides {
                summary.add(one(&mut load, process, &topic, args.seconds).await?);
                bar.inc(1);
            }
        }
        load.close().await?;
        for (side, summary) in [(BARE, bare), (TOOLBUS, toolbus)] {
            rows.extend(summary.median().map(|figures| Row { side, callers: *callers, figures }));
        }
    }
    bar.finish_and_clear();
    let report = Report::new(args, context, rows, idle, daemon.ready_after(), sink.map(|sink| sink.spans()));
    daemon.stop().await;
    floor.stop().await;
    Ok(report)
}

/// Measures one side once, after a short warm-up.
async fn one(load: &mut Load, process: u32, topic: &str, seconds: u64) -> Result<Figures, MeasureError> {
    const WARM_UP: Duration = Duration::from_millis(300);
    load.run(topic, WARM_UP).await?;
    let this = std::process::id();
    let before = [Usage::read(process)?, Usage::read(this)?];
    let sample = load.run(topic, Duration::from_secs(seconds)).await?;
    let after = [Usage::read(process)?, Usage::read(this)?];
    let [responder, load] =
        [0, 1].map(|side: usize| [before, after].map(|usage| usage.get(side).copied().unwrap_or_default()));
    Ok(Figures::new(sample, responder, load))
}

fn site(context: &Context) -> Result<Site, MeasureError> {
    let BusUrl::Amqp(urls) = &context.config.bus.url else { return Err(MeasureError::NoBroker) };
    let url = urls.first().ok_or(MeasureError::NoBroker)?;
    let queue_type = match context.config.bus.queue_type {
        QueueType::Quorum => "quorum",
        QueueType::Classic => "classic",
    };
    Ok(Site {
        url: url.reveal().to_string(),
        exchange: context.config.bus.exchange.clone(),
        queue_type: queue_type.to_owned(),
        prefetch: context.config.invoke.prefetch(),
    })
}

fn bare_queue(id: &str) -> String {
    format!("bench.bare.{id}")
}

fn topic(id: &str) -> String {
    format!("bench.invoke.{id}")
}

fn progress(args: &BenchArgs) -> ProgressBar {
    let measurements = u64::from(args.rounds) * 2 * args.callers.len() as u64;
    let bar = ProgressBar::new(measurements).with_message("measuring");
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:32} {pos}/{len}, {eta} left") {
        bar.set_style(style);
    }
    bar
}
