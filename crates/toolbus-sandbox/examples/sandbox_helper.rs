//! The helper alone, for the tests of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    toolbus_sandbox::take_over(std::env::args_os()).unwrap_or(ExitCode::FAILURE)
}
