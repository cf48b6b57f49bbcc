//! A server's tool as a tool of this daemon.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::ToolAnnotations;
use serde_json::{Map, Value, json};
use toolbus_core::Clock;
use toolbus_core::listing::converted;
use toolbus_core::suggest::{MAX_SUGGESTIONS, near_names};
use toolbus_core::text::shown;
use toolbus_core::tool::{Effect, Membership, Naming, ToolDescriptor, Validation};
use toolbus_trust::scan::Scanner;
use toolbus_trust::text;

use super::schema::{self, SchemaProblem};
use crate::client::ServerListing;
use crate::spec::ServerSpec;
use crate::status::{CleanedTexts, HiddenTool};

/// Longest name of a tool, in characters.
const MAX_NAME: usize = 128;
/// Longest published name, in bytes: that of any tool.
const MAX_PUBLISHED: usize = toolbus_protocol::MAX_SHORT_STRING;
/// Longest time that is spent on one server's schemas and texts.
const MAX_TIME: Duration = Duration::from_secs(20);
/// Most hidden tools that are named.
const MAX_HIDDEN: usize = 200;

/// Usable tools of a server or of another daemon.
#[derive(Debug, Default)]
pub struct Definitions {
    /// Tools that can be called, sorted by name.
    pub tools: Vec<ToolDescriptor>,
    /// Tools that cannot, sorted by name; of more than 200 the last entry has their number.
    pub hidden: Vec<HiddenTool>,
    /// Parts removed from the texts of callable tools, sorted by tool name.
    pub cleaned: Vec<CleanedTexts>,
}

/// The tool set that a server or another daemon backs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceToolset {
    /// Name of the set.
    pub set: Arc<str>,
    /// Prefix of published names, before a dot.
    pub prefix: Arc<str>,
    /// Whether each session has a server of its own.
    pub needs_session: bool,
}

/// Source of listed tools, and the settings for their definitions.
#[derive(Debug)]
pub struct ToolSource {
    /// The source that the tools are registered under.
    pub source: Arc<str>,
    /// The kind of backend, as replies name it.
    pub provider: &'static str,
    /// Title for tools that do not describe themselves: `MCP server NAME`.
    pub title: String,
    /// The MCP server that has the tools, if it is one.
    pub server: Option<Arc<str>>,
    /// Naming of these tools, without what a tool set adds.
    pub naming: Naming,
    /// The tool set that it backs; `None` for plain tools.
    pub toolset: Option<SourceToolset>,
    /// Treatment of arguments that the tools' schemas do not allow.
    pub validation: Validation,
    /// Longest run of one call; absent: the daemon's.
    pub tool_timeout: Option<Duration>,
}

impl ToolSource {
    fn of_server(spec: &ServerSpec, toolset: Option<&SourceToolset>) -> Self {
        Self {
            source: Arc::clone(spec.name.source()),
            provider: "mcp",
            title: format!("MCP server {}", spec.name),
            server: Some(Arc::clone(spec.name.as_str())),
            naming: spec.naming.clone(),
            toolset: toolset.cloned(),
            validation: spec.validation,
            tool_timeout: spec.tool_timeout,
        }
    }
}

/// Reason why a tool is hidden.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Unusable {
    #[error("its name is not usable: expected 1 to {MAX_NAME} visible characters, and no space at either end")]
    Name,
    #[error("its name with the prefixes of tool set and server has more than {MAX_PUBLISHED} bytes")]
    Published,
    #[error("the server has another tool of this name")]
    Duplicate,
    #[error("`rename` gives its name to another tool of the server")]
    Renamed,
    #[error("it has the name of a management tool")]
    Management,
    #[error("its schema was not looked at: those of the server's other tools took too long to check")]
    Unchecked,
    #[error("{0}")]
    Schema(#[from] schema::SchemaProblem),
}

/// Sorts out what a server listed. Tools that the filter does not admit are left out: that is the operator's wish, and
/// no fault of theirs. `unreadable` are those of the list that could not be read at all.
///
/// Compiles each schema and scans each text, so that a long list costs seconds: not to be called where others wait.
pub(crate) fn definitions(
    spec: &ServerSpec,
    toolset: Option<&SourceToolset>,
    listed: Vec<rmcp::model::Tool>,
    unreadable: Vec<HiddenTool>,
    scanner: &Scanner,
    clock: Clock,
) -> Definitions {
    let end = clock.now() + MAX_TIME;
    definitions_until(&|| clock.now() >= end, spec, toolset, listed, unreadable, scanner)
}

/// Sorts out what another daemon listed, as an MCP server would list it, within the limits for the list of one server.
///
/// Compiles each schema and scans each text, so that a long list costs seconds: not to be called where others wait.
#[must_use]
pub fn definitions_elsewhere(source: &ToolSource, listed: Vec<Value>, scanner: &Scanner, clock: Clock) -> Definitions {
    let ServerListing { tools, mut unreadable, cut } = ServerListing::of(listed);
    unreadable.extend(cut.map(|reason| HiddenTool { name: "…".to_owned(), reason }));
    let end = clock.now() + MAX_TIME;
    sorted_out(&|| clock.now() >= end, source, &|_| true, tools, unreadable, scanner)
}

fn definitions_until(
    is_late: &dyn Fn() -> bool,
    spec: &ServerSpec,
    toolset: Option<&SourceToolset>,
    listed: Vec<rmcp::model::Tool>,
    unreadable: Vec<HiddenTool>,
    scanner: &Scanner,
) -> Definitions {
    let admits = |name: &str| spec.tools.admits(name);
    sorted_out(is_late, &ToolSource::of_server(spec, toolset), &admits, listed, unreadable, scanner)
}

fn sorted_out(
    is_late: &dyn Fn() -> bool,
    source: &ToolSource,
    admits: &dyn Fn(&str) -> bool,
    listed: Vec<rmcp::model::Tool>,
    unreadable: Vec<HiddenTool>,
    scanner: &Scanner,
) -> Definitions {
    let set = source.toolset.as_ref().map(|toolset| Arc::clone(&toolset.prefix));
    let naming = Naming { set, ..source.naming.clone() };
    let mut own_names: Vec<String> = Vec::new();
    let (mut tools, mut hidden, mut cleaned, mut seen) = (Vec::new(), unreadable, Vec::new(), HashSet::new());
    for tool in listed {
        if !naming.renamed.is_empty() {
            own_names.push(tool.name.to_string());
        }
        if !admits(&tool.name) {
            continue;
        }
        let descriptor = descriptor(source, &naming, &tool, &mut seen).and_then(|descriptor| {
            let parameters = usable(&tool, source.validation, is_late)?;
            Ok(ToolDescriptor { parameters: Some(Arc::new(parameters)), ..descriptor })
        });
        match descriptor {
            Ok(mut descriptor) => {
                let removed = toolbus_trust::vet(&mut descriptor, scanner);
                if !removed.is_empty() {
                    cleaned.push(CleanedTexts { name: descriptor.name.to_string(), removed });
                }
                tools.push(descriptor);
            }
            Err(reason) => hidden.push(HiddenTool {
                name: shown(&tool.name),
                // The validator's message may quote the schema.
                reason: reason.to_string().replace(char::is_control, " "),
            }),
        }
    }
    hidden.extend(not_there(&naming, &own_names));
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    cleaned.sort_by(|a, b| a.name.cmp(&b.name));
    Definitions { tools, hidden: bounded(hidden), cleaned }
}

fn descriptor(
    source: &ToolSource,
    naming: &Naming,
    tool: &rmcp::model::Tool,
    seen: &mut HashSet<String>,
) -> Result<ToolDescriptor, Unusable> {
    let name = &*tool.name;
    let is_usable = !name.is_empty()
        && name.chars().nth(MAX_NAME).is_none()
        && !text::has_unseen(name)
        // A joiner is seen in some positions and not in others: two names could look the same.
        && !name.contains(['\u{200c}', '\u{200d}'])
        && name.trim() == name;
    if !is_usable {
        return Err(Unusable::Name);
    }
    let published = naming.published(name);
    if published.len() > MAX_PUBLISHED {
        return Err(Unusable::Published);
    }
    // The first counts even if it is hidden: what a name means must not depend on what is wrong with another tool.
    if !seen.insert(name.to_owned()) {
        return Err(Unusable::Duplicate);
    }
    // Nor does a tool take the name that an operator has given to another one.
    if naming.own(&published) != Some(name) {
        return Err(Unusable::Renamed);
    }
    // A call of such a name means the daemon, also if that does not offer the tool.
    if is_reserved(name) || is_reserved(&published) {
        return Err(Unusable::Management);
    }
    Ok(ToolDescriptor {
        title: titles(tool).find(|title| is_visible(title)).map(str::to_owned),
        description: description(source, tool),
        output_schema: output_schema(tool),
        effect: effect(tool.annotations.as_ref()),
        timeout: source.tool_timeout,
        own_name: (source.toolset.is_none() && published != name).then(|| name.into()),
        toolset: source.toolset.as_ref().map(|toolset| Membership {
            set: Arc::clone(&toolset.set),
            name: name.into(),
            needs_session: toolset.needs_session,
        }),
        server: source.server.clone(),
        validation: source.validation,
        ..ToolDescriptor::new(published, Arc::clone(&source.source), source.provider)
    })
}

/// Tools that are renamed and that the server does not have, with the names that may be meant.
fn not_there(naming: &Naming, own_names: &[String]) -> Vec<HiddenTool> {
    let missed = naming.renamed.keys().filter(|renamed| !own_names.iter().any(|name| **name == ***renamed));
    let hidden = |renamed: &Arc<str>| {
        let near = near_names(renamed, own_names.iter().map(String::as_str), MAX_SUGGESTIONS);
        let near: Vec<String> = near.into_iter().map(|name| format!("`{}`", shown(name))).collect();
        let hint = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) };
        HiddenTool { name: shown(renamed), reason: format!("`rename` has it, and the server has no such tool{hint}") }
    };
    missed.take(MAX_HIDDEN).map(hidden).collect()
}

/// The schema of a tool; of one whose parts have names of their own, the same without them; of one that is not valid by
/// its own draft, what is left of it in draft 2020-12: the rest is for the server to check.
fn usable(tool: &rmcp::model::Tool, validation: Validation, is_late: &dyn Fn() -> bool) -> Result<Value, Unusable> {
    if is_late() {
        return Err(Unusable::Unchecked);
    }
    let declared = parameters(&tool.input_schema);
    match schema::check(&tool.input_schema, validation) {
        Err(problem @ SchemaProblem::Unusable(_)) => match converted(&declared) {
            Value::Object(left) if schema::check(&left, validation).is_ok() => Ok(Value::Object(left)),
            _ => Err(problem.into()),
        },
        Err(problem @ (SchemaProblem::Identity(_) | SchemaProblem::Elsewhere(_))) => {
            match schema::without_identities(&declared) {
                Some(Value::Object(plain)) => Ok(schema::check(&plain, validation).map(|()| Value::Object(plain))?),
                _ => Err(problem.into()),
            }
        }
        checked => Ok(checked.map(|()| declared)?),
    }
}

fn titles(tool: &rmcp::model::Tool) -> impl Iterator<Item = &str> {
    [tool.title.as_deref(), tool.annotations.as_ref().and_then(|hints| hints.title.as_deref())].into_iter().flatten()
}

fn description(source: &ToolSource, tool: &rmcp::model::Tool) -> String {
    let mut texts = tool.description.as_deref().into_iter().chain(titles(tool));
    let text = texts.find(|text| is_visible(text)).map(str::to_owned);
    text.unwrap_or_else(|| format!("Tool {} of {}.", tool.name, source.title))
}

/// Whether there is anything to see in a text.
fn is_visible(text: &str) -> bool {
    !text::clean(text, 1).text.is_empty()
}

fn parameters(schema: &Map<String, Value>) -> Value {
    if schema.is_empty() { json!({"type": "object"}) } else { Value::Object(schema.clone()) }
}

/// The output schema, if it compiles: clients compile it too.
fn output_schema(tool: &rmcp::model::Tool) -> Option<Arc<Value>> {
    let schema = tool.output_schema.as_deref().filter(|schema| schema::check(schema, Validation::Enforce).is_ok())?;
    Some(Arc::new(Value::Object(schema.clone())))
}

/// Returns the effect that a server declares. A hint that is absent declares nothing: by the defaults of MCP every tool
/// without hints would be a destructive one. As in MCP, the other hints mean nothing for a tool that is read-only.
fn effect(hints: Option<&ToolAnnotations>) -> Effect {
    let Some(hints) = hints else { return Effect::Undeclared };
    match (hints.read_only_hint, hints.idempotent_hint, hints.destructive_hint) {
        (Some(true), _, _) => Effect::ReadOnly,
        (_, Some(true), _) => Effect::Idempotent,
        (None, None, None) => Effect::Undeclared,
        _ => Effect::Effectful,
    }
}

fn bounded(mut hidden: Vec<HiddenTool>) -> Vec<HiddenTool> {
    hidden.sort_by(|a, b| (&a.name, &a.reason).cmp(&(&b.name, &b.reason)));
    let more = hidden.len().saturating_sub(MAX_HIDDEN);
    if more > 0 {
        hidden.truncate(MAX_HIDDEN);
        hidden.push(HiddenTool { name: "…".to_owned(), reason: format!("and {more} more tools are hidden") });
    }
    hidden
}

/// The names of the tools in `model_tools`, whether they are offered or not. No tool of a server has one.
const RESERVED: [&str; 5] =
    ["mcp_list_services", "mcp_get_service_details", "mcp_invoke_tool", "mcp_register_server", "mcp_unregister_server"];

/// Whether a name is that of a management tool, which no server's tool may have.
pub(crate) fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

#[cfg(test)]
mod tests;
