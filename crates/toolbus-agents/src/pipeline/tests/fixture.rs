//! A dispatcher with tools, and the tool that runs pipelines of them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use toolbus_broker::embedded::Embedded;
use toolbus_core::failure::{Cause, Effect, ToolFailure};
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{AgentPolicy, Allowed};
use toolbus_core::progress::ProgressSink;
use toolbus_core::registry::Registry;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::{Clock, Dispatcher, InnerCall, InnerOrigin, Invoker as _};

use crate::pipeline::{NAME, Pipelines, PipelinesConfig};
use crate::testing;

/// The agents `ana`, who may not use `secret`, and `bob`, who may use everything.
pub(super) struct Fixture {
    pub(super) dispatcher: Dispatcher,
    pub(super) bus: Embedded,
    runs: Arc<Mutex<Vec<String>>>,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::with(&PipelinesConfig::default())
    }

    pub(super) fn with(config: &PipelinesConfig) -> Self {
        let registry = Registry::new();
        let names = [NAME, "echo"].into_iter().chain(ACTIONS.map(|(name, _)| name)).filter(|name| *name != "secret");
        let patterns = names.map(|name| Pattern::parse(name).unwrap()).collect();
        let ana = AgentPolicy { tools: Allowed::Only(patterns), ..AgentPolicy::default() };
        let agents = [("ana", ana), ("bob", AgentPolicy::default())];
        let policy = testing::policy(registry.clone(), agents);
        let (bus, runs) = (Embedded::new(), Arc::<Mutex<Vec<String>>>::default());
        let dispatcher = testing::dispatcher(&policy, &bus, None, Clock::SYSTEM);
        let pipelines = Pipelines::new(config, policy.clone(), Arc::new(dispatcher.clone()), Clock::SYSTEM);
        let acting = ACTIONS.map(|(name, effect)| {
            let descriptor = ToolDescriptor { effect, ..ToolDescriptor::new(name, "test", "local") };
            Tool::new(descriptor, Acting { name, runs: Arc::clone(&runs) })
        });
        let tools = acting.into_iter().chain([pipelines.tool(), echo()]);
        registry.register_all(tools.collect()).unwrap();
        policy.refresh();
        Self { dispatcher, bus, runs }
    }

    /// Returns what the tools were run with, in order.
    pub(super) fn runs(&self) -> Vec<String> {
        self.runs.lock().clone()
    }

    pub(super) async fn call_as(
        &self,
        agent: &str,
        arguments: Value,
        time: Duration,
        progress: Option<ProgressSink>,
    ) -> Result<ToolOutput, ToolFailure> {
        let call = InnerCall {
            origin: InnerOrigin::McpClient,
            caller: Arc::new(testing::agent(agent)),
            call_id: "call-1".into(),
            server: None,
            tool: NAME.to_owned(),
            arguments: Some(arguments.to_string()),
            deadline: Some(Clock::SYSTEM.now() + time),
            cancelled: CancellationToken::new(),
            trace: None,
            around: None,
            progress,
            idempotency_key: None,
        };
        self.dispatcher.invoke(call).await
    }

    /// Returns what ana gets for these pipelines.
    pub(super) async fn call(&self, definitions: Value) -> Result<ToolOutput, ToolFailure> {
        self.call_as("ana", json!({"definitions": definitions}), Duration::from_secs(60), None).await
    }

    /// The reports of pipelines with these steps.
    pub(super) async fn reports(&self, pipelines: &[Value]) -> Value {
        let definition = |steps: &Value| json!({"description": "a test", "steps": steps});
        let output = self.call(pipelines.iter().map(definition).collect()).await.unwrap();
        let mut reports: Value = serde_json::from_str(&output.content.unwrap()).unwrap();
        reports["pipelines"].take()
    }

    /// The report of one pipeline with these steps.
    pub(super) async fn report(&self, steps: Value) -> Value {
        self.reports(&[steps]).await[0].take()
    }

    /// Reason why a pipeline with these steps is refused, before any of them runs.
    pub(super) async fn refused(&self, steps: Value) -> String {
        let failure = self.call(json!([{"description": "a test", "steps": steps}])).await.unwrap_err();
        assert_eq!((failure.cause, self.runs()), (Cause::InvalidArguments, Vec::new()));
        failure.message
    }
}

/// Each step with its outcome and details.
pub(super) fn outcomes(report: &Value) -> String {
    let steps = report["steps"].as_array().unwrap().iter().map(|step| {
        let fields = step.as_object().unwrap().iter().filter(|(name, _)| *name != "id" && *name != "outcome");
        let fields: Vec<String> = fields.map(|(name, value)| format!("{name}={value}")).collect();
        format!("{} {} {}", step["id"].as_str().unwrap(), step["outcome"].as_str().unwrap(), fields.join(" "))
    });
    steps.map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn echo() -> Tool {
    let schema = json!({
        "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": false,
    });
    let descriptor = ToolDescriptor {
        parameters: Some(Arc::new(schema)),
        effect: Effect::ReadOnly,
        ..ToolDescriptor::new("echo", "test", "local")
    };
    Tool::new(descriptor, Echo)
}

struct Echo;

impl Executor for Echo {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::text(call.arguments["text"].as_str().unwrap()))
    }
}

/// Tools that note how they were run.
const ACTIONS: [(&str, Effect); 8] = [
    ("give", Effect::ReadOnly),
    ("flaky", Effect::ReadOnly),
    ("fail", Effect::ReadOnly),
    ("unreachable", Effect::Effectful),
    ("pay", Effect::Effectful),
    ("pay_undeclared", Effect::Undeclared),
    ("hang", Effect::Effectful),
    ("secret", Effect::ReadOnly),
];

struct Acting {
    name: &'static str,
    runs: Arc<Mutex<Vec<String>>>,
}

impl Executor for Acting {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let before = {
            let mut runs = self.runs.lock();
            let before = runs.iter().filter(|run| run.starts_with(self.name)).count();
            runs.push(format!("{} {}", self.name, Value::Object((*call.arguments).clone())));
            before
        };
        match self.name {
            // As a JSON text, which most tools return.
            "give" => Ok(match &call.arguments["value"] {
                Value::String(text) => ToolOutput::text(text.clone()),
                value => ToolOutput::text(value.to_string()),
            }),
            "flaky" if before < 2 => Err(ToolFailure::new(Cause::ConnectionLost, "Gone.")),
            "fail" => Ok(ToolOutput::error("It did not work.")),
            "unreachable" if before < 2 => Err(ToolFailure::new(Cause::ConnectFailed, "Not there.")),
            "pay" | "pay_undeclared" => Err(ToolFailure::new(Cause::ConnectionLost, "Gone after the request.")),
            "hang" => std::future::pending().await,
            _ => Ok(ToolOutput::text("done")),
        }
    }
}
