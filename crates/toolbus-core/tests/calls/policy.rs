//! Tools that are listed, that can be called and that are explained are the same, whatever the policy.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};

use toolbus_core::bus::Bus;
use toolbus_core::caller::{AgentName, Caller, Identity};
use toolbus_core::events::Discard;
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{
    AgentPolicy, Allowed, BindingPolicy, Capacity, DefinitionCheck, Policy, PolicyHandle, Quarantine, Switch,
};
use toolbus_core::registry::Registry;
use toolbus_core::tool::{Membership, Tool, ToolDescriptor, ToolOutput};

use toolbus_core::{AllArrived, Dispatcher, Gates};
use toolbus_protocol::llm_name;
use toolbus_testing::recording_bus::RecordingBus;

use crate::fixture::{Message, call, control, delivery, request, sent, serve, settings};

const NAMES: [&str; 5] = ["a", "ab", "b.a", "cancel_scheduled_task", "é"];
const SOURCES: [&str; 3] = ["web", "subagent", "a2a"];
const SETS: [&str; 2] = ["fs", "git"];

fn tools() -> impl Strategy<Value = Vec<Tool>> {
    let tool = (option::of(0..SETS.len()), 0..NAMES.len(), 0..SOURCES.len());
    vec(tool, 0..8).prop_map(|tools| {
        let mut descriptors: Vec<ToolDescriptor> = Vec::new();
        for (set, name, source) in tools {
            let toolset =
                set.map(|set| Membership { set: SETS[set].into(), name: NAMES[name].into(), needs_session: false });
            let published = set.map_or(NAMES[name].to_owned(), |set| format!("{}.{}", SETS[set], NAMES[name]));
            if descriptors.iter().all(|known| *known.name != *published) {
                descriptors
                    .push(ToolDescriptor { toolset, ..ToolDescriptor::new(published, SOURCES[source], "local") });
            }
        }
        descriptors.into_iter().map(|descriptor| Tool::new(descriptor, ToolOutput::text("done"))).collect()
    })
}

fn patterns(most: usize) -> impl Strategy<Value = Vec<Pattern>> {
    vec("[abfs*?é.]{1,4}".prop_map(|text| Pattern::parse(&text).unwrap()), 0..most)
}

fn allowed() -> impl Strategy<Value = Allowed> {
    prop_oneof![Just(Allowed::All), Just(Allowed::None), patterns(4).prop_map(Allowed::Only)]
}

fn section() -> impl Strategy<Value = AgentPolicy> {
    let profile = option::of(prop::sample::select(vec!["main", "subagent", "a2a-synthesis"]));
    let sets = prop::sample::subsequence(SETS.to_vec(), 0..=SETS.len());
    (allowed(), patterns(2), sets, profile, allowed(), patterns(2)).prop_map(
        |(tools, denied, sets, profile, of_binding, denied_there)| AgentPolicy {
            tools,
            denied,
            toolsets: sets.into_iter().map(Into::into).collect(),
            profile: profile.map(Into::into),
            bindings: vec![BindingPolicy {
                channel: "chat".into(),
                account: "sales".into(),
                tools: of_binding,
                denied: denied_there,
                ..BindingPolicy::default()
            }],
            ..AgentPolicy::default()
        },
    )
}

/// Holds back the tool of this name.
struct Holds(String);

impl DefinitionCheck for Holds {
    fn review(&self, tools: &[Arc<ToolDescriptor>]) -> Quarantine {
        let mut held = Quarantine::default();
        tools.iter().filter(|tool| *tool.name == *self.0).for_each(|tool| held.insert(tool, "it changed"));
        held
    }

    fn admits(&self, _: &ToolDescriptor) -> bool {
        true
    }
}

struct World {
    bus: Arc<RecordingBus>,
    gates: Arc<Gates>,
    dispatcher: Dispatcher,
}

impl World {
    fn new(tools: &[Tool], ana: AgentPolicy, off: Option<&str>, held: Option<&str>) -> Self {
        let registry = Registry::new();
        registry.register_all(tools.to_vec()).unwrap();
        let policy = Policy {
            agents: [(AgentName::parse("ana").unwrap(), ana)].into(),
            toolsets: SETS.map(|set| (set.into(), set.into())).into(),
            ..Policy::default()
        };
        let access =
            PolicyHandle::new(registry, Identity::default(), policy, Capacity { max_in_flight: 4, max_waiting: 4 });
        if let Some(name) = off {
            access.disable(Switch::new("tool", name).unwrap()).unwrap();
        }
        if let Some(name) = held {
            access.set_definition_check(Arc::new(Holds(name.to_owned())));
        }
        let (bus, gates) = (Arc::<RecordingBus>::default(), Arc::new(Gates::new(access)));
        let of_calls = (Arc::clone(&gates), Arc::clone(&bus) as Arc<dyn Bus>);
        let sink = (Arc::new(Discard), Arc::new(Discard));
        let dispatcher =
            Dispatcher::new(settings(), of_calls.0, of_calls.1, sink.0, sink.1, Arc::default(), Arc::new(AllArrived));
        Self { bus, gates, dispatcher }
    }

    fn last_body(&self) -> Value {
        sent(&self.bus).pop().unwrap().body
    }

    /// Whether a call of this name runs; if it does not, there is no such tool for its caller.
    async fn runs(&self, name: &str, role: impl Fn(Message) -> Message) -> bool {
        self.dispatcher.handle(delivery(role(call(name, json!({})))).0).await;
        let body = self.last_body();
        assert!(body["content"] == "done" || body["code"] == "tool_not_found", "{body}");
        body["content"] == "done"
    }

    async fn listed(&self, role: impl Fn(Message) -> Message) -> Vec<String> {
        let message = role(request(&json!({})).typed(Some("Toolbus.ToolListRequest")));
        serve(&self.dispatcher, &control(&self.dispatcher, &self.bus), "tool.list", message).await;
        let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
        self.last_body()["tools"].as_array().unwrap().iter().map(name).collect()
    }
}

#[tokio::test]
async fn tools_of_other_daemons_are_not_listed_for_a_daemon_and_leave_its_version() {
    let tool = |name: &str, is_learnt| {
        Tool::new(ToolDescriptor { is_learnt, ..ToolDescriptor::new(name, "local", "local") }, ToolOutput::text("done"))
    };
    let world = |tools: &[Tool]| World::new(tools, AgentPolicy::default(), None, None);
    let as_daemon = |message: Message| message.header("rb-rb-hops", "1");
    let without = world(&[tool("own", false)]);
    assert_eq!(without.listed(as_daemon).await, ["own"]);
    let version = without.last_body()["version"].clone();

    let with = world(&[tool("learnt", true), tool("own", false)]);
    assert_eq!(with.listed(as_daemon).await, ["own"]);
    assert_eq!(with.last_body()["version"], version);
    assert_eq!(with.listed(|message| message).await, ["learnt", "own"], "for an agent");
    assert!(with.runs("learnt", as_daemon).await, "it is a tool as others are");

    let only = world(&[tool("learnt", true)]);
    assert!(only.listed(as_daemon).await.is_empty());
    insta::assert_snapshot!(only.last_body()["notice"].as_str().unwrap(), @"The tools for this daemon are those that other daemons list, and these are not passed on.");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_listed_tools_are_those_that_can_be_called_and_are_explained(
        tools in tools(), ana in section(), off in option::of(0..8_usize),
        held in option::of(0..8_usize),
        binding in option::of(prop::sample::select(vec!["chat:sales", "chat:other"])),
        profile in option::of(prop::sample::select(vec!["main", "subagent", "root"])),
    ) {
        let named = |number: Option<usize>| Some(tools.get(number?)?.descriptor.name.to_string());
        let world = World::new(&tools, ana, named(off).as_deref(), named(held).as_deref());
        let role = |message: Message| {
            let given = [("rb-rb-binding", binding), ("rb-rb-tool-profile", profile)];
            given.into_iter().fold(message, |message, (name, value)| match value {
                Some(value) => message.header(name, value),
                None => message,
            })
        };
        let caller = Caller {
            binding: binding.map(Into::into),
            profile: profile.map(Into::into),
            ..Caller::agent(AgentName::parse("ana").unwrap())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listed = world.listed(role).await;
            for tool in &tools {
                let name = &*tool.descriptor.name;
                let is_listed = listed.iter().any(|listed| listed == name);
                assert_eq!(world.runs(name, role).await, is_listed, "{name}");
                assert_eq!(world.runs(&llm_name(name), role).await, is_listed, "{name}, as models know it");
                let steps = world.gates.explain(&caller, name, Some("{}"));
                assert_eq!(steps.iter().all(|step| step.passes), is_listed, "{name}: {steps:?}");
            }
        });
    }
}
