//! `toolbus check`: finds every mistake in a configuration, without connecting to anything.

use std::io::{self, Write};
use std::process::ExitCode;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::{Value, json};

use super::{MISTAKE, complain, plain, warn};
use crate::cli::Output;
use crate::config::identity::Source;
use crate::config::script::Runner;
use crate::config::{Config, Loaded, Problem, Problems, Sources};
use crate::printed::unless_gone;

/// Most tools that are named in the summary.
const MAX_NAMED: usize = 10;

/// Why nothing was told.
#[derive(Debug, thiserror::Error)]
#[error("cannot write: {0}")]
pub struct CheckError(#[from] io::Error);

/// Checks, and tells what was found. Exit code 2 when the configuration cannot be used.
///
/// # Errors
///
/// When nothing can be printed.
pub fn run(sources: &Sources, output: Output) -> Result<ExitCode, CheckError> {
    let mut result = Config::load(sources);
    if let Ok(loaded) = &mut result {
        loaded.warnings.extend(loaded.config.suspects());
        loaded.warnings.extend(loaded.config.missing_programs());
    }
    let is_usable = result.as_ref().is_ok_and(|loaded| loaded.config.mcp_servers().problems.is_empty());
    let code = if is_usable { ExitCode::SUCCESS } else { ExitCode::from(MISTAKE) };
    match (output, &result) {
        (Output::Json, _) => unless_gone(writeln!(io::stdout(), "{:#}", as_json(sources, &result)))?,
        (Output::Table, Err(problems)) => drop(complain(problems)),
        (Output::Table, Ok(loaded)) => {
            let problems = loaded.config.mcp_servers().problems;
            mere_warnings(loaded, &problems).for_each(|warning| warn(warning));
            if !is_usable {
                complain(&of_servers(&problems));
            }
            let valid = if is_usable { "configuration is valid" } else { "configuration is valid but for MCP servers" };
            let summary = summary(sources, &loaded.config);
            unless_gone(writeln!(io::stdout(), "{valid}\n{summary}"))?;
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
    problems.0.iter().map(|p| json!({"place": p.place, "key": p.key, "problem": p.what})).collect()
}

/// What cannot be used of the MCP servers; each text begins with its place.
fn of_servers(problems: &[String]) -> Problems {
    let problem = |text: &String| {
        let (place, what) = text.split_once(": ").unwrap_or(("mcp", text));
        Problem { place: place.to_owned(), key: String::new(), what: what.to_owned() }
    };
    Problems(problems.iter().map(problem).collect())
}

/// The warnings that are no problems of MCP servers, which a daemon starts with all the same.
fn mere_warnings<'a>(loaded: &'a Loaded, problems: &'a [String]) -> impl Iterator<Item = &'a String> {
    loaded.warnings.iter().filter(|warning| !problems.contains(warning))
}

fn summary(sources: &Sources, config: &Config) -> String {
    let files: Vec<_> = sources.files.iter().map(|file| file.display().to_string()).collect();
    let names = config.tool_names();
    let named: Vec<&str> = names.iter().take(MAX_NAMED).map(AsRef::as_ref).collect();
    let more = if names.len() > MAX_NAMED { ", …" } else { "" };
    let invoke = &config.invoke;
    let telemetry = config.telemetry.otlp_endpoint.as_deref().unwrap_or("not sent");
    let rows = [
        ("files", if files.is_empty() { "none: defaults".to_owned() } else { files.join(", ") }),
        ("bus", config.bus.url.to_string()),
        ("queue", format!("{}.invoke ({})", config.queue_prefix(), config.invoke_topics().join(", "))),
        ("tools", format!("{}: {}{more}", names.len(), named.join(", "))),
        ("servers", servers(config)),
        ("scripts", scripts(config)),
        ("agents", agents(config)),
        ("at a time", format!("{} running, {} waiting", invoke.max_in_flight, invoke.max_waiting)),
        ("time", format!("{} by default, {} at most", invoke.default_timeout, invoke.max_timeout)),
        ("http", config.http.listen.to_string()),
        ("telemetry", telemetry.to_owned()),
    ];
    let mut table = Table::new();
    table.load_style(NOTHING);
    // Nothing is said of servers and scripts where there can be none.
    let is_told = |row: &(&str, String)| match row.0 {
        "servers" => config.mcp.is_configured(),
        "scripts" => config.script.is_some(),
        _ => true,
    };
    for (name, value) in rows.into_iter().filter(is_told) {
        table.add_row([name, &value]);
    }
    plain(&table)
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

/// What runs scripts, and for how long.
fn scripts(config: &Config) -> String {
    let Some(script) = &config.script else { return String::new() };
    let runner = match script.runner {
        Runner::Sandbox => format!("in the sandbox, \"{}\" at least", script.sandbox.require.level()),
        Runner::Local => "kept in by nothing".to_owned(),
    };
    let longest = script.longest(config.invoke.max_timeout).as_secs_f64();
    format!("{runner}; {} by default, {longest}s at most", script.timeout)
}

/// Who has rules of its own, and what becomes of everybody else.
fn agents(config: &Config) -> String {
    let by = match config.identity.source {
        Source::Header => "the header rb-source",
        Source::Broker => "their login",
    };
    if let Some(agent) = &config.identity.agent {
        return format!("{agent} alone, as its sidecar");
    }
    let named: Vec<&str> = config.agents.keys().filter(|name| !name.is_default()).map(|name| name.as_str()).collect();
    let others = if config.denies_unknown() { "has no tools" } else { "has the rules of agents.default" };
    let shown = named.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
    let more = if named.len() > MAX_NAMED { ", …" } else { "" };
    match named.len() {
        0 => format!("everybody {others}"),
        count => format!("{count}, known by {by}: {shown}{more}; everybody else {others}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mcp::ServerConfig;
    use crate::config::{Agent, Override, ScriptConfig};

    #[test]
    fn the_summary_shows_no_credentials() {
        let mut config = Config::default();
        config.bus.url = "amqps://ana:hunter2@broker.example/tools".parse().unwrap();
        insta::assert_snapshot!(summary(&Sources::default(), &config), @r#"
        files      none: defaults
        bus        amqps://broker.example/tools
        queue      toolbus.invoke (tool.invoke)
        tools      2: current_time, convert_time
        agents     everybody has the rules of agents.default
        at a time  256 running, 1024 waiting
        time       60s by default, 120s at most
        http       127.0.0.1:8471
        telemetry  not sent
        "#);
    }

    #[test]
    fn the_summary_says_who_has_rules() {
        let mut config = Config::default();
        for name in ["ana", "bruno", "default"] {
            config.agents.insert(Agent::parse(name).unwrap(), Default::default());
        }
        config.identity.source = Source::Broker;
        assert_eq!(agents(&config), "2, known by their login: ana, bruno; everybody else has no tools");
        config.identity.agent = Some(Agent::parse("ana").unwrap());
        assert_eq!(agents(&config), "ana alone, as its sidecar");
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
    fn a_program_that_is_not_there_is_told() {
        let mut config = Config::default();
        let server = |command: &str| ServerConfig { command: Some(command.to_owned()), ..ServerConfig::default() };
        let placeholder = ServerConfig { cwd: Some("/srv/{agent}".into()), ..server("./no-such-program") };
        let disabled = ServerConfig { disabled: true, ..server("no-such-program") };
        let servers = [("a", server("no-such-program")), ("b", server("sh")), ("c", placeholder), ("d", disabled)];
        config.mcp.servers = servers.map(|(name, server)| (name.to_owned(), server)).into();
        let told = config.missing_programs();
        assert_eq!(
            told,
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
    fn the_summary_says_what_runs_scripts() {
        let mut script = ScriptConfig::default();
        let told = |script: &ScriptConfig| scripts(&Config { script: Some(script.clone()), ..Config::default() });
        assert_eq!(told(&script), "in the sandbox, \"no-namespaces\" at least; 30s by default, 120s at most");
        script.runner = Runner::Local;
        assert_eq!(told(&script), "kept in by nothing; 30s by default, 120s at most");
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
