//! The configuration: defaults, files, environment and command line, checked as a whole.
//!
//! [`Config::load`] is the way in. The layers become one tree that remembers where each value was given; the tree is
//! compared with the JSON Schema of [`Config`], then with rules that no schema can express. All problems are reported
//! at once.

pub mod agents;
pub mod audit;
pub mod breaker;
pub mod bus;
pub mod daemon;
pub(crate) mod described;
mod effective;
mod format;
pub mod http;
pub mod identity;
pub mod invoke;
pub mod ledger;
pub mod mcp;
pub mod outbound;
pub mod pattern_sites;
pub mod pins;
pub mod policy;
mod rules;
pub mod secrets;
mod state;
#[cfg(test)]
mod tests;
mod tool_names;
pub mod tools;
pub mod toolsets;
mod warnings;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use toolbus_telemetry::logging::LogFormat;

pub use toolbus_config::{ByteSize, HumanDuration, LargeSize, Override, Problem, Problems, Secret};
use toolbus_config::{
    KeyPath, Origin, Part, SchemaDifference, Tree, command_line, environment, in_order, key_path, layer,
    resolve_secrets,
};

pub use agents::{AgentConfig, DEFAULT_SECTION};
pub use audit::AuditConfig;
pub use breaker::BreakerConfig;
pub use bus::{AmqpUrl, BusConfig, BusUrl};
pub use daemon::{DaemonConfig, Role};
pub use effective::EffectiveValue;
pub use http::HttpConfig;
pub use identity::IdentityConfig;
pub use invoke::InvokeConfig;
pub use ledger::LedgerConfig;
pub use mcp::McpServers;
pub use outbound::OutboundConfig;
pub use pins::PinsConfig;
pub use policy::PolicyError;
pub use secrets::KeyedSecret;
pub use toolbus_agents::{A2aConfig, GuidesConfig, PipelinesConfig, ScheduleConfig, SubagentsConfig};
pub use toolbus_mcp_client::config::McpConfig;
use toolbus_mcp_client::config::ServersFile;
pub use toolbus_memory::{MemoryConfig, ResultsConfig};
pub use toolbus_outbound::egress::EgressConfig;
pub use toolbus_scripts::commands::CommandConfig;
pub use toolbus_scripts::config::ScriptConfig;
pub use toolbus_store::StoreConfig;
pub use toolbus_telemetry::TelemetryConfig;
pub use toolbus_tools::rest::RestConfig;
pub use toolbus_web::WebConfig;
pub use tools::{ToolLimits, ToolsConfig};
pub use toolsets::ToolsetConfig;

use described::DescribedRest;

/// Start of the environment variables that change the configuration.
pub const ENVIRONMENT_PREFIX: &str = "TOOLBUS__";

/// A key with a value, as `--set` takes them.
const EXAMPLE: &str = "invoke.drain_timeout=10s";

/// The JSON Schema of the configuration file.
#[must_use]
pub fn schema() -> Value {
    toolbus_config::schema_of::<Config>("Configuration of Toolbus")
}

/// The files that are read when none is named: the first of these that exists.
#[must_use]
pub fn default_files() -> Vec<PathBuf> {
    let paths = ["toolbus.toml", "/etc/toolbus/toolbus.toml"];
    paths.iter().map(PathBuf::from).find(|path| path.exists()).into_iter().collect()
}

/// Everything that can be configured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The message broker.
    pub bus: BusConfig,
    /// Taking requests.
    pub invoke: InvokeConfig,
    /// Roles of this process, and the operator's socket.
    pub daemon: DaemonConfig,
    /// Health, readiness and status, and the MCP server.
    pub http: HttpConfig,
    /// Metrics, traces and logs.
    pub telemetry: TelemetryConfig,
    /// Where is kept what must outlive a call.
    pub store: StoreConfig,
    /// Record of calls that must not run twice.
    pub ledger: LedgerConfig,
    /// Texts that agents keep for a while; absent: there are no tools for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryConfig>,
    /// Tasks at times that agents give; absent: there are no tools for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleConfig>,
    /// Other agents, and tasks for them; absent: there are no tools for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a2a: Option<A2aConfig>,
    /// Guides to the use of tools, for models; absent: there are no tools for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guides: Option<GuidesConfig>,
    /// Lists of calls, where later ones use values of earlier ones; absent: there is no tool for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipelines: Option<PipelinesConfig>,
    /// Tasks for other agents, and a whiteboard; absent: there are no tools for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subagents: Option<SubagentsConfig>,
    /// Results that are too long for a model.
    pub results: ResultsConfig,
    /// Tools and MCP servers that fail again and again.
    pub breaker: BreakerConfig,
    /// The record of what was refused and what was done.
    pub audit: AuditConfig,
    /// Tools that the daemon brings along, and limits.
    pub tools: ToolsConfig,
    /// HTTP endpoints as tools.
    pub rest: RestConfig,
    /// Searching the web, and reading pages; absent: there are no tools for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub web: Option<WebConfig>,
    /// Hosts that callers may make the daemon reach.
    pub egress: EgressConfig,
    /// Identification of callers.
    pub identity: IdentityConfig,
    /// Who may use what, by name of the agent; `default` is for callers without a section.
    #[schemars(extend("maxProperties" = 10_000, "propertyNames" = {"format": "toolbus-agent-section"}))]
    pub agents: agents::Agents,
    /// Tools that address people, by channel.
    #[schemars(extend("maxProperties" = 64, "propertyNames" = {"format": "toolbus-channel"}))]
    pub outbound: BTreeMap<String, OutboundConfig>,
    /// Tools that only agents have to which their set is bound, by name of the set.
    #[schemars(extend("maxProperties" = 1024, "propertyNames" = {"format": "toolbus-prefix"}))]
    pub toolsets: toolsets::Toolsets,
    /// MCP servers, whose tools are tools on the bus.
    pub mcp: McpConfig,
    /// Whether tools may change what they say of themselves.
    pub pins: PinsConfig,
    /// The tool that runs Python scripts; absent: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<ScriptConfig>,
    /// Programs of this machine as tools.
    #[schemars(length(max = 1024))]
    pub commands: Vec<CommandConfig>,
    /// Secrets that the sources gave.
    #[serde(skip)]
    pub(crate) given: secrets::Given,
    /// Where the sources gave values.
    #[serde(skip)]
    pub(crate) origins: effective::Origins,
}

/// Where a configuration comes from; later ones win. `Debug` shows no values: they may be secrets.
#[derive(Clone, Default)]
pub struct Sources {
    /// Files, in order, each TOML, JSON or YAML by its extension. None: the defaults.
    pub files: Vec<PathBuf>,
    /// The environment: variables that start with [`ENVIRONMENT_PREFIX`], and those that secrets name.
    pub environment: BTreeMap<String, String>,
    /// Overrides on the command line, in order.
    pub overrides: Vec<Override>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("files", &self.files)
            .field("overrides", &self.overrides)
            .finish_non_exhaustive()
    }
}

impl Sources {
    /// Describes a daemon with these sources to others that want its files.
    #[must_use]
    pub fn holder(&self) -> String {
        let absolute =
            |file: &PathBuf| std::path::absolute(file).unwrap_or_else(|_| file.clone()).display().to_string();
        let files: Vec<String> = self.files.iter().map(absolute).collect();
        if files.is_empty() {
            "a daemon without files".to_owned()
        } else {
            format!("the daemon of {}", files.join(", "))
        }
    }
}

/// A configuration in which nothing is wrong.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Warnings about valid but suspicious settings.
    pub warnings: Vec<String>,
}

impl Config {
    /// A hash of the settings that replicas have in common: without the names and addresses of each, and without
    /// secrets.
    #[must_use]
    pub fn digest(&self) -> String {
        let common = Self {
            bus: self.bus.without_names(),
            http: HttpConfig::default(),
            daemon: DaemonConfig { roles: Some(self.roles()), ..DaemonConfig::default() },
            telemetry: TelemetryConfig::default(),
            ..self.clone()
        };
        let written = serde_json::to_vec(&common).unwrap_or_default();
        let described = format!("{:?}", self.rest.described);
        let hash = Sha256::new().chain_update(&written).chain_update(self.mcp.file.fingerprint());
        let hash = hash.chain_update(described).finalize();
        hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reports problems with the values of these keys, each at its position in the sources.
    pub(crate) fn problems_at(sources: &Sources, found: Vec<(KeyPath, String)>) -> Vec<Problem> {
        let tree = Self::as_given(sources, &schema());
        let difference = |(path, what)| SchemaDifference { path, part: Part::Value, what };
        in_order(&tree, found.into_iter().map(difference).collect())
    }

    /// Reads all sources and checks the result.
    ///
    /// # Errors
    ///
    /// Every problem that there is; unless a file cannot be parsed at all, which is then reported alone.
    pub fn load(sources: &Sources) -> Result<Loaded, Problems> {
        Self::load_after(sources, None, NeededSecrets::All)
    }

    /// The same for a program that uses the secrets of these sections alone: others may be missing, as on the machine
    /// of an operator, and have stand-ins, which are not to be used.
    ///
    /// # Errors
    ///
    /// As for [`Config::load`].
    pub fn load_for(sources: &Sources, sections: &'static [&'static str]) -> Result<Loaded, Problems> {
        Self::load_after(sources, None, NeededSecrets::Of(sections))
    }

    /// The same for a process that runs with `running`: MCP servers of the file that have a mistake keep their previous
    /// definitions.
    ///
    /// # Errors
    ///
    /// As for [`Config::load`].
    pub fn load_again(sources: &Sources, running: &Self) -> Result<Loaded, Problems> {
        Self::load_after(sources, Some(running), NeededSecrets::All)
    }

    /// Returns the log format of a daemon with these sources, as far as they can be read, even if it does not start.
    #[must_use]
    pub fn log_format(sources: &Sources) -> LogFormat {
        Self::as_written(sources, &["telemetry", "log_format"]).unwrap_or_default()
    }

    /// The socket of a daemon with these sources, as far as they can be read: the daemon may run an earlier version.
    #[must_use]
    pub fn socket_as_written(sources: &Sources) -> Option<PathBuf> {
        match Self::as_written::<PathBuf>(sources, &["daemon", "socket"]) {
            Some(socket) => Some(socket).filter(|socket| socket.as_os_str() != "none"),
            None => DaemonConfig::default().socket,
        }
    }

    /// The audit file of a daemon with these sources, as far as they can be read.
    #[must_use]
    pub fn audit_file_as_written(sources: &Sources) -> Option<PathBuf> {
        Self::as_written(sources, &["audit", "file"])
    }

    /// Files that hold secrets of these sources, as far as they can be read.
    #[must_use]
    pub fn secret_files(sources: &Sources) -> Vec<PathBuf> {
        let schema = schema();
        let written = Self::as_given(sources, &schema);
        let (_, secrets) = resolve_secrets(&mut written.clone(), &schema, &sources.environment);
        let file = |(path, _): &(KeyPath, bool)| Some(PathBuf::from(written.get(path)?.get("file")?.as_str()?));
        let keys = ["bus", "store"].map(|section| Self::as_written::<PathBuf>(sources, &[section, "tls", "key"]));
        secrets.iter().filter_map(file).chain(keys.into_iter().flatten()).collect()
    }

    /// The broker that these files name by themselves: none if they leave it to a variable or to another file.
    #[must_use]
    pub fn bus_in(files: &[PathBuf]) -> Option<BusUrl> {
        let tree = Self::as_given(&Sources { files: files.to_owned(), ..Sources::default() }, &schema());
        match tree.get(&key_path(&["bus"])) {
            Some(written) => BusConfig::deserialize(written).ok()?.address().ok(),
            None => Some(BusUrl::default()),
        }
    }

    /// The value of a key, if it can be read, whatever mistakes other keys have.
    fn as_written<T: DeserializeOwned>(sources: &Sources, key: &[&str]) -> Option<T> {
        let tree = Self::as_given(sources, &schema());
        T::deserialize(tree.get(&key_path(key))?).ok()
    }

    /// Merges the sources, as far as they can be read. Problems with them are reported elsewhere.
    fn as_given(sources: &Sources, schema: &Value) -> Tree {
        let mut tree = Tree::default();
        let _ = sources.files.iter().filter(|file| layer(&mut tree, file).is_err()).count();
        let _ = environment(&mut tree, schema, ENVIRONMENT_PREFIX, &sources.environment);
        let _ = command_line(&mut tree, schema, &sources.overrides, EXAMPLE);
        tree
    }

    fn load_after(sources: &Sources, running: Option<&Self>, needed: NeededSecrets) -> Result<Loaded, Problems> {
        let schema = schema();
        let mut tree = Tree::default();
        let unreadable: Vec<Problem> =
            sources.files.iter().filter_map(|file| layer(&mut tree, file).err()).flatten().collect();
        if !unreadable.is_empty() {
            return Err(Problems(unreadable));
        }
        let mut problems = environment(&mut tree, &schema, ENVIRONMENT_PREFIX, &sources.environment);
        problems.extend(command_line(&mut tree, &schema, &sources.overrides, EXAMPLE));

        let servers = servers_file(&tree, &sources.environment);
        let strays = warnings::strays(&sources.environment, tree.root(), &servers);
        // First: the addresses among the secrets have a format.
        let (unresolved, given) = resolve_secrets(&mut tree, &schema, &sources.environment);
        let (unresolved, left_out): (Vec<_>, Vec<_>) = unresolved.into_iter().partition(|one| needed.has(&one.path));
        let left_out: Vec<KeyPath> = left_out.into_iter().map(|one| one.path).collect();
        left_out.iter().for_each(|path| tree.replace(path, absent(path).into()));
        let mut differences = toolbus_config::differences(&tree, &schema, &format::FORMATS)
            .map_err(|error| Problems(vec![nowhere(error.to_string())]))?;
        bus::supersede_parts(&mut tree);
        // A secret that a later layer has replaced is not needed.
        differences.extend(unresolved.into_iter().filter(|one| tree.get(&one.path).is_some()));
        let wrong: Vec<KeyPath> =
            differences.iter().map(|difference| &difference.path).chain(&left_out).cloned().collect();
        let described = DescribedRest::read(&tree, &wrong, &sources.environment);
        differences.extend(rules::contradictions(&tree, wrong, &servers, &described));
        problems.extend(in_order(&tree, differences));
        if !problems.is_empty() {
            return Err(Problems(problems));
        }
        match serde_json::from_value::<Self>(tree.root().clone()) {
            Ok(mut config) => {
                config.bus.url = config.bus.address().unwrap_or(config.bus.url);
                config.mcp.file = servers;
                config.rest.described = described.by_key;
                config.store.state_file =
                    state::store_file(&sources.environment, &config.bus.name, &config.queue_prefix());
                config.given = secrets::of_tree(&tree, &given);
                config.origins = effective::Origins::of_tree(&tree);
                if let Some(running) = running {
                    config.keep_servers_of(running);
                }
                if let Some(what) = config.unkept_pins(sources) {
                    let location = Origin::Default.location(Part::Value);
                    return Err(Problems(vec![Problem { location, key: "pins.file".to_owned(), what }]));
                }
                Ok(Loaded { warnings: strays.into_iter().chain(warnings::warnings(&config)).collect(), config })
            }
            // Not the error's own text: it may repeat a secret.
            Err(_) => Err(Problems(vec![nowhere("cannot be read, though it fits the schema".to_owned())])),
        }
    }
}

/// Which secrets must be there.
#[derive(Debug, Clone, Copy)]
enum NeededSecrets {
    All,
    /// Those of these sections.
    Of(&'static [&'static str]),
}

impl NeededSecrets {
    fn has(self, path: &[String]) -> bool {
        match self {
            Self::All => true,
            Self::Of(sections) => path.first().is_some_and(|first| sections.contains(&first.as_str())),
        }
    }
}

/// Stand-in for a missing secret that is not needed, of the likely kind.
fn absent(path: &[String]) -> &'static str {
    match path.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["bus", "url"] => "amqps://localhost",
        ["store", "url"] => "rediss://localhost",
        _ => "a secret that was not needed and not read",
    }
}

/// Reads the file that `mcp.servers_file` names.
fn servers_file(tree: &Tree, environment: &BTreeMap<String, String>) -> ServersFile {
    let path = tree.get(&["mcp".to_owned(), "servers_file".to_owned()]).and_then(Value::as_str);
    path.map(|path| ServersFile::read(Path::new(path), environment)).unwrap_or_default()
}

fn nowhere(what: String) -> Problem {
    Problem { location: Origin::Default.location(Part::Value), key: String::new(), what }
}
