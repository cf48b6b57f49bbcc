//! What the daemon's executable is to its servers, for tests of this crate: a supervisor and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    toolbus_mcp_client::process::guard::take_over(std::env::args_os()).unwrap_or(ExitCode::FAILURE)
}
