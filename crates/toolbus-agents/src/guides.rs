//! Guides: how families of tools are used, for models. `list_tool_guides` and `get_tool_guide`.
//!
//! A caller gets the guides of tools that it can use, and no others.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolbus_core::failure::ToolFailure;
use toolbus_core::pattern::{Pattern, PatternError};
use toolbus_core::policy::{EffectiveTools, PolicyHandle};
use toolbus_core::text::{first_paragraph, shortened, shown};
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};

/// Names of the tools.
pub const NAMES: [&str; 2] = [LIST, GET];
/// Source of the tools.
pub const SOURCE: &str = "guides";
const LIST: &str = "list_tool_guides";
const GET: &str = "get_tool_guide";
/// Files of a folder that are read.
const MAX_FILES: usize = 200;
/// Longest file, in bytes.
const MAX_FILE: u64 = 256 * 1024;
/// Longest summary, in characters.
const MAX_SUMMARY: usize = 200;
/// Longest name, in characters.
const MAX_NAME: usize = 100;

/// Guides to tools: the tools for them are there when this section is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GuidesConfig {
    /// A folder with guides of the operator: Markdown files, whose names without `.md` are those of the guides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
}

/// Guide to the use of something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guide {
    /// Name of the guide.
    pub name: Arc<str>,
    /// Subject of the guide, in one line.
    pub summary: String,
    /// Markdown.
    pub text: Arc<str>,
}

/// Callers that get a guide.
#[derive(Debug, Clone)]
pub enum GuideFor {
    /// Callers that can use a tool of this source.
    Source(&'static str),
    /// Callers that can use the tool of this name.
    Tool(&'static str),
    /// Callers that can use a tool with such a name.
    Tools(Vec<Pattern>),
    /// Every caller.
    All,
}

impl GuideFor {
    /// Whether a guide for these callers is about the tool.
    fn is_about(&self, tool: &ToolDescriptor) -> bool {
        match self {
            Self::Source(source) => *tool.source == **source,
            Self::Tool(name) => *tool.name == **name,
            Self::Tools(patterns) => patterns.iter().any(|pattern| pattern.matches(&tool.name)),
            Self::All => false,
        }
    }
}

/// Guides that depend on what else there is, such as the instructions of MCP servers.
pub type FurtherGuides = Arc<dyn Fn(&EffectiveTools) -> Vec<Guide> + Send + Sync>;

/// Every guide. Cheap to clone.
#[derive(Clone)]
pub struct Guides {
    own: Arc<[(GuideFor, Guide)]>,
    further: FurtherGuides,
}

impl Guide {
    /// A guide, with the first paragraph after its headings as summary.
    #[must_use]
    pub fn new(name: &str, text: &str) -> Self {
        let summary = shortened(&first_paragraph(text), MAX_SUMMARY).into_owned();
        Self { name: name.into(), summary, text: text.into() }
    }
}

impl Guides {
    /// These guides of families of tools, by audience, name and text, the first one of a name that is for the caller; those
    /// of the operator's folder, which replace others of their name; and further ones.
    ///
    /// # Errors
    ///
    /// If the folder or a file cannot be read.
    pub fn new(
        families: &[(GuideFor, &'static str, &'static str)],
        config: &GuidesConfig,
        further: FurtherGuides,
    ) -> io::Result<Self> {
        let of_folder = config.folder.as_deref().map(read_folder).transpose()?.unwrap_or_default();
        let families = families.iter().map(|(audience, name, text)| (audience.clone(), Guide::new(name, text)));
        let is_replaced = |guide: &Guide| of_folder.iter().any(|(_, other)| other.name == guide.name);
        let families: Vec<_> = families.filter(|(_, guide)| !is_replaced(guide)).collect();
        Ok(Self { own: families.into_iter().chain(of_folder).collect(), further })
    }

    /// The guides for a caller with these tools, by name.
    #[must_use]
    pub fn visible(&self, effective: &EffectiveTools) -> Vec<Guide> {
        let tools = effective.tools();
        let is_visible = |audience: &GuideFor| match audience {
            GuideFor::All => true,
            GuideFor::Tool(name) => effective.get(name).is_some(),
            audience => tools.iter().any(|allowed| audience.is_about(&allowed.tool.descriptor)),
        };
        let own = self.own.iter().filter(|(audience, _)| is_visible(audience)).map(|(_, guide)| guide.clone());
        let mut guides: Vec<Guide> = own.chain((self.further)(effective)).collect();
        guides.sort_by(|a, b| a.name.cmp(&b.name));
        // The first of a family's guides counts, and comes before that of a server with this name.
        guides.dedup_by(|a, b| a.name == b.name);
        guides
    }

    /// The guides to the use of a tool, without those for every caller and further ones.
    #[must_use]
    pub fn of_tool(&self, tool: &ToolDescriptor) -> Vec<Guide> {
        let about = self.own.iter().filter(|(audience, _)| audience.is_about(tool));
        let mut guides: Vec<Guide> = about.map(|(_, guide)| guide.clone()).collect();
        guides.sort_by(|a, b| a.name.cmp(&b.name));
        guides
    }

    /// The two tools; `policy` decides which tools a caller can use.
    #[must_use]
    pub fn tools(&self, policy: &PolicyHandle) -> Vec<Tool> {
        let parts = || (self.clone(), policy.clone());
        vec![Tool::new(list_descriptor(), ListGuides(parts())), Tool::new(get_descriptor(), GetGuide(parts()))]
    }
}

/// The guides of a folder, by the names of their files.
fn read_folder(folder: &Path) -> io::Result<Vec<(GuideFor, Guide)>> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    files.sort();
    if files.len() > MAX_FILES {
        return Err(io::Error::other(format!("it has more than {MAX_FILES} guides")));
    }
    files.iter().map(|file| read_file(file)).collect()
}

fn read_file(file: &Path) -> io::Result<(GuideFor, Guide)> {
    let problem = |what: String| io::Error::other(format!("`{}`: {what}", file.display()));
    let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    if name.chars().count() > MAX_NAME || name.chars().any(|c| c.is_control() || c == '`') {
        return Err(problem(format!("the name of a guide has at most {MAX_NAME} visible characters, and no backtick")));
    }
    let mut text = String::new();
    let opened = fs::File::open(file).map_err(|error| problem(error.to_string()))?;
    opened.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|error| problem(error.to_string()))?;
    if text.len() as u64 > MAX_FILE {
        return Err(problem(format!("a guide has at most {MAX_FILE} bytes")));
    }
    let (audience, text) = audience(&text).map_err(|error| problem(error.to_string()))?;
    Ok((audience, Guide::new(name, text)))
}

/// The tools that a file is for, by its first line: `tools: name, pattern_*`; and the rest.
fn audience(text: &str) -> Result<(GuideFor, &str), PatternError> {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    match first.strip_prefix("tools:") {
        None => Ok((GuideFor::All, text)),
        Some(names) => {
            let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
            Ok((GuideFor::Tools(names.map(Pattern::parse).collect::<Result<_, _>>()?), rest.trim_start()))
        }
    }
}

fn list_descriptor() -> ToolDescriptor {
    descriptor(
        LIST,
        "Lists the guides to your tools: when to use them, examples, errors and what to do. Read one before you use a family \
         of tools for the first time.",
        json!({ "type": "object", "properties": {}, "additionalProperties": false }),
    )
}

fn get_descriptor() -> ToolDescriptor {
    let description = format!("Name of the guide, as `{LIST}` shows it");
    descriptor(
        GET,
        "Reads a guide to a family of tools.",
        json!({
            "type": "object",
            "properties": { "name": { "type": "string", "minLength": 1, "maxLength": MAX_NAME, "description": description } },
            "required": ["name"],
            "additionalProperties": false,
        }),
    )
}

fn descriptor(name: &str, description: &str, parameters: Value) -> ToolDescriptor {
    ToolDescriptor::local(name, SOURCE, description, Effect::ReadOnly, parameters)
}

struct ListGuides((Guides, PolicyHandle));
struct GetGuide((Guides, PolicyHandle));

impl Executor for ListGuides {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let (guides, policy) = &self.0;
        let guides = guides.visible(&policy.effective(&call.caller));
        if guides.is_empty() {
            return Ok(ToolOutput::text("There are no guides to your tools."));
        }
        let lines = guides.iter().map(|guide| format!("- `{}`: {}", guide.name, guide.summary));
        Ok(ToolOutput::text(lines.collect::<Vec<_>>().join("\n")))
    }
}

impl Executor for GetGuide {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let Some(name) = call.arguments.get("name").and_then(Value::as_str) else {
            return Err(ToolFailure::invalid("Argument `name` is missing."));
        };
        let (guides, policy) = &self.0;
        let guides = guides.visible(&policy.effective(&call.caller));
        match guides.iter().find(|guide| guide.name.to_lowercase() == name.to_lowercase()) {
            Some(guide) => Ok(ToolOutput::text(&*guide.text)),
            None => {
                let names: Vec<_> = guides.iter().map(|guide| format!("`{}`", guide.name)).collect();
                let text = match names.is_empty() {
                    true => "There are no guides to your tools.".to_owned(),
                    false => format!("There is no guide `{}`. There are {}.", shown(name), names.join(", ")),
                };
                Ok(ToolOutput::error(text))
            }
        }
    }
}

#[cfg(test)]
mod tests;
