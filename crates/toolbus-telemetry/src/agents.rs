//! Records of other agents and their tasks.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Meter};
use toolbus_core::events::{AgentEvents, AgentOutcomes};

use crate::labels::among;

/// Records announcements, messages about tasks, and tasks. Without a collector it does nothing.
pub struct AgentRecorder {
    instruments: Option<AgentInstruments>,
}

struct AgentInstruments {
    announcements: Counter<u64>,
    answers: Counter<u64>,
    tasks: Counter<u64>,
}

impl AgentRecorder {
    pub(crate) fn new(meter: Option<&Meter>) -> Self {
        Self { instruments: meter.map(AgentInstruments::new) }
    }
}

impl AgentEvents for AgentRecorder {
    fn announced(&self, outcome: &'static str) {
        if let Some(instruments) = &self.instruments {
            instruments.announcements.add(1, &[label(&AgentOutcomes::ANNOUNCEMENTS, outcome)]);
        }
    }

    fn task_message(&self, outcome: &'static str) {
        if let Some(instruments) = &self.instruments {
            instruments.answers.add(1, &[label(&AgentOutcomes::TASK_MESSAGES, outcome)]);
        }
    }

    fn task_ended(&self, outcome: &'static str) {
        if let Some(instruments) = &self.instruments {
            instruments.tasks.add(1, &[label(&AgentOutcomes::TASKS, outcome)]);
        }
    }
}

impl AgentInstruments {
    fn new(meter: &Meter) -> Self {
        let counter = |name: &'static str, unit: &'static str, description: &'static str| {
            meter.u64_counter(name).with_unit(unit).with_description(description).build()
        };
        Self {
            announcements: counter("toolbus.a2a.announcements", "{announcement}", "Announcements of agents."),
            answers: counter("toolbus.a2a.answers", "{answer}", "What agents said about tasks."),
            tasks: counter("toolbus.a2a.tasks", "{task}", "Tasks for agents, at their ends."),
        }
    }
}

fn label(known: &'static [&'static str], outcome: &'static str) -> KeyValue {
    KeyValue::new("outcome", among(known, outcome))
}
