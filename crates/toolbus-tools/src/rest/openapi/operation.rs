//! One operation as an endpoint: its parameters and its body become arguments, each with its route.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use toolbus_core::text::{shortened, shown};
use toolbus_outbound::headers::{parse_name, unreserved};

use super::schema::{OperationSchemas, VALUE, is_read_only};
use super::security::{Authorisation, Schemes};
use super::{OperationFilter, resolved};
use crate::Secret;
use crate::rest::routes::{ArgumentRoutes, QueryStyle, Route, RoutedBody};
use crate::rest::{Body, Endpoint, Method};

/// Longest description of a tool, in characters.
const MAX_DESCRIPTION: usize = 4000;
/// Longest name of a tool, in bytes.
const MAX_NAME: usize = 255;
/// Longest name of an argument that every model provider accepts, in bytes.
const MAX_ARGUMENT: usize = 64;
/// Most parameters of an operation, those of its path included.
const MAX_PARAMETERS: usize = 256;
/// Parameters of headers that are ignored: the request has these anyway (OpenAPI 3, Parameter Object).
const IGNORED_HEADERS: [&str; 3] = ["accept", "content-type", "authorization"];
/// Keywords of a schema of objects whose properties can stand beside other arguments.
const PLAIN: [&str; 13] = [
    "type",
    "properties",
    "required",
    "title",
    "description",
    "additionalProperties",
    "example",
    "examples",
    "default",
    "xml",
    "externalDocs",
    "deprecated",
    "nullable",
];

/// An operation that is to be a tool.
pub(super) struct FoundOperation<'a> {
    pub(super) name: String,
    method: Method,
    path: &'a str,
    /// The path's own fields, which hold for each of its operations.
    item: &'a Value,
    pub(super) operation: &'a Value,
}

/// The operations of a document.
#[derive(Default)]
pub(super) struct Operations<'a> {
    pub(super) found: Vec<FoundOperation<'a>>,
    /// Operations that are no tools, each with the reason.
    pub(super) left_out: Vec<String>,
    /// Texts that patterns are compared with, for each operation.
    pub(super) seen: Vec<Vec<String>>,
}

impl<'a> Operations<'a> {
    /// Finds those that the section chooses.
    pub(super) fn find(document: &'a Value, prefix: Option<&str>, choice: &OperationFilter) -> Self {
        let mut operations = Self::default();
        let paths = document.get("paths").and_then(Value::as_object);
        for (path, item) in paths.into_iter().flatten().filter(|(path, _)| !path.starts_with("x-")) {
            // The address of the server is written before it: without the slash, it would go on with the name of the host.
            if !path.starts_with('/') {
                operations.left_out.push(format!("{}: its path does not begin with `/`", shown(path)));
                continue;
            }
            let item = match resolved(document, item) {
                Ok(item) => item,
                Err(why) => {
                    operations.left_out.push(format!("{}: {why}", shown(path)));
                    continue;
                }
            };
            for method in Method::ALL {
                let Some(operation) = item.get(method.as_str().to_ascii_lowercase()) else { continue };
                let id = operation.get("operationId").and_then(Value::as_str).unwrap_or_default();
                let bare = if id.is_empty() { derived(method, path) } else { plain(id) };
                let name = prefix.map_or_else(|| bare.clone(), |prefix| format!("{prefix}_{bare}"));
                let texts =
                    vec![name.clone(), bare, id.to_owned(), path.clone(), format!("{} {path}", method.as_str())];
                let is_chosen = choice.admits(&texts);
                operations.seen.push(texts);
                if is_chosen {
                    operations.found.push(FoundOperation { name, method, path, item, operation });
                }
            }
        }
        operations
    }
}

impl<'a> FoundOperation<'a> {
    /// `GET /pets`.
    pub(super) fn label(&self) -> String {
        format!("{} {}", self.method.as_str(), shown(self.path))
    }

    /// The operation as an endpoint at `server`.
    ///
    /// # Errors
    ///
    /// The reason that it cannot be called.
    pub(super) fn endpoint(
        &self,
        document: &'a Value,
        is_3_0: bool,
        server: &str,
        schemes: &Schemes<'_>,
    ) -> Result<Endpoint, String> {
        if self.name.is_empty() || self.name.len() > MAX_NAME {
            return Err(format!("its name has {} bytes; names of tools have 1 to {MAX_NAME}", self.name.len()));
        }
        if [self.item, self.operation].iter().any(|part| part.get("servers").is_some()) {
            return Err("it has servers of its own".to_owned());
        }
        let authorisation = schemes.of(self.operation, self.method)?;
        let mut arguments = OperationArguments::new(document, is_3_0);
        for parameter in self.parameters(document)? {
            arguments.parameter(parameter, &authorisation)?;
        }
        let media = match self.method {
            Method::Get | Method::Head => None,
            _ => arguments.body(self.operation)?,
        };
        let path = arguments.path(self.path)?;
        let separator = if path.contains('?') { '&' } else { '?' };
        let query = authorisation.query.map_or_else(String::new, |(_, pair)| format!("{separator}{pair}"));
        let mut headers: BTreeMap<String, Secret> = authorisation.headers;
        if let Some(media) = media.filter(|media| media != JSON) {
            headers.insert("Content-Type".to_owned(), Secret::new(media));
        }
        let (parameters, routes) = arguments.finish()?;
        let body = if routes.body == RoutedBody::None { Body::None } else { Body::Json };
        Ok(Endpoint {
            description: self.description(),
            method: self.method,
            parameters: Some(parameters.to_string()),
            auth: authorisation.auth,
            headers,
            body,
            routes: Some(routes),
            ..Endpoint::new(&*self.name, format!("{server}{path}{query}"))
        })
    }

    fn description(&self) -> String {
        let text = |key: &str| self.operation.get(key).and_then(Value::as_str).map_or("", str::trim);
        let texts = match (text("summary"), text("description")) {
            ("", "") => self.label(),
            (one, "") | ("", one) => one.to_owned(),
            (summary, description) if description.starts_with(summary) => description.to_owned(),
            (summary, description) => format!("{summary}\n\n{description}"),
        };
        shortened(&texts, MAX_DESCRIPTION).into_owned()
    }

    /// The parameters of the path and the operation; that of the operation stands for one of the same name and location.
    fn parameters(&self, document: &'a Value) -> Result<Vec<&'a Value>, String> {
        let mut parameters = BTreeMap::new();
        let lists = [self.item, self.operation].map(|part| part.get("parameters").and_then(Value::as_array));
        let count: usize = lists.iter().flatten().map(|list| list.len()).sum();
        if count > MAX_PARAMETERS {
            return Err(format!("it has {count} parameters; at most {MAX_PARAMETERS} can be arguments"));
        }
        for parameter in lists.into_iter().flatten().flatten() {
            let parameter = resolved(document, parameter)?;
            let text = |key: &str| parameter.get(key).and_then(Value::as_str);
            let (Some(name), Some(location)) = (text("name"), text("in")) else {
                return Err("it has a parameter without `name` or `in`".to_owned());
            };
            parameters.insert((location, name), parameter);
        }
        Ok(parameters.into_values().collect())
    }
}

const JSON: &str = "application/json";

/// Arguments that become the schema and the routes of an operation.
struct OperationArguments<'a> {
    document: &'a Value,
    schemas: OperationSchemas<'a>,
    properties: Map<String, Value>,
    required: Vec<String>,
    routes: ArgumentRoutes,
    /// The names of arguments, by the names of placeholders.
    placeholders: BTreeMap<&'a str, String>,
    /// Whether other fields of the body are sent as they are.
    is_open: bool,
}

impl<'a> OperationArguments<'a> {
    fn new(document: &'a Value, is_3_0: bool) -> Self {
        Self {
            document,
            schemas: OperationSchemas::new(document, is_3_0),
            properties: Map::new(),
            required: Vec::new(),
            routes: ArgumentRoutes::default(),
            placeholders: BTreeMap::new(),
            is_open: false,
        }
    }

    /// Adds a parameter, unless the request has its value anyway.
    fn parameter(&mut self, parameter: &'a Value, authorisation: &Authorisation) -> Result<(), String> {
        let text = |key: &str| parameter.get(key).and_then(Value::as_str).unwrap_or_default();
        let (name, location) = (text("name"), text("in"));
        let is_required = parameter.get("required") == Some(&Value::Bool(true)) || location == "path";
        self.schemas.spend(VALUE + name.len())?;
        if authorisation.takes(location, name) {
            self.routes.needs_key |= is_required && authorisation.takes_key(location, name);
            return Ok(());
        }
        let route = match location {
            "path" | "header" if self.is_exploded(parameter) => {
                return match is_required {
                    true => Err(format!("parameter `{}` is an object with `explode`", shown(name))),
                    false => Ok(()),
                };
            }
            "path" if !matches!(text("style"), "" | "simple") => {
                return Err(format!("parameter `{}` has the style `{}`", shown(name), shown(text("style"))));
            }
            "path" => Route::Path,
            "query" => Route::Query(name.to_owned(), query_style(parameter)),
            "header" if IGNORED_HEADERS.iter().any(|ignored| ignored.eq_ignore_ascii_case(name)) => return Ok(()),
            "header" => match parse_name(name).and_then(unreserved) {
                Ok(name) => Route::Header(name),
                Err(_) if !is_required => return Ok(()),
                Err(error) => return Err(error.to_string()),
            },
            _ if !is_required => return Ok(()),
            location => return Err(format!("parameter `{}` goes to the {}", shown(name), shown(location))),
        };
        let content = parameter.get("content").and_then(Value::as_object).and_then(|content| content.values().next());
        let mut schema = match parameter.get("schema").or_else(|| content?.get("schema")) {
            Some(schema) => self.schemas.schema(schema)?,
            None => json!({}),
        };
        if let (Value::Object(keywords), Some(description)) =
            (&mut schema, parameter.get("description").and_then(Value::as_str))
        {
            keywords.insert("description".to_owned(), self.schemas.prose(description)?);
        }
        let argument = self.free(argument_name(name), location);
        if route == Route::Path {
            self.placeholders.insert(name, argument.clone());
        }
        if is_required {
            self.required.push(argument.clone());
        }
        self.routes.routes.insert(argument.clone(), route);
        self.properties.insert(argument, schema);
        Ok(())
    }

    /// Whether a parameter is an object whose fields are written with their names.
    fn is_exploded(&self, parameter: &Value) -> bool {
        let schema = parameter.get("schema").and_then(|schema| resolved(self.document, schema).ok());
        parameter.get("explode") == Some(&Value::Bool(true))
            && schema.is_some_and(|schema| schema.get("type").is_some_and(|kind| kind == "object"))
    }

    /// Adds the body, if the operation has one; gives its media type.
    fn body(&mut self, operation: &'a Value) -> Result<Option<String>, String> {
        let Some(body) = operation.get("requestBody") else { return Ok(None) };
        let body = resolved(self.document, body)?;
        let is_required = body.get("required") == Some(&Value::Bool(true));
        let content = body.get("content").and_then(Value::as_object);
        let Some((media, of_media)) = content.into_iter().flatten().find(|(media, _)| is_json(media)) else {
            // Without its body, the operation would do something else than it describes.
            return match content.into_iter().flatten().next() {
                Some((media, _)) => Err(format!("its body is no JSON but {}", shown(media))),
                None => Ok(None),
            };
        };
        let media = if media.contains('*') { JSON.to_owned() } else { media.clone() };
        let schema = of_media.get("schema").unwrap_or(&Value::Null);
        let written = resolved(self.document, schema)?;
        match self.fields(written) {
            Some(fields) => {
                let sent: BTreeSet<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
                for (name, schema) in fields {
                    let schema = self.schemas.schema(schema)?;
                    self.properties.insert(name.clone(), schema);
                }
                let required = written.get("required").and_then(Value::as_array).into_iter().flatten();
                let names = required.filter_map(Value::as_str).filter(|name| sent.contains(name));
                if is_required {
                    self.required.extend(names.map(str::to_owned));
                }
                self.is_open =
                    matches!(written.get("additionalProperties"), Some(Value::Bool(true) | Value::Object(_)));
                self.routes.body = RoutedBody::Fields { is_required };
            }
            None => {
                let mut schema = self.schemas.schema(schema)?;
                if let (Value::Object(keywords), Some(text)) =
                    (&mut schema, body.get("description").and_then(Value::as_str))
                {
                    let text = self.schemas.prose(text)?;
                    keywords.entry("description").or_insert(text);
                }
                let argument = self.free("body".to_owned(), "request");
                if is_required {
                    self.required.push(argument.clone());
                }
                self.properties.insert(argument.clone(), schema);
                self.routes.body = RoutedBody::Whole(argument);
            }
        }
        Ok(Some(media))
    }

    /// The properties of a body that can stand beside the parameters: those of a plain object with names of their own.
    fn fields(&self, schema: &'a Value) -> Option<Vec<(&'a String, &'a Value)>> {
        let keywords = schema.as_object()?;
        let is_object = keywords.get("type").is_none_or(|kind| kind == "object");
        let is_plain = keywords.keys().all(|keyword| PLAIN.contains(&keyword.as_str()) || keyword.starts_with("x-"));
        let is_map =
            keywords.get("additionalProperties").is_some_and(|of| of.as_object().is_some_and(|of| !of.is_empty()));
        if !is_object || !is_plain || is_map {
            return None;
        }
        let properties = keywords.get("properties")?.as_object()?;
        let sent: Vec<_> = properties.iter().filter(|(_, schema)| !is_read_only(self.document, schema)).collect();
        // Providers of models have no arguments of unusual names, but objects with such fields.
        let is_free = |name: &str| !self.properties.contains_key(name) && argument_name(name) == name;
        (!sent.is_empty() && sent.iter().all(|(name, _)| is_free(name))).then_some(sent)
    }

    /// A name that no argument has.
    fn free(&self, name: String, location: &str) -> String {
        let is_free = |name: &String| !self.properties.contains_key(name);
        let others = [format!("{name}_in_{location}"), format!("{location}_{name}")];
        let numbered = (2..).map(|number: usize| format!("{name}_{number}"));
        std::iter::once(name.clone()).chain(others).chain(numbered).find(is_free).unwrap_or_default()
    }

    /// The path with the names of arguments in its placeholders.
    fn path(&self, path: &str) -> Result<String, String> {
        let mut written = String::new();
        let mut rest = path;
        while let Some((literal, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or("its path has an unbalanced brace")?;
            let argument = self.placeholders.get(name);
            let argument =
                argument.ok_or_else(|| format!("its path has `{{{}}}`, but no such parameter", shown(name)))?;
            written.push_str(literal);
            written.push_str(&format!("{{{argument}}}"));
            rest = after;
        }
        written.push_str(rest);
        Ok(written)
    }

    fn finish(self) -> Result<(Value, ArgumentRoutes), String> {
        let definitions = self.schemas.definitions()?;
        let optional = [
            ("required", (!self.required.is_empty()).then(|| json!(self.required))),
            ("additionalProperties", (!self.is_open).then_some(Value::Bool(false))),
            ("$defs", (!definitions.is_empty()).then_some(Value::Object(definitions))),
        ];
        let optional = optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let always = [("type".to_owned(), "object".into()), ("properties".to_owned(), self.properties.into())];
        let schema = Value::Object(always.into_iter().chain(optional).collect());
        Ok((schema, self.routes))
    }
}

/// Returns the style in which a parameter of the query is written.
fn query_style(parameter: &Value) -> QueryStyle {
    if parameter.get("content").is_some() {
        return QueryStyle::Json;
    }
    let style = parameter.get("style").and_then(Value::as_str).unwrap_or("form");
    let explode = parameter.get("explode").and_then(Value::as_bool).unwrap_or(style == "form");
    match style {
        "deepObject" => QueryStyle::Deep,
        "spaceDelimited" if !explode => QueryStyle::Joined(' '),
        "pipeDelimited" if !explode => QueryStyle::Joined('|'),
        _ if !explode => QueryStyle::Joined(','),
        _ => QueryStyle::Repeated,
    }
}

fn is_json(media: &str) -> bool {
    let media = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media == JSON || media.ends_with("+json") || matches!(media.as_str(), "*/*" | "application/*")
}

/// An operation's id as the name of a tool.
fn plain(id: &str) -> String {
    let usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let name: String = id.trim().chars().map(|c| if usual(c) { c } else { '_' }).collect();
    name.trim_matches('_').to_owned()
}

/// The name of an operation without an id: `get_pets_petId`.
fn derived(method: Method, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method.as_str().to_ascii_lowercase().as_str()).chain(words).collect::<Vec<_>>().join("_")
}

/// A parameter's name as every provider accepts names of arguments: `filter[name]` is `filter_name`.
fn argument_name(name: &str) -> String {
    let usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if !name.is_empty() && name.len() <= MAX_ARGUMENT && name.chars().all(usual) {
        return name.to_owned();
    }
    let changed: String = name.chars().take(MAX_ARGUMENT).map(|c| if usual(c) { c } else { '_' }).collect();
    let words: Vec<&str> = changed.split('_').filter(|word| !word.is_empty()).collect();
    if words.is_empty() { "parameter".to_owned() } else { words.join("_") }
}
