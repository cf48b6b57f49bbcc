//! `toolbus mcp`: the MCP servers of the running daemon, one of a configuration tried alone, and the tools of the bus for an
//! MCP client.

mod add;
mod serve;
mod show;
mod test;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use axum::http::Method;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use toolbus_mcp_client::status::ServerStatus;

use super::target::{DaemonArgs, Operator, TargetError, escaped};
use super::{as_json, one_line, plain};
use crate::http::admin::view::{McpRestart, McpServerList};
use crate::terminal::OutputFormat;
use crate::terminal::ignore_broken_pipe;

/// Longest error in the table, in characters; `toolbus mcp show` has it whole.
const MAX_ERROR: usize = 60;

/// Shows how MCP servers are, adds one, tries one, and restarts them; serves MCP clients.
#[derive(Debug, clap::Args)]
pub struct McpArgs {
    #[command(subcommand)]
    command: McpCommand,
}

#[derive(Debug, clap::Subcommand)]
enum McpCommand {
    /// List the servers of the running daemon, one line each
    List(ListArgs),
    /// Show all that is known of a server: its tools, what is hidden and why, the last lines of its standard error
    Show(ServerArgs),
    /// Add a server to the configuration
    Add(add::AddArgs),
    /// Start or connect one server of the configuration by itself, and tell each step
    Test(test::TestArgs),
    /// End a server of the running daemon and start it again
    Restart(ServerArgs),
    /// Serve an MCP client that starts its servers as child processes, with the tools of the bus
    Serve(serve::McpServeArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
}

#[derive(Debug, clap::Args)]
struct ServerArgs {
    /// Name of the server, in any case.
    name: String,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Sends the request, and prints the response.
///
/// # Errors
///
/// If the daemon does not respond or refuses, or standard output is closed.
pub async fn run(args: McpArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let is_json = operator.output == OutputFormat::Json;
    let text = match args.command {
        McpCommand::List(args) => {
            let all: McpServerList = args.daemon.open(operator).await?.send(Method::GET, "/v1/mcp").await?;
            if is_json { as_json(&all) } else { list(&all) }
        }
        McpCommand::Show(args) => {
            let path = format!("/v1/mcp/{}", escaped(&args.name));
            let server: ServerStatus = args.daemon.open(operator).await?.send(Method::GET, &path).await?;
            if is_json { as_json(&server) } else { show::in_full(&server) }
        }
        McpCommand::Add(args) => return add::run(&args, operator),
        McpCommand::Test(args) => return test::run(args, operator).await,
        McpCommand::Serve(args) => return serve::run(args, operator).await,
        McpCommand::Restart(args) => {
            let path = format!("/v1/mcp/{}/restart", escaped(&args.name));
            let restart: McpRestart = args.daemon.open(operator).await?.send(Method::POST, &path).await?;
            if is_json { as_json(&restart) } else { restarting(&restart) }
        }
    };
    ignore_broken_pipe(writeln!(io::stdout(), "{text}"))?;
    Ok(ExitCode::SUCCESS)
}

fn list(all: &McpServerList) -> String {
    let McpServerList { servers, problems } = all;
    let problems = problems.iter().map(|problem| format!("problem: {}", one_line(problem)));
    if servers.is_empty() && problems.len() > 0 {
        return problems.collect::<Vec<_>>().join("\n");
    }
    if servers.is_empty() {
        return "the daemon has no MCP servers: add one to its configuration, under mcp.servers or in mcp.servers_file"
            .to_owned();
    }
    let mut table = Table::new();
    let header = ["NAME", "TRANSPORT", "PHASE", "TOOLS", "RESTARTS", "LATENCY", "LAST ERROR"];
    table.load_style(NOTHING).set_header(header);
    for server in servers {
        table.add_row([
            one_line(&server.name),
            one_line(&server.transport),
            server.phase.as_str().to_owned(),
            tools(server),
            server.restarts.to_string(),
            latency(server),
            server.last_error.as_deref().map_or_else(|| "-".to_owned(), shortened),
        ]);
    }
    std::iter::once(plain(&table)).chain(problems).collect::<Vec<_>>().join("\n")
}

fn tools(server: &ServerStatus) -> String {
    let counts = [(server.shadowed_total, "shadowed"), (server.hidden.len(), "hidden")];
    let more = counts.into_iter().filter(|(count, _)| *count > 0);
    more.fold(server.tools.len().to_string(), |text, (count, what)| format!("{text}, {count} {what}"))
}

fn latency(server: &ServerStatus) -> String {
    server.latency_us.map_or_else(|| "-".to_owned(), |time| milliseconds(Duration::from_micros(time)))
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// The beginning of an error: one line of the table.
fn shortened(error: &str) -> String {
    match error.char_indices().nth(MAX_ERROR) {
        Some((end, _)) => format!("{}…", one_line(error.get(..end).unwrap_or_default()).trim_end()),
        None => one_line(error),
    }
}

fn restarting(restart: &McpRestart) -> String {
    let name = one_line(&restart.restarting);
    format!("MCP server {name} is being restarted; `toolbus mcp show` tells when it is ready")
}

#[cfg(test)]
mod tests {
    use toolbus_mcp_client::status::PhaseName;

    use super::*;
    use crate::http::tests::example;

    #[test]
    fn every_server_is_one_line() {
        let waiting = ServerStatus {
            phase: PhaseName::Waiting,
            tools: Vec::new(),
            hidden: Vec::new(),
            restarts: 12,
            latency_us: None,
            last_error: Some(format!("the server ended\nwith\u{1b}[2J exit code 3, {}", "and so on, ".repeat(20))),
            ..example("git")
        };
        let second = ServerStatus { shadowed_total: 2, ..example("second") };
        let mut all = McpServerList { servers: vec![example("files"), waiting, second], problems: Vec::new() };
        insta::assert_snapshot!(list(&all), @r#"
        NAME    TRANSPORT  PHASE    TOOLS                    RESTARTS  LATENCY  LAST ERROR
        files   stdio      ready    2, 1 hidden              0         1.2 ms   -
        git     stdio      waiting  0                        12        -        the server ended with\u{1b}[2J exit code 3, and so on, and so on,…
        second  stdio      ready    2, 2 shadowed, 1 hidden  0         1.2 ms   -
        "#);
        all.problems = vec!["mcp.json:1:2: `a` is left out:\n\u{7}".to_owned()];
        let last = r"problem: mcp.json:1:2: `a` is left out: \u{7}";
        assert_eq!(list(&all).lines().last().unwrap(), last);
        all.servers.clear();
        assert_eq!(list(&all), last);
    }

    #[test]
    fn a_list_without_servers_explains_how_to_add_one() {
        assert!(list(&McpServerList { servers: Vec::new(), problems: Vec::new() }).contains("mcp.servers_file"));
    }

    #[test]
    fn a_name_is_printed_without_control_characters() {
        let restart = McpRestart { restarting: "fi\u{1b}[2Jles".to_owned() };
        insta::assert_snapshot!(restarting(&restart), @r#"MCP server fi\u{1b}[2Jles is being restarted; `toolbus mcp show` tells when it is ready"#);
    }
}
