//! `[rest.openapi]`: the operations of OpenAPI specifications as endpoints.
//!
//! A specification is read as plain JSON or YAML. Each operation becomes an [`Endpoint`]: its parameters and its body
//! are one schema, and where each argument goes is a route. An operation that cannot be called in this way is left out
//! with a note; what makes the specification as a whole useless is an error.

mod operation;
mod schema;
mod security;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use toolbus_core::pattern::{Pattern, PatternError};
use toolbus_core::text::{list, shown};
use toolbus_outbound::egress::{EgressRules, HostLists};
use url::Url;

use self::operation::{FoundOperation, Operations};
use self::security::Schemes;
use super::{DescribedEndpoints, Endpoint, OpenApiConfig, RestClient, check};

/// Most operations that a note names.
const MAX_NAMED: usize = 5;
/// Most references that lead from one to the next, until one leads to something.
const MAX_REFERENCES: usize = 32;
/// Longest reference that is followed, in bytes.
const MAX_REFERENCE: usize = 1024;

/// Reason why a specification cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct OpenApiError {
    /// The key of its section that can mend it; `None` for the specification itself.
    pub key: Option<&'static str>,
    what: String,
}

impl OpenApiError {
    fn of_key(key: &'static str, what: impl Into<String>) -> Self {
        Self { key: Some(key), what: what.into() }
    }

    fn of_text(what: impl Into<String>) -> Self {
        Self { key: None, what: what.into() }
    }
}

/// Reads a specification, which problems call `name`. Nothing is fetched: references lead to other parts of it.
///
/// # Errors
///
/// If it is no OpenAPI 3.0 or 3.1, has no server that may be used, or its tools would have no names of their own, or are too
/// many; or if the section does not fit it.
pub fn read(
    name: &str,
    text: &str,
    config: &OpenApiConfig,
    rules: &EgressRules,
    client: &RestClient,
) -> Result<DescribedEndpoints, OpenApiError> {
    let document = toolbus_config::document(name, text).map_err(|problems| {
        let first = problems.first().map(|problem| match problem.key.as_str() {
            "" => format!("{}: {}", problem.location, problem.what),
            key => format!("{}: `{}`: {}", problem.location, shown(key), problem.what),
        });
        OpenApiError::of_text(first.unwrap_or_default())
    })?;
    let is_3_0 = version(&document)?;
    let (server, is_guarded) = server(&document, config, rules)?;
    let schemes = Schemes::read(&document, config)?;
    let choice = OperationFilter::new(config)?;
    let mut operations = Operations::find(&document, config.prefix.as_deref(), &choice);
    if operations.found.len() > config.max_tools {
        let what = format!(
            "{} operations would become tools; at most {} may (`max_tools`). Choose some with `include` or `exclude`",
            operations.found.len(),
            config.max_tools
        );
        return Err(OpenApiError::of_key("max_tools", what));
    }
    distinct(&operations.found)?;
    let (mut endpoints, mut lacking) = (Vec::new(), BTreeSet::new());
    for operation in std::mem::take(&mut operations.found) {
        let made = operation.endpoint(&document, is_3_0, &server, &schemes);
        let made = made.map(|endpoint| Endpoint {
            headers: config
                .headers
                .iter()
                .map(|(k, v)| (k.clone(), v.clone()))
                .chain(endpoint.headers.clone())
                .collect(),
            timeout: config.timeout,
            max_response: config.max_response,
            idempotency_header: config.idempotency_header.clone(),
            is_guarded,
            ..endpoint
        });
        let checked = made.and_then(|endpoint| match check::endpoint(&endpoint, client) {
            Ok(_) if is_below(&endpoint.url, &server) => Ok(Ok(endpoint)),
            Ok(_) => Err("its address is not below that of the server".to_owned()),
            Err(error) => match error.key() {
                key @ ("auth" | "headers" | "idempotency_header") => {
                    Ok(Err(OpenApiError::of_key(key, error.to_string())))
                }
                _ => Err(error.to_string()),
            },
        });
        match checked {
            Ok(endpoint) => {
                endpoints.push(endpoint?);
                lacking.extend(schemes.lacking(operation.operation));
            }
            Err(why) => operations.left_out.push(format!("{}: {why}", operation.label())),
        }
    }
    endpoints.sort_by(|a, b| a.name.cmp(&b.name));
    let mut notes = schemes.notes(&endpoints);
    if !lacking.is_empty() {
        let names: Vec<String> = lacking.into_iter().map(|name| format!("`{}`", shown(name))).collect();
        let names = list(&names, MAX_NAMED);
        notes.push(format!("operations need a credential that `auth` does not have: {names}; they are called without"));
    }
    if !operations.left_out.is_empty() {
        let (count, named) = (operations.left_out.len(), list(&operations.left_out, MAX_NAMED));
        let verb = if count == 1 { "operation is no tool" } else { "operations are no tools" };
        notes.push(format!("{count} {verb}: {named}"));
    }
    notes.extend(choice.idle(&operations.seen));
    if endpoints.is_empty() {
        let why = notes.first().map_or_else(String::new, |note| format!("; {note}"));
        return Err(OpenApiError::of_text(format!("no operation of it becomes a tool{why}")));
    }
    Ok(DescribedEndpoints { endpoints, notes })
}

/// Checks whether the document is of OpenAPI 3.0, and not of 3.1.
fn version(document: &Value) -> Result<bool, OpenApiError> {
    if document.get("swagger").is_some() {
        let what = "it is Swagger 2.0; expected OpenAPI 3.0 or 3.1. Converters make one of the other";
        return Err(OpenApiError::of_text(what));
    }
    let written = match document.get("openapi") {
        Some(Value::String(version)) => version.clone(),
        Some(Value::Number(version)) => version.to_string(),
        _ => return Err(OpenApiError::of_text("it is no OpenAPI specification: it has no `openapi` with a version")),
    };
    let is_of = |minor: &str| written == minor || written.strip_prefix(minor).is_some_and(|rest| rest.starts_with('.'));
    match (is_of("3.0"), is_of("3.1")) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(OpenApiError::of_text(format!("it is OpenAPI {}; expected 3.0 or 3.1", shown(&written)))),
    }
}

/// The address that paths follow, without a slash at its end; and whether the specification chose its host.
fn server(document: &Value, config: &OpenApiConfig, rules: &EgressRules) -> Result<(String, bool), OpenApiError> {
    let plain = |url: &str| url.trim_end_matches('/').to_owned();
    if let Some(server) = &config.server {
        return Ok((plain(server), false));
    }
    let refused = |what: String| OpenApiError::of_key("server", what);
    let own = config.url.as_deref().and_then(|url| Url::parse(url).ok());
    let written = with_defaults(document.pointer("/servers/0"));
    let url = match (Url::parse(&written), &own) {
        (Ok(url), _) => url,
        (Err(_), Some(own)) => {
            own.join(&written).map_err(|_| refused(format!("its server {} is no address", shown(&written))))?
        }
        (Err(_), None) => return Err(refused("the specification names no host; write `server`".to_owned())),
    };
    if own.is_some_and(|own| own.origin() == url.origin()) {
        return Ok((plain(url.as_str()), false));
    }
    rules.check_url(&url, &HostLists::default()).map_err(|refusal| {
        refused(format!("the server of the specification may not be asked: {refusal}. Write `server` if it is meant"))
    })?;
    if !config.auth.is_empty() || !config.headers.is_empty() {
        let host = url.host_str().unwrap_or_default();
        return Err(refused(format!(
            "the specification says that requests go to `{host}`. Credentials go to no host that a specification chooses; \
             write `server` if it is meant"
        )));
    }
    Ok((plain(url.as_str()), true))
}

/// Whether an address has the scheme, the host and the port of the server, and a path that follows that of the server.
fn is_below(url: &str, server: &str) -> bool {
    let (Ok(url), Ok(server)) = (Url::parse(url), Url::parse(server)) else { return false };
    let after = url.path().strip_prefix(server.path().trim_end_matches('/'));
    url.origin() == server.origin() && after.is_some_and(|after| after.is_empty() || after.starts_with('/'))
}

/// The address of a server, with the defaults of its variables.
fn with_defaults(server: Option<&Value>) -> String {
    let written = server.and_then(|server| server.get("url")).and_then(Value::as_str).unwrap_or("/");
    let variables = server.and_then(|server| server.get("variables")).and_then(Value::as_object);
    let defaults = variables.into_iter().flatten().filter_map(|(name, of)| Some((name, of.get("default")?.as_str()?)));
    defaults.fold(written.to_owned(), |url, (name, default)| url.replace(&format!("{{{name}}}"), default))
}

/// Refuses tools of one name, and names that differ in case alone: models mix them up.
fn distinct(found: &[FoundOperation<'_>]) -> Result<(), OpenApiError> {
    let mut names = BTreeMap::<String, &FoundOperation<'_>>::new();
    for operation in found {
        if let Some(other) = names.insert(operation.name.to_ascii_lowercase(), operation) {
            let (one, two) = (other.label(), operation.label());
            let what = if other.name == operation.name {
                format!("`{one}` and `{two}` would both be the tool `{}`", operation.name)
            } else {
                let names = format!("`{}` and `{}`", other.name, operation.name);
                format!("`{one}` and `{two}` would be the tools {names}, whose names differ in case alone")
            };
            return Err(OpenApiError::of_key("exclude", format!("{what}; leave one out: exclude = [\"{two}\"]")));
        }
    }
    Ok(())
}

/// Selection of the operations that become tools.
struct OperationFilter {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

impl OperationFilter {
    fn new(config: &OpenApiConfig) -> Result<Self, OpenApiError> {
        let parsed = |key, patterns: &[String]| {
            let patterns =
                patterns.iter().map(|pattern| Pattern::parse(pattern)).collect::<Result<Vec<_>, PatternError>>();
            patterns.map_err(|error| OpenApiError::of_key(key, error.to_string()))
        };
        Ok(Self { include: parsed("include", &config.include)?, exclude: parsed("exclude", &config.exclude)? })
    }

    fn admits(&self, texts: &[String]) -> bool {
        let is_in =
            |patterns: &[Pattern]| patterns.iter().any(|pattern| texts.iter().any(|text| pattern.matches(text)));
        is_in(&self.include) && !is_in(&self.exclude)
    }

    /// Notes of patterns that match no operation.
    fn idle(&self, seen: &[Vec<String>]) -> Vec<String> {
        let matches = |pattern: &Pattern| seen.iter().flatten().any(|text| pattern.matches(text));
        let of = |key: &str, patterns: &[Pattern]| {
            let idle = patterns.iter().filter(|pattern| !matches(pattern));
            idle.map(|pattern| format!("`{key}`: `{}` matches no operation", pattern.as_str())).collect::<Vec<_>>()
        };
        [of("include", &self.include), of("exclude", &self.exclude)].concat()
    }
}

/// Returns a part of a document, or what its reference leads to.
///
/// # Errors
///
/// If the reference leads to another document, to nothing, or in a circle.
fn resolved<'a>(document: &'a Value, mut part: &'a Value) -> Result<&'a Value, String> {
    for _ in 0..MAX_REFERENCES {
        let Some(reference) = part.get("$ref").and_then(Value::as_str) else { return Ok(part) };
        part = target(document, reference)?;
    }
    Err("its `$ref`s lead in a circle".to_owned())
}

/// Returns what a reference leads to.
fn target<'a>(document: &'a Value, reference: &str) -> Result<&'a Value, String> {
    let Some(pointer) = reference.strip_prefix('#') else {
        let reference = shown(reference);
        return Err(format!(
            "its `$ref` `{reference}` leads to another document, and only the specification itself is read: put it into \
             one file"
        ));
    };
    if reference.len() > MAX_REFERENCE {
        return Err(format!("its `$ref` `{}` is longer than {MAX_REFERENCE} bytes", shown(reference)));
    }
    let decoded = percent_encoding::percent_decode_str(pointer).decode_utf8_lossy();
    document.pointer(&decoded).ok_or_else(|| format!("its `$ref` `{}` leads to nothing", shown(reference)))
}
