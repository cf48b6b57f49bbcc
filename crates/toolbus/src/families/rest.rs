//! REST endpoints, also those that OpenAPI specifications describe. Those of tool sets of scope `session` run in the session
//! of their caller.

use std::collections::HashMap;
use std::sync::Arc;

use toolbus_agents::guides::GuideFor;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::redact::Redactor;
use toolbus_core::tool::{AnyExecutor, Executor, Membership, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::toolsets::{Instance, SessionFactory, SessionKey, SessionLimits, SessionSet};
use toolbus_tools::rest::{self, Endpoint, EndpointError, RestClient, RestClientError};

use super::{FamilyContext, FamilyError, FamilyGuide, FamilyPlan, ToolFamily};
use crate::config::Config;
use crate::config::toolsets::{Scope, ToolsetConfig, ToolsetMembers};

/// REST endpoints.
pub(super) struct RestFamily {
    /// Learns the tokens that endpoints take.
    redactor: Redactor,
}

impl RestFamily {
    pub(super) fn new(context: &FamilyContext<'_>) -> Self {
        Self { redactor: context.redactor.clone() }
    }
}

/// Reason why the endpoints cannot be called.
#[derive(Debug, thiserror::Error)]
enum EndpointsError {
    #[error("no HTTP client can be made: {0}")]
    Client(#[from] RestClientError),
    #[error("REST endpoint `{name}`: {error}")]
    Endpoint { name: String, error: EndpointError },
}

impl ToolFamily for RestFamily {
    fn name(&self) -> &'static str {
        "rest"
    }

    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        let (tools, sets) = in_sessions(plan.config, endpoints(plan.config, &self.redactor)?, plan.kept);
        plan.sessions.extend(sets);
        Ok(tools)
    }

    fn guides(&self) -> Vec<FamilyGuide> {
        vec![(GuideFor::Source("rest"), "rest", rest::GUIDE)]
    }
}

/// The endpoints as tools; connects to nothing.
fn endpoints(config: &Config, redactor: &Redactor) -> Result<Vec<Tool>, EndpointsError> {
    if config.rest.all().next().is_none() {
        return Ok(Vec::new());
    }
    let client = RestClient::new(config.egress_rules())?.redacting(redactor.clone());
    let members = ToolsetMembers::new(&config.toolsets);
    let tool = |endpoint: &Endpoint| {
        let mut tool = rest::tool(&published(endpoint, &members), &client)
            .map_err(|error| EndpointsError::Endpoint { name: endpoint.name.clone(), error })?;
        Arc::make_mut(&mut tool.descriptor).toolset = membership(endpoint, &members);
        Ok(tool)
    };
    config.rest.all().map(tool).collect()
}

/// An endpoint under its published name, which its failures have, too.
fn published(endpoint: &Endpoint, members: &ToolsetMembers<'_>) -> Endpoint {
    let mut published = endpoint.clone();
    published.name = members.published(&endpoint.name).to_string();
    published
}

fn membership(endpoint: &Endpoint, members: &ToolsetMembers<'_>) -> Option<Membership> {
    members.set_of(&endpoint.name).map(|(name, set)| Membership {
        set: name.into(),
        name: endpoint.name.as_str().into(),
        needs_session: set.scope == Scope::Session,
    })
}

/// The executors of the tools of a set, by their names within it. Endpoints have no state, so that all sessions share
/// it; only the lifetime of a session is its own.
#[derive(Clone)]
struct Endpoints(Arc<HashMap<Arc<str>, Arc<dyn AnyExecutor>>>);

impl SessionFactory for Endpoints {
    type Instance = Self;

    async fn start(&self, _: SessionKey) -> Result<Self, ToolFailure> {
        Ok(self.clone())
    }
}

impl Executor for Endpoints {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        match self.0.get(&call.tool) {
            Some(endpoint) => Arc::clone(endpoint).execute_boxed(call).await,
            None => {
                let text = format!("Tool '{}' is not in its tool set.", call.tool);
                Err(ToolFailure::new(Cause::UnknownTool, text))
            }
        }
    }
}

impl Instance for Endpoints {
    async fn stop(&self) {}
}

/// The same tools, those of sets of scope `session` as tools of sessions; and these sets. A set that `known` gives for a
/// name goes on, with its sessions.
fn in_sessions(
    config: &Config,
    tools: Vec<Tool>,
    known: &dyn Fn(&str) -> Option<Arc<SessionSet>>,
) -> (Vec<Tool>, Vec<Arc<SessionSet>>) {
    let mut others = Vec::new();
    let mut members = HashMap::<Arc<str>, Vec<Tool>>::new();
    for tool in tools {
        match &tool.descriptor.toolset {
            Some(member) if member.needs_session => members.entry(Arc::clone(&member.set)).or_default().push(tool),
            _ => others.push(tool),
        }
    }
    let mut sets = Vec::new();
    for (name, set) in &config.toolsets {
        let Some(members) = members.remove(name.as_str()) else { continue };
        let endpoints =
            members.iter().map(|tool| (Arc::clone(tool.descriptor.bare_name()), Arc::clone(&tool.executor)));
        let new = || SessionSet::new(name.as_str(), Endpoints(Arc::new(endpoints.collect())), limits(set));
        let sessions = known(name).unwrap_or_else(new);
        others.extend(members.iter().map(|tool| sessions.tool(ToolDescriptor::clone(&tool.descriptor))));
        sets.push(sessions);
    }
    (others, sets)
}

/// The limits of the sessions of a tool set.
pub(crate) fn limits(set: &ToolsetConfig) -> SessionLimits {
    SessionLimits { idle_timeout: set.idle_timeout.get(), max_lifetime: None, max_sessions: set.max_sessions }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Map;
    use toolbus_core::caller::{AgentName, Caller};
    use toolbus_core::registry::{Registry, Snapshot};
    use toolbus_core::toolsets::SessionSets;

    use super::*;
    use crate::families::{Planned, plan};

    /// A configuration, its tools, and their sessions.
    fn planned() -> (Config, Arc<Snapshot>, SessionSets) {
        let config: Config = serde_json::from_str(TEXT).unwrap();
        let Planned { tools, sessions, .. } =
            plan(&[Box::new(RestFamily { redactor: Redactor::default() })], &config, &|_| None).unwrap();
        let registry = Registry::new();
        registry.register_all(tools).unwrap();
        (config, registry.snapshot(), SessionSets::new(sessions))
    }

    /// Nothing listens at port 1 of the loopback address, so that a call that gets as far fails there.
    const TEXT: &str = r#"{
        "rest": {"endpoints": [
            {"name": "read", "description": "Reads", "url": "http://127.0.0.1:1/read", "effect": "read-only"},
            {"name": "list", "description": "Lists", "url": "http://127.0.0.1:1/list"},
            {"name": "get", "description": "Gets", "url": "http://127.0.0.1:1/get"}
        ]},
        "tools": {"limits": {"fs.*": {"timeout": "3s"}}},
        "toolsets": {
            "files": {"prefix": "fs", "kind": "rest", "scope": "session", "endpoints": ["read"], "max_sessions": 1},
            "lists": {"kind": "rest", "scope": "shared", "endpoints": ["list"]}
        }
    }"#;

    async fn run(tool: &Tool, agent: &str, session: Option<&str>) -> Cause {
        let caller = Caller::agent(AgentName::parse(agent).unwrap());
        let call = ToolCall::new(
            Arc::clone(tool.descriptor.bare_name()),
            Caller { session: session.map(Arc::from), ..caller },
            Map::new(),
            Duration::from_secs(30),
        );
        Arc::clone(&tool.executor).execute_boxed(call).await.unwrap_err().cause
    }

    #[tokio::test]
    async fn an_endpoint_of_a_session_set_runs_in_its_callers_session() {
        let (_, snapshot, sessions) = planned();
        let read = snapshot.get("fs.read").unwrap();
        assert_eq!(run(read, "ana", None).await, Cause::InvalidArguments);
        assert_eq!((run(read, "ana", Some("s")).await, sessions.sessions()), (Cause::ConnectFailed, 1));
        assert_eq!(run(read, "bob", Some("s")).await, Cause::Overloaded, "max_sessions is 1");
        sessions.end_session("ana", "s");
        sessions.shutdown().await;
        assert_eq!(sessions.sessions(), 0);
    }

    #[tokio::test]
    async fn other_endpoints_need_no_session_and_begin_none() {
        let (_, snapshot, sessions) = planned();
        for name in ["lists.list", "get"] {
            assert_eq!(run(snapshot.get(name).unwrap(), "ana", None).await, Cause::ConnectFailed, "{name}");
        }
        assert_eq!(sessions.sessions(), 0);
    }

    #[test]
    fn a_tool_of_a_session_set_is_described_and_limited_as_any_other() {
        let (config, snapshot, _) = planned();
        let mut alone = endpoints(&config, &Redactor::default()).unwrap();
        assert_eq!(snapshot.len(), alone.len());
        for tool in &mut alone {
            config.limit(tool);
            let registered = &snapshot.get(&tool.descriptor.name).unwrap().descriptor;
            assert_eq!(format!("{registered:?}"), format!("{:?}", tool.descriptor));
        }
        let read = &snapshot.get("fs.read").unwrap().descriptor;
        let member = Membership { set: "files".into(), name: "read".into(), needs_session: true };
        assert_eq!((read.timeout, &read.toolset), (Some(Duration::from_secs(3)), &Some(member)));
        assert_eq!(snapshot.get("get").unwrap().descriptor.toolset, None);
        assert_eq!(
            config.tool_names().last_chunk().unwrap().each_ref().map(AsRef::as_ref),
            ["fs.read", "lists.list", "get"]
        );
        assert!(snapshot.get("read").is_none(), "it is no plain tool");
    }
}
