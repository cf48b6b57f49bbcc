//! Short claims of the page on safety, on the sandbox and on running without one.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use toolbus_sandbox::{Ending, Level, Stop};
use toolbus_scripts::runner::local::LocalRunner;
use toolbus_scripts::runner::{Runner, Script};
use toolbus_testing::patience::eventually;

use crate::fixture::{
    Canary, LEVELS, LIMITS, SECRET, assert_printed, attack, interpreter, printed_unconfined, processes, runner, stdout,
};

async fn local() -> LocalRunner {
    LocalRunner::new(interpreter().await, LIMITS, None)
}

/// Ends of scripts that take too much memory, CPU time, output and time.
async fn endings(runner: &impl Runner) -> Vec<Ending> {
    let mut endings = Vec::new();
    for (source, cpu, time) in [
        ("block = bytearray(400 << 20)", 20, 30),
        ("import time\nwhile time.process_time() < 2: pass", 1, 30),
        ("while True: print('x' * 10000)", 20, 30),
        ("import time\ntime.sleep(60)", 20, 1),
    ] {
        let (cpu, time) = (Duration::from_secs(cpu), Duration::from_secs(time));
        let script = Script { cpu, time, ..attack("", source) };
        endings.push(runner.run(script).await.unwrap().outcome.ending);
    }
    endings
}

#[tokio::test]
async fn in_the_sandbox_a_script_that_takes_too_much_is_ended() {
    for level in LEVELS {
        let expected = [Stop::Memory, Stop::Cpu, Stop::Output, Stop::Time].map(Ending::Stopped);
        assert_eq!(endings(&runner(level).await).await, expected, "{level}");
    }
}

#[tokio::test]
async fn without_a_sandbox_only_time_and_output_are_limited() {
    let [output, time] = [Stop::Output, Stop::Time].map(Ending::Stopped);
    assert_eq!(endings(&local().await).await, [Ending::Exited(0), Ending::Exited(0), output, time]);
}

/// Starts a process whose first argument is a name, in a session of its own where it may, and says where its folder is.
const LEAVE: &str = "
import subprocess, sys
def start(**how):
    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', given[0]], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, **how)

try: start(start_new_session=True)
except OSError:
    try: start()
    except OSError: print('refused', os.getcwd())
    else: print('started', os.getcwd())
else: print('left', os.getcwd())
open('left', 'w').close()
";

/// Whether neither the folder of a script nor a process of it is left.
fn is_gone(folder: &str, marker: &str) -> bool {
    !Path::new(folder).exists() && processes(marker).is_empty()
}

#[tokio::test]
async fn in_the_sandbox_nothing_of_a_script_is_left() {
    for level in LEVELS {
        let marker = format!("toolbus-attack-{}-{level}-left", std::process::id());
        let found = stdout(&runner(level).await.run(attack(&marker, LEAVE)).await.unwrap());
        let (said, folder) = found.trim_end().split_once(' ').unwrap();
        // The filter lets a script without namespaces have no children at all.
        assert_eq!(said, if level == Level::Full { "left" } else { "refused" }, "{level}");
        eventually("the end of what it left", async || is_gone(folder, &marker).then_some(())).await;
    }
}

#[tokio::test]
async fn without_a_sandbox_a_process_in_a_session_of_its_own_is_left() {
    let marker = format!("toolbus-attack-{}-local-left", std::process::id());
    let found = stdout(&local().await.run(attack(&marker, LEAVE)).await.unwrap());
    let left = processes(&marker);
    for pid in &left {
        assert!(std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    }
    assert_eq!(left.len(), 1);
    let folder = found.trim_end().strip_prefix("left ").unwrap();
    eventually("the removal of its folder", async || is_gone(folder, &marker).then_some(())).await;
}

#[tokio::test]
async fn without_a_sandbox_files_of_the_daemon_are_read_and_changed() {
    let canary = Canary::new();
    let source = "print(open(given[1]).read(), open(given[2], 'w').write('changed'))";
    assert_eq!(printed_unconfined(&canary.lines(), source).await, format!("{SECRET} 7\n"));
    assert_eq!(fs::read_to_string(&canary.paths()[1]).unwrap(), "changed");
}

#[tokio::test]
async fn without_a_sandbox_the_network_is_the_daemons() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let source = "import socket\nprint(tried(lambda: socket.create_connection(('127.0.0.1', int(given[0]))).close()))";
    assert_eq!(printed_unconfined(&port, source).await, "done\n");
    listener.accept().unwrap();
}

#[tokio::test]
async fn credentials_of_the_daemon_are_out_of_reach_in_the_sandbox_alone() {
    let source = "
kept = tried(lambda: open('/proc/%s/environ' % given[0], 'rb').read())
print('CARGO_MANIFEST_DIR' in os.environ, b'CARGO_MANIFEST_DIR' in kept if isinstance(kept, bytes) else kept)
";
    let daemon = std::process::id().to_string();
    // No variable is handed on, but nothing keeps a script from looking.
    assert_eq!(printed_unconfined(&daemon, source).await, "False True\n");
    assert_printed(&daemon, source, ["False ENOENT\n", "False EACCES\n"]).await;
}
