//! Warnings about valid but suspicious settings.

mod mcp;
mod policy;
mod texts;

use std::collections::BTreeMap;

use serde_json::Value;
use toolbus_mcp_client::config::{INPUT_PREFIX, ServersFile};
use toolbus_outbound::is_local;
use toolbus_protocol::EXECUTE_PYTHON_SCRIPT;
use toolbus_protocol::topic::TOOL_INVOKE;
use toolbus_sandbox::Level;
use toolbus_scripts::config::RunnerKind;
use toolbus_store::StoreUrl;
use url::Url;

use super::http::Open;
use super::identity::DEFAULT_PREFIX;
use super::{AmqpUrl, BusUrl, Config, ENVIRONMENT_PREFIX, Role, ScriptConfig};

/// Start of the variables that look as if they belonged to the daemon.
const LOOKALIKE: &str = "TOOLBUS_";

/// Variables with this prefix and another use: in commands for operators, in the entry that `connect` writes for MCP
/// clients, in the build and in the tests.
const KNOWN: [&str; 7] = [
    "TOOLBUS_ADMIN_TOKEN",
    "TOOLBUS_BIN",
    "TOOLBUS_CACHE",
    "TOOLBUS_COMMIT",
    "TOOLBUS_PYTHON",
    "TOOLBUS_TEST_RUN",
    "TOOLBUS_TOKEN",
];

/// Headers that are no credential, whatever their values.
const HARMLESS: [&str; 4] = ["accept", "accept-language", "content-type", "user-agent"];

/// Most secrets that are named.
const MAX_UNREMOVABLE: usize = 20;

/// Most stray variables that are named.
const MAX_STRAYS: usize = 20;

/// Warnings about variables that look like keys and are none: with one underscore for two. Variables that a secret or
/// the file of servers names are in use.
pub(crate) fn strays(
    environment: &BTreeMap<String, String>,
    configuration: &Value,
    servers: &ServersFile,
) -> Vec<String> {
    let is_stray = |name: &&String| {
        name.starts_with(LOOKALIKE)
            && !name.starts_with(ENVIRONMENT_PREFIX)
            && !name.starts_with(INPUT_PREFIX)
            && !KNOWN.contains(&name.as_str())
            && !names_variable(configuration, name)
            && !servers.names_variable(name)
    };
    let warning = |name: &String| {
        format!("environment {name}: not used; keys of the configuration are written TOOLBUS__SECTION__KEY")
    };
    environment.keys().filter(is_stray).take(MAX_STRAYS).map(warning).collect()
}

/// Warnings about secrets that cannot be removed from outputs of the daemon.
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
        Value::Object(fields) => {
            fields.get("env").is_some_and(|variable| variable == name)
                || fields.values().any(|field| names_variable(field, name))
        }
        Value::Array(elements) => elements.iter().any(|element| names_variable(element, name)),
        _ => false,
    }
}

/// Warnings about valid but suspicious settings.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if let StoreUrl::Redis(url) = config.store.url()
        && !url.is_tls()
        && !is_local(url.reveal())
    {
        warnings.push(format!("store.url: the login and what is kept travel to {url} unencrypted; use rediss://"));
    }
    let tls = &config.store.tls;
    if (tls.ca.is_some() || tls.cert.is_some()) && !matches!(config.store.url(), StoreUrl::Redis(url) if url.is_tls()) {
        warnings.push("store.tls: the certificates are not used, because store.url is not rediss://".to_owned());
    }
    if let BusUrl::Amqp(urls) = &config.bus.url {
        warnings.extend(forgetful(config));
        for url in urls.iter().filter(|url| !is_local(url.reveal())) {
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
    warnings.extend(foreign_queues(config));
    warnings.extend(http(config));
    if config.http.tool_search.is_some() && !config.tools.search {
        warnings.push(
            "http.tool_search: not used without `tools.search = true`, because no client would find the other tools"
                .to_owned(),
        );
    }
    for (key, described) in &config.rest.described {
        warnings.extend(described.notes.iter().map(|note| format!("{key}: {note}")));
    }
    for endpoint in config.rest.all() {
        let is_plain = Url::parse(&endpoint.url).is_ok_and(|url| url.scheme() == "http" && !is_local(&url));
        let is_harmless = |header: &str| HARMLESS.iter().any(|harmless| harmless.eq_ignore_ascii_case(header));
        if is_plain && (endpoint.auth.is_some() || !endpoint.headers.keys().all(|header| is_harmless(header))) {
            warnings.push(format!("rest.endpoints: `{}` sends credentials unencrypted; use https://", endpoint.name));
        }
    }
    let names = config.tool_names();
    let may_have_others = config.mcp.is_configured() || config.rest.openapi.values().any(|one| one.url.is_some());
    let of_limits = config.tools.limits.keys().map(|pattern| ("limits", pattern));
    for (key, pattern) in of_limits.chain(config.tools.definitions.keys().map(|pattern| ("definitions", pattern))) {
        if !may_have_others && !names.iter().any(|name| pattern.matches(name)) {
            warnings.push(format!("tools.{key}: `{pattern}` matches no tool"));
        }
    }
    warnings.extend(unremovable(config));
    warnings.extend(policy::warnings(config));
    warnings.extend(mcp::warnings(config));
    warnings.extend(scripts(config));
    let is_alone = !matches!(config.store.url(), StoreUrl::Redis(_));
    if config.schedule.is_some() && is_alone && !config.roles().contains(&Role::Schedule) {
        let why = "because `daemon.roles` has no \"schedule\", and no other process shares the store";
        warnings.push(format!("schedule: tasks are never published, {why}"));
    }
    warnings.extend(texts::warnings(config));
    warnings
}

/// The queues of the daemon that agents call, in one that takes other calls.
fn foreign_queues(config: &Config) -> Option<String> {
    let is_apart = !config.invoke.topics.iter().any(|topic| topic == TOOL_INVOKE) && config.identity.agent.is_none();
    let prefix = config.queue_prefix();
    (is_apart && prefix == DEFAULT_PREFIX).then(|| {
        format!(
            "invoke.topics: without \"{TOOL_INVOKE}\", and with the default bus.queue_prefix, \"{prefix}\", this daemon and \
             the one that agents call take each other's calls; give it a bus.queue_prefix of its own"
        )
    })
}

/// A ledger that does not outlive the process, with tools that must not run twice on a bus that redelivers.
fn forgetful(config: &Config) -> Option<String> {
    if config.store.url() != StoreUrl::Memory {
        return None;
    }
    let endpoint = config.rest.all().find(|endpoint| !endpoint.effect().is_repeatable());
    let command = config.commands.iter().find(|command| !command.effect.unwrap_or_default().is_repeatable());
    let named = endpoint.map(|endpoint| &*endpoint.name).or(command.map(|command| &*command.name));
    let named = named.or(config.script.as_ref().map(|_| EXECUTE_PYTHON_SCRIPT));
    let tools = match named {
        Some(name) => format!("`{name}`"),
        None if config.mcp.is_configured() => "tools of MCP servers".to_owned(),
        None => return None,
    };
    let store = match config.store.url {
        Some(_) => "\"memory:\" forgets which calls had begun",
        None => "is not set, and there is no folder for state",
    };
    Some(format!(
        "store.url: {store}: after a crash calls of {tools} may run twice; write \
         \"sqlite:toolbus.db\", or \"redis://…\" if there are several daemons"
    ))
}

/// Shortest token without a warning, in bytes.
const MIN_TOKEN: usize = 16;

/// Warnings about an HTTP server that probably admits more callers than intended.
fn http(config: &Config) -> Vec<String> {
    let http = &config.http;
    let mut warnings = Vec::new();
    let is_remote = !http.listen.ip().is_loopback();
    if is_remote {
        warnings.push(format!("http.listen: {} can be reached from other machines", http.listen));
    }
    if is_remote && !http.tokens.is_empty() {
        warnings.push(format!(
            "http.tokens: tokens travel to {} unencrypted; let a proxy that speaks TLS listen there",
            http.listen
        ));
    }
    if http.open == Open::Network && is_remote && !config.denies_unknown() {
        warnings
            .push("http.open: everybody who reaches the port may use what a caller without a section may".to_owned());
    }
    if http.open != Open::No && config.denies_unknown() {
        warnings.push(
            "http.open: clients without a token have no tool, because callers without a section have none \
             (`identity.unknown`)"
                .to_owned(),
        );
    }
    for (agent, token) in http.each_token() {
        let bytes = token.expose().len();
        if bytes < MIN_TOKEN {
            warnings.push(format!(
                "http.tokens.{agent}: {bytes} bytes long, which can be guessed; use at least {MIN_TOKEN} random ones"
            ));
        }
    }
    for agent in http.tokens.keys().filter(|agent| !config.agents.contains_key(*agent)) {
        let what = if config.denies_unknown() {
            "has no tool, because it has no section in `agents`"
        } else {
            "has no section in `agents`, so it may use what everybody may"
        };
        warnings.push(format!("http.tokens: `{agent}` {what}"));
    }
    warnings
}

/// Warnings about valid but suspicious settings of scripts and commands.
fn scripts(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(script) = &config.script {
        warnings.extend(of_script(script, config));
    }
    for command in &config.commands {
        let name = &command.name;
        if command.timeout > config.invoke.max_timeout {
            warnings.push(format!(
                "commands: the timeout of `{name}`, {}, is longer than any call may take (invoke.max_timeout is {})",
                command.timeout, config.invoke.max_timeout
            ));
        }
    }
    warnings
}

/// Returns warnings on suspicious settings of scripts.
fn of_script(script: &ScriptConfig, config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let longest_call = config.invoke.max_timeout;
    let times = [("timeout", Some(script.timeout)), ("max_timeout", script.max_timeout)];
    for (key, time) in times {
        if let Some(time) = time.filter(|time| *time > longest_call) {
            warnings.push(format!(
                "script.{key}: {time} is longer than any call may take; raise invoke.max_timeout, which is {longest_call}"
            ));
        }
    }
    if !config.roles().contains(&Role::Scripts) {
        warnings.push("script: not used, because `daemon.roles` has no \"scripts\"".to_owned());
        for name in script.tool_names().filter(|name| config.tools.required.contains(name)) {
            warnings.push(format!("tools.required: `{name}` is never there in this process"));
        }
    }
    match script.runner {
        RunnerKind::Local => {
            warnings.push("script.runner: scripts run without a sandbox, with the daemon's own rights".to_owned())
        }
        RunnerKind::Sandbox if script.sandbox.require == Level::LimitsOnly => warnings.push(
            "script.sandbox.require: \"limits-only\" lets scripts read every file that the daemon can read".to_owned(),
        ),
        RunnerKind::Sandbox | RunnerKind::Kubernetes => {}
    }
    if script.packages.allow.iter().any(|name| name == "*") {
        warnings.push("script.packages.allow: lets scripts have any package that there is".to_owned());
    }
    warnings
}
