//! Arguments of a measurement.

use std::path::PathBuf;

use clap::builder::ArgPredicate;

use crate::mcp_server::PeerCommand;

/// Longest measurement of one side in one round, in seconds.
const MAX_SECONDS: u64 = 600;

/// Subject of a measurement, and its duration.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct MeasureArgs {
    /// Calls in flight, measured one after the other; with --mcp and --mcp-server 1,32 if not given, with --script 8.
    #[arg(long, value_delimiter = ',', default_value = "1,64", default_value_ifs([("mcp", ArgPredicate::IsPresent, "1,32"), ("script", ArgPredicate::IsPresent, "8"), ("mcp_server", ArgPredicate::IsPresent, "1,32")]), value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) callers: Vec<u16>,
    /// Rounds; each measures every side once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS))]
    pub(crate) seconds: u64,
    /// Tools to register beside `echo`: shows that their number costs nothing per call.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=10_000))]
    pub(crate) tools: u16,
    /// Agents with rules of their own, of 200 patterns each, beside the caller's: shows what the policy costs per call.
    /// Needs --tools, for the patterns to match.
    #[arg(long, default_value_t = 0, requires = "tools", value_parser = clap::value_parser!(u16).range(0..=1_000))]
    pub(crate) agents: u16,
    /// Share of calls to trace, from 0 to 1, exported over OTLP/HTTP to a sink inside this command, metrics with them.
    /// Absent: nothing is exported.
    #[arg(long, value_name = "SHARE")]
    pub(crate) trace_ratio: Option<f64>,
    /// Measure recorded calls, too: of `echo` as a tool with side effects, with a ledger in a SQLite file in this
    /// folder. Then what entries of the ledger take. Exit code 1 if they cost more than they may.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) ledger: Option<PathBuf>,
    /// With --ledger: how many entries are put into a ledger in memory, and a tenth of them into one in SQLite.
    #[arg(long, requires = "ledger", value_name = "NUMBER", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub(crate) entries: u64,
    /// With --ledger: measure them with a ledger on this Redis server, too.
    #[arg(long, requires = "ledger", value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// Measure calls that one daemon passes on to another, too. Exit code 1 if they cost more than they may.
    #[arg(long, conflicts_with = "agents")]
    pub(crate) remote: bool,
    /// Measure calls of an MCP server's tool instead, without a broker: through the daemon on the embedded bus, and directly
    /// from this process. Then what many idle servers cost, and how long a killed one is away.
    #[arg(long, group = "servers", conflicts_with_all = ["tools", "agents", "trace_ratio", "ledger", "remote"])]
    pub(crate) mcp: bool,
    /// With --mcp or --peer: the server to measure with, as a command line that is split at spaces. Absent: the
    /// smallest that there can be, which is part of this program.
    #[arg(long, requires = "servers", value_name = "COMMAND")]
    pub(crate) mcp_command: Option<String>,
    /// With --mcp-command: the tool to call.
    #[arg(long, requires = "mcp_command", value_name = "NAME", default_value = "echo")]
    pub(crate) mcp_tool: String,
    /// With --mcp-command: the tool's arguments, as a JSON object.
    #[arg(long, requires = "mcp_command", value_name = "JSON", default_value = r#"{"message": "hello"}"#)]
    pub(crate) mcp_arguments: String,
    /// Measure scripts instead, without a broker: an interpreter alone, and scripts in the sandbox, cold and warm; then how
    /// many there are a second, and what many leave behind. Exit code 1 if they cost more than they may.
    #[arg(long, conflicts_with_all = ["tools", "agents", "trace_ratio", "ledger", "remote", "mcp"])]
    pub(crate) script: bool,
    /// With --script: how many are run in a row to see what they leave behind.
    #[arg(long, requires = "script", value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) scripts: u32,
    /// With --script: the interpreter, instead of `script.python`.
    #[arg(long, requires = "script", value_name = "COMMAND")]
    pub(crate) python: Option<String>,
    /// With --script: a folder with numpy and pandas, as `pip install --target` makes it. Absent: they are not measured.
    #[arg(long, requires = "script", value_name = "FOLDER")]
    pub(crate) packages: Option<PathBuf>,
    /// Measure the MCP server of the daemon instead, without a broker: a call of `echo` there, on the bus, and the page
    /// `/healthz` of the same HTTP server; then what idle sessions take. Exit code 1 if they cost more than they may.
    #[arg(long, conflicts_with_all = ["tools", "agents", "trace_ratio", "ledger", "remote", "mcp", "script"])]
    pub(crate) mcp_server: bool,
    /// With --mcp-server: how many idle sessions.
    #[arg(long, requires = "mcp_server", value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) sessions: u32,
    /// With --mcp-server: another proxy to compare with, in front of the same MCP server. It is started by `sh`, has to
    /// listen on `$PORT`, and finds the server's command line in `$SERVER`. Its endpoint is /mcp if no path is given.
    #[arg(long, requires = "mcp_server", group = "servers", value_name = "NAME[@PATH]=COMMAND")]
    pub(crate) peer: Vec<PeerCommand>,
    /// Put the report into this JSON file, as one entry with command, machine, date and commit.
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// With --save: the name of the entry, instead of that of the measurement: broker, mcp, script or mcp-server.
    #[arg(long, value_name = "NAME", requires = "save")]
    pub(crate) name: Option<String>,
    /// Internal: be the bare responder of this site.
    #[arg(long, hide = true)]
    pub(crate) responder: Option<String>,
}
