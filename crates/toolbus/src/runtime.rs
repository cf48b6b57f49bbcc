//! The runtime of `toolbus` and of `toolbus-bench`, which runs parts of the daemon and must do so in the same way.

use std::env;
use std::io;
use std::num::NonZero;
use std::process::ExitCode;
use std::thread::available_parallelism;

use tokio::runtime::{Builder, Runtime};

/// Sets another number of threads than half of the processors.
const THREADS: &str = "TOKIO_WORKER_THREADS";
/// Most threads that can be configured.
const MAX_THREADS: usize = 1024;

/// Runs a program to its end, with the provider of TLS installed.
pub fn block_on(program: impl Future<Output = ExitCode>) -> ExitCode {
    // Every TLS connection uses this provider; a second installation would be refused, and is none here.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match runtime() {
        Ok(runtime) => {
            let code = runtime.block_on(program);
            // A blocked thread, such as one that reads standard input, must not delay the end.
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
/// work that goes from thread to thread costs twice the CPU time.
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
