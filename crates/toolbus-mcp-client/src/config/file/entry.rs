//! One server of the file: its fields in any case, in the spellings of the programs that read such files.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use toolbus_config::{HumanDuration, Secret, nearest};
use toolbus_core::text::{shortened, shown};
use toolbus_core::tool::Validation;
use toolbus_trust::pins::Level;
use toolbus_trust::text::clean;

use super::env_file;
use super::json::JsonFields;
use super::substitution::{Substitution, Variables};
use crate::config::Mistake;
use crate::config::server::{ServerConfig, ServerKind};
use crate::servers::MAX_SUMMARY;

/// Longest `toolTimeoutMs`: a year.
const MAX_TIMEOUT_MS: u64 = 366 * 24 * 3600 * 1000;
/// Key of the list of tools that are offered alone; as `allowedTools` an empty one offers all.
const ALLOWED: &str = "allowedTools";
/// The same, of which an empty list offers none: so it is in Gemini CLI, Codex and Copilot.
const INCLUDED: &str = "includeTools";
/// Key of the list of tools that are not offered.
const DENIED: &str = "deniedTools";
/// Every spelling of a field, and the key that it means. Case, `-` and `_` do not count.
const SPELLINGS: [(&str, &str); 37] = [
    ("name", "name"),
    ("command", "command"),
    ("args", "args"),
    ("arguments", "args"),
    ("env", "env"),
    ("environmentVariables", "env"),
    ("envFile", "envFile"),
    ("cwd", "cwd"),
    ("url", "url"),
    ("serverUrl", "url"),
    ("httpUrl", "httpUrl"),
    ("type", "type"),
    ("transport", "type"),
    ("transportMode", "transportMode"),
    ("headers", "headers"),
    ("allowedTools", ALLOWED),
    ("includeTools", INCLUDED),
    ("includedTools", INCLUDED),
    ("enabledTools", INCLUDED),
    ("availableTools", INCLUDED),
    ("tools", INCLUDED),
    ("deniedTools", DENIED),
    ("excludeTools", DENIED),
    ("excludedTools", DENIED),
    ("disabledTools", DENIED),
    ("disallowedTools", DENIED),
    ("blockedTools", DENIED),
    ("toolTimeoutMs", "toolTimeoutMs"),
    ("disabled", "disabled"),
    ("enabled", "enabled"),
    ("isActive", "enabled"),
    ("summary", "summary"),
    ("lazy", "lazy"),
    ("validate", "validate"),
    ("pin", "pin"),
    ("prefix", "prefix"),
    ("rename", "rename"),
];
/// Parts of names of keys that choose the calls without confirmation. They take no tool away.
const CONFIRMATIONS: [&str; 4] = ["approv", "alwaysallow", "trust", "confirm"];
/// Names of fields, besides those with `tool` in them, that are likely to choose among tools.
const CHOICES: [&str; 18] = [
    "allow",
    "allowed",
    "allowlist",
    "block",
    "blocked",
    "blocklist",
    "blacklist",
    "deny",
    "denied",
    "denylist",
    "exclude",
    "excludetags",
    "filter",
    "filters",
    "include",
    "includetags",
    "onlyallow",
    "whitelist",
];

/// Entry of one server.
pub(super) struct WrittenServer {
    pub(super) name: Option<String>,
    pub(super) server: Result<ServerConfig, Mistake>,
    /// Whether the entry disables the server, even if it has a mistake.
    pub(super) is_disabled: bool,
    /// Names of unknown fields, each with the nearest known name.
    pub(super) ignored: Vec<(String, Option<&'static str>)>,
}

/// Reads a server; `name` is absent where it is a field.
pub(super) fn read(name: Option<String>, text: &RawValue, variables: &Variables<'_>) -> WrittenServer {
    let Some(JsonFields(fields)) = JsonFields::of(text) else {
        let server = Err(wrong("", "expected an object"));
        return WrittenServer { name, server, is_disabled: false, ignored: Vec::new() };
    };
    let mut reader = EntryReader {
        name,
        server: ServerConfig::default(),
        env_file: BTreeMap::new(),
        transport_mode: None,
        seen: BTreeMap::new(),
        ignored: Vec::new(),
        substitution: Substitution::new(variables),
    };
    let is_disabled = fields.iter().any(|(field, value)| {
        let off = match known(field) {
            Some((_, "disabled")) => "true",
            Some((_, "enabled")) => "false",
            _ => return false,
        };
        value.get() == off
    });
    let mistake = fields.into_iter().find_map(|(field, value)| reader.field(field, value).err());
    let mut server = reader.server;
    // Variables of the entry take precedence over those of its file.
    for (name, value) in reader.env_file {
        server.env.entry(name).or_insert(value);
    }
    // The most exact of the words for a transport decides between those for HTTP.
    if reader.transport_mode.is_some() && server.kind != Some(ServerKind::Stdio) && server.url.is_some() {
        server.kind = reader.transport_mode;
    }
    let server = mistake.map_or(Ok(server), Err);
    WrittenServer { name: reader.name, server, is_disabled, ignored: reader.ignored }
}

struct EntryReader<'a> {
    name: Option<String>,
    server: ServerConfig,
    /// Variables of `envFile`.
    env_file: BTreeMap<String, Secret>,
    transport_mode: Option<ServerKind>,
    /// The keys that were given, each as it was spelt.
    seen: BTreeMap<&'static str, &'static str>,
    ignored: Vec<(String, Option<&'static str>)>,
    substitution: Substitution<'a>,
}

impl EntryReader<'_> {
    fn field(&mut self, field: String, text: &RawValue) -> Result<(), Mistake> {
        let found = known(&field);
        // A server that is called by its key may have another, ignored `name`.
        let is_name =
            |(_, key): &(&str, &str)| *key == "name" && self.name.is_some() && !self.seen.contains_key("name");
        let Some((spelling, key)) = found.filter(|found| !is_name(found)) else {
            return self.unknown(field, text);
        };
        let meaning = match key {
            INCLUDED => ALLOWED,
            "httpUrl" => "url",
            key => key,
        };
        if let Some(before) = self.seen.insert(meaning, spelling) {
            let what = match before == spelling {
                true => format!("`{spelling}` is given twice"),
                false => format!("`{before}` and `{spelling}` mean the same; expected one of them"),
            };
            return Err(Mistake::new(key, what));
        }
        let mut value: Value = serde_json::from_str(text.get()).map_err(|_| wrong(spelling, "cannot be read"))?;
        self.substitution.apply(&mut value).map_err(|error| wrong(spelling, &error.to_string()))?;
        // Some programs write absent fields as null.
        if value.is_null() { Ok(()) } else { self.value(key, spelling, value) }
    }

    /// Ignores an unknown field.
    ///
    /// # Errors
    ///
    /// If it may be a list of tools: without it, tools would be offered that it leaves out.
    fn unknown(&mut self, field: String, text: &RawValue) -> Result<(), Mistake> {
        let name = folded(&field);
        let near =
            nearest(&field, SPELLINGS.map(|(spelling, _)| spelling)).filter(|near| !near.eq_ignore_ascii_case(&name));
        let is_near_list = near.and_then(known).is_some_and(|(_, key)| matches!(key, ALLOWED | INCLUDED | DENIED));
        let is_choice = is_near_list || name.contains("tool") || CHOICES.contains(&name.as_str());
        let has_parts = text.get().starts_with(['[', '{', '"']);
        if is_choice && has_parts && !CONFIRMATIONS.iter().any(|word| name.contains(word)) {
            let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
            let what = format!(
                "`{}` may choose among its tools in a way that is not known here; {near}write `{INCLUDED}` or `{DENIED}`, \
                 or remove it",
                shown(&field)
            );
            return Err(Mistake::new("", what));
        }
        self.ignored.push((field, near));
        Ok(())
    }

    fn value(&mut self, key: &'static str, spelling: &'static str, value: Value) -> Result<(), Mistake> {
        let server = &mut self.server;
        match key {
            "name" => self.name = Some(text(spelling, value)?),
            "command" => match value {
                // As Zed had it: an object with the program and its arguments.
                Value::Object(program) => self.program(program)?,
                value => server.command = Some(text(spelling, value)?),
            },
            "args" => server.args = texts(spelling, value)?,
            "env" => server.env = scalars(spelling, value)?,
            "envFile" => {
                self.env_file = env_file::read(&text(spelling, value)?).map_err(|error| wrong(spelling, &error))?
            }
            "cwd" => server.cwd = Some(text(spelling, value)?.into()),
            "url" => server.url = Some(text(spelling, value)?),
            "httpUrl" => {
                server.url = Some(text(spelling, value)?);
                self.transport_mode = self.transport_mode.or(Some(ServerKind::Http));
            }
            "type" => server.kind = kind(&text(spelling, value)?)?,
            "transportMode" => self.transport_mode = mode(&text(spelling, value)?)?.or(self.transport_mode),
            "headers" => server.headers = scalars(spelling, value)?,
            ALLOWED => server.allowed_tools = texts(spelling, value)?,
            INCLUDED => {
                server.allowed_tools = texts(spelling, value)?;
                server.offers_none = server.allowed_tools.is_empty();
            }
            DENIED => server.denied_tools = texts(spelling, value)?,
            "toolTimeoutMs" => server.tool_timeout = Some(milliseconds(spelling, &value)?),
            "disabled" => server.disabled |= flag(spelling, &value)?,
            "enabled" => server.disabled |= !flag(spelling, &value)?,
            "summary" => server.summary = summary(&text(spelling, value)?),
            "lazy" => server.lazy = flag(spelling, &value)?,
            "pin" => server.pin = Some(pin(value)?),
            "prefix" => server.prefix = Some(text(spelling, value)?),
            "rename" => server.rename = names(spelling, value)?,
            _ => server.validate = validation(&text("validate", value)?)?,
        }
        Ok(())
    }

    /// A program whose arguments and environment stand beside it.
    fn program(&mut self, fields: serde_json::Map<String, Value>) -> Result<(), Mistake> {
        for (field, value) in fields {
            let (key, spelling) = match field.as_str() {
                "path" => ("command", "command.path"),
                "args" => ("args", "command.args"),
                "env" => ("env", "command.env"),
                _ => {
                    self.ignored.push((format!("command.{field}"), None));
                    continue;
                }
            };
            if key != "command" && self.seen.insert(key, spelling).is_some() {
                return Err(Mistake::new(key, format!("`{key}` is given twice")));
            }
            match value {
                Value::Null => {}
                Value::Object(_) if key == "command" => return Err(wrong(spelling, "expected a text")),
                value => self.value(key, spelling, value)?,
            }
        }
        Ok(())
    }
}

/// The spelling and the key of a field, if it means anything here.
fn known(field: &str) -> Option<(&'static str, &'static str)> {
    let name = folded(field);
    SPELLINGS.into_iter().find(|(spelling, _)| spelling.eq_ignore_ascii_case(&name))
}

fn wrong(key: &'static str, what: &str) -> Mistake {
    let what = if key.is_empty() { what.to_owned() } else { format!("`{key}`: {what}") };
    Mistake::new(key, what)
}

fn text(key: &'static str, value: Value) -> Result<String, Mistake> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(wrong(key, "expected a text")),
    }
}

fn texts(key: &'static str, value: Value) -> Result<Vec<String>, Mistake> {
    let Value::Array(elements) = value else { return Err(wrong(key, "expected a list of texts")) };
    let of_element = |element| match element {
        Value::String(text) => Ok(text),
        _ => Err(wrong(key, "expected a list of texts")),
    };
    elements.into_iter().map(of_element).collect()
}

/// Texts by name; numbers and booleans are written by some, and mean their texts.
fn scalars(key: &'static str, value: Value) -> Result<BTreeMap<String, Secret>, Mistake> {
    let Value::Object(fields) = value else { return Err(wrong(key, "expected an object of texts")) };
    let of_field = |(name, field): (String, Value)| match field {
        Value::String(text) => Ok((name, Secret::new(text))),
        Value::Number(_) | Value::Bool(_) => Ok((name, Secret::new(field.to_string()))),
        _ => Err(wrong(key, "expected an object of texts")),
    };
    fields.into_iter().map(of_field).collect()
}

/// A summary in one line. Files are copied from other people, so invisible characters are removed.
fn summary(written: &str) -> Option<String> {
    let line = written.split_whitespace().collect::<Vec<_>>().join(" ");
    let cleaned = clean(shortened(&line, MAX_SUMMARY - 1).as_ref(), MAX_SUMMARY * 4).text.into_owned();
    Some(cleaned).filter(|text| !text.is_empty())
}

fn names(key: &'static str, value: Value) -> Result<BTreeMap<String, String>, Mistake> {
    serde_json::from_value(value).map_err(|_| wrong(key, "expected an object of texts"))
}

fn flag(key: &'static str, value: &Value) -> Result<bool, Mistake> {
    value.as_bool().ok_or_else(|| wrong(key, "expected true or false"))
}

fn pin(value: Value) -> Result<Level, Mistake> {
    serde_json::from_value(value).map_err(|_| wrong("pin", r#"expected true, false or "strict""#))
}

fn milliseconds(key: &'static str, value: &Value) -> Result<HumanDuration, Mistake> {
    let duration = value.as_u64().and_then(|ms| HumanDuration::try_from(Duration::from_millis(ms)).ok());
    let what = format!("expected a whole number of milliseconds from 1 to {MAX_TIMEOUT_MS}");
    duration.ok_or_else(|| wrong(key, &what))
}

/// A word as it is compared: of many spellings one.
fn folded(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '-' | '_' | ' ')).flat_map(char::to_lowercase).collect()
}

fn kind(text: &str) -> Result<Option<ServerKind>, Mistake> {
    match folded(text).as_str() {
        "" => Ok(None),
        // Copilot calls it local.
        "stdio" | "local" => Ok(Some(ServerKind::Stdio)),
        "http" | "streamablehttp" => Ok(Some(ServerKind::Http)),
        "sse" => Ok(Some(ServerKind::Sse)),
        _ => Err(wrong("type", r#"expected "stdio", "http", "streamable-http" or "sse""#)),
    }
}

fn mode(text: &str) -> Result<Option<ServerKind>, Mistake> {
    match folded(text).as_str() {
        "" => Ok(None),
        "auto" => Ok(Some(ServerKind::Detect)),
        "http" | "streamablehttp" => Ok(Some(ServerKind::Http)),
        "sse" => Ok(Some(ServerKind::Sse)),
        _ => Err(wrong("transportMode", r#"expected "auto", "streamable-http" or "sse""#)),
    }
}

fn validation(text: &str) -> Result<Validation, Mistake> {
    match text.to_ascii_lowercase().as_str() {
        "enforce" => Ok(Validation::Enforce),
        "warn" => Ok(Validation::Warn),
        "off" => Ok(Validation::Off),
        _ => Err(wrong("validate", r#"expected "enforce", "warn" or "off""#)),
    }
}
