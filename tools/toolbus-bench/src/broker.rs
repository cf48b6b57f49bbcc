//! The daemon and a bare responder, measured in turn on the same broker.

mod children;
mod ledger;
pub(crate) mod load;
mod others;
mod report;
mod responder;
mod sink;
pub(crate) mod site;

use std::process::ExitCode;
use std::time::Duration;

use crate::broker::load::{BrokerLoad, LoadTarget};
use crate::broker::responder::Responder;
use crate::broker::site::BrokerSetup;
use crate::figures::Figures;
use crate::usage::Usage;
use toolbus_protocol::new_message_id;

use crate::args::MeasureArgs;
use crate::daemon::TOOLBUS;
use crate::error::MeasureError;
use crate::figures::Row;
use crate::report::Report;
use crate::rounds::{self, Rounds};
use children::Floor;
use ledger::LedgerSizes;
use others::OtherDaemon;
use report::Broker;
use sink::Sink;
use toolbus::commands::Context;
use toolbus::config::BusUrl;
use toolbus::signals::Signals;

/// The queues of a daemon, without their prefix.
const QUEUES: [&str; 4] = ["invoke", "invoke.dlq", "control", "control.dlq"];
/// Name of the side that is the floor.
pub(crate) const BARE: &str = "bare responder";

/// Measures, and prints a table or JSON.
///
/// # Errors
///
/// If the broker cannot be reached, the user interrupts, a side does not start, or a call gets no reply. A missed
/// gate is no error: it is reported, with exit code 1.
pub(crate) async fn run(args: MeasureArgs, context: &Context) -> Result<ExitCode, MeasureError> {
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
    ledger::make_folder(&args, &id)?;
    let site = BrokerSetup { exchange: format!("toolbus.bench.{id}"), ..site };
    // Dropping the measurement ends both sides; only then can their queues go.
    let result = tokio::select! {
        result = measure(&args, context, &site, &id) => result,
        _ = signals.stop() => Err(MeasureError::Interrupted),
    };
    let of_daemons = [id.clone()].into_iter().chain(OtherDaemon::of(&args, &id).into_iter().map(|other| other.id));
    let of_daemons: Vec<String> = of_daemons.flat_map(|id| QUEUES.map(|queue| format!("bench-{id}.{queue}"))).collect();
    let bare = bare_queue(&id);
    let queues: Vec<&str> = of_daemons.iter().chain([&bare]).map(String::as_str).collect();
    let removed = site.remove(&[&site.exchange, &format!("{}.dlx", site.exchange)], &queues).await;
    ledger::remove_folder(&args, &id);
    // A failed measurement matters more than a failed clean-up after it.
    let report = result?;
    removed?;
    report.finish(&args, context.output)
}

async fn measure(
    args: &MeasureArgs,
    context: &Context,
    site: &BrokerSetup,
    id: &str,
) -> Result<Report<Broker>, MeasureError> {
    let sink = match args.trace_ratio {
        Some(_) => Some(Sink::start().await?),
        None => None,
    };
    let mut floor = Floor::start(site, &bare_queue(id), context).await?;
    let mut daemon = children::start_daemon(site, id, None, args, sink.as_ref(), context).await?;
    let idle = Usage::read(daemon.process())?;
    let bare = LoadTarget::echo(bare_queue(id));
    let mut sides = vec![
        MeasuredSide { name: BARE, process: floor.process(), target: bare },
        MeasuredSide { name: TOOLBUS, process: daemon.process(), target: LoadTarget::echo(topic(id)) },
    ];
    let mut others = Vec::new();
    for other in OtherDaemon::of(args, id) {
        let daemon = children::start_daemon(site, &other.id, Some(&other), args, sink.as_ref(), context).await?;
        sides.push(MeasuredSide { name: other.name, process: daemon.process(), target: other.target });
        others.push(daemon);
    }

    let bar = rounds::progress(u64::from(args.rounds) * (sides.len() * args.callers.len()) as u64);
    let mut rows = Vec::new();
    for callers in &args.callers {
        let mut load = BrokerLoad::connect(site, usize::from(*callers)).await?;
        let mut rounds = Rounds::new(&sides, args.rounds, &bar);
        while let Some(side) = rounds.turn() {
            rounds.add(one(&mut load, side, args.seconds).await?);
        }
        load.close().await?;
        rows.extend(rounds.medians().map(|(side, figures)| Row { side: side.name, callers: *callers, figures }));
    }
    bar.finish_and_clear();
    let ready_after = daemon.ready_after();
    for daemon in others.iter_mut().chain([&mut daemon]) {
        daemon.stop().await;
    }
    floor.stop().await;
    let entries = match &args.ledger {
        Some(folder) => Some(LedgerSizes::measure(folder, id, args.entries).await?),
        None => None,
    };
    let spans = sink.map(|sink| sink.spans());
    Ok(Report::new(args, Broker::new(args, context, rows, idle, ready_after, spans, entries)))
}

/// Side that is measured in turn.
struct MeasuredSide {
    name: &'static str,
    process: u32,
    target: LoadTarget,
}

/// Measures one side once, after a short warm-up.
async fn one(load: &mut BrokerLoad, side: &MeasuredSide, seconds: u64) -> Result<Figures, MeasureError> {
    const WARM_UP: Duration = Duration::from_millis(300);
    let MeasuredSide { process, target, .. } = side;
    load.run(target, WARM_UP).await?;
    let this = std::process::id();
    let before = [Usage::read(*process)?, Usage::read(this)?];
    let sample = load.run(target, Duration::from_secs(seconds)).await?;
    let after = [Usage::read(*process)?, Usage::read(this)?];
    let [responder, load] =
        [0, 1].map(|side: usize| [before, after].map(|usage| usage.get(side).copied().unwrap_or_default()));
    Ok(Figures::new(sample, responder, load))
}

fn site(context: &Context) -> Result<BrokerSetup, MeasureError> {
    let BusUrl::Amqp(urls) = &context.config.bus.url else { return Err(MeasureError::NoBroker) };
    let url = urls.first().ok_or(MeasureError::NoBroker)?;
    Ok(BrokerSetup {
        url: url.reveal().to_string(),
        exchange: context.config.bus.exchange.clone(),
        queue_type: context.config.bus.queue_type.as_str().to_owned(),
        prefetch: context.config.invoke.prefetch(),
    })
}

fn bare_queue(id: &str) -> String {
    format!("bench.bare.{id}")
}

fn topic(id: &str) -> String {
    format!("bench.invoke.{id}")
}
