//! `toolbus mcp add`: one more server in a configuration.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use toolbus_config::toml_sections;

use crate::commands::edit::{self, NewFile};
use crate::commands::init::{FILE, key, quoted};
use crate::commands::target::{Operator, TargetError};
use crate::commands::{config_options, note, shell_word};
use crate::config::{Config, Sources};
use crate::terminal::ignore_broken_pipe;

/// First line of a section.
const ADDED: &str = "# Added by `toolbus mcp add`.\n";

/// Adds an MCP server to the configuration: a program, after `--`, or --url.
///
/// A section with comments is added at the end of the configuration file (the last of --config), which is checked before
/// it is written. `toolbus reload` has a running daemon take it over.
#[derive(Debug, clap::Args)]
pub(super) struct AddArgs {
    /// Name of the server.
    name: String,
    /// Address of a server over HTTP.
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    url: Option<String>,
    /// Variable of the daemon's environment that holds the bearer token for --url.
    #[arg(long, value_name = "VARIABLE", requires = "url")]
    token_env: Option<String>,
    /// Variable of the program's environment: NAME=VALUE, or NAME alone to hand the daemon's on; may be repeated.
    #[arg(long, value_name = "NAME[=VALUE]", conflicts_with = "url")]
    env: Vec<String>,
    /// Quarantine tools that change since they were first seen, until `toolbus pins approve`.
    #[arg(long)]
    pin: bool,
    /// Replace the section of a server that is there.
    #[arg(long)]
    force: bool,
    /// Print the section, and write nothing.
    #[arg(long)]
    print: bool,
    /// The program and its arguments.
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "url")]
    command: Vec<String>,
}

/// Adds the server, and prints the next step.
pub(super) fn run(args: &AddArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let section = section(args);
    if args.print {
        ignore_broken_pipe(write!(io::stdout(), "{section}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let file = operator.sources.files.last().cloned().unwrap_or_else(|| PathBuf::from(FILE));
    edit::expect_toml(&file)?;
    let before = edit::read(&file)?;
    let (mut known, mut is_first, mut replaced) = (Vec::new(), true, None);
    if let Some(before) = &before {
        let config = Config::load_for(&operator.sources, &[]).map_err(TargetError::Mistakes)?.config;
        is_first = !config.mcp.is_configured();
        let folded = args.name.to_lowercase();
        let servers = config.mcp_servers();
        known = servers.problems.iter().map(ToString::to_string).collect();
        replaced = with_section(before, &folded, &section);
        let is_known = servers.specs.iter().any(|spec| spec.name.as_str().to_lowercase() == folded);
        let mend = match &replaced {
            Some(_) if !args.force => Some("--force replaces its section"),
            None if is_known => Some("change it where it is, as this file has no section of it"),
            _ => None,
        };
        if let Some(mend) = mend {
            let (name, file) = (&args.name, file.display());
            return Err(TargetError::Usage(format!("there is an MCP server `{name}` already; `{file}`: {mend}")));
        }
    }
    let (is_new, is_replaced) = (before.is_none(), replaced.is_some());
    let text = replaced.unwrap_or_else(|| {
        let mut text = before.unwrap_or_default();
        if !text.is_empty() {
            text += if text.ends_with('\n') { "\n" } else { "\n\n" };
        }
        text + &section
    });
    let draft = NewFile::new(&file, &text, is_new)?;
    let mut sources = Sources { files: operator.sources.files.clone(), ..operator.sources.clone() };
    sources.files.pop();
    sources.files.push(draft.path().to_owned());
    let unset: Vec<&str> = wanted(args).filter(|name| !sources.environment.contains_key(*name)).collect();
    for name in &unset {
        sources.environment.insert((*name).to_owned(), "set where the daemon runs".to_owned());
    }
    let mistakes = |problems| TargetError::Mistakes(problems);
    let loaded = Config::load_for(&sources, &[]).map_err(|problems| mistakes(problems.of_file(draft.path(), &file)))?;
    // Mistakes of other servers were there before.
    let servers = loaded.config.mcp_servers();
    if let Some(problem) = servers.problems.iter().find(|problem| !known.contains(&problem.to_string())) {
        return Err(TargetError::Usage(format!("nothing was written: {problem}")));
    }
    draft.keep(!is_new)?;
    let name = &args.name;
    for variable in unset {
        note(&format!("the daemon needs the variable {variable}, which is not set here"));
    }
    let files = &operator.sources.files;
    let options = config_options(if files.is_empty() { std::slice::from_ref(&file) } else { files });
    // A daemon that had no servers at its start takes none at a reload.
    let starts = if is_first { "a restart of the daemon".to_owned() } else { format!("`toolbus reload{options}`") };
    let done = if is_replaced { format!("replaced {name} in") } else { format!("added {name} to") };
    let written = format!(
        "{done} {}; `toolbus mcp test {}{options}` tries it, {starts} starts it",
        file.display(),
        shell_word(name)
    );
    ignore_broken_pipe(writeln!(io::stdout(), "{written}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Replaces the sections that `text` has of the server of this name, in lower case, by `section`; `None` if it has
/// none.
fn with_section(text: &str, name: &str, section: &str) -> Option<String> {
    let is_of_server = |path: &[String]| match path {
        [mcp, servers, own, ..] => mcp == "mcp" && servers == "servers" && own.to_lowercase() == name,
        _ => false,
    };
    let sections = toml_sections(text, is_of_server);
    let first = sections.first()?.start;
    let has_title = text.get(..first).is_some_and(|before| before.ends_with(ADDED));
    let section = if has_title { section.strip_prefix(ADDED)? } else { section };
    let mut text = text.to_owned();
    sections.into_iter().rev().for_each(|section| text.replace_range(section, ""));
    text.insert_str(first, section);
    Some(text)
}

/// Variables of the daemon's environment that the section refers to.
fn wanted(args: &AddArgs) -> impl Iterator<Item = &str> {
    let handed_on = args.env.iter().filter(|pair| !pair.contains('=')).map(String::as_str);
    handed_on.chain(args.token_env.as_deref())
}

fn section(args: &AddArgs) -> String {
    let mut text = format!("{ADDED}[mcp.servers.{}]\n", key(&args.name));
    // Writing to a string cannot fail.
    if let Some(url) = &args.url {
        let _ = writeln!(text, "url = {}", quoted(url));
        match &args.token_env {
            Some(name) => drop(writeln!(text, "auth = {{ type = \"bearer\", token = {{ env = {} }} }}", quoted(name))),
            None => text += "#auth = { type = \"bearer\", token = { env = \"TOKEN\" } }\n",
        }
    }
    if let Some((program, arguments)) = args.command.split_first() {
        let arguments = arguments.iter().map(|argument| quoted(argument)).collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "command = {}\nargs = [{arguments}]", quoted(program));
        text += "# It has no variables of the daemon's environment but those that every program needs, and these.\n";
        let variable = |pair: &String| match pair.split_once('=') {
            Some((name, value)) => format!("{} = {}", key(name), quoted(value)),
            None => format!("{} = {{ env = {} }}", key(pair), quoted(pair)),
        };
        let variables = args.env.iter().map(variable).collect::<Vec<_>>().join(", ");
        match args.env.is_empty() {
            true => text += "#env = { TOKEN = { env = \"TOKEN\" } }\n",
            false => drop(writeln!(text, "env = {{ {variables} }}")),
        }
    }
    text += "# Names of the tools that are offered; [] is all.\nallowed_tools = []\n";
    text += "# Whether tools that changed since they were first seen are quarantined until `toolbus pins approve`.\n";
    text + if args.pin { "pin = true\n" } else { "#pin = true\n" }
}
