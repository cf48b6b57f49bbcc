//! Decisions of a policy.

mod changes;
mod holes;
mod names;
mod profiles;
mod properties;
mod quarantine;
mod reach;
mod sets;

use std::sync::Arc;

use serde_json::Map;

use super::{AgentPolicy, Allowed, BindingPolicy, Capacity, EffectiveTools, Policy, PolicyHandle};
use crate::caller::{AgentName, Caller, Identity};
use crate::pattern::Pattern;
use crate::registry::Registry;
use crate::tool::{Membership, Tool, ToolDescriptor, ToolOutput};

const CAPACITY: Capacity = Capacity { max_in_flight: 256, max_waiting: 1024 };

/// A plain tool.
fn plain(name: &str, source: &str) -> Tool {
    Tool::new(ToolDescriptor::new(name, source, "local"), ToolOutput::default())
}

/// A tool of a set whose prefix is the set's name.
fn member(set: &str, name: &str, source: &str) -> Tool {
    let toolset = Some(Membership { set: set.into(), name: name.into(), needs_session: false });
    let descriptor = ToolDescriptor { toolset, ..ToolDescriptor::new(format!("{set}.{name}"), source, "local") };
    Tool::new(descriptor, ToolOutput::default())
}

fn patterns(texts: &[&str]) -> Vec<Pattern> {
    texts.iter().map(|text| Pattern::parse(text).unwrap()).collect()
}

fn only(texts: &[&str]) -> Allowed {
    Allowed::Only(patterns(texts))
}

fn agent(name: &str) -> AgentName {
    AgentName::parse(name).unwrap()
}

/// A policy with these sections, and the tool sets `fs` and `git`.
fn policy(agents: impl IntoIterator<Item = (&'static str, AgentPolicy)>) -> Policy {
    Policy {
        agents: agents.into_iter().map(|(name, section)| (agent(name), section)).collect(),
        toolsets: [("fs".into(), "fs".into()), ("git".into(), "git".into())].into(),
        ..Policy::default()
    }
}

fn registry(tools: Vec<Tool>) -> Registry {
    let registry = Registry::new();
    registry.register_all(tools).unwrap();
    registry
}

/// A section that allows these tools alone.
fn allowing(texts: &[&str]) -> AgentPolicy {
    AgentPolicy { tools: only(texts), ..AgentPolicy::default() }
}

/// A section that denies these tools.
fn denying(texts: &[&str]) -> AgentPolicy {
    AgentPolicy { denied: patterns(texts), ..AgentPolicy::default() }
}

/// A section with these tool sets.
fn having(sets: &[&str]) -> AgentPolicy {
    AgentPolicy { toolsets: sets.iter().map(|set| (*set).into()).collect(), ..AgentPolicy::default() }
}

/// Some tools, and this section for ana.
fn for_ana(section: AgentPolicy) -> PolicyHandle {
    access(some_tools(), policy([("ana", section)]))
}

fn access(tools: Vec<Tool>, policy: Policy) -> PolicyHandle {
    PolicyHandle::new(registry(tools), Identity::default(), policy, CAPACITY)
}

/// Some tools of each kind.
fn some_tools() -> Vec<Tool> {
    vec![
        plain("web_search", "web"),
        plain("web_browse", "web"),
        plain("get_weather", "rest"),
        plain("spawn_subagent", "subagent"),
        member("fs", "read_file", "mcp:filesystem"),
        member("fs", "write_file", "mcp:filesystem"),
        member("git", "status", "mcp:git"),
    ]
}

fn of(access: &PolicyHandle, caller: &Caller) -> Vec<String> {
    names(&access.effective(caller))
}

fn names(effective: &EffectiveTools) -> Vec<String> {
    effective.tools().iter().map(|allowed| allowed.tool.descriptor.name.to_string()).collect()
}

fn caller(name: &str) -> Caller {
    Caller::agent(agent(name))
}

fn with_binding(caller: Caller, binding: &str) -> Caller {
    Caller { binding: Some(binding.into()), ..caller }
}

fn with_profile(caller: Caller, profile: &str) -> Caller {
    Caller { profile: Some(profile.into()), ..caller }
}

fn in_session(caller: Caller, session: &str) -> Caller {
    Caller { session: Some(session.into()), ..caller }
}

fn binding(account: &str, tools: Allowed) -> BindingPolicy {
    BindingPolicy { channel: "whatsapp".into(), account: account.into(), tools, ..BindingPolicy::default() }
}

fn forced(pattern: &str, argument: &str, value: &str) -> (Pattern, Arc<Map<String, serde_json::Value>>) {
    (Pattern::parse(pattern).unwrap(), Arc::new([(argument.to_owned(), value.into())].into_iter().collect()))
}

fn replace(access: &PolicyHandle, policy: Policy) {
    access.replace(Identity::default(), policy, |_| Ok::<_, std::convert::Infallible>(())).unwrap();
}
