//! The command line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

use crate::commands::{
    agents, bench, breaker, call, check, completions, connect, daemon, demo, dlq, doctor, explain, health, init, mcp,
    pins, serve, switch, tools, top, trace,
};
use crate::config::{Override, Sources, default_files};
use crate::terminal::OutputFormat;

const EXAMPLES: &str = "\
Examples:
  toolbus demo                                     see real calls answered, with nothing to install
  toolbus init                                     write a first configuration
  toolbus serve --config config/toolbus.toml       run the daemon
  toolbus call get_weather city=Bogotá             call a tool, as an agent would
  toolbus check --config config/toolbus.toml       find every mistake in a configuration
  toolbus doctor                                   what is wrong here, and what mends it
  toolbus top                                      what is called now, how often, and what fails
  toolbus trace --status failed                    which calls went wrong lately
  toolbus tools get_weather                        what is known of a tool, with an example call
  toolbus reload                                   take over changes of the configuration
  toolbus agents ana                               what may this agent use, and why
  toolbus explain ana get_weather city=Bogotá      would this call be run, and if not, why
  toolbus disable tool get_weather                 switch something off in the running daemon
  toolbus mcp list                                 how the MCP servers are
  toolbus mcp add time -- uvx mcp-server-time      add one to the configuration
  toolbus connect cursor --write                   have an MCP client use the tools of the bus
  toolbus dlq list                                 which messages could not be answered or delivered
  toolbus pins diff read_file                      how this tool changed since it was pinned
  TOOLBUS__BUS__URL=amqp://broker toolbus tools    the same, with a key from the environment

Every command takes --config FILE, the configuration of the daemon that is meant, and --output json; --help-all shows \
these and other global options. Configuration, later ones win: defaults, files (--config, else ./toolbus.toml, else \
/etc/toolbus/toolbus.toml), environment (TOOLBUS__SECTION__KEY), command line.";

/// The option that shows the global options, too.
const HELP_ALL: &str = "--help-all";

const SCHEMA_USE: &str = "\
Editors with TOML support complete and check a configuration file whose first line is
  #:schema ./toolbus.schema.json
next to the output of this command.";

/// Runs the tool calls of AI agents, taken from RabbitMQ.
#[derive(Parser)]
#[command(name = "toolbus", version = crate::VERSION, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command. Help shows them with `--help-all` alone.
#[derive(Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// Configuration file of the daemon that is meant, TOML, JSON or YAML by its extension; repeat it to lay files over each
    /// other.
    #[arg(long, short, global = true, hide = true, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Change one key of the configuration, such as `invoke.drain_timeout=10s`; may be repeated.
    #[arg(long = "set", global = true, hide = true, value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<Override>,
    /// Broker to use: the key `bus.url`. Credentials given here are visible to other users of this machine.
    #[arg(long, global = true, hide = true, value_name = "URL")]
    bus_url: Option<String>,
    /// Address of the HTTP server: the key `http.listen`.
    #[arg(long, global = true, hide = true, value_name = "IP:PORT")]
    listen: Option<String>,
    /// Log filter: the key `telemetry.log`.
    #[arg(long, global = true, hide = true, value_name = "LEVEL")]
    log: Option<String>,
    /// Format of results.
    #[arg(long, global = true, hide = true, value_enum, default_value_t)]
    pub(crate) output: OutputFormat,
    /// When to use colours; `auto` looks at the terminal and at NO_COLOR.
    #[arg(long, global = true, hide = true, value_enum, default_value_t)]
    color: Color,
    /// Print help with the global options, such as --config, --set and --output.
    #[arg(long, global = true, action = ArgAction::HelpLong, help_heading = "Options", display_order = 1_000)]
    help_all: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

/// Command to run.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a first configuration, with comments
    Init(init::InitArgs),
    /// Run the daemon until it is stopped
    Serve(serve::ServeArgs),
    /// Call a tool over the bus, as an agent would
    Call(call::CallArgs),
    /// List the tools, or show all that is known of one
    Tools(tools::ToolsArgs),
    /// Show how the running daemon is
    Status(daemon::StatusArgs),
    /// Have the running daemon read its configuration again, and tell what changed
    Reload(daemon::ReloadArgs),
    /// Show live which tools are called, how often, how long they take, and what fails
    Top(top::TopArgs),
    /// Show what became of recent calls, and what the time of one went into
    Trace(trace::TraceArgs),
    /// Show who may use what, and why
    Agents(agents::AgentsArgs),
    /// Show whether a call would be run, and what refuses it
    Explain(explain::ExplainArgs),
    /// Switch a tool, an agent or a source off in the running daemon
    Disable(switch::SwitchArgs),
    /// Switch on again what was switched off
    Enable(switch::SwitchArgs),
    /// Show how MCP servers are, add one, try one, restart them; serve an MCP client
    Mcp(mcp::McpArgs),
    /// Print or write the entry with which an MCP client finds the tools of the bus
    Connect(connect::ConnectArgs),
    /// Show which tools and servers get no calls because they fail again and again, and let calls through
    Breaker(breaker::BreakerArgs),
    /// Show which tools are not as they were pinned, and let them through
    Pins(pins::PinsArgs),
    /// Show, replay and remove dead letters: messages that could not be answered or delivered
    Dlq(dlq::DlqArgs),
    /// Find every mistake in the configuration, without connecting to the broker
    Check(check::CheckArgs),
    /// Find what is wrong with an installation, and what mends it
    Doctor(doctor::DoctorArgs),
    /// Print the JSON Schema of the configuration file
    #[command(after_help = SCHEMA_USE)]
    Schema,
    /// Show real calls being answered, with nothing to install
    Demo(demo::DemoArgs),
    /// Measure what the daemon costs, with `toolbus-bench`
    Bench(bench::BenchArgs),
    /// Ask a running daemon whether it is ready; for health checks of containers
    Health(health::HealthArgs),
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
    /// Print the manual page, or write one page for each command
    Man(completions::ManArgs),
}

impl Cli {
    /// Reads the command line of this process, and decides on colours for everything that is printed through `anstream`:
    /// also for help and for mistakes in the command line itself. Ends the process for help and for mistakes.
    #[must_use]
    pub fn read() -> Self {
        let words: Vec<OsString> = std::env::args_os().collect();
        choose_colors(&words);
        let is_full = words.iter().take_while(|word| *word != "--").any(|word| word == HELP_ALL);
        let mut command = Self::definition(is_full);
        let matches = command.clone().get_matches_from(words);
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
    }

    /// The definition of the command line; its help shows global options only on request.
    #[must_use]
    pub fn definition(shows_global: bool) -> clap::Command {
        let command =
            Self::command().mut_args(|arg| if shows_global && arg.is_global_set() { arg.hide(false) } else { arg });
        // What runs or checks a configuration is of little use without saying which.
        let config = command.get_arguments().find(|arg| arg.get_id() == "config").cloned().map(|arg| arg.hide(false));
        ["serve", "check", "doctor"]
            .into_iter()
            .fold(command, |command, name| command.mut_subcommand(name, |subcommand| subcommand.args(config.clone())))
    }
}

impl GlobalArgs {
    /// The file that --config names, the last of them.
    pub(crate) fn named_file(&self) -> Option<PathBuf> {
        self.config.last().cloned()
    }

    /// The words of an equivalent command line.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let chosen = |value: Option<PossibleValue>, is_default: bool| {
            value.filter(|_| !is_default).map(|value| value.get_name().into())
        };
        let files = self.config.iter().map(|file| ("--config", file.clone().into_os_string()));
        let keys = self.set.iter().map(|given| ("--set", format!("{}={}", given.key, given.value).into()));
        let once: [(&str, Option<OsString>); 5] = [
            ("--bus-url", self.bus_url.clone().map(Into::into)),
            ("--listen", self.listen.clone().map(Into::into)),
            ("--log", self.log.clone().map(Into::into)),
            ("--output", chosen(self.output.to_possible_value(), self.output == OutputFormat::default())),
            ("--color", chosen(self.color.to_possible_value(), self.color == Color::default())),
        ];
        let once = once.into_iter().filter_map(|(option, value)| Some((option, value?)));
        files.chain(keys).chain(once).flat_map(|(option, value)| [option.into(), value]).collect()
    }

    /// Where the configuration comes from.
    #[must_use]
    pub fn sources(&self, environment: BTreeMap<String, String>) -> Sources {
        let files = if self.config.is_empty() { default_files() } else { self.config.clone() };
        let named = [
            ("--bus-url", "bus.url", &self.bus_url),
            ("--listen", "http.listen", &self.listen),
            ("--log", "telemetry.log", &self.log),
        ];
        let named = named.into_iter().filter_map(|(option, key, value)| {
            Some(Override { option: option.to_owned(), key: key.to_owned(), value: value.clone()? })
        });
        Sources { files, environment, overrides: self.set.iter().cloned().chain(named).collect() }
    }

    /// The same without a file that is found, not named.
    pub(crate) fn named_sources(&self, environment: BTreeMap<String, String>) -> Sources {
        Sources { files: self.config.clone(), ..self.sources(environment) }
    }
}

/// Decides on colours for everything that is printed through `anstream`, by these words of a command line.
pub fn choose_colors(words: &[OsString]) {
    color(words.iter().map(|word| word.to_string_lossy().into_owned())).write_global();
}

/// Returns the value of `--color`, wherever it stands; after `--` there are no options.
fn color(arguments: impl Iterator<Item = String>) -> anstream::ColorChoice {
    let options: Vec<String> = arguments.take_while(|argument| argument != "--").collect();
    let apart = options.windows(2).find_map(|pair| (pair.first()? == "--color").then(|| pair.get(1).cloned())?);
    let joined = || options.iter().find_map(|option| option.strip_prefix("--color=").map(str::to_owned));
    match apart.or_else(joined).and_then(|text| Color::from_str(&text, false).ok()).unwrap_or_default() {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    }
}

/// The environment of this process; variables that are not text are left out.
#[must_use]
pub fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Splits `key=value` at the first `=` that is not in quotation marks.
fn assignment(text: &str) -> Result<Override, &'static str> {
    let mut quoted = false;
    let end = text.find(|c| {
        quoted ^= c == '"';
        c == '=' && !quoted
    });
    let (key, value) = end
        .and_then(|end| Some((text.get(..end)?, text.get(end + 1..)?)))
        .ok_or("expected KEY=VALUE, such as invoke.drain_timeout=10s")?;
    Ok(Override::new(key.trim(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help(shows_global: bool, words: &[&str]) -> String {
        let option = if shows_global { HELP_ALL } else { "--help" };
        let words = [&["toolbus"], words, &[option]].concat();
        Cli::definition(shows_global).try_get_matches_from(words).unwrap_err().to_string()
    }

    #[test]
    fn help_shows_a_commands_own_options_and_help_all_the_global_ones() {
        for words in [&["serve"][..], &["check"], &["doctor"]] {
            assert!(help(false, words).contains("--config <FILE>"), "{words:?}");
        }
        for words in [&["agents"][..], &["mcp", "list"], &[]] {
            let (short, all) = (help(false, words), help(true, words));
            assert!(!short.contains("--bus-url <") && short.contains("--help-all"), "{short}");
            assert!(all.contains("--bus-url <URL>") && all.contains("Global options:"), "{all}");
        }
        let all = help(true, &["agents"]);
        assert!(all.find("--socket") < all.find("--bus-url"), "{all}");
    }

    #[test]
    fn the_lines_of_examples_are_not_broken_and_those_of_prose_are_full() {
        let shown = help(false, &[]);
        let (examples, prose) = shown.split_once("Examples:\n").unwrap().1.split_once("\n\n").unwrap();
        assert!(
            examples.lines().all(|line| line.starts_with("  toolbus ") || line.starts_with("  TOOLBUS__")),
            "{shown}"
        );
        let lines: Vec<&str> = prose.trim_end().lines().collect();
        assert!(lines.iter().rev().skip(1).all(|line| line.len() > 60), "{shown}");
    }

    #[test]
    fn the_command_line_is_in_order() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_key_ends_at_the_first_equals_sign_outside_quotation_marks() {
        let split = |text: &str| assignment(text).map(|Override { key, value, .. }| (key, value));
        assert_eq!(split("a.b=c=d"), Ok(("a.b".into(), "c=d".into())));
        assert_eq!(
            split(r#"tools.limits."x=y".timeout=1s"#),
            Ok((r#"tools.limits."x=y".timeout"#.into(), "1s".into()))
        );
        assert!(split("a.b").is_err());
    }

    #[test]
    fn a_measurement_is_given_all_options_wherever_they_stand() {
        let words =
            ["toolbus", "--config", "a.toml", "--set", "a.\"x=y\"=1", "bench", "--bus-url", "amqp://b", "--mcp-server"];
        let cli = Cli::try_parse_from([&words[..], &["--output", "json", "--help"]].concat()).unwrap();
        let given = cli.global.words();
        assert_eq!(given, ["--config", "a.toml", "--set", "a.\"x=y\"=1", "--bus-url", "amqp://b"]);
        let Command::Bench(args) = cli.command else { panic!("another command") };
        assert_eq!(args.options, ["--mcp-server", "--output", "json", "--help"]);
    }

    #[test]
    fn named_options_come_after_set() {
        let cli = Cli::try_parse_from(["toolbus", "check", "--set", "bus.url=x", "--bus-url", "y"]).unwrap();
        let sources = cli.global.sources(BTreeMap::new());
        let options: Vec<_> = sources.overrides.iter().map(|given| given.option.as_str()).collect();
        assert_eq!(options, ["--set bus.url", "--bus-url"]);
    }
}
