//! Tools that record their calls, and the agent `ana`, who may use them.

use parking_lot::Mutex;
use toolbus_core::failure::{Cause, Effect, ToolFailure};
use toolbus_core::policy::AgentPolicy;
use toolbus_core::registry::Registry;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};

use super::*;

const TOOLS: [(&str, Effect); 6] = [
    ("send", Effect::Effectful),
    ("look", Effect::ReadOnly),
    ("hang", Effect::Effectful),
    ("hang_looking", Effect::ReadOnly),
    ("unreachable_twice", Effect::Effectful),
    ("unreachable", Effect::Effectful),
];

pub(super) struct Tools {
    pub(super) policy: PolicyHandle,
    pub(super) registry: Registry,
    runs: Runs,
}

/// The calls that have begun, and those that run.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<(Vec<String>, Vec<String>)>>);

struct Noting(&'static str, Runs);

/// A call that runs, until it is dropped.
struct Running<'a>(&'a str, &'a Runs);

impl Tools {
    pub(super) fn new() -> Self {
        let (registry, runs) = (Registry::new(), Runs::default());
        let tool = |(name, effect): (&'static str, Effect)| {
            let descriptor = ToolDescriptor { effect, ..ToolDescriptor::new(name, "test", "local") };
            Tool::new(descriptor, Noting(name, runs.clone()))
        };
        registry.register_all(TOOLS.map(tool).into()).unwrap();
        let policy = testing::policy(registry.clone(), [("ana", AgentPolicy::default())]);
        policy.refresh();
        Self { policy, registry, runs }
    }

    /// Returns the calls of the tools, with their callers, in order.
    pub(super) fn runs(&self) -> Vec<String> {
        self.runs.0.lock().0.clone()
    }

    /// Counts the calls that run.
    pub(super) fn running(&self) -> usize {
        self.runs.0.lock().1.len()
    }

    pub(super) fn remove_all(&self) {
        self.registry.replace_all(Vec::new()).unwrap();
        self.policy.refresh();
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let running = &mut self.1.0.lock().1;
        let index = running.iter().position(|name| name == self.0).unwrap();
        running.remove(index);
    }
}

impl Executor for Noting {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let Self(name, runs) = self;
        let before = {
            let (begun, running) = &mut *runs.0.lock();
            let caller = &call.caller;
            let as_whom = (caller.owner.as_ref(), caller.profile.as_deref(), caller.has_section);
            begun.push(format!("{name} {} as {as_whom:?}", serde_json::Value::Object((*call.arguments).clone())));
            running.push((*name).to_owned());
            begun.iter().filter(|run| run.starts_with(&format!("{name} "))).count() - 1
        };
        let _running = Running(name, runs);
        match *name {
            "hang" | "hang_looking" => {
                tokio::time::sleep(Duration::from_secs(30)).await;
                Ok(ToolOutput::text("at last"))
            }
            "unreachable" => Err(ToolFailure::new(Cause::ConnectFailed, "Not there.")),
            "unreachable_twice" if before < 2 => Err(ToolFailure::new(Cause::ConnectFailed, "Not there.")),
            _ => Ok(ToolOutput::text(format!("done {before}"))),
        }
    }
}
