//! Search: `search_known_services` over MCP servers and other agents, and `search_tools` over tools, as far as the caller
//! can use them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use toolbus_core::caller::Caller;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::policy::{AllowedTool, PolicyHandle};
use toolbus_core::rank::rank_with_scores;
use toolbus_core::text::shortened;
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_protocol::AgentCard;

use crate::a2a::tools::INVOKE;

/// Names of the tools.
pub const NAMES: [&str; 2] = [SERVICES, TOOLS];
/// Source of the tools.
pub const SOURCE: &str = "service-search";
const SERVICES: &str = "search_known_services";
const TOOLS: &str = "search_tools";
/// Results of a search.
const MAX_RESULTS: usize = 5;
/// Tools of a service that are named.
const MAX_TOP: usize = 3;
/// Longest query, in characters.
const MAX_QUERY: usize = 1000;
/// What an agent is found by, in bytes: its card is what an outsider wrote, and there may be many.
const MAX_CARD: usize = 4096;
/// Longest summary, in characters.
const MAX_SUMMARY: usize = 300;

/// What an MCP server says of itself, by its name: a summary, if it has one.
pub type Summaries = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The cards of the agents that a caller may give tasks to.
pub type VisibleAgents = Arc<dyn Fn(&Caller) -> Vec<AgentCard> + Send + Sync>;

/// The two tools; `policy` says what a caller can use, and `agents` whom it may give tasks.
#[must_use]
pub fn tools(policy: &PolicyHandle, summaries: Summaries, agents: VisibleAgents) -> Vec<Tool> {
    vec![
        Tool::new(services_descriptor(), ServiceSearch { policy: policy.clone(), summaries, agents }),
        Tool::new(tools_descriptor(), ToolSearch { policy: policy.clone() }),
    ]
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
    ToolDescriptor {
        description: description.to_owned(),
        parameters: Some(Arc::new(parameters)),
        effect: Effect::ReadOnly,
        ..ToolDescriptor::new(name, SOURCE, "local")
    }
}

struct ServiceSearch {
    policy: PolicyHandle,
    summaries: Summaries,
    agents: VisibleAgents,
}

struct ToolSearch {
    policy: PolicyHandle,
}

#[derive(Serialize)]
struct SearchResults<T> {
    results: Vec<T>,
}

#[derive(Serialize)]
struct FoundService<'a> {
    id: &'a str,
    r#type: &'static str,
    summary: String,
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
        let query = query(&call)?;
        let effective = self.policy.effective(&call.caller);
        let mut servers: BTreeMap<&str, Vec<AllowedTool<'_>>> = BTreeMap::new();
        for allowed in effective.of_servers() {
            if let Some(server) = allowed.tool.descriptor.server.as_deref() {
                servers.entry(server).or_default().push(allowed);
            }
        }
        let servers: Vec<_> = servers.into_iter().map(|(name, tools)| (name, (self.summaries)(name), tools)).collect();
        // An agent is asked by a tool, which the caller must be able to use.
        let may_ask = effective.get(INVOKE).is_some();
        let agents = if may_ask { (self.agents)(&call.caller) } else { Vec::new() };
        let of_servers = servers.iter().map(|(name, summary, tools)| {
            let tools = tools.iter().map(|allowed| text(&allowed.tool.descriptor));
            let own = [(*name).to_owned(), summary.clone().unwrap_or_default()];
            own.into_iter().chain(tools).collect::<Vec<_>>().join(" ")
        });
        let texts: Vec<String> = of_servers.chain(agents.iter().map(of_agent)).collect();
        let results = best(query, &texts).into_iter().filter_map(|(position, relevance_score)| {
            if let Some(card) = position.checked_sub(servers.len()).and_then(|position| agents.get(position)) {
                let summary = card.description.as_deref().unwrap_or(&card.agent_name);
                return Some(FoundService {
                    id: &card.agent_name,
                    r#type: "a2a",
                    summary: shortened(summary, MAX_SUMMARY).into_owned(),
                    relevance_score,
                    top_tools: None,
                    top_skills: Some(card.skills.iter().take(MAX_TOP).map(|skill| &*skill.id).collect()),
                });
            }
            let (name, summary, tools) = servers.get(position)?;
            let texts: Vec<String> = tools.iter().map(|allowed| text(&allowed.tool.descriptor)).collect();
            let mut order: Vec<usize> = rank_with_scores(query, &texts).into_iter().map(|(tool, _)| tool).collect();
            order.extend((0..tools.len()).filter(|tool| !order.contains(tool)).collect::<Vec<_>>());
            let top = order.into_iter().take(MAX_TOP).filter_map(|tool| tools.get(tool));
            Some(FoundService {
                id: name,
                r#type: "mcp",
                summary: shortened(summary.as_deref().unwrap_or(name), MAX_SUMMARY).into_owned(),
                relevance_score,
                top_tools: Some(top.map(|allowed| &**allowed.tool.descriptor.bare_name()).collect()),
                top_skills: None,
            })
        });
        written(&SearchResults { results: results.collect() })
    }
}

impl Executor for ToolSearch {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let query = query(&call)?;
        let effective = self.policy.effective(&call.caller);
        let tools = effective.tools();
        let texts: Vec<String> = tools.iter().map(|allowed| text(&allowed.tool.descriptor)).collect();
        let results = best(query, &texts).into_iter().filter_map(|(position, relevance_score)| {
            // Without the arguments that are set for the caller.
            let tool = effective.definition(*tools.get(position)?);
            Some(FoundTool {
                name: tool.name,
                description: tool.description,
                relevance_score,
                parameters: tool.parameters,
            })
        });
        written(&SearchResults { results: results.collect() })
    }
}

/// What an agent is found by.
fn of_agent(card: &AgentCard) -> String {
    let own = [Some(&card.agent_name), card.description.as_ref()];
    let skills = card.skills.iter().flat_map(|skill| {
        let named = [Some(&skill.id), Some(&skill.name), skill.description.as_ref()];
        named.into_iter().flatten().chain(&skill.tags).chain(&skill.examples)
    });
    let mut text = String::new();
    for part in own.into_iter().flatten().chain(skills) {
        if text.len() >= MAX_CARD {
            break;
        }
        text.push_str(&shortened(part, MAX_CARD - text.len()));
        text.push(' ');
    }
    text
}

/// What a tool is found by.
fn text(descriptor: &ToolDescriptor) -> String {
    format!("{} {} {}", descriptor.name, descriptor.title.as_deref().unwrap_or_default(), descriptor.description)
}

/// The positions of the best texts, with their scores: 1 is that of the best, to two decimals.
fn best(query: &str, texts: &[String]) -> Vec<(usize, f64)> {
    let ranked = rank_with_scores(query, texts);
    let most = ranked.first().map_or(1.0, |(_, score)| *score);
    let relative = |score: f64| (score / most * 100.0).round() / 100.0;
    ranked.into_iter().take(MAX_RESULTS).map(|(position, score)| (position, relative(score))).collect()
}

fn query(call: &ToolCall) -> Result<&str, ToolFailure> {
    let query = call.arguments.get("query").and_then(Value::as_str);
    query.ok_or_else(|| ToolFailure::new(Cause::InvalidArguments, "Missing required parameter: query."))
}

fn written(found: &impl Serialize) -> Result<ToolOutput, ToolFailure> {
    serde_json::to_string_pretty(found)
        .map(ToolOutput::text)
        .map_err(|error| ToolFailure::new(Cause::Failed, "The result could not be written.").with_detail(error))
}

#[cfg(test)]
mod tests;
