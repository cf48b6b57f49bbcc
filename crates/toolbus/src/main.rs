//! The `toolbus` binary: see the library of the same name.

use std::env;
use std::io;
use std::num::NonZero;
use std::process::ExitCode;
use std::thread::available_parallelism;

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
    if let Some(code) = toolbus_mcp_client::supervisor::take_over(env::args_os()) {
        return code;
    }
    if let Some(code) = toolbus::commands::bench::mcp::echo::take_over(env::args_os()) {
        return code;
    }
    let cli = Cli::read();
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

/// Sets another number of threads than half of the processors.
const THREADS: &str = "TOKIO_WORKER_THREADS";
/// Most threads that can be asked for.
const MAX_THREADS: usize = 1024;

/// Runs tasks in one thread for every two processors: the others are for agents, the broker and the servers of tools, and
/// work that goes from thread to thread costs twice the processor time.
fn runtime() -> io::Result<Runtime> {
    let threads = match env::var_os(THREADS) {
        None => available_parallelism().map_or(1, NonZero::get).div_ceil(2),
        Some(text) => {
            let number = text.to_str().and_then(|text| text.parse().ok());
            let number = number.filter(|number| (1..=MAX_THREADS).contains(number));
            number.ok_or_else(|| io::Error::other(format!("{THREADS} must be a number from 1 to {MAX_THREADS}")))?
        }
    };
    Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}
