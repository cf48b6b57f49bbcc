//! Every secret of a configuration: what is removed from all that leaves the daemon.
//!
//! What the schema calls a secret is one, but for headers and variables of programs: each of those *may* be one. It is
//! one whose name says so (`names_secret`), or that comes from `{ env = … }` or `{ file = … }`, unless its name is that of
//! a setting (`names_setting`).

mod values;

use std::collections::BTreeMap;

use serde_json::Value;
use toolbus_config::{KeyPath, Tree};
use toolbus_core::redact::{Obstacle, obstacle};
use toolbus_core::secret::Secret;
use toolbus_mcp_client::spec::{Credential, Credentials, Endpoint, Program, TransportSpec};

use self::values::{argument, header, in_query, in_url, names_secret, names_setting, pair};
use super::{BusUrl, Config};

/// Tables whose values are secrets where their names or sources say so.
const OPEN_TABLES: [&str; 2] = ["env", "headers"];
/// Keys of URLs that may have a password, and are none as a whole.
const URLS: [&str; 2] = ["url", "index_url"];
/// The key of the broker's address, and the password that every broker is installed with.
const BUS_URL: &str = "bus.url";
const GUEST: &str = "guest";
/// Variables with which the exporter of metrics and traces is given headers.
const OTLP_HEADERS: [&str; 4] = [
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
];

/// A secret, and the key that it was given by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedSecret {
    /// The key, as it is written in TOML.
    pub key: String,
    /// The secret.
    pub secret: Secret,
}

/// What the sources gave as secrets. It makes no configuration another one: what was given is in its place there, too.
#[derive(Debug, Clone, Default)]
pub(crate) struct Given(pub(crate) Vec<KeyedSecret>);

impl PartialEq for Given {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// What the tree has of secrets, before it becomes a configuration.
pub(crate) fn of_tree(tree: &Tree, secrets: &[(KeyPath, bool)]) -> Given {
    let mut found = Vec::new();
    for (path, is_reference) in secrets {
        let Some(value) = tree.get(path).and_then(Value::as_str) else { continue };
        let (name, table) = match &**path {
            [.., table, name] => (name, table),
            _ => continue,
        };
        let is_open = OPEN_TABLES.contains(&&**table);
        let is_secret = !is_open || names_secret(name) || (*is_reference && !names_setting(name));
        let mut values = in_url(value);
        if table == "headers" && is_secret {
            values.extend(header(value));
        } else if is_secret && !URLS.contains(&&**name) {
            values.push(value.to_owned());
        }
        add(&mut found, &tree.written(path), values);
    }
    Given(found)
}

impl Config {
    /// Every secret, with its key; those that cannot be removed from texts included.
    #[must_use]
    pub fn secrets(&self) -> Vec<KeyedSecret> {
        let mut found = self.given.0.clone();
        if let BusUrl::Amqp(urls) = &self.bus.url {
            urls.iter().for_each(|url| add(&mut found, BUS_URL, in_url(url.reveal().as_str())));
        }
        if let Some(url) = &self.telemetry.otlp_endpoint {
            add(&mut found, "telemetry.otlp_endpoint", in_url(url));
        }
        for (index, endpoint) in self.rest.endpoints.iter().enumerate() {
            let values = in_url(&endpoint.url).into_iter().chain(in_query(&endpoint.url));
            add(&mut found, &format!("rest.endpoints[{index}].url"), values.collect());
        }
        for (index, command) in self.commands.iter().enumerate() {
            add(&mut found, &format!("commands[{index}].command"), of_arguments(&command.command));
        }
        for spec in self.mcp_servers().specs {
            let values = match &spec.transport {
                TransportSpec::Stdio(program) => of_program(program),
                TransportSpec::Http(endpoint) => of_endpoint(endpoint),
            };
            add(&mut found, &format!("mcp.servers.{}", spec.name), values);
        }
        found
    }

    /// The keys of secrets that cannot be removed from texts, each with why. Nobody wonders that the password of guests is
    /// none.
    #[must_use]
    pub fn unremovable(&self) -> BTreeMap<String, Obstacle> {
        let is_known = |given: &KeyedSecret| given.key == BUS_URL && given.secret.expose() == GUEST;
        let why = |given: KeyedSecret| Some((given.key, obstacle(given.secret.expose())?));
        self.secrets().into_iter().filter(|given| !is_known(given)).filter_map(why).collect()
    }
}

/// What the environment gives the exporters of metrics, traces and logs; `look_up` gives the value of a variable.
pub fn of_exporter(look_up: impl Fn(&str) -> Option<String>) -> Vec<Secret> {
    let lists = OTLP_HEADERS.into_iter().filter_map(look_up);
    let values = lists.flat_map(|list| list.split(',').flat_map(pair).collect::<Vec<_>>());
    values.map(Secret::new).collect()
}

/// Adds values that are not there yet, be it by a key within this one.
fn add(found: &mut Vec<KeyedSecret>, key: &str, values: Vec<String>) {
    for value in values {
        let value = value.trim();
        if !value.is_empty() && !found.iter().any(|known| known.key.starts_with(key) && known.secret.expose() == value)
        {
            found.push(KeyedSecret { key: key.to_owned(), secret: Secret::new(value) });
        }
    }
}

fn of_program(program: &Program) -> Vec<String> {
    let mut values = of_arguments(&program.args);
    for (name, value) in &program.env {
        values.extend(in_url(value.expose()));
        values.extend(names_secret(name).then(|| value.expose().to_owned()));
    }
    values
}

/// The arguments of a program that hold no secret.
pub(super) fn open_arguments(arguments: &[String]) -> impl Iterator<Item = &str> {
    let before = std::iter::once(None).chain(arguments.iter().map(|argument| Some(&**argument)));
    before.zip(arguments).filter(|(before, one)| argument(*before, one).is_empty()).map(|(_, one)| one.as_str())
}

fn of_arguments(arguments: &[String]) -> Vec<String> {
    let before = std::iter::once(None).chain(arguments.iter().map(|argument| Some(&**argument)));
    before.zip(arguments).flat_map(|(before, one)| argument(before, one)).collect()
}

fn of_endpoint(endpoint: &Endpoint) -> Vec<String> {
    let mut values = in_query(endpoint.url.as_str());
    for (name, value) in &endpoint.headers {
        values.extend(names_secret(name).then(|| header(value.expose())).into_iter().flatten());
    }
    let credentials: Vec<&Credential> = match &endpoint.credentials {
        Credentials::None => Vec::new(),
        Credentials::Shared(credential) => vec![credential],
        Credentials::PerAgent(agents) => agents.values().collect(),
    };
    values.extend(credentials.into_iter().map(|credential| match credential {
        Credential::Bearer(secret)
        | Credential::Header { value: secret, .. }
        | Credential::Basic { password: secret, .. } => secret.expose().to_owned(),
        Credential::ClientCredentials(grant) => grant.client_secret.expose().to_owned(),
    }));
    values
}

#[cfg(test)]
mod tests;
