//! Search: `search_known_services` over MCP servers and other agents, and `search_tools` over tools, as far as the caller
//! can use them.

mod hints;
mod index;
mod query;

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use toolbus_core::caller::Caller;
use toolbus_core::failure::ToolFailure;
use toolbus_core::policy::{EffectiveTools, PolicyHandle};
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_protocol::AgentCard;

use self::index::{Indexes, ServiceIndex, ServiceMatch};
use crate::texts::as_json;

/// Names of the tools.
pub const NAMES: [&str; 2] = [SERVICES, TOOLS];
/// Source of the tools.
pub const SOURCE: &str = "service-search";
const SERVICES: &str = "search_known_services";
/// The tool that finds tools.
pub const FINDER: &str = TOOLS;
const TOOLS: &str = "search_tools";
/// Results of a search.
const MAX_RESULTS: usize = 5;
/// Longest query, in characters.
const MAX_QUERY: usize = 1000;

/// Purpose of an MCP server, by its name: in one line, if it is described.
pub type Summaries = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The cards of the agents that a caller may give tasks to.
pub type VisibleAgents = Arc<dyn Fn(&Caller) -> Vec<AgentCard> + Send + Sync>;

/// Sources that search reads beside the effective tools of a caller.
#[derive(Clone)]
pub struct SearchSources {
    /// Purposes of MCP servers.
    pub summaries: Summaries,
    /// The agents of a caller.
    pub agents: VisibleAgents,
    /// A number that changes whenever one of the two may return another text.
    pub version: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// Searches what callers can use. Cheap to clone.
#[derive(Clone)]
pub struct CallerSearch {
    policy: PolicyHandle,
    sources: SearchSources,
    indexes: Arc<Indexes>,
}

impl CallerSearch {
    /// Nothing is read before the first search. `policy` decides which tools a caller can use.
    #[must_use]
    pub fn new(policy: &PolicyHandle, sources: SearchSources) -> Self {
        Self { policy: policy.clone(), sources, indexes: Arc::default() }
    }

    /// The two tools.
    #[must_use]
    pub fn tools(&self) -> Vec<Tool> {
        vec![
            Tool::new(services_descriptor(), ServiceSearch(self.clone())),
            Tool::new(tools_descriptor(), ToolSearch(self.clone())),
        ]
    }

    /// The services of a caller; `None` if it is denied everything.
    fn services(&self, caller: &Caller, effective: &EffectiveTools) -> Option<Arc<ServiceIndex>> {
        self.indexes.services(caller, effective, &self.sources)
    }
}

fn services_descriptor() -> ToolDescriptor {
    descriptor(
        SERVICES,
        "Finds services that can help with a task, MCP servers and other agents, by what they and their tools or skills say \
         of themselves. Returns up to five, the best first, each with its best tools or skills.",
        "What you need, in a few words, such as `create an issue`",
    )
}

fn tools_descriptor() -> ToolDescriptor {
    descriptor(
        TOOLS,
        "Finds tools that you can use by their names and descriptions. Returns up to five, the best first, each with the JSON \
         Schema of its arguments.",
        "What the tool is to do, in a few words, such as `convert a time zone`",
    )
}

fn descriptor(name: &str, description: &str, query: &str) -> ToolDescriptor {
    let parameters = json!({
        "type": "object",
        "properties": { "query": {
            "type": "string", "minLength": 1, "maxLength": MAX_QUERY, "description": query,
        } },
        "required": ["query"],
        "additionalProperties": false,
    });
    ToolDescriptor::local(name, SOURCE, description, Effect::ReadOnly, parameters)
}

struct ServiceSearch(CallerSearch);

struct ToolSearch(CallerSearch);

#[derive(Serialize)]
struct SearchResults<T> {
    results: Vec<T>,
}

#[derive(Serialize)]
struct FoundService<'a> {
    id: &'a str,
    r#type: &'static str,
    summary: &'a str,
    relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_tools: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_skills: Option<Vec<&'a str>>,
}

#[derive(Serialize)]
struct FoundTool {
    name: Arc<str>,
    description: String,
    relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Arc<Value>>,
}

impl Executor for ServiceSearch {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let (search, query, caller) = (self.0.clone(), query(&call)?.to_owned(), Arc::clone(&call.caller));
        self.0.in_turn(&call, move || search.find_services(&caller, &query)).await
    }
}

impl Executor for ToolSearch {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let (search, query, caller) = (self.0.clone(), query(&call)?.to_owned(), Arc::clone(&call.caller));
        self.0.in_turn(&call, move || search.find_tools(&caller, &query)).await
    }
}

impl CallerSearch {
    /// The result of `search_known_services`.
    ///
    /// # Errors
    ///
    /// If the result cannot be written as JSON.
    pub fn find_services(&self, caller: &Caller, query: &str) -> Result<ToolOutput, ToolFailure> {
        let index = self.services(caller, &self.policy.effective(caller));
        let found = index.as_deref().map(|index| index.search(query, MAX_RESULTS)).unwrap_or_default();
        let results = found.into_iter().map(|ServiceMatch { service, relevance_score, top }| {
            let (top_tools, top_skills) = if service.kind.is_agent() { (None, Some(top)) } else { (Some(top), None) };
            let (id, r#type, summary) = (&*service.id, service.kind.as_str(), &*service.summary);
            FoundService { id, r#type, summary, relevance_score, top_tools, top_skills }
        });
        as_json(&SearchResults { results: results.collect() })
    }

    /// The result of `search_tools`.
    ///
    /// # Errors
    ///
    /// If the result cannot be written as JSON.
    pub fn find_tools(&self, caller: &Caller, query: &str) -> Result<ToolOutput, ToolFailure> {
        let effective = self.policy.effective(caller);
        let index = self.indexes.tools(&effective);
        let found = index.as_deref().map(|index| index.search(query, MAX_RESULTS)).unwrap_or_default();
        let results = found.into_iter().filter_map(|(name, relevance_score)| {
            // Without the arguments that are set for the caller.
            let tool = effective.definition(effective.get(name)?);
            let (name, description, parameters) = (tool.name, tool.description, tool.parameters);
            Some(FoundTool { name, description, relevance_score, parameters })
        });
        as_json(&SearchResults { results: results.collect() })
    }

    /// Does what takes long for thousands of tools, beside the threads that calls run on.
    async fn in_turn(
        &self,
        call: &ToolCall,
        work: impl FnOnce() -> Result<ToolOutput, ToolFailure> + Send + 'static,
    ) -> Result<ToolOutput, ToolFailure> {
        let (output, _turn) = self.policy.turns().run(call.caller.sharer(""), 0, call.deadline, work).await?;
        output
    }
}

fn query(call: &ToolCall) -> Result<&str, ToolFailure> {
    let query = call.arguments.get("query").and_then(Value::as_str);
    query.ok_or_else(|| ToolFailure::invalid("Missing required parameter: query."))
}

#[cfg(test)]
mod tests;
