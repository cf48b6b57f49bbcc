//! A server's tool as a tool of this daemon.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rmcp::model::ToolAnnotations;
use serde_json::{Map, Value, json};
use toolbus_core::log::shown;
use toolbus_core::tool::{Effect, Membership, ToolDescriptor, Validation};

use crate::management;
use crate::schema;
use crate::spec::ServerSpec;
use crate::status::HiddenTool;

/// Longest name of a tool, in characters.
const MAX_NAME: usize = 128;
/// Longest published name, in bytes: that of any tool.
const MAX_PUBLISHED: usize = toolbus_protocol::MAX_SHORT_STRING;
/// Longest description, in bytes; what is beyond is cut.
const MAX_DESCRIPTION: usize = 8 * 1024;
/// Longest time that is spent on one server's schemas.
const MAX_TIME: Duration = Duration::from_secs(20);
/// Most hidden tools that are named.
const MAX_HIDDEN: usize = 200;

/// What a server offers, as far as it can be used.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    /// Tools that can be called, sorted by name.
    pub(crate) tools: Vec<ToolDescriptor>,
    /// Tools that cannot, sorted by name; of more than 200 the last entry says how many there are.
    pub(crate) hidden: Vec<HiddenTool>,
}

/// The tool set that a server backs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolsetPlace {
    /// Name of the set.
    pub(crate) set: Arc<str>,
    /// What published names begin with, before a dot.
    pub(crate) prefix: Arc<str>,
    /// Whether each session has a server of its own.
    pub(crate) needs_session: bool,
}

/// Why a tool is hidden.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Unusable {
    #[error("its name is not usable: expected 1 to {MAX_NAME} visible characters, and no space at either end")]
    Name,
    #[error("its name with the prefix of the tool set has more than {MAX_PUBLISHED} bytes")]
    Published,
    #[error("the server has another tool of this name")]
    Duplicate,
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
/// Compiles each schema, so that a long list costs seconds: not to be called where others wait.
pub(crate) fn definitions(
    spec: &ServerSpec,
    place: Option<&ToolsetPlace>,
    listed: Vec<rmcp::model::Tool>,
    unreadable: Vec<HiddenTool>,
) -> Definitions {
    definitions_until(Instant::now() + MAX_TIME, spec, place, listed, unreadable)
}

fn definitions_until(
    end: Instant,
    spec: &ServerSpec,
    place: Option<&ToolsetPlace>,
    listed: Vec<rmcp::model::Tool>,
    unreadable: Vec<HiddenTool>,
) -> Definitions {
    let source = spec.name.source();
    let (mut tools, mut hidden, mut seen) = (Vec::new(), unreadable, HashSet::new());
    for tool in listed {
        if !spec.tools.admits(&tool.name) {
            continue;
        }
        let descriptor = descriptor(spec, &source, place, &tool, &mut seen).and_then(|descriptor| {
            check(&tool, spec.validation, end)?;
            Ok(descriptor)
        });
        match descriptor {
            Ok(descriptor) => tools.push(descriptor),
            Err(reason) => hidden.push(HiddenTool {
                name: shown(&tool.name),
                // What the validator says may quote the schema.
                reason: reason.to_string().replace(char::is_control, " "),
            }),
        }
    }
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    Definitions { tools, hidden: bounded(hidden) }
}

fn descriptor(
    spec: &ServerSpec,
    source: &Arc<str>,
    place: Option<&ToolsetPlace>,
    tool: &rmcp::model::Tool,
    seen: &mut HashSet<String>,
) -> Result<ToolDescriptor, Unusable> {
    let name = &*tool.name;
    let is_usable = !name.is_empty()
        && name.chars().nth(MAX_NAME).is_none()
        && !name.chars().any(|c| c.is_control() || is_invisible(c))
        && name.trim() == name;
    if !is_usable {
        return Err(Unusable::Name);
    }
    let published = place.map_or_else(|| name.to_owned(), |place| format!("{}.{name}", place.prefix));
    if published.len() > MAX_PUBLISHED {
        return Err(Unusable::Published);
    }
    // The first counts even if it is hidden: what a name means must not depend on what is wrong with another tool.
    if !seen.insert(name.to_owned()) {
        return Err(Unusable::Duplicate);
    }
    // Whoever calls such a name means the daemon, also where that does not offer the tool.
    if management::has_name(name) || management::has_name(&published) {
        return Err(Unusable::Management);
    }
    Ok(ToolDescriptor {
        description: description(spec, tool),
        parameters: Some(Arc::new(parameters(&tool.input_schema))),
        effect: effect(tool.annotations.as_ref()),
        timeout: spec.tool_timeout,
        toolset: place.map(|place| Membership {
            set: Arc::clone(&place.set),
            name: name.into(),
            needs_session: place.needs_session,
        }),
        server: Some(Arc::clone(spec.name.as_str())),
        validation: spec.validation,
        ..ToolDescriptor::new(published, Arc::clone(source), "mcp")
    })
}

/// Characters that are not seen, or that change the order in which others are: two names could look the same.
const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn check(tool: &rmcp::model::Tool, validation: Validation, end: Instant) -> Result<(), Unusable> {
    if Instant::now() >= end {
        return Err(Unusable::Unchecked);
    }
    Ok(schema::check(&tool.input_schema, validation)?)
}

fn description(spec: &ServerSpec, tool: &rmcp::model::Tool) -> String {
    let titles = [tool.title.as_deref(), tool.annotations.as_ref().and_then(|hints| hints.title.as_deref())];
    [tool.description.as_deref()]
        .into_iter()
        .chain(titles)
        .flatten()
        .map(readable)
        .find(|text| !text.is_empty())
        .unwrap_or_else(|| format!("Tool {} of MCP server {}.", tool.name, spec.name))
}

/// The text without control characters, cut where it is too long.
fn readable(text: &str) -> String {
    let kept = text.trim().chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t'));
    let mut readable = String::new();
    for c in kept {
        if readable.len() + c.len_utf8() > MAX_DESCRIPTION {
            readable.push('…');
            break;
        }
        readable.push(c);
    }
    readable
}

fn parameters(schema: &Map<String, Value>) -> Value {
    if schema.is_empty() { json!({"type": "object"}) } else { Value::Object(schema.clone()) }
}

/// What a server declares. A hint that is absent declares nothing: by the defaults of MCP every tool without hints would
/// be a destructive one. As in MCP, the other hints mean nothing for a tool that is read-only.
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

#[cfg(test)]
mod tests;
