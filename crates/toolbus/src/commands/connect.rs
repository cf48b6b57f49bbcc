//! `toolbus connect`: the entry with which an MCP client finds the tools of the bus.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use clap::builder::NonEmptyStringValueParser;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use toolbus_core::caller::AgentName;

use super::edit::{self, NewFile};
use super::target::{Operator, TargetError};
use super::{note, warn};
use crate::config::http::Open;
use crate::config::{BusUrl, Config, Sources};
use crate::terminal::ignore_broken_pipe;

/// Prints the entry for an MCP client, or writes it into the client's file.
///
/// The client starts `toolbus mcp serve --stdio` where the configuration names a broker; with --http, and without a
/// broker, it asks the daemon's own MCP server, with a token from its environment.
#[derive(Debug, clap::Args)]
pub struct ConnectArgs {
    /// The client.
    client: ClientProgram,
    /// Write the entry into the client's file; other entries stay as they are.
    #[arg(long)]
    write: bool,
    /// The client's file; without it, the one of the project, or of the user for Claude Desktop.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Name of the entry.
    #[arg(long, default_value = "toolbus", value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// The agent that the client is. Over HTTP, it must have one of `http.tokens`.
    #[arg(long, value_name = "AGENT", value_parser = AgentName::parse)]
    agent: Option<AgentName>,
    /// Connect over HTTP.
    #[arg(long)]
    http: bool,
    /// Variable of the client's environment that holds its token, one of `http.tokens`.
    #[arg(long, value_name = "VARIABLE", default_value = "TOOLBUS_TOKEN")]
    token_env: String,
    /// Replace an entry of the same name.
    #[arg(long, requires = "write")]
    force: bool,
}

/// MCP clients whose files are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ClientProgram {
    /// Claude Code: `.mcp.json` of the project.
    Claude,
    /// Claude Desktop, which speaks over standard input and output alone.
    ClaudeDesktop,
    /// Cursor: `.cursor/mcp.json` of the project.
    Cursor,
    /// Visual Studio Code: `.vscode/mcp.json` of the project.
    #[value(name = "vscode")]
    VsCode,
}

impl ClientProgram {
    /// The field of the file that holds the servers.
    const fn section(self) -> &'static str {
        match self {
            Self::VsCode => "servers",
            Self::Claude | Self::ClaudeDesktop | Self::Cursor => "mcpServers",
        }
    }

    /// Returns the reference to a variable, in the syntax of the program's file.
    fn variable(self, name: &str) -> String {
        match self {
            Self::VsCode | Self::Cursor => format!("${{env:{name}}}"),
            Self::Claude | Self::ClaudeDesktop => format!("${{{name}}}"),
        }
    }

    /// The file, as far as it is known.
    fn file(self, environment: &BTreeMap<String, String>) -> Option<PathBuf> {
        let home = || environment.get("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        match self {
            Self::Claude => Some(".mcp.json".into()),
            Self::Cursor => Some(".cursor/mcp.json".into()),
            Self::VsCode => Some(".vscode/mcp.json".into()),
            Self::ClaudeDesktop if cfg!(target_os = "macos") => {
                Some(home()?.join("Library/Application Support/Claude/claude_desktop_config.json"))
            }
            Self::ClaudeDesktop => {
                let base = environment.get("XDG_CONFIG_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
                Some(base.or_else(|| Some(home()?.join(".config")))?.join("Claude/claude_desktop_config.json"))
            }
        }
    }
}

/// Prints or writes the entry.
///
/// # Errors
///
/// If the configuration cannot be used, the client cannot be connected in this way, or its file cannot be changed.
pub fn run(args: &ConnectArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let loaded = Config::load_for(&operator.sources, &[]).map_err(TargetError::Mistakes)?;
    let entry = entry(args, &loaded.config, &operator.sources)?;
    let (section, name) = (args.client.section(), args.name.as_str());
    if !args.write {
        ignore_broken_pipe(writeln!(io::stdout(), "{:#}", json!({section: {name: entry}})))?;
        return Ok(ExitCode::SUCCESS);
    }
    let file = args.file.clone().or_else(|| args.client.file(&operator.sources.environment));
    let file =
        file.ok_or_else(|| TargetError::Usage("the client's file is not known: name it with --file".to_owned()))?;
    let before = edit::read(&file)?;
    let next = with_entry(before.as_deref().unwrap_or_default(), section, name, &entry, args.force)
        .map_err(|reason| TargetError::Usage(format!("`{}` stays as it is: {reason}", file.display())))?;
    NewFile::new(&file, &next, true)?.keep(before.is_some())?;
    ignore_broken_pipe(writeln!(io::stdout(), "wrote the entry {name} into {}", file.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The entry of a client that gets the tools of this configuration's daemon.
fn entry(args: &ConnectArgs, config: &Config, sources: &Sources) -> Result<Value, TargetError> {
    let is_typed = args.client != ClientProgram::ClaudeDesktop;
    let mut entry = Map::new();
    if args.http || config.bus.url == BusUrl::Embedded {
        if args.client == ClientProgram::ClaudeDesktop {
            let text = "Claude Desktop starts its servers as programs, and `toolbus mcp serve --stdio` needs a broker: set \
                        bus.url";
            return Err(TargetError::Usage(text.to_owned()));
        }
        let http = &config.http;
        if let Some(agent) = args.agent.as_ref().filter(|agent| http.each_token().all(|(known, _)| known != *agent)) {
            let text =
                format!("over HTTP the token says which agent the client is, and http.tokens has none of `{agent}`");
            return Err(TargetError::Usage(text));
        }
        if http.listen.port() == 0 {
            let text = "http.listen has port 0: the daemon takes another port at each start, which no entry can name";
            return Err(TargetError::Usage(text.to_owned()));
        }
        if !http.takes_clients() {
            warn("the configuration has neither http.tokens nor http.open, so that the daemon takes no MCP client");
        }
        entry.insert("type".to_owned(), json!("http"));
        entry.insert("url".to_owned(), json!(format!("http://{}/mcp", reachable(http.listen))));
        // An open server without tokens refuses every token.
        if http.open == Open::No || http.each_token().next().is_some() {
            let of_agent =
                args.agent.as_ref().map_or_else(|| "its token".to_owned(), |it| format!("the token of {it}"));
            note(&format!("the client needs {of_agent} in the variable {}", args.token_env));
            let token = args.client.variable(&args.token_env);
            entry.insert("headers".to_owned(), json!({"Authorization": format!("Bearer {token}")}));
        }
        return Ok(Value::Object(entry));
    }
    let program = std::env::current_exe()?;
    let mut words = vec!["mcp".to_owned(), "serve".to_owned(), "--stdio".to_owned()];
    for file in &sources.files {
        let absolute = std::path::absolute(file)?;
        words.extend(["--config".to_owned(), absolute.display().to_string()]);
    }
    if let Some(agent) = &args.agent {
        words.extend(["--agent".to_owned(), agent.to_string()]);
    } else if config.identity.agent.is_none() {
        note("--agent NAME says which agent the client is; without it, the login on the broker must");
    }
    // The client's program has the files alone, and none of this environment.
    let mut alone = Sources { files: sources.files.clone(), ..Sources::default() };
    if Config::bus_in(&sources.files).as_ref() != Some(&config.bus.url) {
        alone.environment.insert("TOOLBUS__BUS__URL".to_owned(), "amqp://user:password@localhost".to_owned());
        note("the client needs the address of the broker in the variable TOOLBUS__BUS__URL");
        entry.insert("env".to_owned(), json!({"TOOLBUS__BUS__URL": args.client.variable("TOOLBUS__BUS__URL")}));
    }
    if let Err(problems) = Config::load_for(&alone, &["bus"]) {
        warn(&format!(
            "the client starts a program that has none of this environment, without which this configuration cannot be \
             used; name a file for clients with --config, or give --http\n{problems}"
        ));
    }
    if is_typed {
        entry.insert("type".to_owned(), json!("stdio"));
    }
    entry.insert("command".to_owned(), json!(program.display().to_string()));
    entry.insert("args".to_owned(), json!(words));
    Ok(Value::Object(entry))
}

/// The address by which a program of this machine reaches a listener.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = if listen.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { listen.ip() };
    SocketAddr::new(ip, listen.port())
}

/// Fields of an object, as they are written.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// The text of a file with the entry in it. Everything else is unchanged.
fn with_entry(text: &str, section: &str, name: &str, entry: &Value, may_replace: bool) -> Result<String, String> {
    if text.trim().is_empty() {
        return Ok(format!("{:#}\n", json!({section: {name: entry}})));
    }
    let end = "; without --write, the entry is printed";
    let root: Fields<'_> = serde_json::from_str(text).map_err(|error| match error.is_data() {
        true => format!("it is not one JSON object{end}"),
        false => format!("it is not plain JSON ({error}){end}"),
    })?;
    let Some(servers) = root.get(section) else {
        return Ok(inserted(text, text.trim(), &root, section, &json!({name: entry})));
    };
    let fields: Fields<'_> =
        serde_json::from_str(servers.get()).map_err(|_| format!("its `{section}` is not a JSON object{end}"))?;
    let Some(known) = fields.get(name) else {
        return Ok(inserted(text, servers.get(), &fields, name, entry));
    };
    if serde_json::from_str::<Value>(known.get()).is_ok_and(|known| known == *entry) {
        return Ok(text.to_owned());
    }
    if !may_replace {
        return Err(format!(
            "it has an entry `{name}` already: --force replaces it, --name gives this one another name"
        ));
    }
    let start = offset(text, known.get());
    Ok(spliced(text, start, start + known.get().len(), &indented(entry, indent_at(text, start))))
}

/// The text with a field at the end of `object`, a part of it that has `fields`.
fn inserted(text: &str, object: &str, fields: &Fields<'_>, name: &str, value: &Value) -> String {
    let last = fields.values().max_by_key(|value| offset(text, value.get()));
    let key = Value::from(name);
    match last {
        Some(last) => {
            let start = offset(text, last.get());
            let (indent, end) = (indent_at(text, start), start + last.get().len());
            spliced(text, end, end, &format!(",\n{indent}{key}: {}", indented(value, indent)))
        }
        None => {
            let start = offset(text, object);
            let outer = indent_at(text, start);
            let inner = format!("{outer}  ");
            let object_text = format!("{{\n{inner}{key}: {}\n{outer}}}", indented(value, &inner));
            spliced(text, start, start + object.len(), &object_text)
        }
    }
}

/// Where a part of a text begins, in bytes.
fn offset(text: &str, part: &str) -> usize {
    part.as_ptr().addr().saturating_sub(text.as_ptr().addr())
}

/// The indentation of the line at a position.
fn indent_at(text: &str, at: usize) -> &str {
    let before = text.get(..at).unwrap_or_default();
    let line = before.get(before.rfind('\n').map_or(0, |end| end + 1)..).unwrap_or_default();
    line.get(..line.len() - line.trim_start().len()).unwrap_or_default()
}

fn indented(value: &Value, indent: &str) -> String {
    format!("{value:#}").replace('\n', &format!("\n{indent}"))
}

fn spliced(text: &str, start: usize, end: usize, with: &str) -> String {
    let (before, after) = (text.get(..start).unwrap_or_default(), text.get(end..).unwrap_or_default());
    format!("{before}{with}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = r#"{"command": "toolbus"}"#;

    fn entered(text: &str, may_replace: bool) -> Result<String, String> {
        with_entry(text, "mcpServers", "toolbus", &serde_json::from_str(ENTRY).unwrap(), may_replace)
    }

    #[test]
    fn an_entry_is_added_and_the_rest_stays_as_it_is_written() {
        let text = "{\n    \"zeta\": 1.50,\n    \"mcpServers\": {\n        \"files\": {\"command\": \"x\"}\n    },\n    \"a\": [ ]\n}\n";
        insta::assert_snapshot!(entered(text, false).unwrap(), @r#"
        {
            "zeta": 1.50,
            "mcpServers": {
                "files": {"command": "x"},
                "toolbus": {
                  "command": "toolbus"
                }
            },
            "a": [ ]
        }
        "#);
        for text in
            ["", "{}", "{\"mcpServers\": {}}", "{\"theme\": \"dark\"}", "{\"mcpServers\":{\"é\":{}},\"x\":\"{}\"}"]
        {
            let next: Value = serde_json::from_str(&entered(text, false).unwrap()).unwrap();
            let mut before: Value = serde_json::from_str(text).unwrap_or_else(|_| json!({}));
            before["mcpServers"]["toolbus"] = serde_json::from_str(ENTRY).unwrap();
            assert_eq!(next, before, "{text}");
        }
    }

    #[test]
    fn an_entry_of_the_same_name_is_replaced_only_on_request() {
        let text = "{\"mcpServers\": {\"toolbus\": {\"command\": \"old\"}, \"b\": {}}}";
        assert!(entered(text, false).unwrap_err().contains("--force"));
        let next = entered(text, true).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&next).unwrap()["mcpServers"]["toolbus"]["command"], "toolbus");
        assert_eq!(entered(&next, false).unwrap(), next);
    }

    #[test]
    fn a_file_that_takes_no_entry_stays_as_it_is_and_the_error_has_the_reason() {
        let why = |text: &str| entered(text, true).unwrap_err();
        for text in ["{ // mine\n}", "{"] {
            assert!(why(text).starts_with("it is not plain JSON (") && why(text).contains("line 1"), "{text}");
        }
        assert_eq!(why("[]"), "it is not one JSON object; without --write, the entry is printed");
        for servers in ["[]", "null", "7"] {
            let text = format!("{{\"mcpServers\": {servers}}}");
            assert_eq!(why(&text), "its `mcpServers` is not a JSON object; without --write, the entry is printed");
        }
    }

    #[test]
    fn a_wildcard_address_becomes_loopback_for_clients() {
        assert_eq!(reachable("0.0.0.0:8471".parse().unwrap()).to_string(), "127.0.0.1:8471");
        assert_eq!(reachable("192.0.2.7:1".parse().unwrap()).to_string(), "192.0.2.7:1");
        assert_eq!(ClientProgram::ClaudeDesktop.file(&BTreeMap::new()), None);
        let home = BTreeMap::from([("HOME".to_owned(), "/srv/ana".to_owned())]);
        assert!(ClientProgram::ClaudeDesktop.file(&home).unwrap().starts_with("/srv/ana"));
    }
}
