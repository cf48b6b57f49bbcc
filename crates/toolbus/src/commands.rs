//! The commands, one module each.

pub mod agents;
mod arguments;
pub mod bench;
pub mod breaker;
pub mod call;
pub mod check;
pub mod completions;
pub mod connect;
pub mod daemon;
pub mod demo;
pub mod dlq;
pub mod doctor;
mod edit;
pub mod explain;
pub mod health;
mod identity;
pub mod init;
pub mod mcp;
pub mod pins;
pub mod schema;
pub mod serve;
pub mod switch;
pub mod target;
pub mod tools;
pub mod top;
pub mod trace;

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anstyle::{AnsiColor, Effects, Style};
use serde::Serialize;
use target::{Operator, TargetError};
use toolbus_config::{MAX_SHOWN, Problem};
use toolbus_core::redact::Redactor;
use toolbus_telemetry::logging;
use toolbus_telemetry::logging::LogFormat;

use crate::app;
use crate::cli::{Cli, Command, GlobalArgs, environment};
use crate::config::{Config, Loaded, Problems, Sources, default_files};
use crate::terminal::OutputFormat;
use crate::terminal::printable;

/// Exit code of a mistake in the command line or the configuration.
pub(crate) const MISTAKE: u8 = 2;

/// Colour of errors.
const RED: Style = AnsiColor::Red.on_default().effects(Effects::BOLD);
/// Colour of warnings.
const YELLOW: Style = AnsiColor::Yellow.on_default().effects(Effects::BOLD);

/// Context of a command.
#[derive(Debug, Clone)]
pub struct Context {
    /// The configuration.
    pub config: Config,
    /// Where it came from.
    pub sources: Sources,
    /// Format of results.
    pub output: OutputFormat,
    /// Warnings about valid but suspicious settings.
    pub warnings: Vec<String>,
}

/// Runs a command to its end.
pub async fn run(cli: Cli) -> ExitCode {
    dispatch(cli).await.unwrap_or_else(ExitCode::from)
}

/// Runs a command. An error has been printed; only its exit code is left.
async fn dispatch(cli: Cli) -> Result<ExitCode, u8> {
    let global = cli.global;
    let operator = || Operator { sources: global.sources(environment()), output: global.output };
    let reported_by_kind = |error: TargetError| error.report();
    match cli.command {
        Command::Serve(args) => run_daemon(args, &global).await,
        Command::Call(args) => call::run(args, &context(&global, &["bus"])?).await.map_err(|error| {
            reported(&error);
            error.exit_code()
        }),
        // The configuration of a service must not have the demonstration need its broker, or its secrets.
        Command::Demo(args) => {
            let sources = global.named_sources(environment());
            demo::run(args, &load_context(sources, global.output, Config::load)?).await.map_err(reported)
        }
        Command::Dlq(args) => dlq::run(args, &context(&global, &["bus"])?).await.map_err(|error| error.report()),
        Command::Health(args) => health::run(args, &context(&global, &[])?).await.map_err(reported),
        Command::Schema => schema::run().map_err(reported),
        Command::Check(args) => check::run(args, &operator()).await.map_err(reported_by_kind),
        Command::Doctor(args) => doctor::run(args, &operator()).await.map_err(reported_by_kind),
        Command::Agents(args) => agents::run(args, &operator()).await.map_err(reported_by_kind),
        Command::Explain(args) => explain::run(args, &operator()).await.map_err(reported_by_kind),
        Command::Mcp(args) => mcp::run(args, &operator()).await.map_err(reported_by_kind),
        Command::Init(args) => init::run(args, &operator(), global.named_file()).map_err(reported_by_kind),
        Command::Connect(args) => connect::run(&args, &operator()).map_err(reported_by_kind),
        Command::Completions(args) => completions::completions(&args, Cli::definition(true)).map_err(reported),
        Command::Man(args) => completions::man(&args, Cli::definition(true)).map_err(reported),
        Command::Bench(args) => Err(reported(bench::run(&args, global.words()))),
        Command::Tools(args) => tools::run(args, &operator()).await.map_err(reported_by_kind),
        Command::Status(args) => daemon::status(args, &operator()).await.map_err(reported_by_kind),
        Command::Reload(args) => daemon::reload(args, &operator()).await.map_err(reported_by_kind),
        Command::Top(args) => top::run(args, &operator()).await.map_err(reported_by_kind),
        Command::Trace(args) => trace::run(args, &operator()).await.map_err(reported_by_kind),
        Command::Breaker(args) => breaker::run(args, &operator()).await.map_err(reported_by_kind),
        Command::Pins(args) => pins::run(args, &operator()).await.map_err(reported_by_kind),
        Command::Disable(args) => switch::run(args, true, &operator()).await.map_err(reported_by_kind),
        Command::Enable(args) => switch::run(args, false, &operator()).await.map_err(reported_by_kind),
    }
}

/// Loads the context of a program that needs a configuration. Mistakes are printed; the error is the exit code.
///
/// # Errors
///
/// If the configuration has a mistake.
pub fn configured(global: &GlobalArgs) -> Result<Context, ExitCode> {
    configured_by(global).map_err(ExitCode::from)
}

fn configured_by(global: &GlobalArgs) -> Result<Context, u8> {
    in_context(global, Config::load)
}

/// The same with the secrets of these sections alone. Warnings are left to `check` and the daemon.
fn context(global: &GlobalArgs, sections: &'static [&'static str]) -> Result<Context, u8> {
    in_context(global, |sources| Config::load_for(sources, sections))
}

fn in_context(global: &GlobalArgs, load: impl FnOnce(&Sources) -> Result<Loaded, Problems>) -> Result<Context, u8> {
    load_context(global.sources(environment()), global.output, load)
}

fn load_context(
    sources: Sources,
    output: OutputFormat,
    load: impl FnOnce(&Sources) -> Result<Loaded, Problems>,
) -> Result<Context, u8> {
    let Loaded { config, warnings } = load(&sources).map_err(|problems| complain(&problems))?;
    Ok(Context { config, sources, output, warnings })
}

/// Loads a configuration with every secret, and warns of MCP servers that are left out: a tool that is missing may be one
/// of theirs.
fn load_whole(sources: &Sources) -> Result<Config, Problems> {
    let config = Config::load(sources)?.config;
    config.mcp_servers().problems.iter().for_each(|problem| warn(problem));
    Ok(config)
}

/// Prints an error that ended a program, and gives its exit code.
pub fn failed(error: impl Display) -> ExitCode {
    reported(error).into()
}

/// Runs the daemon, which logs errors where other commands print them.
async fn run_daemon(args: serve::ServeArgs, global: &GlobalArgs) -> Result<ExitCode, u8> {
    let sources = global.sources(environment());
    let Loaded { config, warnings } =
        Config::load(&sources).map_err(|problems| match Config::log_format(&sources) {
            LogFormat::Json => log(&problems),
            LogFormat::Text => complain(&problems),
        })?;
    let context = Context { config, sources, output: global.output, warnings };
    serve::run(args, &context).await.map_err(|error| {
        // The error that ended the daemon may quote its peers.
        let error = app::redactor(&context.config).text(&error.to_string()).into_owned();
        if context.config.telemetry.log_format == LogFormat::Json && tracing::enabled!(tracing::Level::ERROR) {
            tracing::error!(error, "stopped by an error");
            return 1;
        }
        reported(error)
    })
}

/// Logs every problem of a configuration as JSON.
fn log(problems: &Problems) -> u8 {
    let settings = logging::LogSettings { filter: "error".to_owned(), format: LogFormat::Json, coloured: false };
    if logging::init(&settings, Redactor::default(), None).is_err() {
        return complain(problems);
    }
    for Problem { location, key, what } in problems.0.iter().take(MAX_SHOWN) {
        tracing::error!(place = location, key, problem = what, "a problem in the configuration");
    }
    MISTAKE
}

/// Prints every problem of a configuration on standard error, and returns the exit code.
pub(crate) fn complain(problems: &Problems) -> u8 {
    let count = problems.0.len();
    let summary = format!("{count} problem{} in the configuration", if count == 1 { "" } else { "s" });
    eprint(&format!("{RED}error:{RED:#} {summary}\n{problems}"));
    MISTAKE
}

pub(crate) fn warn(text: &str) {
    eprint(&format!("{YELLOW}warning:{YELLOW:#} {text}"));
}

/// Prints a note about the result on standard error.
pub(crate) fn note(text: &str) {
    eprint(&format!("note: {}", printable(text)));
}

fn reported(error: impl Display) -> u8 {
    eprint(&format!("{RED}error:{RED:#} {}", printable(&error.to_string())));
    1
}

/// A foreign text as one line of a table.
pub(crate) fn one_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

/// A word as a shell takes it.
pub(crate) fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.,:/@%+=".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The options of a suggested command that name these files, each after a space; none if it finds them by itself.
pub(crate) fn config_options(files: &[PathBuf]) -> String {
    if files == default_files() {
        return String::new();
    }
    files.iter().map(|file| format!(" --config {}", shell_word(&file.display().to_string()))).collect()
}

/// A response as programs read it.
pub fn as_json(response: &impl Serialize) -> String {
    format!("{:#}", serde_json::to_value(response).unwrap_or_default())
}

/// A table without the space before its first column and after its last one.
pub(crate) fn plain(table: &comfy_table::Table) -> String {
    let bare = |line: String| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned();
    table.lines().map(bare).collect::<Vec<_>>().join("\n")
}

/// Prints a line for people. A failure is ignored: the exit code suffices.
fn eprint(text: &str) {
    let _ = writeln!(anstream::stderr(), "{text}");
}
