//! `toolbus check`: finds every mistake in a configuration, without connecting to anything.

use std::io::{self, Write};
use std::process::ExitCode;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::{Value, json};
use toolbus_scripts::config::{KubernetesConfig, RunnerKind};
use toolbus_telemetry::{EnvironmentError, ExportTarget, SIGNALS};

use super::target::{AdminTarget, DaemonArgs, Operator, TargetError};
use super::{MISTAKE, complain, plain, warn};
use crate::app;
use crate::config::{Config, Loaded, Problem, Problems, Sources};
use crate::http::admin::DEFAULT_SECTION;
use crate::http::admin::view::AgentOverview;
use crate::terminal::OutputFormat;
use crate::terminal::ignore_broken_pipe;

/// Most tools that are named in the summary.
const MAX_NAMED: usize = 10;

/// Finds every mistake in the configuration, without connecting to the broker or to any server.
///
/// With --socket or --daemon, the running daemon is asked, too: a configuration that it would refuse on a reload has a
/// mistake.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Take no missing secret for a mistake, as where the configuration is checked and not run.
    #[arg(long)]
    without_secrets: bool,
}

/// A valid configuration, compared with this machine.
pub(super) struct Checked {
    /// The configuration, with every warning but those about programs of MCP servers.
    pub(super) loaded: Loaded,
    /// Where telemetry is sent.
    pub(super) targets: Vec<ExportTarget>,
    /// Files, programs and variables with which a daemon would not start.
    pub(super) problems: Vec<Problem>,
}

impl Checked {
    /// Compares a configuration with this machine.
    pub(super) fn new(mut loaded: Loaded, sources: &Sources) -> Self {
        let config = &loaded.config;
        loaded.warnings.extend(config.suspects());
        let other = config.store.other_holder(&sources.holder()).map(|other| {
            let what = format!(
                "{other} uses this file; one daemon alone can: give each its own, or let them share a server, \
                 \"redis://host:6379/0\""
            );
            Problem { location: "this machine".to_owned(), key: "store.url".to_owned(), what }
        });
        let mut problems: Vec<Problem> = other.into_iter().chain(app::unusable(config, sources)).collect();
        let targets = app::targets(config, &sources.environment).unwrap_or_else(|errors| {
            problems.extend(errors.into_iter().map(of_variable));
            Vec::new()
        });
        Self { loaded, targets, problems }
    }
}

/// Checks, and prints the findings. Exit code 2 when the configuration cannot be used.
///
/// # Errors
///
/// If the named daemon does not respond, or nothing can be printed.
pub async fn run(args: CheckArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let (sources, output) = (&operator.sources, operator.output);
    let loaded = if args.without_secrets { Config::load_for(sources, &[]) } else { Config::load(sources) };
    let (mut result, targets) = match loaded.map(|loaded| Checked::new(loaded, sources)) {
        Ok(Checked { loaded, targets, problems }) if problems.is_empty() => (Ok(loaded), targets),
        Ok(Checked { problems, .. }) => (Err(Problems(problems)), Vec::new()),
        Err(problems) => (Err(problems), Vec::new()),
    };
    if let Ok(loaded) = &mut result {
        loaded.warnings.extend(loaded.config.missing_programs());
    }
    if let (Ok(loaded), Some(client)) = (&result, args.daemon.named(operator)?) {
        let location = client.to_string();
        let AgentOverview { agents, unknown, .. } = AdminTarget::Daemon(client).agents().await?;
        let named: Vec<&str> =
            agents.iter().map(|agent| agent.agent.as_str()).filter(|name| *name != DEFAULT_SECTION).collect();
        if let Some(what) = loaded.config.widening(unknown, &named) {
            let what = format!("the daemon would refuse a reload: {what}");
            result = Err(Problems(vec![Problem { location, key: String::new(), what }]));
        }
    }
    let is_usable = result.as_ref().is_ok_and(|loaded| loaded.config.mcp_servers().problems.is_empty());
    let code = if is_usable { ExitCode::SUCCESS } else { ExitCode::from(MISTAKE) };
    match (output, &result) {
        (OutputFormat::Json, _) => ignore_broken_pipe(writeln!(io::stdout(), "{:#}", as_json(sources, &result)))?,
        (OutputFormat::Table, Err(problems)) => drop(complain(problems)),
        (OutputFormat::Table, Ok(loaded)) => {
            let problems = loaded.config.mcp_servers().problems;
            mere_warnings(loaded, &problems).for_each(|warning| warn(warning));
            if !is_usable {
                complain(&of_servers(&problems));
            }
            let files = match sources.files.len() {
                0 | 1 => String::new(),
                count => format!(" ({count} files, laid over each other)"),
            };
            let but = if is_usable { "" } else { " but for MCP servers" };
            let valid = format!("configuration is valid{but}{files}");
            let summary = summary(sources, &loaded.config, &targets);
            ignore_broken_pipe(writeln!(io::stdout(), "{valid}\n{summary}"))?;
        }
    }
    Ok(code)
}

fn as_json(sources: &Sources, result: &Result<Loaded, Problems>) -> Value {
    match result {
        Ok(loaded) => {
            let servers = loaded.config.mcp_servers();
            let names: Vec<_> = servers.specs.iter().map(|spec| spec.name.as_str()).collect();
            json!({
                "valid": servers.problems.is_empty(),
                "files": sources.files,
                "bus": loaded.config.bus.url,
                "tools": loaded.config.tool_names(),
                "servers": names,
                "warnings": mere_warnings(loaded, &servers.problems).collect::<Vec<_>>(),
                "problems": listed(&of_servers(&servers.problems)),
            })
        }
        Err(problems) => {
            json!({"valid": false, "files": sources.files, "problems": listed(problems)})
        }
    }
}

fn listed(problems: &Problems) -> Vec<Value> {
    problems.0.iter().map(|p| json!({"place": p.location, "key": p.key, "problem": p.what})).collect()
}

/// Problems of the MCP servers; each text begins with its location in the configuration.
pub(super) fn of_servers(problems: &[String]) -> Problems {
    let problem = |text: &String| {
        let (location, what) = text.split_once(": ").unwrap_or(("mcp", text));
        Problem { location: location.to_owned(), key: String::new(), what: what.to_owned() }
    };
    Problems(problems.iter().map(problem).collect())
}

/// The warnings that are no problems of MCP servers, which a daemon starts with all the same.
pub(super) fn mere_warnings<'a>(loaded: &'a Loaded, problems: &'a [String]) -> impl Iterator<Item = &'a String> {
    loaded.warnings.iter().filter(|warning| !problems.contains(warning))
}

/// A variable of telemetry with which a daemon would not start.
fn of_variable(EnvironmentError { variable, expected }: EnvironmentError) -> Problem {
    Problem { location: format!("environment {variable}"), key: String::new(), what: expected.to_owned() }
}

fn summary(sources: &Sources, config: &Config, targets: &[ExportTarget]) -> String {
    let files: Vec<_> = sources.files.iter().map(|file| file.display().to_string()).collect();
    let names = config.tool_names();
    let named: Vec<&str> = names.iter().take(MAX_NAMED).map(AsRef::as_ref).collect();
    let more = if names.len() > MAX_NAMED { ", …" } else { "" };
    let invoke = &config.invoke;
    let rows = [
        ("files", if files.is_empty() { "none: defaults".to_owned() } else { files.join(", ") }),
        ("bus", config.bus.url.to_string()),
        ("queue", format!("{}.invoke ({})", config.queue_prefix(), config.invoke_topics().join(", "))),
        ("tools", format!("{}: {}{more}", names.len(), named.join(", "))),
        ("servers", servers(config)),
        ("scripts", scripts(config)),
        ("agents", config.callers()),
        ("at a time", format!("{} running, {} waiting", invoke.max_in_flight, invoke.max_waiting)),
        ("time", format!("{} by default, {} at most", invoke.default_timeout, invoke.max_timeout)),
        ("http", config.http.listen.to_string()),
        ("telemetry", telemetry(targets)),
    ];
    let mut table = Table::new();
    table.load_style(NOTHING);
    // Rows of servers and scripts are left out where there can be none.
    let is_shown = |row: &(&str, String)| match row.0 {
        "servers" => config.mcp.is_configured(),
        "scripts" => config.script.is_some(),
        _ => true,
    };
    for (name, value) in rows.into_iter().filter(is_shown) {
        table.add_row([name, &value]);
    }
    plain(&table)
}

/// The destination of telemetry, with the variable or key that sets it.
fn telemetry(targets: &[ExportTarget]) -> String {
    if targets.is_empty() {
        return "not sent".to_owned();
    }
    let same_origin = targets.chunk_by(|one, next| one.origin == next.origin);
    let row = |group: &[ExportTarget]| {
        let joined = |names: Vec<&str>| names.join(", ");
        let mut endpoints: Vec<&str> = group.iter().map(|target| target.endpoint.as_str()).collect();
        endpoints.dedup();
        let signals = match group.len() {
            SIGNALS => String::new(),
            _ => format!("{} to ", joined(group.iter().map(|target| target.signal.as_str()).collect())),
        };
        let origin = group.first().map_or("", |target| target.origin.as_str());
        format!("{signals}{} ({origin})", joined(endpoints))
    };
    same_origin.map(row).collect::<Vec<_>>().join("; ")
}

/// The MCP servers.
fn servers(config: &Config) -> String {
    let specs = config.mcp_servers().specs;
    let named: Vec<_> = specs.iter().take(MAX_NAMED).map(|spec| spec.name.to_string()).collect();
    let more = if specs.len() > MAX_NAMED { ", …" } else { "" };
    match specs.len() {
        0 => "none".to_owned(),
        count => format!("{count}: {}{more}", named.join(", ")),
    }
}

/// Runner of scripts, and their time limits.
fn scripts(config: &Config) -> String {
    let Some(script) = &config.script else { return String::new() };
    let runner = match script.runner {
        RunnerKind::Sandbox => format!("in the sandbox, \"{}\" at least", script.sandbox.require),
        RunnerKind::Local => "kept in by nothing".to_owned(),
        RunnerKind::Kubernetes => {
            let KubernetesConfig { namespace, image, warm_pool, .. } = &script.kubernetes;
            match warm_pool {
                Some(pool) => format!("in sandboxes of the warm pool `{pool}` in namespace `{namespace}`"),
                None => format!("in pods of {image} in namespace `{namespace}`"),
            }
        }
    };
    let longest = script.longest(config.invoke.max_timeout).as_secs_f64();
    format!("{runner}; {} by default, {longest}s at most", script.timeout)
}

#[cfg(test)]
mod tests {
    use toolbus_mcp_client::config::ServerConfig;

    use super::*;
    use crate::config::{Override, ScriptConfig};

    #[test]
    fn the_summary_shows_no_credentials() {
        let mut config = Config::default();
        config.bus.url = "amqps://ana:hunter2@broker.example/tools".parse().unwrap();
        insta::assert_snapshot!(summary(&Sources::default(), &config, &[]), @r#"
        files      none: defaults
        bus        amqps://broker.example/tools
        queue      toolbus.invoke (tool.invoke)
        tools      2: current_time, convert_time
        agents     every caller may use every tool
        at a time  256 running, 1024 waiting
        time       60s by default, 120s at most
        http       127.0.0.1:8471
        telemetry  not sent
        "#);
    }

    #[test]
    fn the_summary_names_the_destination_of_telemetry() {
        let found = |endpoint: Option<&str>, variables: &[(&str, &str)]| {
            let mut config = Config::default();
            config.telemetry.otlp_endpoint = endpoint.map(str::to_owned);
            let environment = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            match app::targets(&config, &environment) {
                Ok(targets) => telemetry(&targets),
                Err(errors) => Problems(errors.into_iter().map(of_variable).collect()).to_string(),
            }
        };
        let of_file = Some("http://file:4317");
        let endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT";
        let traces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        assert_eq!(found(None, &[]), "not sent");
        assert_eq!(found(of_file, &[]), "http://file:4317 (telemetry.otlp_endpoint)");
        insta::assert_snapshot!(found(of_file, &[(endpoint, "http://ana:hunter2@env:4317")]), @"http://env:4317 (OTEL_EXPORTER_OTLP_ENDPOINT)");
        insta::assert_snapshot!(found(of_file, &[(traces, "http://traces:4317")]), @"traces to http://traces:4317 (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT); metrics, logs to http://file:4317 (telemetry.otlp_endpoint)");
        insta::assert_snapshot!(found(of_file, &[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]), @"http://file:4317/v1/traces, http://file:4317/v1/metrics, http://file:4317/v1/logs (telemetry.otlp_endpoint)");
        assert_eq!(found(of_file, &[("OTEL_SDK_DISABLED", "true")]), "not sent");
        let wrong = [(endpoint, "localhost:4317"), ("OTEL_TRACES_SAMPLER", "some"), ("OTEL_RESOURCE_ATTRIBUTES", "x")];
        insta::assert_snapshot!(found(None, &wrong), @"
        environment OTEL_EXPORTER_OTLP_ENDPOINT: use http://host:port or https://host:port
        environment OTEL_RESOURCE_ATTRIBUTES: use key=value pairs with commas between them, percent-encoded, at most 64
        ");
        insta::assert_snapshot!(found(of_file, &[("OTEL_EXPORTER_OTLP_PROTOCOL", "foo"), ("OTEL_LOGS_EXPORTER", "x")]), @"
        environment OTEL_EXPORTER_OTLP_PROTOCOL: use `grpc` or `http/protobuf`
        environment OTEL_LOGS_EXPORTER: use `otlp` or `none`
        ");
        insta::assert_snapshot!(found(of_file, &wrong[1..2]), @"environment OTEL_TRACES_SAMPLER: use always_on, always_off, traceidratio, or one of these after parentbased_");
    }

    #[test]
    fn a_file_of_servers_that_cannot_be_read_is_a_problem() {
        let missing = Override::new("mcp.servers_file", "/nonexistent/mcp.json");
        let sources = Sources { overrides: vec![missing], ..Sources::default() };
        let shown = as_json(&sources, &Config::load(&sources));
        assert_eq!((&shown["valid"], &shown["warnings"]), (&json!(false), &json!([])));
        insta::assert_snapshot!(shown["problems"][0]["problem"].as_str().unwrap(), @"the file cannot be read: No such file or directory (os error 2)");
    }

    #[test]
    fn a_missing_program_is_reported() {
        let mut config = Config::default();
        let server = |command: &str| ServerConfig { command: Some(command.to_owned()), ..ServerConfig::default() };
        let placeholder = ServerConfig { cwd: Some("/srv/{agent}".into()), ..server("./no-such-program") };
        let disabled = ServerConfig { disabled: true, ..server("no-such-program") };
        let servers = [("a", server("no-such-program")), ("b", server("sh")), ("c", placeholder), ("d", disabled)];
        config.mcp.servers = servers.map(|(name, server)| (name.to_owned(), server)).into();
        let found = config.missing_programs();
        assert_eq!(
            found,
            ["MCP server `a`: program 'no-such-program' was not found; give its full path, or check PATH"]
        );
    }

    #[test]
    fn the_summary_names_servers() {
        let mut config = Config::default();
        let server = ServerConfig { command: Some("x".to_owned()), ..ServerConfig::default() };
        config.mcp.servers = ["files", "time"].map(|name| (name.to_owned(), server.clone())).into();
        assert_eq!(servers(&config), "2: files, time");
    }

    #[test]
    fn the_summary_names_the_runner_of_scripts() {
        let mut script = ScriptConfig::default();
        let found = |script: &ScriptConfig| scripts(&Config { script: Some(script.clone()), ..Config::default() });
        assert_eq!(found(&script), "in the sandbox, \"no-namespaces\" at least; 30s by default, 120s at most");
        script.runner = RunnerKind::Local;
        assert_eq!(found(&script), "kept in by nothing; 30s by default, 120s at most");
        script.runner = RunnerKind::Kubernetes;
        insta::assert_snapshot!(found(&script), @"in pods of python:3.12-slim in namespace `rockbot-scripts`; 30s by default, 120s at most");
        script.kubernetes.warm_pool = Some("python".to_owned());
        insta::assert_snapshot!(found(&script), @"in sandboxes of the warm pool `python` in namespace `rockbot-scripts`; 30s by default, 120s at most");
    }

    #[test]
    fn programs_get_problems_one_by_one() {
        let sources = Sources {
            environment: [("TOOLBUS__BUS__ULR".to_owned(), "amqp://ana:hunter2@host".to_owned())].into(),
            ..Sources::default()
        };
        let shown = as_json(&sources, &Config::load(&sources));
        assert_eq!(shown["valid"], json!(false));
        assert_eq!(shown["problems"][0]["place"], json!("environment TOOLBUS__BUS__ULR"));
        assert_eq!(shown["problems"][0]["key"], json!("bus.ulr"));
        assert!(!shown.to_string().contains("hunter2"));
    }
}
