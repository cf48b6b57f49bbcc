//! Records of sub-agents.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Meter};
use toolbus_core::events::SubagentEvents;

use crate::labels::among;

/// Records reports of sub-agents. Without a collector it does nothing.
pub struct SubagentRecorder {
    reports: Option<Counter<u64>>,
}

impl SubagentRecorder {
    pub(crate) fn new(meter: Option<&Meter>) -> Self {
        let reports = meter.map(|meter| {
            let counter = meter.u64_counter("toolbus.subagent.reports").with_unit("{report}");
            let counter = counter.with_description("Reports of sub-agents.").build();
            let all = <dyn SubagentEvents>::OUTCOMES;
            all.iter().for_each(|outcome| counter.add(0, &[KeyValue::new("outcome", *outcome)]));
            counter
        });
        Self { reports }
    }
}

impl SubagentEvents for SubagentRecorder {
    fn reported(&self, outcome: &'static str) {
        if let Some(reports) = &self.reports {
            reports.add(1, &[KeyValue::new("outcome", among(&<dyn SubagentEvents>::OUTCOMES, outcome))]);
        }
    }
}
