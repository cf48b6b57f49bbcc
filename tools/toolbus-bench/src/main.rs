//! `toolbus-bench`: measures the daemon, MCP servers with and without it, scripts, and its MCP server.
//!
//! Sides are measured in turn within one run, because machines are noisy and only ratios are worth comparing.

mod args;
mod broker;
mod daemon;
mod error;
mod errors;
mod exchange;
mod figures;
mod http;
mod mcp;
mod mcp_http;
mod mcp_server;
mod report;
mod rounds;
mod save;
mod script;
mod usage;

use std::env;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use toolbus::cli::{GlobalArgs, choose_colors};
use toolbus::commands::{self, Context};

use args::MeasureArgs;
use error::MeasureError;

/// As in the daemon, parts of which run in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the daemon against a bare responder on the same broker.
///
/// Both sides take requests from a durable queue of the same type, answer persistently and confirmed on the same queue
/// of the caller's, and acknowledge afterwards; the bare responder does nothing else. They are measured in turn within
/// each round, and the figures are medians over the rounds. Exchange and queues are made for the measurement and removed
/// after it. Needs RabbitMQ: give --bus-url.
#[derive(Parser)]
#[command(name = "toolbus-bench", version = toolbus::VERSION, max_term_width = 100)]
struct BenchCli {
    // First: the heading of the global options would be over these, too.
    #[command(flatten)]
    bench: MeasureArgs,
    #[command(flatten)]
    global: GlobalArgs,
}

fn main() -> ExitCode {
    // First, while there is one thread: this process may be the helper of a sandbox, of an MCP server, or that server.
    if let Some(code) = toolbus_sandbox::take_over(env::args_os()) {
        return code;
    }
    if let Some(code) = toolbus_mcp_client::process::guard::take_over(env::args_os()) {
        return code;
    }
    if let Some(code) = mcp::echo::take_over(env::args_os()) {
        return code;
    }
    let cli = BenchCli::read();
    toolbus::runtime::block_on(run(cli))
}

async fn run(cli: BenchCli) -> ExitCode {
    let context = match commands::configured(&cli.global) {
        Ok(context) => context,
        Err(code) => return code,
    };
    measure(cli.bench, &context).await.unwrap_or_else(commands::failed)
}

async fn measure(args: MeasureArgs, context: &Context) -> Result<ExitCode, MeasureError> {
    if args.mcp {
        return mcp::run(&args, context).await;
    }
    if args.script {
        return script::run(&args, context).await;
    }
    if args.mcp_server {
        return mcp_server::run(&args, context).await;
    }
    broker::run(args, context).await
}

impl BenchCli {
    /// Reads the command line of this process. Ends the process for help and for mistakes.
    fn read() -> Self {
        choose_colors(&env::args_os().collect::<Vec<_>>());
        // Unlike `toolbus`, this program has one command, so that its help shows all options.
        let mut command = Self::command().mut_args(|arg| if arg.is_global_set() { arg.hide(false) } else { arg });
        let matches = command.clone().get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
    }
}
