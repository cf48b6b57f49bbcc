//! The `toolbus` binary: see the library of the same name.

use std::env;
use std::io;
use std::num::NonZero;
use std::process::ExitCode;
use std::thread::available_parallelism;

use clap::Parser;
use tokio::runtime::{Builder, Runtime};
use toolbus::cli::Cli;

/// A call allocates some hundred times, and what one thread allocates another one frees.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // First, while there is one thread: this process may be the helper of a sandbox.
    if let Some(code) = toolbus_sandbox::take_over(env::args_os()) {
        return code;
    }
    if let Some(code) = toolbus_mcp::supervisor::take_over(env::args_os()) {
        return code;
    }
    if let Some(code) = toolbus::commands::bench::mcp::echo::take_over(env::args_os()) {
        return code;
    }
    let cli = Cli::parse();
    cli.apply_color();
    // Every TLS connection uses this provider; a second installation would be refused, and is none here.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match runtime() {
        Ok(runtime) => {
            let code = runtime.block_on(toolbus::commands::run(cli));
            // What still blocks a thread, such as a read of standard input, must not hold the end up.
            runtime.shutdown_background();
            code
        }
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs tasks in one thread for every two processors: the others are for agents, the broker and the servers of tools, and
/// work that goes from thread to thread costs twice the processor time. `TOKIO_WORKER_THREADS` says otherwise.
fn runtime() -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if env::var_os("TOKIO_WORKER_THREADS").is_none() {
        builder.worker_threads(available_parallelism().map_or(1, NonZero::get).div_ceil(2));
    }
    builder.enable_all().build()
}
