//! The tools that there are, as operators see them.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolbus_core::log::shown;
use toolbus_core::tool::{Effect, ToolDescriptor};

use super::view::{Role, ToolDetails, Tools};
use super::{Admin, AdminError};
use crate::config::problem::nearest;

/// Which tools are asked for; nothing: all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolsQuery {
    /// The one of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Those that this agent may use, as it is shown them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The agent's binding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// The profile that the agent's request names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
}

impl Admin {
    /// The tools that there are, sorted by name.
    ///
    /// # Errors
    ///
    /// If no agent can have the given name, or there is no tool of the given name.
    pub fn tools(&self, query: &ToolsQuery) -> Result<Tools, AdminError> {
        let wanted = |tool: &ToolDescriptor| query.name.as_deref().is_none_or(|name| *tool.name == *name);
        let (tools, names, nothing) = match &query.agent {
            None => {
                let all = self.gates.access().current().tools();
                let tools: Vec<_> = all
                    .iter()
                    .filter(|tool| wanted(tool))
                    .map(|tool| self.details(tool, tool.parameters.clone()))
                    .collect();
                (tools, all.iter().map(|tool| Arc::clone(&tool.name)).collect::<Vec<_>>(), None)
            }
            Some(agent) => {
                let role = Role { binding: query.binding.clone(), profile: query.profile.clone(), session: None };
                let effective = self.effective(agent, &role)?;
                let (mut tools, mut names) = (Vec::new(), Vec::new());
                for granted in effective.tools() {
                    let tool = &granted.tool.descriptor;
                    if wanted(tool) {
                        tools.push(self.details(tool, effective.definition(granted).parameters));
                    }
                    names.push(Arc::clone(&tool.name));
                }
                (tools, names, effective.nothing().map(|reason| reason.to_string()))
            }
        };
        match &query.name {
            Some(name) if tools.is_empty() => {
                let near = nearest(name, names.iter().map(|name| &**name));
                let others = match near {
                    Some(near) => format!("did you mean `{}`?", shown(near)),
                    None => "`toolbus tools` lists all".to_owned(),
                };
                let agent = query.agent.as_deref().map(|agent| format!(" for {}", shown(agent))).unwrap_or_default();
                Err(AdminError::Tool(format!("there is no tool `{}`{agent}: {others}", shown(name))))
            }
            _ => Ok(Tools { nothing, tools }),
        }
    }

    fn details(&self, tool: &ToolDescriptor, parameters: Option<Arc<Value>>) -> ToolDetails {
        ToolDetails {
            name: tool.name.to_string(),
            description: tool.description.clone(),
            source: tool.source.to_string(),
            provider: tool.provider.to_owned(),
            effect: effect(tool.effect).to_owned(),
            timeout_ms: tool.timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            max_in_flight: tool.max_in_flight,
            unavailable: self.unavailable(tool),
            parameters: parameters.map(Arc::unwrap_or_clone),
        }
    }

    /// Why nobody can call `tool` now.
    fn unavailable(&self, tool: &ToolDescriptor) -> Option<String> {
        let access = self.gates.access();
        if let Some(switch) = access.switch_of(tool) {
            return Some(format!("{} {} is switched off", switch.kind(), switch.name()));
        }
        access.current().held_back(&tool.name).map(|reason| format!("quarantined: {reason}"))
    }
}

const fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::ReadOnly => "read-only",
        Effect::Idempotent => "idempotent",
        Effect::Effectful => "effectful",
        Effect::Undeclared => "undeclared",
    }
}

/// The route `/v1/tools`.
pub(super) fn routes(admin: Arc<Admin>) -> Router {
    Router::new().route("/tools", get(tools)).with_state(admin)
}

async fn tools(
    State(admin): State<Arc<Admin>>,
    query: Result<Query<ToolsQuery>, QueryRejection>,
) -> Result<Json<Tools>, AdminError> {
    let Query(query) = query.map_err(|error| AdminError::Request(error.body_text()))?;
    Ok(Json(admin.tools(&query)?))
}
