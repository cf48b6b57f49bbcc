//! One server of the file: its members, whatever their case, in the spellings of those who write such files.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use toolbus_core::secret::Secret;
use toolbus_core::tool::Validation;
use toolbus_mcp::spec::HttpKind;

use super::json::Members;
use super::substitution::Substitution;
use crate::config::mcp::draft::{Draft, Kind, Mistake};
use crate::config::pins::Pin;

/// Longest `toolTimeoutMs`: a year.
const MAX_TIMEOUT_MS: u64 = 366 * 24 * 3600 * 1000;

/// What is written of one server.
pub(super) struct Written {
    pub(super) name: Option<String>,
    pub(super) draft: Result<Draft, Mistake>,
    /// What is done about changes of its tools; absent where that is not said, or not so that it can be read.
    pub(super) pin: Option<Pin>,
    /// Whether it says that it is not to be used, whatever else is wrong with it.
    pub(super) is_disabled: bool,
    /// Names of members that mean nothing here.
    pub(super) ignored: Vec<String>,
}

/// Reads a server; `name` is absent where it is a member.
pub(super) fn read(name: Option<String>, text: &RawValue, environment: &BTreeMap<String, String>) -> Written {
    let Some(Members(members)) = Members::of(text) else {
        let draft = Err(wrong("", "expected an object"));
        return Written { name, draft, pin: None, is_disabled: false, ignored: Vec::new() };
    };
    let mut reader = Reader {
        name,
        draft: Draft::default(),
        transport_mode: None,
        pin: None,
        seen: BTreeSet::new(),
        ignored: Vec::new(),
        substitution: Substitution::new(environment),
    };
    let is_disabled = members.iter().any(|(key, value)| key.eq_ignore_ascii_case("disabled") && value.get() == "true");
    let mistake = members.into_iter().find_map(|(member, value)| reader.member(member, value).err());
    let mut draft = reader.draft;
    // The most exact of the words for a transport decides between those for HTTP.
    if let (Some(mode), None | Some(Kind::Http(_)), Some(_)) = (reader.transport_mode, draft.kind, &draft.url) {
        draft.kind = Some(Kind::Http(mode));
    }
    let draft = mistake.map_or(Ok(draft), Err);
    Written { name: reader.name, draft, pin: reader.pin, is_disabled, ignored: reader.ignored }
}

struct Reader<'a> {
    name: Option<String>,
    draft: Draft,
    transport_mode: Option<HttpKind>,
    pin: Option<Pin>,
    seen: BTreeSet<&'static str>,
    ignored: Vec<String>,
    substitution: Substitution<'a>,
}

impl Reader<'_> {
    fn member(&mut self, member: String, text: &RawValue) -> Result<(), Mistake> {
        let key = match member.to_lowercase().as_str() {
            "name" if self.name.is_none() || self.seen.contains("name") => "name",
            "command" => "command",
            "args" | "arguments" => "args",
            "env" | "environmentvariables" => "env",
            "cwd" => "cwd",
            "url" => "url",
            "type" | "transport" => "type",
            "transportmode" => "transportMode",
            "headers" => "headers",
            "allowedtools" => "allowedTools",
            "deniedtools" => "deniedTools",
            "tooltimeoutms" => "toolTimeoutMs",
            "disabled" => "disabled",
            "lazy" => "lazy",
            "validate" => "validate",
            "pin" => "pin",
            _ => {
                self.ignored.push(member);
                return Ok(());
            }
        };
        if !self.seen.insert(key) {
            return Err(Mistake::new(key, format!("`{key}` is given twice")));
        }
        let mut value: Value = serde_json::from_str(text.get()).map_err(|_| wrong(key, "cannot be read"))?;
        self.substitution.apply(&mut value).map_err(|error| wrong(key, &error.to_string()))?;
        // Some programs write what is absent as null.
        if value.is_null() { Ok(()) } else { self.value(key, value) }
    }

    fn value(&mut self, key: &'static str, value: Value) -> Result<(), Mistake> {
        let draft = &mut self.draft;
        match key {
            "name" => self.name = Some(text(key, value)?),
            "command" => draft.command = Some(text(key, value)?),
            "args" => draft.args = texts(key, value)?,
            "env" => draft.env = scalars(key, value)?,
            "cwd" => draft.cwd = Some(text(key, value)?.into()),
            "url" => draft.url = Some(text(key, value)?),
            "type" => draft.kind = kind(&text(key, value)?)?,
            "transportMode" => self.transport_mode = mode(&text(key, value)?)?,
            "headers" => draft.headers = scalars(key, value)?,
            "allowedTools" => draft.allowed = texts(key, value)?,
            "deniedTools" => draft.denied = texts(key, value)?,
            "toolTimeoutMs" => draft.tool_timeout = Some(milliseconds(key, &value)?),
            "disabled" => draft.is_disabled = flag(key, &value)?,
            "lazy" => draft.is_lazy = flag(key, &value)?,
            "pin" => self.pin = Some(pin(value)?),
            _ => draft.validation = validation(&text("validate", value)?)?,
        }
        Ok(())
    }
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
    let Value::Object(members) = value else { return Err(wrong(key, "expected an object of texts")) };
    let of_member = |(name, member): (String, Value)| match member {
        Value::String(text) => Ok((name, Secret::new(text))),
        Value::Number(_) | Value::Bool(_) => Ok((name, Secret::new(member.to_string()))),
        _ => Err(wrong(key, "expected an object of texts")),
    };
    members.into_iter().map(of_member).collect()
}

fn flag(key: &'static str, value: &Value) -> Result<bool, Mistake> {
    value.as_bool().ok_or_else(|| wrong(key, "expected true or false"))
}

fn pin(value: Value) -> Result<Pin, Mistake> {
    serde_json::from_value(value).map_err(|_| wrong("pin", r#"expected true, false or "strict""#))
}

fn milliseconds(key: &'static str, value: &Value) -> Result<Duration, Mistake> {
    let in_range = value.as_u64().filter(|ms| (1..=MAX_TIMEOUT_MS).contains(ms));
    let what = format!("expected a whole number of milliseconds from 1 to {MAX_TIMEOUT_MS}");
    in_range.map(Duration::from_millis).ok_or_else(|| wrong(key, &what))
}

/// A word as it is compared: of many spellings one.
fn folded(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '-' | '_' | ' ')).flat_map(char::to_lowercase).collect()
}

fn kind(text: &str) -> Result<Option<Kind>, Mistake> {
    match folded(text).as_str() {
        "" => Ok(None),
        "stdio" => Ok(Some(Kind::Stdio)),
        "http" | "streamablehttp" => Ok(Some(Kind::Http(HttpKind::Streamable))),
        "sse" => Ok(Some(Kind::Http(HttpKind::Sse))),
        _ => Err(wrong("type", r#"expected "stdio", "http", "streamable-http" or "sse""#)),
    }
}

fn mode(text: &str) -> Result<Option<HttpKind>, Mistake> {
    match folded(text).as_str() {
        "" => Ok(None),
        "auto" => Ok(Some(HttpKind::Detect)),
        "http" | "streamablehttp" => Ok(Some(HttpKind::Streamable)),
        "sse" => Ok(Some(HttpKind::Sse)),
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
