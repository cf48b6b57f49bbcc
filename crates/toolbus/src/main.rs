//! The `toolbus` binary: see the library of the same name.

use std::process::ExitCode;

use clap::Parser;
use toolbus::cli::Cli;

/// A call allocates some hundred times, and what one thread allocates another one frees.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // First, while there is one thread: this process may be the helper of a sandbox.
    if let Some(code) = toolbus_sandbox::take_over(std::env::args_os()) {
        return code;
    }
    if let Some(code) = toolbus_mcp::supervisor::take_over(std::env::args_os()) {
        return code;
    }
    if let Some(code) = toolbus::commands::bench::mcp::echo::take_over(std::env::args_os()) {
        return code;
    }
    let cli = Cli::parse();
    cli.apply_color();
    // Every TLS connection uses this provider; a second installation would be refused, and is none here.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
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
