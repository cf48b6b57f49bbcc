//! The end of one server.

use rmcp::transport::Transport as _;
use tokio::time::{Instant, timeout};
use toolbus_testing::patience::eventually;

use super::*;
use crate::process::Exit;

#[tokio::test]
async fn an_exit_is_reported_with_its_code() {
    let (process, mut transport) = start(LONG, "sys.exit(3)");
    assert_eq!(failure(&mut transport).await, "the server ended with exit code 3");
    assert_eq!(tokio::join!(process.exited(), process.exited()), (Exit::Code(3), Exit::Code(3)));
}

#[tokio::test]
async fn a_killed_server_is_reported_with_the_signal() {
    let (_process, mut transport) = start(LONG, "os.kill(os.getpid(), signal.SIGKILL)");
    assert_eq!(failure(&mut transport).await, "the server was ended by signal 9");
}

#[tokio::test]
async fn an_exit_within_a_message_is_reported_as_such() {
    let (_process, mut transport) = start(LONG, r#"sys.stdout.write('{"jsonrpc":"2.0","id":1,"resu')"#);
    assert_eq!(failure(&mut transport).await, "the server ended with exit code 0 in the middle of a message");
}

#[tokio::test]
async fn a_server_that_closes_its_standard_output_is_reported_and_ended() {
    let (process, mut transport) = start(Duration::ZERO, "os.close(1)\ntime.sleep(1000)");
    assert_eq!(failure(&mut transport).await, "the server closed its standard output");
    assert_eq!(process.exited().await, Exit::Signal(15));
}

#[tokio::test]
async fn a_server_may_end_in_its_own_time_and_way_when_its_standard_input_is_closed() {
    let (process, mut transport) =
        start(LONG, "sys.stdin.read()\nprint('bye', flush=True)\nprint('saved', file=sys.stderr)\nsys.exit(7)");
    process.stop(LONG).await;
    assert_eq!(process.exited().await, Exit::Code(7));
    assert_eq!(failure(&mut transport).await, "the connection was closed");
    eventually("its last words", async || (process.stderr_tail() == ["saved"]).then_some(())).await;
}

#[tokio::test]
async fn a_server_that_was_idle_for_longer_than_its_grace_has_all_of_it() {
    let script = "time.sleep(2.2)\nprint(os.getpid(), file=sys.stderr)\nsys.stdin.read()\ntime.sleep(0.2)\nsys.exit(7)";
    let (process, _transport) = start(Duration::from_secs(2), script);
    stderr_numbers::<1>(&process).await;
    process.stop(LONG).await;
    assert_eq!(process.exited().await, Exit::Code(7));
}

#[tokio::test]
async fn messages_sent_before_the_end_reach_the_server() {
    let (process, mut transport) = start(LONG, "print(len(sys.stdin.readlines()), file=sys.stderr)");
    for id in 0..50 {
        transport.send(request(id, 10)).await.unwrap();
    }
    transport.close().await.unwrap();
    transport.close().await.unwrap();
    assert!(transport.send(request(50, 10)).await.is_err());
    assert_eq!(stderr_numbers::<1>(&process).await, [50]);
}

#[tokio::test]
async fn a_server_that_ignores_everything_is_killed_after_its_grace() {
    let script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(os.getpid(), file=sys.stderr)\n\
                  while True: time.sleep(1000)";
    let (process, _transport) = start(Duration::ZERO, script);
    let [server] = stderr_numbers(&process).await;
    process.stop(LONG).await;
    assert_eq!(process.exited().await, Exit::Signal(9));
    all_gone(&[server]).await;
}

#[tokio::test]
async fn a_server_that_has_left_its_group_is_signalled_too() {
    let script = "
signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
if os.getpid() == os.getpgrp(): os.setpgid(0, os.getppid())
print(int(os.getpid() != os.getpgrp()), file=sys.stderr, flush=True)
while True: time.sleep(1000)";
    let (process, _transport) = start(Duration::ZERO, script);
    assert_eq!(stderr_numbers(&process).await, [1]);
    process.stop(LONG).await;
    assert_eq!(process.exited().await, Exit::Code(5));
}

#[tokio::test]
async fn impatience_ends_a_server_before_its_grace_is_over() {
    let (process, _transport) = start(LONG, "print(os.getpid(), file=sys.stderr)\ntime.sleep(1000)");
    let [server] = stderr_numbers(&process).await;
    let started = Instant::now();
    process.stop(Duration::ZERO).await;
    assert!(started.elapsed() < LONG / 2);
    all_gone(&[server]).await;
}

#[tokio::test]
async fn a_silent_server_ends_when_its_process_is_dropped() {
    let (process, mut transport) = start(LONG, "print(os.getpid(), file=sys.stderr)\nsys.stdin.read()");
    let [server] = stderr_numbers(&process).await;
    assert!(timeout(Duration::from_millis(50), transport.receive()).await.is_err());
    drop(process);
    all_gone(&[server]).await;
    assert_eq!(failure(&mut transport).await, "the connection was closed");
}

#[tokio::test]
async fn a_server_ends_when_its_transport_is_dropped() {
    let (process, transport) = start(LONG, "sys.stdin.read()");
    drop(transport);
    assert_eq!(process.exited().await, Exit::Code(0));
}

#[tokio::test]
async fn a_server_dies_with_its_supervisor_and_the_transport_ends_at_once() {
    let script = "print(os.getpid(), file=sys.stderr)\n\
                  print(subprocess.Popen(['sleep', '1000']).pid, file=sys.stderr)\ntime.sleep(1000)";
    let (process, mut transport) = start(LONG, script);
    let pids = stderr_numbers::<2>(&process).await;
    let killed = Instant::now();
    signal(process.pid().try_into().unwrap(), Signal::KILL);
    assert_eq!(failure(&mut transport).await, "the server's supervisor was ended by signal 9");
    assert!(killed.elapsed() < LONG / 2, "it is not the wait for an end in order");
    all_gone(&pids).await;
}
