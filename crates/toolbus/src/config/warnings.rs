//! What a configuration may say, and yet hardly means.

mod http;
mod mcp;
mod outbound;
mod policy;
mod script;
mod texts;

use std::collections::BTreeMap;

use serde_json::Value;
use url::Url;

use super::bus::is_local;
use super::mcp::INPUT_PREFIX;
use super::{AmqpUrl, BusUrl, Config, ENVIRONMENT_PREFIX};

/// Start of the variables that look as if they belonged to the daemon.
const LOOKALIKE: &str = "TOOLBUS_";

/// Variables that start so and have a use of their own: in commands for operators, in the build and in the tests.
const KNOWN: [&str; 6] =
    ["TOOLBUS_ADMIN_TOKEN", "TOOLBUS_BIN", "TOOLBUS_CACHE", "TOOLBUS_COMMIT", "TOOLBUS_PYTHON", "TOOLBUS_TEST_RUN"];

/// Headers that are no credential, whatever they say.
const HARMLESS: [&str; 4] = ["accept", "accept-language", "content-type", "user-agent"];

/// Most secrets that are named.
const MAX_UNREMOVABLE: usize = 20;

/// Most stray variables that are named.
const MAX_STRAYS: usize = 20;

/// Variables that look like keys and are none: with one underscore for two. Those that a secret names are in use.
pub(crate) fn strays(environment: &BTreeMap<String, String>, configuration: &Value) -> Vec<String> {
    let is_stray = |name: &&String| {
        name.starts_with(LOOKALIKE)
            && !name.starts_with(ENVIRONMENT_PREFIX)
            && !name.starts_with(INPUT_PREFIX)
            && !KNOWN.contains(&name.as_str())
            && !names_variable(configuration, name)
    };
    let warning = |name: &String| {
        format!("environment {name}: not used; keys of the configuration are written TOOLBUS__SECTION__KEY")
    };
    environment.keys().filter(is_stray).take(MAX_STRAYS).map(warning).collect()
}

/// Secrets that stay in what leaves the daemon.
fn unremovable(config: &Config) -> Vec<String> {
    let unremovable = config.unremovable();
    let named = unremovable.iter().take(MAX_UNREMOVABLE).map(|(key, why)| {
        format!("{key}: a secret here is not removed from results and logs, because {why}; use a longer, random one")
    });
    let more = unremovable.len().saturating_sub(MAX_UNREMOVABLE);
    let rest = (more > 0).then(|| format!("and {more} more secrets are not removed from results and logs"));
    named.chain(rest).collect()
}

/// Whether there is an `{ env = "name" }` anywhere in it.
fn names_variable(value: &Value, name: &str) -> bool {
    match value {
        Value::Object(members) => {
            members.get("env").is_some_and(|variable| variable == name)
                || members.values().any(|member| names_variable(member, name))
        }
        Value::Array(elements) => elements.iter().any(|element| names_variable(element, name)),
        _ => false,
    }
}

/// What is allowed and yet hardly meant, in words.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if let BusUrl::Amqp(urls) = &config.bus.url {
        for url in urls.iter().filter(|url| !url.is_local()) {
            if url.is_guest() {
                warnings.push(format!(
                    "bus.url: {url} is not on this machine and gets the credentials guest/guest, which brokers take \
                     from their own machine only; create a user for the daemon"
                ));
            }
            if !url.is_tls() {
                warnings.push(format!("bus.url: credentials and calls travel to {url} unencrypted; use amqps://"));
            }
        }
        let tls = &config.bus.tls;
        if (tls.ca.is_some() || tls.cert.is_some()) && !urls.iter().any(AmqpUrl::is_tls) {
            warnings.push("bus.tls: the certificates are not used, because no address is amqps://".to_owned());
        }
    }
    warnings.extend(http::warnings(config));
    for endpoint in &config.rest.endpoints {
        let is_plain = Url::parse(&endpoint.url).is_ok_and(|url| url.scheme() == "http" && !is_local(&url));
        let is_harmless = |header: &str| HARMLESS.iter().any(|harmless| harmless.eq_ignore_ascii_case(header));
        if is_plain && (endpoint.auth.is_some() || !endpoint.headers.keys().all(|header| is_harmless(header))) {
            warnings.push(format!("rest.endpoints: `{}` sends credentials unencrypted; use https://", endpoint.name));
        }
    }
    let names = config.tool_names();
    for pattern in config.tools.limits.keys() {
        if !config.mcp.is_configured() && !names.iter().any(|name| pattern.matches(name)) {
            warnings.push(format!("tools.limits: `{pattern}` matches no tool"));
        }
    }
    warnings.extend(unremovable(config));
    warnings.extend(policy::warnings(config));
    warnings.extend(mcp::warnings(config));
    warnings.extend(script::warnings(config));
    warnings.extend(texts::warnings(config));
    warnings
}
