//! `toolbus bench --script`: an interpreter alone, and scripts in the sandbox.

mod footprint;
mod load;
mod programs;
mod report;
mod sides;
mod subject;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::broker::load::Sample;
use crate::figures::Figures;
use crate::usage::Usage;
use toolbus_sandbox::Level;
use toolbus_scripts::runner::Runner;

use crate::args::MeasureArgs;
use crate::error::MeasureError;
use crate::figures::Row;
use crate::report::Report;
use crate::rounds::{self, Rounds};
use footprint::{Growth, descendants};
use load::Work;
use report::{ScriptReport, Throughput};
use sides::{Side, Sides};
use subject::Subject;
use toolbus::commands::Context;
use toolbus::config::Config;

/// Measurement that does not count, before each that does.
const WARM_UP: Duration = Duration::from_millis(300);
/// Loads that are measured with many callers: the interpreter alone, and the tool with every start cold, with the pool,
/// and with forked interpreters.
const LOADS: usize = 4;

/// Measures, and prints a table or JSON. Fails if a script costs more than it may.
pub(crate) async fn run(args: &MeasureArgs, context: &Context) -> Result<ExitCode, MeasureError> {
    // Dropping the measurement ends every interpreter.
    let report = rounds::in_a_task(measure(args.clone(), context.config.clone())).await?;
    report.finish(args, context.output)
}

async fn measure(args: MeasureArgs, config: Config) -> Result<Report<ScriptReport>, MeasureError> {
    let subject = Subject::of(&args, &config).await?;
    let sides = Sides::start(&subject).await?;
    let measurements = sides.all().len() + LOADS * args.callers.len();
    let bar = rounds::progress(u64::from(args.rounds) * measurements as u64);

    let (every, time) = (sides.all(), Duration::from_secs(args.seconds));
    let mut rounds = Rounds::new(&every, args.rounds, &bar);
    while let Some(side) = rounds.turn() {
        sides.run(*side, WARM_UP).await?;
        let used = Used::now()?;
        rounds.add(used.figures(sides.run(*side, time).await?)?);
    }
    let row = |(side, figures): (&Side, _)| Row { side: sides.name(*side), callers: 1, figures };
    let mut rows: Vec<Row> = rounds.medians().map(row).collect();

    let cores = u16::try_from(subject.in_flight()).unwrap_or(u16::MAX);
    let (cold, forked, pooled) =
        (sides.cold(), sides.forked(), Arc::new(subject.runner(Level::Full, subject.pool()).await?));
    let mut throughput = Vec::new();
    for callers in args.callers.iter().copied() {
        let tool = |runner| Work::Tool(Arc::new(subject.tool(runner, usize::from(callers))));
        let works: [_; LOADS] = [
            ("plain", cores, Work::Plain(sides.plain())),
            ("cold", callers, tool(Arc::clone(&cold) as Arc<dyn Runner>)),
            ("pool", callers, tool(Arc::clone(&pooled) as Arc<dyn Runner>)),
            ("forked", callers, tool(Arc::clone(&forked) as Arc<dyn Runner>)),
        ];
        let mut rounds = Rounds::new(&works, args.rounds, &bar);
        while let Some((_, callers, work)) = rounds.turn() {
            work.run(usize::from(*callers), WARM_UP).await?;
            let used = Used::now()?;
            rounds.add(used.figures(work.run(usize::from(*callers), time).await?)?);
        }
        let row = |((side, callers, _), figures): (&(&'static str, u16, Work), Figures)| Row {
            side,
            callers: *callers,
            figures,
        };
        let crowd: Vec<Row> = rounds.medians().map(row).collect();
        throughput.extend(Throughput::of(callers, &crowd));
        rows.extend(crowd);
    }
    bar.finish_and_clear();

    let (names, absent) = (sides.names(), sides.absent());
    // What others keep ready would change the counts when it is given up.
    drop(forked);
    sides.stop().await;
    let mut growth = Vec::new();
    if subject.pool().max > 0 {
        growth.push(Growth::measure("pool", &pooled, subject.pool().max, args.scripts).await?);
    }
    pooled.shutdown().await;
    drop(pooled);
    growth.push(Growth::measure("cold", &cold, 0, args.scripts).await?);
    let (python, max_in_flight) = (subject.interpreter.version.clone(), subject.in_flight());
    Ok(Report::new(&args, ScriptReport { rows, absent, throughput, growth, python, max_in_flight, names }))
}

/// Resources that this process and those below it had used when a measurement began.
struct Used(Usage);

impl Used {
    fn now() -> Result<Self, MeasureError> {
        let this = std::process::id();
        let mut used = Usage::read(this)?;
        // Processes that make sandboxes stay. One that ends meanwhile is waited for by one that is read.
        let below = descendants(this)?.into_iter().filter_map(|process| Usage::read(process).ok());
        used.ended_children += below.map(|below| below.cpu + below.ended_children).sum::<Duration>();
        Ok(Self(used))
    }

    /// Puts it together with what was measured since.
    fn figures(self, sample: Sample) -> Result<Figures, MeasureError> {
        let load = [self.0, Self::now()?.0];
        // Scripts run in the processes below this one.
        let children = load.map(|usage| Usage { cpu: usage.ended_children, ..usage });
        Ok(Figures::new(sample, children, load))
    }
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
    fn scripts_are_measured_at_eight_in_flight_and_a_thousand_in_a_row_by_default() {
        let args = parsed(&["--script"]).unwrap();
        assert_eq!((&*args.callers, args.scripts, args.python), (&[8][..], 1000, None));
        let args = parsed(&["--script", "--callers", "2,4", "--scripts", "7", "--python", "python3.11"]).unwrap();
        assert_eq!((&*args.callers, args.scripts, args.python.as_deref()), (&[2, 4][..], 7, Some("python3.11")));
    }

    #[test]
    fn options_of_scripts_are_refused_elsewhere() {
        assert!(parsed(&["--scripts", "7"]).is_none() && parsed(&["--python", "python3"]).is_none());
        assert!(parsed(&["--script", "--mcp"]).is_none() && parsed(&["--script", "--tools", "5"]).is_none());
    }
}
