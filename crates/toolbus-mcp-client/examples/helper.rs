//! Stand-in for the daemon's executable in tests of this crate: a supervisor and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    toolbus_mcp_client::process::guard::take_over(std::env::args_os()).unwrap_or(ExitCode::FAILURE)
}
