//! Runs the script on its standard input as the daemon does, and is its own helper: for tests that run it as another user,
//! or kill it. `@DAEMON@` in the script becomes the id of this process.
//!
//! Usage: `run_script full|no-namespaces MILLISECONDS [REQUIRED LEVEL]`. Prints how it ended, and then what it wrote; the
//! level and what confines scripts on standard error.

#![expect(clippy::unwrap_used, clippy::panic, reason = "what is wrong is told by a panic")]

use std::io::{Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use toolbus_core::Clock;
use toolbus_sandbox::{Level, Limits, Sandbox};
use toolbus_scripts::config::PoolConfig;
use toolbus_scripts::interpreter::Interpreter;
use toolbus_scripts::runner::sandbox::{SandboxRunner, SandboxSettings};
use toolbus_scripts::runner::{Runner as _, Script};

const LIMITS: Limits = Limits {
    memory: 128 << 20,
    disk: 16 << 20,
    files: 200,
    file_size: 8 << 20,
    open_files: 64,
    processes: 16,
    output: 64 * 1024,
    artifacts: 1 << 20,
};

fn main() -> ExitCode {
    if let Some(code) = toolbus_sandbox::take_over(std::env::args_os()) {
        return code;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(run());
    ExitCode::SUCCESS
}

async fn run() {
    let mut args = std::env::args().skip(1);
    let level_of = |name: String| Level::ALL.into_iter().find(|level| level.as_str() == name).unwrap();
    let level = args.next().map(level_of).unwrap();
    let time = Duration::from_millis(args.next().unwrap().parse().unwrap());
    let require = args.next().map_or(level, level_of);
    let mut source = String::new();
    std::io::stdin().read_to_string(&mut source).unwrap();
    let settings = SandboxSettings {
        interpreter: Interpreter::find("/usr/bin/python3").await.unwrap(),
        limits: LIMITS,
        require,
        strongest: level,
        pool: PoolConfig::NONE,
    };
    let runner =
        SandboxRunner::start(settings, Sandbox::new(level).unwrap()).await.unwrap_or_else(|error| panic!("{error}"));
    let status = runner.status();
    eprintln!("{}: {}", status.level.unwrap(), status.layers.join(", "));
    let script = Script {
        call_id: "call-1".into(),
        owner: None,
        source: source.replace("@DAEMON@", &std::process::id().to_string()),
        input: None,
        files: Vec::new(),
        packages: Vec::new(),
        time,
        cpu: Duration::from_secs(30),
        deadline: Clock::SYSTEM.now() + time + Duration::from_secs(30),
        idempotency_key: None,
    };
    let outcome = runner.run(script).await.unwrap().outcome;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{:?}", outcome.ending).unwrap();
    stdout.write_all(&outcome.stdout.bytes).unwrap();
}
