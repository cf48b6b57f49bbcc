//! Servers that start processes of their own: none of them is left.

use std::process::{Command, Stdio};

use rmcp::transport::Transport as _;

use super::*;
use crate::process::Exit;
use crate::process::guard::GUARD;

/// Writes the process ids of the server, a child, a grandchild, and a process that has fled into a session of its own,
/// to standard error.
const FAMILY: &str = "
def flee():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(2, b'%d\\n' % os.getpid())
            time.sleep(1000)
        os._exit(0)
os.write(2, b'%d\\n' % os.getpid())
child = 'import os, subprocess, time; os.write(2, b\"%d\\\\n%d\\\\n\" % (os.getpid(), subprocess.Popen([\"sleep\", \"1000\"]).pid)); time.sleep(1000)'
subprocess.Popen([sys.executable, '-c', child])
flee()
";

fn family(rest: &str) -> String {
    format!("{FAMILY}{rest}")
}

/// Starts such a server; it, its transport, and the process ids that it wrote.
async fn begun(grace: Duration, rest: &str) -> (Process, StdioTransport, [i32; 4]) {
    let (process, transport) = start(grace, &family(rest));
    let pids = stderr_numbers(&process).await;
    (process, transport, pids)
}

#[tokio::test]
async fn nothing_is_left_of_a_server_that_is_stopped() {
    let (process, _transport, pids) = begun(LONG, "sys.stdin.read()").await;
    process.stop(LONG).await;
    // The supervisor ends last.
    assert_eq!(pids.map(is_alive), [false; 4]);
}

#[tokio::test]
async fn nothing_is_left_of_a_server_that_ends_by_itself() {
    let (process, mut transport, pids) = begun(LONG, "sys.stdin.readline()\nsys.exit(4)").await;
    transport.send(request(1, 1)).await.unwrap();
    assert_eq!(process.exited().await, Exit::Code(4));
    assert_eq!(pids.map(is_alive), [false; 4]);
}

#[tokio::test]
async fn nothing_is_left_when_the_supervisor_is_terminated() {
    let (process, _transport, pids) = begun(LONG, "time.sleep(1000)").await;
    signal(process.pid().try_into().unwrap(), Signal::TERM);
    assert_eq!(process.exited().await, Exit::Signal(9));
    assert_eq!(pids.map(is_alive), [false; 4]);
}

#[tokio::test]
async fn nothing_is_left_of_a_server_whose_supervisor_or_guard_is_killed() {
    for is_guard in [false, true] {
        let (process, mut transport, pids) = begun(LONG, "time.sleep(1000)").await;
        let victim = if is_guard { process.guard } else { process.pid() };
        signal(victim.try_into().unwrap(), Signal::KILL);
        assert_eq!(failure(&mut transport).await, "the server's supervisor was ended by signal 9");
        all_gone(&pids).await;
    }
}

#[tokio::test]
async fn nothing_is_left_of_a_server_that_kills_its_supervisor() {
    let attack = "sys.stdin.readline()\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(1000)";
    let (process, mut transport, pids) = begun(LONG, attack).await;
    transport.send(request(1, 1)).await.unwrap();
    assert_eq!(process.exited().await, Exit::Unsupervised(9));
    assert_eq!(pids.map(is_alive), [false; 4]);
}

#[tokio::test]
async fn nothing_is_left_of_a_server_that_stops_its_supervisor_again_and_again() {
    let attack = "
while True:
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(0.01)";
    let (process, _transport, pids) = begun(Duration::from_millis(100), attack).await;
    process.stop(LONG).await;
    assert_eq!(pids.map(is_alive), [false; 4]);
}

#[tokio::test]
async fn nothing_is_left_of_processes_that_hop_from_session_to_session() {
    let script = "
for _ in range(3):
    if os.fork() == 0:
        while True:
            if os.fork() != 0: os._exit(0)
            os.setsid()
            time.sleep(0.005)
os.write(2, b'%d\\n' % os.getpid())
time.sleep(1000)
";
    let mut program = python(script);
    let mark = format!("hopping-{}", std::process::id());
    program.args.push(mark.clone());
    let (process, _transport) = Launcher::of_tests(LONG).start("hostile", &program).unwrap();
    stderr_numbers::<1>(&process).await;
    assert!(marked(&mark) >= 2);
    process.stop(Duration::ZERO).await;
    assert_eq!(marked(&mark), 0);
}

/// Counts the processes that have this unique argument.
fn marked(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let arguments = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    arguments.filter(|arguments| arguments.split(|byte| *byte == 0).any(|argument| argument == mark.as_bytes())).count()
}

#[tokio::test]
async fn nothing_is_left_when_the_daemon_is_killed() {
    nothing_is_left_of("time.sleep(1000)", 4).await;
}

#[tokio::test]
async fn nothing_is_left_when_the_daemon_is_killed_after_its_guards_and_supervisors_were_stopped() {
    let status = "open('/proc/%d/stat' % os.getppid()).read()";
    let attack = format!(
        "guard = int({status}.rsplit(')', 1)[1].split()[1])
for pid in guard, os.getppid(): os.kill(pid, signal.SIGSTOP)
os.write(2, b'%d\\n' % os.getpid())
time.sleep(1000)"
    );
    nothing_is_left_of(&attack, 5).await;
}

/// Kills a daemon whose server does this, when the server and what it started have written so many process ids.
async fn nothing_is_left_of(rest: &str, count: usize) {
    // Holds the pipe of a server's standard input, as the daemon does.
    let daemon = "import subprocess, sys, time\n\
                  subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)\n\
                  time.sleep(1000)";
    let launcher = Launcher::of_tests(Duration::from_millis(100));
    let program = python(&family(rest));
    let mut daemon = Command::new("python3")
        .args(["-c", daemon])
        .arg(&launcher.helper)
        .args([GUARD, "100", &program.command])
        .args(&program.args)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = std::io::BufReader::new(daemon.stderr.take().unwrap());
    let pids: Vec<i32> =
        std::io::BufRead::lines(stderr).take(count).map(|line| line.unwrap().parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    all_gone(&pids).await;
}
