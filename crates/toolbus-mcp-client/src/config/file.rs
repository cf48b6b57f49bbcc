//! The file of servers that other programs read, too: `mcpServers`, as JSON.

mod entry;
mod env_file;
mod json;
mod refusal;
mod substitution;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde_json::Value;
use serde_json::value::RawValue;
use toolbus_config::nearest;
use toolbus_core::text::shown;
use toolbus_trust::pins::Level;

use self::json::{JsonFields, elements, plain, position, problem};
use self::refusal::ServerRefusal;
pub use self::substitution::INPUT_PREFIX;
use self::substitution::Variables;
use super::MAX_SERVERS;
use super::server::ServerConfig;
use crate::spec::{ServerName, ServerSpec};

/// Largest file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;
/// Most names that a warning lists.
const MAX_NAMED: usize = 8;
/// Fields that hold servers.
const ROOTS: [&str; 3] = ["mcpServers", "servers", "context_servers"];

/// Content of a file of servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServersFile {
    /// Servers of the file, each with its location.
    pub entries: Vec<(ServerSpec, String)>,
    /// Pin levels of the servers that set one.
    pub pins: BTreeMap<ServerName, Level>,
    refused: Vec<ServerRefusal>,
    /// Warnings about valid but suspicious settings.
    pub warnings: Vec<String>,
    /// Problems besides refused servers.
    problems: Vec<String>,
    /// The environment variables that its texts name.
    variables: BTreeSet<String>,
    is_unread: bool,
}

/// Which servers are used, by the names that Gemini CLI has beside them.
#[derive(Default)]
struct Choice {
    /// The only ones that are.
    allowed: Option<Vec<String>>,
    /// Those that are not, even if allowed.
    excluded: Vec<String>,
}

impl Choice {
    fn admits(&self, name: &str) -> bool {
        let is_in = |names: &[String]| names.iter().any(|listed| listed.eq_ignore_ascii_case(name));
        !is_in(&self.excluded) && self.allowed.as_deref().is_none_or(is_in)
    }
}

/// One server as it is written.
struct FileEntry<'a> {
    /// Name of the server, where the form has names as keys.
    name: Option<String>,
    text: &'a RawValue,
}

impl ServersFile {
    /// Reads a file; mistakes in it, or in one of its servers, are among the problems.
    #[must_use]
    pub fn read(path: &Path, environment: &BTreeMap<String, String>) -> Self {
        let file = path.display().to_string();
        let unread = |problem: String| Self { problems: vec![problem], is_unread: true, ..Self::default() };
        let text = match text(path, MAX_FILE) {
            // Editors on Windows begin files with a mark that is not JSON.
            Ok(text) => plain(text.trim_start_matches('\u{feff}')),
            Err(what) => return unread(format!("{file}: {what}")),
        };
        let variables = substitution::names(&text).map(str::to_owned).collect();
        let mut read = Self { variables, ..Self::default() };
        match read.parse(&file, &text, Variables::new(path, environment)) {
            Ok(()) => read,
            Err(problem) => unread(problem),
        }
    }

    /// Whether the file could not be read as a whole, so that its servers are not known.
    #[must_use]
    pub const fn is_unread(&self) -> bool {
        self.is_unread
    }

    /// Whether the file has a server of this name, usable or not.
    #[must_use]
    pub fn has(&self, name: &ServerName) -> bool {
        self.refused.iter().any(|refusal| refusal.name == *name)
            || self.entries.iter().any(|(spec, _)| spec.name == *name)
    }

    /// Whether a text of the file names this environment variable.
    #[must_use]
    pub fn names_variable(&self, name: &str) -> bool {
        self.variables.contains(name)
    }

    /// Names of its servers, as they are written.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(spec, _)| &**spec.name.as_str())
    }

    /// Returns a text, without secrets, that differs between files with different servers.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut specs: Vec<_> = self.entries.iter().map(|(spec, _)| spec).collect();
        specs.sort_by_key(|spec| &spec.name);
        format!("{specs:?}")
    }

    fn parse(&mut self, file: &str, text: &str, mut variables: Variables<'_>) -> Result<(), String> {
        let mut choice = Choice::default();
        let entries = self.entries_of(file, text, &mut variables, &mut choice)?;
        if entries.len() > MAX_SERVERS {
            return Err(format!("{file}: has {} servers; at most {MAX_SERVERS} can be read", entries.len()));
        }
        for FileEntry { name, text: written } in entries {
            let location = format!("{file}:{}", position(text, written));
            self.entry(name, written, &location, &variables, &choice);
        }
        Ok(())
    }

    /// Every server that the text has, in each of the forms that there are.
    fn entries_of<'a>(
        &mut self,
        file: &str,
        text: &'a str,
        variables: &mut Variables<'_>,
        choice: &mut Choice,
    ) -> Result<Vec<FileEntry<'a>>, String> {
        let whole: &RawValue = serde_json::from_str(text).map_err(|error| problem(file, &error))?;
        let expected = || format!("{file}: expected an object with `mcpServers`");
        let fields = JsonFields::of(whole).ok_or_else(expected)?.0;
        let (mut entries, mut ignored, mut has_servers) = (Vec::new(), Vec::new(), false);
        let names = |key: &str, value: &RawValue| {
            let names: Result<Option<Vec<String>>, _> = serde_json::from_str(value.get());
            names.map_err(|_| format!("{file}:{}: `{key}`: expected a list of texts", position(text, value)))
        };
        for (key, value) in fields {
            let servers = match key.to_lowercase().as_str() {
                "mcpservers" | "servers" | "context_servers" => Some(value),
                "inputs" => {
                    variables.inputs.extend(inputs(value));
                    continue;
                }
                "allowmcpservers" => {
                    choice.allowed = names(&key, value)?;
                    continue;
                }
                "excludemcpservers" => {
                    choice.excluded = names(&key, value)?.unwrap_or_default();
                    continue;
                }
                "mcp" => {
                    let mut servers = None;
                    for (key, value) in JsonFields::of(value).map(|fields| fields.0).unwrap_or_default() {
                        match key.to_lowercase().as_str() {
                            "servers" => servers = Some(value),
                            "allowed" => choice.allowed = names("mcp.allowed", value)?,
                            "excluded" => choice.excluded = names("mcp.excluded", value)?.unwrap_or_default(),
                            _ => ignored.push((format!("mcp.{key}"), None)),
                        }
                    }
                    let Some(servers) = servers else { continue };
                    Some(servers)
                }
                _ => None,
            };
            let Some(servers) = servers else {
                let near = nearest(&key, ROOTS);
                ignored.push((key, near));
                continue;
            };
            has_servers = true;
            if let Some(fields) = JsonFields::of(servers) {
                entries.extend(fields.0.into_iter().map(|(name, text)| FileEntry { name: Some(name), text }));
            } else if let Some(elements) = elements(servers) {
                entries.extend(elements.into_iter().map(|text| FileEntry { name: None, text }));
            } else {
                let location = position(text, servers);
                return Err(format!("{file}:{location}: `{}`: expected an object or a list of servers", shown(&key)));
            }
        }
        let ignored = listed(ignored.iter().map(|(name, near)| (name, *near)));
        match (has_servers, ignored.is_empty()) {
            (true, true) => {}
            (true, false) => self.warnings.push(format!("{file}: ignored: {ignored}")),
            (false, true) => return Err(expected()),
            (false, false) => return Err(format!("{}; found {ignored}", expected())),
        }
        Ok(entries)
    }

    fn entry(
        &mut self,
        name: Option<String>,
        written: &RawValue,
        location: &str,
        variables: &Variables<'_>,
        choice: &Choice,
    ) {
        let mut entry = entry::read(name, written, variables);
        let Some(written_name) = &entry.name else {
            return self.problems.push(format!("{location}: a server without a `name` is left out"));
        };
        if !choice.admits(written_name) {
            entry.is_disabled = true;
            entry.server = entry.server.map(|server| ServerConfig { disabled: true, ..server });
        }
        let shown = format!("`{}`", shown(written_name));
        if !entry.ignored.is_empty() {
            let ignored = listed(entry.ignored.iter().map(|(name, near)| (name, *near)));
            self.warnings.push(format!("{location}: {shown}: ignored: {ignored}"));
        }
        let name = match ServerName::parse(written_name) {
            Ok(name) => name,
            Err(error) => return self.problems.push(format!("{location}: left out: {shown} {error}")),
        };
        if self.has(&name) {
            return self
                .problems
                .push(format!("{location}: {shown} is left out: there is a server of this name before it"));
        }
        match entry.server.and_then(|server| Ok((server.spec(name.clone())?, server.pin))) {
            Ok(((spec, warnings), pin)) => {
                self.warnings.extend(warnings.iter().map(|warning| format!("{location}: {shown}: {warning}")));
                self.entries.push((spec, location.to_owned()));
                self.pins.extend(pin.map(|pin| (name, pin)));
            }
            Err(mistake) => {
                // A disabled server is not missed.
                if entry.is_disabled {
                    self.warnings.push(format!("{location}: {shown} is left out: {mistake}"));
                }
                let (location, mistake) = (location.to_owned(), mistake.to_string());
                self.refused.push(ServerRefusal { name, location, mistake, is_disabled: entry.is_disabled });
            }
        }
    }
}

/// Reads the defaults of the inputs of VS Code, by their ids. Inputs without a default are left out.
fn inputs(written: &RawValue) -> BTreeMap<String, String> {
    let Ok(Value::Array(inputs)) = serde_json::from_str(written.get()) else { return BTreeMap::new() };
    let offered = |input: &Value| {
        let text = |key: &str| input.get(key).and_then(Value::as_str).map(str::to_owned);
        Some((text("id")?, text("default")?))
    };
    inputs.iter().filter_map(offered).collect()
}

/// The text of a regular file of at most `limit` bytes.
fn text(path: &Path, limit: u64) -> Result<String, String> {
    let unreadable = |error| format!("the file cannot be read: {error}");
    // Opening a pipe would wait for a writer.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("not a regular file".to_owned());
    }
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(limit + 1).read_to_string(&mut text).map_err(unreadable)?;
    match text.len() as u64 > limit {
        true => Err(format!("the file is larger than {} KiB", limit / 1024)),
        false => Ok(text),
    }
}

/// Names of fields, each with the probably intended one.
fn listed<'a>(names: impl ExactSizeIterator<Item = (&'a String, Option<&'static str>)>) -> String {
    let more = names.len().saturating_sub(MAX_NAMED);
    let list: Vec<String> = names
        .take(MAX_NAMED)
        .map(|(name, near)| {
            let near = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
            format!("`{}`{near}", shown(name))
        })
        .collect();
    list.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}
