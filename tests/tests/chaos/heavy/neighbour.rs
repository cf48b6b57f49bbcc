//! Cost of an attack to others: another agent, a health probe, and the memory of the daemon.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::at_most;

/// Longest time of a probe, and of 99 of 100 calls of another agent, on a machine with nothing else to do.
const PROBE: Duration = Duration::from_millis(100);
const CALL: Duration = Duration::from_millis(50);
/// Most memory of the daemon, its children apart, in KiB.
const MEMORY: u64 = 400 * 1024;
/// Factor by which things may take longer besides, and how much more memory, in KiB, may be held where the daemon is a
/// debug build on a machine with other work.
const DEBUG_TIMES: u32 = 5;
const DEBUG_MEMORY: u64 = 256 * 1024;
/// Codes with which a call may end whose work has no turn in time.
pub(super) const LATE: [&str; 3] = ["overloaded", "unavailable", "timeout"];
/// Time between two calls of the other agent.
const PAUSE: Duration = Duration::from_millis(5);

/// Checks that calls of another agent and probes beside `attack` come back in time, and that memory stays bounded.
pub(super) async fn others_go_on<T>(
    what: &str,
    site: &BrokerNamespace,
    daemon: &Daemon,
    attack: impl Future<Output = T>,
) -> T {
    let (neighbour, listen) = (Client::connect(site).await, daemon.listen().to_owned());
    call(&neighbour).await;
    daemon.forget_peak();
    // On a thread of its own, which the work of the attack does not hold up.
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let runtime = tokio::runtime::Handle::current();
    let measuring = std::thread::spawn(move || {
        runtime.block_on(async {
            let (mut calls, mut probes) = (Vec::new(), Vec::new());
            while stopped.try_recv().is_err() {
                let (called, probed) = tokio::join!(call(&neighbour), probe(&listen));
                calls.push(called);
                probes.push(probed);
                tokio::time::sleep(PAUSE).await;
            }
            (calls, probes)
        })
    });
    let began = Instant::now();
    let done = attack.await;
    let took = began.elapsed();
    stop.send(()).unwrap();
    let (mut calls, probes) = measuring.join().unwrap();
    calls.sort();
    let (p99, longest) = (calls[calls.len() * 99 / 100], calls[calls.len() - 1]);
    let (probed, peak) = (probes.into_iter().max().unwrap(), daemon.peak());
    println!(
        "{what}: {took:.1?}; {} calls, p99 {p99:.1?}, longest {longest:.1?}; longest probe {probed:.1?}; {} MiB",
        calls.len(),
        peak / 1024
    );
    let is_lab = at_most(CALL) == CALL;
    let (times, more) = if is_lab { (1, 0) } else { (DEBUG_TIMES, DEBUG_MEMORY) };
    assert!(p99 <= at_most(CALL) * times, "{what}: {p99:?}");
    assert!(probed <= at_most(PROBE) * times, "{what}: {probed:?}");
    assert!(peak <= MEMORY + more, "{what}: {peak} KiB");
    done
}

/// The time of a call of the other agent.
async fn call(neighbour: &Client) -> Duration {
    let started = Instant::now();
    let reply = neighbour.exchange(&neighbour.request("echo", &json!({"text": "hello"})).by("bruno")).await;
    assert_eq!(reply.content(), "hello", "{reply:?}");
    started.elapsed()
}

/// The time of a health probe, which takes a connection.
async fn probe(listen: &str) -> Duration {
    let started = Instant::now();
    let mut stream = TcpStream::connect(listen).await.unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
    started.elapsed()
}

/// Sends these requests at once, and waits for their replies, each of which succeeds or has one of these codes.
pub(super) async fn replies(client: &Client, requests: &[Request], codes: &[&str]) -> Vec<Message> {
    for request in requests {
        client.send(request).await;
    }
    let mut replies = Vec::new();
    for request in requests {
        let reply = client.reply(request).await;
        let code = reply.code();
        assert!(code.is_empty() || codes.contains(&&*code), "{code}: {}", reply.error());
        replies.push(reply);
    }
    replies
}
