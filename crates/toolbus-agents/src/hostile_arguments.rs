//! Every tool of other agents, pipelines, sub-agents and the whiteboard, with missing, wrong, huge and hostile
//! arguments. The calls go through the dispatcher, as those of callers do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use toolbus_broker::embedded::Embedded;
use toolbus_core::caller::AgentName;
use toolbus_core::events::Discard;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::policy::AgentPolicy;
use toolbus_core::redact::Redactor;
use toolbus_core::registry::Registry;
use toolbus_core::store::Store;
use toolbus_core::tool::{Tool, ToolOutput};
use toolbus_core::{Clock, Dispatcher, InnerCall, InnerOrigin, Invoker as _};
use toolbus_outbound::egress::{Egress, EgressRules};
use toolbus_protocol::Random;
use toolbus_store::MemoryStore;

use crate::a2a::{A2aConfig, A2aTools, AgentDirectory, AgentService, AgentTasks, AllowedAgents};
use crate::pipeline::{Pipelines, PipelinesConfig};
use crate::subagent::{Subagents, SubagentsConfig};
use crate::testing;

/// Longest text about a mistake, in bytes.
const MAX_TEXT: usize = 4000;

fn fixture() -> (Dispatcher, Vec<Tool>) {
    let (bus, store, registry) = (Embedded::new(), Arc::<MemoryStore>::default() as Arc<dyn Store>, Registry::new());
    let policy = testing::policy(registry.clone(), [("ana", AgentPolicy::default())]);
    let dispatcher = testing::dispatcher(&policy, &bus, None, Clock::SYSTEM);
    let (config, clock) = (A2aConfig::default(), Clock::SYSTEM);
    let directory = AgentDirectory::new(&config, "toolbus", clock).unwrap();
    let service = AgentService::new(
        config,
        directory,
        AgentTasks::new(Arc::clone(&store)),
        Arc::new(bus.clone()),
        ("toolbus".to_owned(), "toolbus"),
        Arc::new(Discard),
        (clock, Random::SYSTEM, Redactor::default()),
    );
    let (allowed, egress) = (AllowedAgents::new(BTreeMap::new(), None), Egress::new(EgressRules::default(), "test"));
    let pools = [("thinkers".to_owned(), vec![AgentName::parse("w1").unwrap()])].into();
    let config = SubagentsConfig { pools, ..SubagentsConfig::default() };
    let parts = (clock, Random::SYSTEM);
    let subagents = Subagents::new(&config, &store, Arc::new(bus), Arc::new(Discard), "toolbus", parts);
    let invoker = Arc::new(dispatcher.clone());
    let pipelines = Pipelines::new(&PipelinesConfig::default(), policy.clone(), invoker, clock);
    let tools = [
        A2aTools::new(service, allowed, egress.unwrap()).tools(),
        subagents.tools(),
        subagents.whiteboard_tools(),
        vec![pipelines.tool()],
    ];
    let tools = tools.concat();
    registry.register_all(tools.clone()).unwrap();
    policy.refresh();
    (dispatcher, tools)
}

async fn call(dispatcher: &Dispatcher, tool: &str, arguments: String) -> Result<ToolOutput, ToolFailure> {
    let call = InnerCall {
        origin: InnerOrigin::McpClient,
        caller: Arc::new(testing::agent("ana")),
        call_id: "call-1".into(),
        server: None,
        tool: tool.to_owned(),
        arguments: Some(arguments),
        deadline: Some(Clock::SYSTEM.now() + Duration::from_secs(60)),
        cancelled: CancellationToken::new(),
        trace: None,
        around: None,
        progress: None,
        idempotency_key: None,
    };
    dispatcher.invoke(call).await
}

/// Returns a value that the schema of a parameter takes.
fn fitting(schema: &Value) -> Value {
    match schema["type"].as_str().unwrap() {
        "string" => schema["enum"].get(0).cloned().unwrap_or_else(|| "x".into()),
        "integer" => schema["minimum"].clone(),
        "boolean" => false.into(),
        "array" => json!([{"description": "x", "steps": [{"id": "a", "tool": "none"}]}]),
        other => panic!("{other}"),
    }
}

/// Values of no parameter, and those that are too large or strange for most.
fn hostile() -> Vec<Value> {
    let nested = (0..100).fold(json!("x"), |inner, _| json!([inner]));
    vec![
        json!(null),
        json!(-1),
        json!(0.5),
        json!(1e300),
        json!(u64::MAX),
        json!(""),
        json!("\u{0}\u{1b}[31m\u{202e}\n"),
        json!("{{a}}; DROP TABLE tasks; ../../etc/passwd # * tool.#"),
        json!("x".repeat(900_000)),
        json!([]),
        json!({"$ref": "#", "__proto__": {}}),
        json!(vec![json!({}); 10_000]),
        nested,
    ]
}

/// Checks the result of a mistake: it is a refusal, short, and without control characters of the caller's.
fn check(about: &str, called: Result<ToolOutput, ToolFailure>, must_be_refused: bool) {
    let text = match called {
        Err(failure) => {
            let known = [Cause::InvalidArguments, Cause::NotAllowed, Cause::MalformedRequest];
            assert!(known.contains(&failure.cause), "{about}: {failure:?}");
            failure.message
        }
        Ok(output) => {
            assert!(!must_be_refused, "{about}: {output:?}");
            output.content.unwrap()
        }
    };
    assert!(text.len() <= MAX_TEXT, "{about}: {} bytes", text.len());
    assert!(!text.contains(|one: char| one.is_control() && one != '\n' || one == '\u{202e}'), "{about}: {text:?}");
}

#[tokio::test]
async fn every_tool_returns_a_short_text_for_missing_wrong_huge_or_hostile_arguments() {
    let (dispatcher, tools) = fixture();
    assert_eq!(tools.len(), 12);
    for tool in tools {
        let (name, schema) = (&*tool.descriptor.name, tool.descriptor.parameters.as_ref().unwrap());
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap()).collect();
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        let fit: Map<String, Value> =
            required.iter().map(|name| ((*name).to_owned(), fitting(&properties[*name]))).collect();
        for missing in &required {
            let mut arguments = fit.clone();
            arguments.remove(*missing);
            let called = call(&dispatcher, name, Value::Object(arguments).to_string()).await;
            check(&format!("{name} without {missing}"), called, true);
        }
        for property in properties.keys() {
            for value in hostile() {
                let mut arguments = fit.clone();
                let about = format!("{name}, {property}: {:.60}", value.to_string());
                let is_text = value.as_str().is_some_and(|text| !text.is_empty() && text.len() < 60);
                let must_be_refused = !is_text && value.is_object() || value.to_string().len() > 500_000;
                arguments.insert(property.clone(), value);
                let called = call(&dispatcher, name, Value::Object(arguments).to_string()).await;
                check(&about, called, must_be_refused);
            }
        }
        if schema["additionalProperties"] == false {
            let mut arguments = fit.clone();
            arguments.insert("as_agent\u{202e}".to_owned(), "bob".into());
            let called = call(&dispatcher, name, Value::Object(arguments).to_string()).await;
            check(&format!("{name} with more"), called, true);
        }
        for text in
            ["", "[", "[]", "1", "null", "{\"a\":1,\"a\":2}", &"[".repeat(100_000), &"x".repeat(2 * 1024 * 1024)]
        {
            let is_empty = text.is_empty() || text == "null";
            check(&format!("{name}: {text:.20}"), call(&dispatcher, name, text.to_owned()).await, !is_empty);
        }
    }
}
