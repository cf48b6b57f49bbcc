use std::io::Write;
use std::path::Path;

use toolbus_config::SchemaNode;
use toolbus_scripts::config::PackagesConfig;

use super::*;

/// Every key that this daemon's part of the design names.
const DESIGNED: &str = r##"
[bus]
url = "amqp://guest:guest@127.0.0.1:5672/%2f"
name = "toolbus"
exchange = "rockbot"
dead_letter_exchange = "rockbot.dlx"
queue_prefix = "toolbus"
queue_type = "quorum"
reply_topics = ["tool.result.#", "script.result.#", "mcp.manage.response.#", "agent.response.#"]
compat_queues = { mcp = "rockbot.mcp-bridge.RockBot", "mcp-manage" = "a", "mcp-refresh" = "b" }
tls = { ca = "PEM", cert = "PEM", key = "PEM" }

[invoke]
topics = ["tool.invoke"]
default_reply_topic = "tool.result"
default_timeout = "60s"
max_timeout = "120s"
max_body = "1MiB"
max_in_flight = 256
max_waiting = 1024
drain_timeout = "30s"

[daemon]
roles = ["invoke", "mcp", "scripts", "schedule"]

[http]
listen = "127.0.0.1:8471"
tokens = { ana = { env = "ANA_TOKEN" } }
open = false

[telemetry]
otlp_endpoint = "http://127.0.0.1:4317"
protocol = "grpc"
log = "info"
log_format = "text"

[store]
url = "sqlite:toolbus.db"

[memory]
default_ttl = "20m"
max_value = "1MiB"
max_entries_per_namespace = 1000

[schedule]
missed = "once"
max_missed = 100
max_tasks = 100
min_interval = "10s"

[a2a]
ttl = "10m"
max_agents = 1000
max_tasks = 100
max_timeout = "1h"
keep = "1h"
announce = []

[audit]
file = "audit.jsonl"

[tools]
echo = false
time = true
search = false
required = []

[tools.limits."web_*"]
timeout = "20s"
max_in_flight = 8

[[rest.endpoints]]
name = "get_weather"
description = "Current weather of a city"
url = "http://127.0.0.1:9000/v1/current?city={city}"
method = "GET"
parameters = '{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'
auth = { type = "bearer", token = { env = "WEATHER_TOKEN" } }
headers = { accept = "application/json" }
body = "none"
timeout = "10s"
max_response = "1MiB"
effect = "read-only"

[[commands]]
name = "git_log"
description = "Last commits of the work tree"
command = ["git", "log", "-n", "{count}", "--oneline"]
parameters = '{"type":"object","properties":{"count":{"type":"integer","maximum":100}},"required":["count"]}'
stdin = "none"
sandbox = true
timeout = "10s"
effect = "read-only"

[script]
runner = "sandbox"
timeout = "30s"
max_timeout = "300s"
memory = "256MiB"
cpu = "500m"
max_output = "1MiB"
max_in_flight = 2
python = "python3"
packages = { allow = ["requests", "numpy"] }
sandbox = { require = "no-namespaces" }
pool = { min = 0, max = 4 }
"##;

/// A file that looks like a certificate with its key.
fn pem() -> tempfile::NamedTempFile {
    let pem = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(pem.path(), "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n").unwrap();
    pem
}

#[test]
fn every_designed_key_is_accepted_and_has_the_designed_default() {
    let pem = pem();
    let text = DESIGNED.replace("PEM", &pem.path().display().to_string());
    let mut config = load(&[&text], &[("WEATHER_TOKEN", "secret"), ("ANA_TOKEN", "secret")], &[]).unwrap().config;
    assert_eq!((config.rest.endpoints.len(), config.commands.len()), (1, 1));
    assert_eq!(config.memory.take(), Some(MemoryConfig::default()));
    assert_eq!(config.schedule.take(), Some(ScheduleConfig::default()));
    assert_eq!(config.a2a.take(), Some(A2aConfig::default()));
    let script = config.script.take().unwrap();
    let packages = PackagesConfig { allow: Vec::new(), ..script.packages };
    let others = ScriptConfig { max_timeout: None, max_in_flight: None, packages, ..script };
    assert_eq!(others, ScriptConfig::default());
    // Keys without a default, or with another than in the example.
    config.bus.url = BusUrl::Embedded;
    config.bus.tls = Default::default();
    config.bus.queue_prefix = None;
    config.bus.compat_queues = Default::default();
    config.daemon.roles = None;
    config.http.tokens.clear();
    config.telemetry.otlp_endpoint = None;
    config.store = Default::default();
    config.audit = Default::default();
    config.tools.limits.clear();
    config.rest.endpoints.clear();
    config.commands.clear();
    assert_eq!(config, Config::default());
}

/// Every key of the rules for agents that the design names, with a tool of each name.
const DESIGNED_RULES: &str = r##"
[daemon]
socket = "toolbus.sock"

[[rest.endpoints]]
name = "get_weather"
description = "Weather"
url = "https://host/weather"
[[rest.endpoints]]
name = "whatsapp_send_message"
description = "Sends"
url = "https://host/send"
[[rest.endpoints]]
name = "read_file"
description = "Reads"
url = "https://host/read"

[identity]
source = "header"
trust_headers = true
unknown = "default"
agent = "ana"
users = { "svc-ana" = "ana" }

[agents.default]

[agents.ana]
allowed_tools = ["get_weather", "fs.read_*"]
toolsets = ["fs"]
profile = "main"
max_in_flight = 32
max_queued = 64
tool_rate_limits = { "whatsapp_*" = { rps = 1.0, burst = 3 } }
outbound_allowlist = { whatsapp = ["+573001112233"] }

[[agents.ana.bindings]]
channel = "whatsapp"
account = "sales"
allowed_tools = ["get_weather"]

[outbound.whatsapp]
tools = ["whatsapp_send_message"]
recipients = ["/to", "/cc/*"]
compare = "digits"

[toolsets.fs]
prefix = "fs"
kind = "rest"
scope = "session"
endpoints = ["read_file"]
idle_timeout = "10m"
max_sessions = 100
"##;

#[test]
fn every_designed_rule_for_agents_is_accepted() {
    let config = load(&[DESIGNED_RULES], &[], &[]).unwrap().config;
    let ana = &config.agents["ana"];
    assert_eq!(ana.toolsets, ["fs"]);
    assert_eq!((ana.max_in_flight, ana.max_queued, ana.bindings.len()), (Some(32), Some(64), 1));
    assert_eq!(config.daemon, DaemonConfig::default());
    let defaults = "prefix = \"fs\"\n|idle_timeout = \"10m\"\n|max_sessions = 100\n";
    let shorter = defaults.split('|').fold(DESIGNED_RULES.to_owned(), |text, line| text.replace(line, ""));
    let set = load(&[&shorter], &[], &[]).unwrap().config.toolsets["fs"].clone();
    assert_eq!(ToolsetConfig { prefix: Some("fs".to_owned()), ..set }, config.toolsets["fs"]);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn toml_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            toml_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
    }
}

#[test]
fn every_shipped_configuration_is_valid() {
    let mut files = Vec::new();
    toml_files(&root().join("config"), &mut files);
    assert!(files.len() >= 2, "{files:?}");
    toml_files(&root().join("deploy"), &mut files);
    for file in files {
        // Secrets come from where the file is used.
        let text = std::fs::read_to_string(&file).unwrap();
        let named = text.split("env = \"").skip(1).filter_map(|rest| rest.split('"').next());
        let environment = named.map(|name| (name.to_owned(), "secret".to_owned())).collect();
        let sources = Sources { files: vec![file.clone()], environment, overrides: Vec::new() };
        if let Err(problems) = Config::load(&sources) {
            panic!("{}:\n{problems}", file.display());
        }
    }
}

#[test]
fn the_documented_configuration_needs_no_environment_and_is_that_of_the_defaults() {
    let file = root().join("config/toolbus.toml");
    let loaded = Config::load(&Sources { files: vec![file], ..Sources::default() }).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}

/// The documented configuration with its examples: lines that start with `#` and a key. Prose has a space there.
fn with_examples(text: &str) -> String {
    let uncommented = |line| str::strip_prefix(line, "#").filter(|rest| !rest.starts_with(' ')).unwrap_or(line);
    text.lines().map(uncommented).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_documented_configuration_is_valid_with_all_its_examples() {
    let text = std::fs::read_to_string(root().join("config/toolbus.toml")).unwrap();
    let pem = pem();
    let text = ["ca.pem", "client.pem", "client.key"].iter().fold(with_examples(&text), |text, name| {
        text.replace(&format!("/etc/toolbus/tls/{name}"), &pem.path().display().to_string())
    });
    let secrets = [
        "BUS_PASSWORD",
        "WEATHER_TOKEN",
        "TICKETS_PASSWORD",
        "NOTES_KEY",
        "ANA_FILES_TOKEN",
        "ANA_FILES_PASSWORD",
        "ANA_MESSAGES_KEY",
        "TOOLBUS_ADMIN_TOKEN",
        "AUDIT_KEY",
        "SEARCH_TOKEN",
        "ANA_MAIL_TOKEN",
        "ANA_WIKI_KEY",
        "TICKETS_SECRET",
        "ANA_CALENDAR_SECRET",
        "INDEX_URL",
        "REPORT_TOKEN",
        "ANA_TOKEN",
        "ANA_NEXT_TOKEN",
        "GITHUB_TOKEN",
        "TOOLBUS_READ_TOKEN",
        "BRAVE_API_KEY",
        "TAVILY_API_KEY",
        "RESEARCH_TOKEN",
        "PETS_KEY",
        "INVOICES_SECRET",
        "ANA_INVOICES_SECRET",
        "ARCHIVE_PASSWORD",
        "ANA_ARCHIVE_PASSWORD",
        "CLINIC_PASSWORD",
        "CLINIC_TOKEN",
        "ANA_CLINIC_PASSWORD",
        "ANA_CLINIC_TOKEN",
        "ANA_CLINIC_KEY",
    ];
    let secret = |name| match name {
        "INDEX_URL" => "https://index.example/simple".to_owned(),
        _ => format!("a secret of some length: {name}"),
    };
    let values = secrets.map(secret);
    let environment: Vec<_> = secrets.into_iter().zip(values.iter().map(String::as_str)).collect();
    // The folders of commands must be there.
    let text = text.replace("\"/srv/work\"", "\"/usr\"");
    // And so must the files of other tools.
    let endpoints = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(endpoints.path(), r#"{"RestTools": {"Endpoints": []}}"#).unwrap();
    let text = text.replace("appsettings.json", &endpoints.path().display().to_string());
    let petstore = root().join("crates/toolbus-tools/tests/openapi/petstore.yaml");
    let text = text.replace("petstore.yaml", &petstore.display().to_string());
    let loaded = load(&[&text], &environment, &[]).unwrap();
    assert_eq!((loaded.config.rest.endpoints.len(), loaded.config.commands.len()), (8, 1));
    assert!(!loaded.config.rest.described["rest.openapi.pets"].endpoints.is_empty());
    assert!(loaded.config.bus.tls.key.is_some());
    assert_eq!(loaded.config.mcp_servers().specs.len(), 9);
    let script = loaded.config.script.unwrap();
    assert_eq!(script.max_timeout, Some(HumanDuration::from_secs(300)));
}

#[test]
fn the_documented_configuration_has_every_key() {
    let text = std::fs::read_to_string(root().join("config/toolbus.toml")).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(with_examples(&text).as_bytes()).unwrap();
    let mut tree = Tree::default();
    layer(&mut tree, file.path()).unwrap();

    let schema = schema();
    let mut keys = Vec::new();
    every_key(SchemaNode::root(&schema), &mut Vec::new(), &mut keys);
    assert!(keys.len() > 50, "{keys:?}");
    // No scheme of a specification takes a client.
    keys.retain(|path| {
        !path.starts_with(&["rest", "openapi"].map(str::to_owned)) || !path.join(".").contains(".client_")
    });
    let missing: Vec<String> = keys.iter().filter(|path| !has(tree.root(), path)).map(|path| path.join(".")).collect();
    assert!(missing.is_empty(), "not in config/toolbus.toml: {missing:?}");
}

/// Every key of the schema; `*` stands for the entries of maps and lists.
fn every_key(node: SchemaNode<'_>, path: &mut KeyPath, found: &mut Vec<KeyPath>) {
    if node.is_secret() {
        return;
    }
    for (key, child) in node.keys().into_iter().filter_map(|key| Some((key, node.child(key)?))) {
        path.push(key.to_owned());
        found.push(path.clone());
        every_key(child, path, found);
        path.pop();
    }
    if let Some(entry) = node.child("*") {
        path.push("*".to_owned());
        every_key(entry, path, found);
        path.pop();
    }
}

fn has(value: &Value, path: &[String]) -> bool {
    let Some((key, rest)) = path.split_first() else { return true };
    match value {
        Value::Object(fields) if key == "*" => fields.values().any(|field| has(field, rest)),
        Value::Array(elements) if key == "*" => elements.iter().any(|element| has(element, rest)),
        Value::Object(fields) => fields.get(key).is_some_and(|field| has(field, rest)),
        _ => false,
    }
}
