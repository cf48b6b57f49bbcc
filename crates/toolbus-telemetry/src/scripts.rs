//! Records of scripts.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};
use toolbus_core::events::{ScriptEvents, ScriptRun};

/// Seconds that a script may take: from what a warm interpreter needs to the longest that is usual.
const RUN_BOUNDS: [f64; 15] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];
/// Levels of the sandbox.
const LEVELS: [&str; 3] = ["full", "no-namespaces", "limits-only"];
/// Bytes, from 8 MiB to 8 GiB.
const MEMORY_BOUNDS: [f64; 11] = [
    8_388_608.0,
    16_777_216.0,
    33_554_432.0,
    67_108_864.0,
    134_217_728.0,
    268_435_456.0,
    536_870_912.0,
    1_073_741_824.0,
    2_147_483_648.0,
    4_294_967_296.0,
    8_589_934_592.0,
];

/// Stands for every value outside a closed set.
const OTHER: &str = "_OTHER";

/// Records runs of scripts. Without a collector it does nothing.
pub struct ScriptRecorder {
    instruments: Option<ScriptInstruments>,
}

struct ScriptInstruments {
    runs: Counter<u64>,
    duration: Histogram<f64>,
    queue_duration: Histogram<f64>,
    cpu_time: Histogram<f64>,
    memory_peak: Histogram<u64>,
}

/// Counts that are looked up at each export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScriptLoad {
    /// Scripts that wait for their turn.
    pub waiting: u64,
    /// Scripts that run.
    pub running: u64,
    /// Interpreters that wait for a script.
    pub warm: u64,
    /// Sessions that keep an interpreter.
    pub sessions: u64,
}

impl ScriptRecorder {
    pub(crate) fn new(meter: Option<&Meter>) -> Self {
        Self { instruments: meter.map(ScriptInstruments::new) }
    }
}

impl ScriptEvents for ScriptRecorder {
    fn run(&self, run: &ScriptRun) {
        let Some(instruments) = &self.instruments else { return };
        let ScriptRun { outcome, start, duration, waited, cpu, peak_memory } = *run;
        let labels = labels(among(&ScriptRun::OUTCOMES, outcome), start.map(|start| among(&ScriptRun::STARTS, start)));
        instruments.runs.add(1, &labels);
        instruments.duration.record(duration.as_secs_f64(), &labels);
        instruments.queue_duration.record(waited.as_secs_f64(), &[]);
        if let Some(cpu) = cpu {
            instruments.cpu_time.record(cpu.as_secs_f64(), &[]);
        }
        if let Some(peak_memory) = peak_memory {
            instruments.memory_peak.record(peak_memory, &[]);
        }
    }
}

impl ScriptInstruments {
    fn new(meter: &Meter) -> Self {
        let seconds = |name: &'static str, description: &'static str| {
            let builder = meter.f64_histogram(name).with_unit("s").with_description(description);
            builder.with_boundaries(RUN_BOUNDS.to_vec()).build()
        };
        let runs = meter.u64_counter("toolbus.script.runs").with_unit("{run}");
        let memory = meter.u64_histogram("toolbus.script.memory.peak").with_unit("By");
        let memory = memory.with_description("Most memory that a script used.");
        let runs = runs.with_description("Scripts that had their turn.").build();
        for outcome in ScriptRun::OUTCOMES {
            runs.add(0, &labels(outcome, None));
            ScriptRun::STARTS.iter().for_each(|start| runs.add(0, &labels(outcome, Some(start))));
        }
        Self {
            runs,
            duration: seconds("toolbus.script.duration", "From a script's turn to its end."),
            queue_duration: seconds("toolbus.script.queue.duration", "How long a script waited for its turn."),
            cpu_time: seconds("toolbus.script.cpu.time", "CPU time of a script."),
            memory_peak: memory.with_boundaries(MEMORY_BOUNDS.to_vec()).build(),
        }
    }
}

/// Registers the instruments that are observed at each export.
pub(crate) fn observe(meter: &Meter, look: impl Fn() -> ScriptLoad + Send + Sync + 'static) {
    let look = Arc::new(look);
    let gauge = |name: &'static str, unit: &'static str, description: &'static str, part: fn(ScriptLoad) -> u64| {
        let look = Arc::clone(&look);
        let gauge = meter.u64_observable_gauge(name).with_unit(unit).with_description(description);
        gauge.with_callback(move |gauge| gauge.observe(part(look()), &[])).build();
    };
    gauge("toolbus.script.waiting", "{script}", "Scripts that wait for their turn.", |load| load.waiting);
    gauge("toolbus.script.running", "{script}", "Scripts that run.", |load| load.running);
    gauge("toolbus.script.warm", "{interpreter}", "Interpreters that wait for a script.", |load| load.warm);
    gauge("toolbus.script.sessions", "{session}", "Sessions that keep an interpreter.", |load| load.sessions);
}

/// Registers the level of the sandbox, which is looked up at each export.
pub(crate) fn observe_sandbox(meter: &Meter, look: impl Fn() -> Option<&'static str> + Send + Sync + 'static) {
    let level = meter.u64_observable_gauge("toolbus.sandbox.level").with_unit("{sandbox}");
    let level = level.with_description("1 for the level at which scripts and commands run, 0 for the others.");
    let observed = level.with_callback(move |gauge| {
        if let Some(reached) = look() {
            for level in LEVELS {
                gauge.observe(u64::from(level == reached), &[KeyValue::new("level", level)]);
            }
        }
    });
    observed.build();
}

fn labels(outcome: &'static str, start: Option<&'static str>) -> Vec<KeyValue> {
    let outcome = KeyValue::new("outcome", outcome);
    let start = start.map(|start| KeyValue::new("start", start));
    [outcome].into_iter().chain(start).collect()
}

fn among(known: &[&'static str], value: &str) -> &'static str {
    known.iter().find(|known| **known == value).copied().unwrap_or(OTHER)
}
