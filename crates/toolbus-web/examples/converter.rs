//! The processes that convert pages, for the tests of this crate.

use std::env::args_os;
use std::process::ExitCode;

fn main() -> ExitCode {
    let taken = toolbus_sandbox::take_over(args_os()).or_else(|| toolbus_web::take_over(args_os()));
    taken.unwrap_or(ExitCode::FAILURE)
}
