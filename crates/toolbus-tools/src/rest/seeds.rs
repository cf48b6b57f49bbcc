//! The file of endpoints that the agents of RockBot have: `RestTools:Endpoints`, as JSON.
//!
//! Its entries are folded into the keys of `rest.endpoints` and read as those are. Names of keys have any case, as .NET
//! reads them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use toolbus_config::nearest;
use toolbus_core::text::shown;

use super::{Endpoint, Method, RestClient, check};

/// Most endpoints of a file.
const MAX_ENDPOINTS: usize = 10_000;
/// Keys of an entry.
const KEYS: [&str; 9] = [
    "Name",
    "Description",
    "UrlTemplate",
    "Method",
    "ParametersSchema",
    "AuthType",
    "AuthEnvVar",
    "ApiKeyHeader",
    "SendBodyAsJson",
];

/// Reads a file's text, which problems call `name`. Credentials come from variables of `environment`.
///
/// # Errors
///
/// If entries are invalid: their mistakes, in order.
pub fn endpoints_of_seeds(
    name: &str,
    text: &str,
    environment: &BTreeMap<String, String>,
    client: &RestClient,
) -> Result<Vec<Endpoint>, Vec<String>> {
    let document = toolbus_config::document(name, text).map_err(|problems| {
        problems.iter().map(|problem| format!("{}: {}", problem.location, problem.what)).collect::<Vec<_>>()
    })?;
    let nested = field(&document, "RestTools").and_then(|section| field(section, "Endpoints"));
    let entries = nested.or_else(|| field(&document, "RestTools:Endpoints")).and_then(Value::as_array);
    let Some(entries) = entries else {
        return Err(vec![format!("{name}: it has no list `RestTools:Endpoints`")]);
    };
    if entries.len() > MAX_ENDPOINTS {
        return Err(vec![format!("{name}: it has {} endpoints; at most {MAX_ENDPOINTS} can be read", entries.len())]);
    }
    let (mut endpoints, mut problems) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate() {
        let read = folded(entry, environment).and_then(|endpoint| {
            check::endpoint(&endpoint, client).map_err(|error| error.to_string())?;
            Ok(endpoint)
        });
        match read {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(what) => problems.push(format!("{name}: `RestTools:Endpoints[{index}]`: {what}")),
        }
    }
    if problems.is_empty() { Ok(endpoints) } else { Err(problems) }
}

/// The field of this name in any case.
fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    value.as_object()?.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// One entry as an endpoint.
fn folded(entry: &Value, environment: &BTreeMap<String, String>) -> Result<Endpoint, String> {
    let Value::Object(fields) = entry else { return Err("expected an object".to_owned()) };
    if let Some(unknown) = fields.keys().find(|key| !KEYS.iter().any(|known| known.eq_ignore_ascii_case(key))) {
        let hint = nearest(unknown, KEYS).map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        return Err(format!("unknown key `{}`{hint}", shown(unknown)));
    }
    let text = |key: &str| match field(entry, key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`{key}`: expected a text")),
    };
    let needed = |key: &str| text(key)?.filter(|text| !text.trim().is_empty()).ok_or(format!("`{key}` is missing"));
    let (name, url) = (needed("Name")?, needed("UrlTemplate")?);
    let method: Method = match text("Method")? {
        Some(method) => method.parse().map_err(|error| format!("`Method`: {error}"))?,
        None => Method::default(),
    };
    let parameters = match field(entry, "ParametersSchema") {
        None | Some(Value::Null) => of_placeholders(&url),
        Some(Value::String(schema)) => schema.clone(),
        Some(schema) => schema.to_string(),
    };
    let is_json = match field(entry, "SendBodyAsJson") {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(_) => return Err("`SendBodyAsJson`: expected true or false".to_owned()),
    };
    // Others have no body, whatever the file contains.
    let has_body = is_json && matches!(method, Method::Post | Method::Put | Method::Patch);
    let secret = || {
        let variable = needed("AuthEnvVar")?;
        let value = environment.get(&variable).filter(|value| !value.trim().is_empty());
        value
            .cloned()
            .ok_or_else(|| format!("`AuthEnvVar`: the environment variable `{variable}` is not set, or is empty"))
    };
    let kind = text("AuthType")?.unwrap_or_default();
    let auth = match kind.to_ascii_lowercase().as_str() {
        "" | "none" => Value::Null,
        "bearer" => json!({"type": "bearer", "token": secret()?}),
        "api_key" => {
            json!({"type": "api_key", "key": secret()?, "header": text("ApiKeyHeader")?.unwrap_or("X-Api-Key".to_owned())})
        }
        other => return Err(format!("`AuthType`: {:?}; expected \"none\", \"bearer\" or \"api_key\"", shown(other))),
    };
    let endpoint = json!({
        "name": name,
        "description": needed("Description")?,
        "url": url,
        "method": method,
        "parameters": parameters,
        "auth": auth,
        "body": if has_body { "json" } else { "none" },
    });
    serde_json::from_value(endpoint).map_err(|_| "it cannot be read as an endpoint".to_owned())
}

/// The schema of an endpoint that has none: what its address needs, as texts.
fn of_placeholders(url: &str) -> String {
    let names = url.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    let properties: Map<String, Value> = names.map(|name| (name.to_owned(), json!({"type": "string"}))).collect();
    let required: Vec<&String> = properties.keys().collect();
    json!({"type": "object", "required": required, "properties": properties}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::{Auth, Body};

    fn read(text: &str) -> Result<Vec<Endpoint>, String> {
        let environment = [("WEATHER_KEY", "weather-k3y-of-tests"), ("EMPTY", " ")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let client = RestClient::new(Default::default()).unwrap();
        endpoints_of_seeds("appsettings.json", text, &environment, &client).map_err(|problems| problems.join("\n"))
    }

    #[test]
    fn the_endpoints_of_the_seeds_are_read() {
        let text = r#"{"Logging": {}, "RestTools": {"Endpoints": [
            {"Name": "get_weather", "Description": "Weather", "UrlTemplate": "https://api.example/v1/{city}?units={units}",
             "AuthType": "api_key", "AuthEnvVar": "WEATHER_KEY"},
            {"name": "add_note", "description": "Adds", "urlTemplate": "https://notes.example/notes", "method": "post",
             "parametersSchema": "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\"}}}",
             "sendBodyAsJson": true, "authType": "bearer", "authEnvVar": "WEATHER_KEY"}
        ]}}"#;
        let endpoints = read(text).unwrap();
        let [weather, note] = endpoints.as_slice() else { panic!("two endpoints") };
        assert_eq!((&*weather.name, weather.method, weather.body), ("get_weather", Method::Get, Body::None));
        let schema = r#"{"properties":{"city":{"type":"string"},"units":{"type":"string"}},"required":["city","units"],"type":"object"}"#;
        assert_eq!(weather.parameters.as_deref(), Some(schema));
        let key = Some("weather-k3y-of-tests".into());
        let auth = Auth::ApiKey { header: "X-Api-Key".to_owned(), key: key.clone(), per_agent: None };
        assert_eq!(weather.auth, Some(auth));
        assert_eq!((note.method, note.body), (Method::Post, Body::Json));
        assert_eq!(note.auth, Some(Auth::Bearer { token: key, per_agent: None }));
    }

    #[test]
    fn errors_name_file_line_and_column() {
        let entry = |fields: &str| {
            let all = r#""Name": "n", "Description": "d""#;
            read(&format!(r#"{{"RestTools": {{"Endpoints": [{{{all}, {fields}}}]}}}}"#)).unwrap_err()
        };
        insta::assert_snapshot!(entry(r#""UrlTemplate": "{url}""#), @"appsettings.json: `RestTools:Endpoints[0]`: the URL a placeholder may stand in the path or the query only, not in the scheme");
        insta::assert_snapshot!(entry(r#""UrlTemplat": "https://h/""#), @"appsettings.json: `RestTools:Endpoints[0]`: unknown key `UrlTemplat`; did you mean `UrlTemplate`?");
        insta::assert_snapshot!(entry(r#""UrlTemplate": "https://h/", "AuthType": "oauth""#), @r#"appsettings.json: `RestTools:Endpoints[0]`: `AuthType`: "oauth"; expected "none", "bearer" or "api_key""#);
        insta::assert_snapshot!(entry(r#""UrlTemplate": "https://h/", "AuthType": "bearer", "AuthEnvVar": "EMPTY""#), @"appsettings.json: `RestTools:Endpoints[0]`: `AuthEnvVar`: the environment variable `EMPTY` is not set, or is empty");
        insta::assert_snapshot!(entry(r#""UrlTemplate": "https://h/", "Method": "FETCH""#), @"appsettings.json: `RestTools:Endpoints[0]`: `Method`: not a method: use GET, POST, PUT, PATCH, DELETE or HEAD");
        insta::assert_snapshot!(read("{}").unwrap_err(), @"appsettings.json: it has no list `RestTools:Endpoints`");
        insta::assert_snapshot!(read("{").unwrap_err(), @"appsettings.json:1:1: not JSON, as its extension says: EOF while parsing an object");
    }
}
