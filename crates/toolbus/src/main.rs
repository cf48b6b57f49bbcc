//! The `toolbus` binary: see the library of the same name.

use std::env;
use std::process::ExitCode;

use toolbus::cli::Cli;

/// Allocator of the process: a call allocates some hundred times, and often frees on another thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // First, while there is one thread: this process may be the helper of a sandbox.
    if let Some(code) = toolbus_sandbox::take_over(env::args_os()) {
        return code;
    }
    if let Some(code) = toolbus_web::take_over(env::args_os()) {
        return code;
    }
    if let Some(code) = toolbus_mcp_client::process::guard::take_over(env::args_os()) {
        return code;
    }
    let cli = Cli::read();
    toolbus::runtime::block_on(toolbus::commands::run(cli))
}
