//! `toolbus init`: a first configuration, with comments.

use std::fmt::Write as _;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum as _;
use serde_json::Value;
use toolbus_core::caller::AgentName;

use super::edit::{self, NewFile};
use super::target::{Operator, TargetError};
use super::{config_options, shell_word, warn};
use crate::config::{BusUrl, Config, Sources};
use crate::terminal::ignore_broken_pipe;

/// The file that is written unless another is named.
pub(super) const FILE: &str = "toolbus.toml";
/// Longest line of input that is read, in bytes.
const MAX_INPUT: u64 = 4096;

const HEAD: &str = "\
# Configuration of Toolbus, written by `toolbus init`.
#
#   toolbus check     finds every mistake
#   toolbus serve     runs the daemon, from this folder or with --config
#   toolbus mcp add   adds an MCP server
#
# What is absent has its default. `toolbus schema` prints every key, for editors.

# The message broker. \"embedded\" is a bus inside the daemon, which only MCP clients can reach.
[bus]
";

const TOOLS: &str = "
# Tools that the daemon brings along.
[tools]
time = true
";

/// Without a broker there is no login to distinguish callers by, and no other program on the bus.
const EMBEDDED: &str = "
# How callers are told apart: by what they say, because nothing but this daemon is on its bus.
[identity]
trust_headers = true
";

const BROKER: &str = "
# How callers are told apart: by their login on the broker (`user_id`), which no other can forge. A login is the agent of
# its own name, unless `users` says of which.
[identity]
source = \"broker\"
";

const NO_AGENTS: &str = "
# Who may use what. Without a section of any agent, every caller may use every tool.
#[agents.ana]
#allowed_tools = [\"*_time\", \"files_*\"]
";

const REST: &str = "
# An HTTP endpoint as a tool.
#[[rest.endpoints]]
#name = \"get_status\"
#description = \"Status of the service\"
#url = \"https://api.example.com/status\"
#method = \"GET\"
";

/// Writes a first configuration, with comments, from the options and from answers.
///
/// It asks where standard input is a terminal, unless --yes is given. --bus-url names the broker. The result is checked
/// before it is written.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// File to write; without it, that of --config, or `toolbus.toml`.
    file: Option<PathBuf>,
    /// Agent that may use every tool, while callers without a section may use none; may be repeated.
    #[arg(long = "agent", value_name = "AGENT", value_parser = AgentName::parse)]
    agents: Vec<AgentName>,
    /// Login of the first agent at the broker, if it is another one than that of --bus-url.
    #[arg(long, value_name = "USER")]
    login: Option<String>,
    /// File with MCP servers in the form `mcpServers` that other programs have.
    #[arg(long, value_name = "FILE")]
    servers_file: Option<PathBuf>,
    /// Offer the tool `echo`, to try things out.
    #[arg(long)]
    echo: bool,
    /// Tools to offer beside time, MCP servers and endpoints; may be repeated, or a list with commas.
    #[arg(long = "with", value_name = "TOOLS", value_delimiter = ',')]
    tools: Vec<Offer>,
    /// Offer all of them.
    #[arg(long, conflicts_with = "tools")]
    all: bool,
    /// Ask nothing.
    #[arg(long, short)]
    yes: bool,
    /// Replace a file that is there.
    #[arg(long)]
    force: bool,
}

/// Tools that a section of the configuration brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Offer {
    /// Scripts of models, in a sandbox.
    Scripts,
    /// Pages of the web.
    Web,
    /// Working memory, and large results in parts.
    Memory,
    /// Scheduled tasks.
    Schedules,
    /// Tasks for other agents, and pipelines of calls.
    Agents,
}

impl Offer {
    /// The sections, with a comment.
    fn text(self) -> &'static str {
        match self {
            Self::Scripts => {
                "\n# Scripts of models, in a sandbox without network: `execute_python_script`. docs/scripts.md\n[script]\n"
            }
            Self::Web => "\n# Public pages and repositories: `web_browse`. docs/web.md\n[web]\n",
            Self::Memory => {
                "\n# Texts that agents keep for a while, and large results in parts that they read one by one. docs/memory.md\n\
                 [memory]\n[results]\n"
            }
            Self::Schedules => "\n# Tasks that agents get at a later time. docs/schedules.md\n[schedule]\n",
            Self::Agents => {
                "\n# Tasks that agents give to each other, pipelines of calls, and guides to tools. docs/agents-together.md\n\
                 [a2a]\n[pipelines]\n[guides]\n"
            }
        }
    }
}

/// The offers that a line of input names.
fn offers(choice: &str) -> Result<Vec<Offer>, TargetError> {
    if choice == "all" {
        return Ok(Offer::value_variants().to_vec());
    }
    let names = choice.split(',').map(str::trim).filter(|name| !name.is_empty());
    let offer = |name| {
        Offer::from_str(name, true).map_err(|_| {
            TargetError::Usage(format!("`{name}` is none of scripts, web, memory, schedules, agents, and all"))
        })
    };
    names.map(offer).collect()
}

/// Writes the file.
///
/// # Errors
///
/// If the file exists already, the input makes no valid configuration, the file of MCP servers cannot be read, or
/// nothing can be written.
pub fn run(args: InitArgs, operator: &Operator, named: Option<PathBuf>) -> Result<ExitCode, TargetError> {
    let InitArgs { file, mut agents, mut login, mut servers_file, echo, mut tools, all, yes, force } = args;
    if all {
        tools = Offer::value_variants().to_vec();
    }
    let file = file.or(named).unwrap_or_else(|| FILE.into());
    edit::expect_toml(&file)?;
    if file.exists() && !force {
        return Err(TargetError::Usage(format!("`{}` is there already: --force replaces it", file.display())));
    }
    let given = operator.sources.overrides.iter().rev().find(|given| given.key == "bus.url");
    let mut url = given.map(|given| given.value.clone());
    if !yes && io::stdin().is_terminal() {
        if url.is_none() {
            url = prompted("Broker, such as amqp://user:password@host/vhost (empty: none, a bus inside the daemon)")?;
        }
        if agents.is_empty()
            && let Some(name) = prompted("Agent that may use every tool (empty: every caller may)")?
        {
            agents.push(AgentName::parse(&name).map_err(|error| TargetError::Usage(format!("`{name}` {error}")))?);
        }
        if let (Some(url), Some(agent), None) = (&url, agents.first(), &login) {
            let usual = own_login(url).unwrap_or_else(|| agent.to_string());
            login = prompted(&format!("Login of {agent} at the broker (empty: {usual})"))?;
        }
        if servers_file.is_none() {
            servers_file = prompted("File with MCP servers of another program (empty: none)")?.map(PathBuf::from);
        }
        if tools.is_empty()
            && let Some(names) = prompted("More tools: scripts, web, memory, schedules, agents, or all (empty: none)")?
        {
            tools = offers(&names)?;
        }
    }
    let login = login.or_else(|| own_login(url.as_deref()?));
    let text = text(
        (url.as_deref(), login.as_deref()),
        &agents,
        servers_file.as_deref().map(|file| file.display().to_string()),
        (echo, &tools),
    );
    // The address of a broker may have a password.
    let draft = NewFile::new(&file, &text, url.is_some())?;
    let sources = Sources { files: vec![draft.path().to_owned()], ..Sources::default() };
    let loaded = Config::load(&sources).map_err(|problems| problems.of_file(draft.path(), &file));
    let mut config = loaded.map_err(TargetError::Mistakes)?.config;
    config.read_servers_file(&operator.sources.environment);
    let problems = config.mcp_servers().problems;
    if config.mcp.file.is_unread() {
        return Err(TargetError::Usage(format!("nothing was written: --servers-file: {}", problems.join("; "))));
    }
    draft.keep(force)?;
    // Servers that can be used start without those.
    problems.iter().for_each(|problem| warn(problem));
    let options = config_options(std::slice::from_ref(&file));
    let mut next = format!("`toolbus serve{options}` runs the daemon");
    let call = "toolbus call current_time timezone=UTC";
    if config.bus.url == BusUrl::Embedded {
        let agent = agents.first().map(|agent| format!(" --as {}", shell_word(agent.as_str()))).unwrap_or_default();
        next = format!("`{call}{agent}{options}` tries a tool, and {next}");
    } else if login == config.bus.url.login() && (login.is_some() || agents.is_empty()) {
        next += &format!(", and `{call}{options}` tries a tool beside it");
    }
    ignore_broken_pipe(writeln!(io::stdout(), "wrote {}; {next}", file.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The login of a broker's address.
fn own_login(url: &str) -> Option<String> {
    url.parse::<BusUrl>().ok()?.login()
}

fn text(
    (url, login): (Option<&str>, Option<&str>),
    agents: &[AgentName],
    servers_file: Option<String>,
    (echo, tools): (bool, &[Offer]),
) -> String {
    let mut text = HEAD.to_owned();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "url = {}", quoted(url.unwrap_or("embedded")));
    text += TOOLS;
    let _ = writeln!(text, "echo = {echo}");
    text += if url.is_some() { BROKER } else { EMBEDDED };
    if let (Some(_), Some(agent), Some(login)) = (url, agents.first(), login)
        && agent.as_str() != login
    {
        let _ = writeln!(text, "users = {{ {} = {} }}", key(login), quoted(agent.as_str()));
    }
    if url.is_some() && !agents.is_empty() {
        // Written, so that `check` does not warn about agents without a login.
        text += "unknown = \"deny\"\n";
    }
    if agents.is_empty() {
        text += NO_AGENTS;
    } else {
        text += "\n# Who may use what. Callers without a section may use nothing.\n";
        for agent in agents {
            let _ = writeln!(text, "[agents.{}]\nallowed_tools = [\"*\"]", key(agent.as_str()));
        }
    }
    let agent = agents.first().map_or("ana", AgentName::as_str);
    let variable = agent.to_uppercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let _ = write!(
        text,
        "\n# Bearer tokens of MCP clients, by agent. Without any, there is no MCP server at /mcp.\n#[http]\n\
         #tokens = {{ {} = {{ env = \"{variable}_TOKEN\" }} }}\n",
        key(agent)
    );
    text += "\n# MCP servers, whose tools are tools on the bus. `toolbus mcp add NAME -- COMMAND` adds one.\n";
    match servers_file {
        Some(file) => drop(writeln!(text, "[mcp]\nservers_file = {}", quoted(&file))),
        None => text += "#[mcp.servers.files]\n#command = \"mcp-server-filesystem\"\n#args = [\"/srv/files\"]\n",
    }
    Offer::value_variants().iter().filter(|offer| tools.contains(offer)).for_each(|offer| text += offer.text());
    text + REST
}

/// Prompts for a line; `None` if it is empty.
fn prompted(question: &str) -> Result<Option<String>, TargetError> {
    let mut out = io::stdout();
    write!(out, "{question}: ")?;
    out.flush()?;
    let mut line = String::new();
    io::Read::take(io::stdin().lock(), MAX_INPUT).read_line(&mut line)?;
    Ok(Some(line.trim().to_owned()).filter(|line| !line.is_empty()))
}

/// A text as TOML writes it.
pub(super) fn quoted(text: &str) -> String {
    // As JSON writes it, but for one character that TOML wants escaped.
    Value::from(text).to_string().replace('\u{7f}', r"\u007F")
}

/// A key as TOML writes it.
pub(super) fn key(text: &str) -> String {
    let is_bare = !text.is_empty() && text.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-'));
    if is_bare { text.to_owned() } else { quoted(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_written_as_toml_reads_it() {
        for text in ["", "plain", "a \"b\" \\ c", "line\nend\u{7f}\u{1b}", "ünï"] {
            let document = format!("{} = {}", key(text), quoted(text));
            let table: toml::Table = toml::from_str(&document).unwrap();
            assert_eq!(table.get(text).and_then(toml::Value::as_str), Some(text), "{document}");
        }
    }
}
