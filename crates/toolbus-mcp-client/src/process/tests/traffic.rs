//! Messages from a server, and messages that it does not read.

use rmcp::transport::Transport as _;
use tokio::time::timeout;
use toolbus_testing::patience::eventually;

use super::*;

/// Most that a hostile server may cost, in bytes.
const MAX_GROWTH: usize = 64 * 1024 * 1024;

#[tokio::test]
async fn a_line_of_a_gigabyte_ends_the_connection_and_costs_little_memory() {
    let Some(memory) = alone("traffic::a_line_of_a_gigabyte_ends_the_connection_and_costs_little_memory") else {
        return;
    };
    let (process, mut transport) = start(Duration::ZERO, "for _ in range(1024): sys.stdout.write('x' * 1024 * 1024)");
    assert_eq!(failure(&mut transport).await, "the server wrote a line over 16 MiB");
    process.exited().await;
    assert!(memory.growth() < MAX_GROWTH, "{}", memory.growth());
}

#[tokio::test]
async fn a_message_of_millions_of_values_ends_the_connection_and_costs_little_memory() {
    let Some(memory) = alone("traffic::a_message_of_millions_of_values_ends_the_connection_and_costs_little_memory")
    else {
        return;
    };
    let script = "
sys.stdout.write('{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[],\"structuredContent\":[')
sys.stdout.write('{},' * 5_000_000 + '0]}}\\n')
sys.stdout.flush()
sys.stdin.read()
";
    let (_process, mut transport) = start(LONG, script);
    assert_eq!(failure(&mut transport).await, "the server wrote a message of more than 500000 values");
    assert!(memory.growth() < MAX_GROWTH, "{}", memory.growth());
}

#[tokio::test]
async fn a_message_of_as_many_values_as_are_allowed_costs_memory_within_bounds() {
    let Some(memory) = alone("traffic::a_message_of_as_many_values_as_are_allowed_costs_memory_within_bounds") else {
        return;
    };
    let script = "
sys.stdout.write('{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[],\"structuredContent\":[')
sys.stdout.write('{\"a\":0},' * 124_990 + '0]}}\\n')
sys.stdout.flush()
sys.stdin.read()
";
    let (_process, mut transport) = start(LONG, script);
    assert!(transport.receive().await.is_some());
    assert!(memory.growth() < 4 * MAX_GROWTH, "{}", memory.growth());
}

#[tokio::test]
async fn a_flood_on_standard_error_neither_stops_the_server_nor_costs_memory() {
    let Some(memory) = alone("traffic::a_flood_on_standard_error_neither_stops_the_server_nor_costs_memory") else {
        return;
    };
    let script = "
for _ in range(64): os.write(2, b'x' * 1024 * 1024)
for line in range(100_000): os.write(2, b'%d\\n' % line)
print('{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}', flush=True)
sys.stdin.read()
";
    let (process, mut transport) = start(LONG, script);
    assert!(transport.receive().await.is_some());
    assert!(memory.growth() < MAX_GROWTH, "{}", memory.growth());
    let tail = eventually("the last line", async || {
        Some(process.stderr_tail()).filter(|lines| lines.last().is_some_and(|line| line == "99999"))
    });
    assert_eq!(tail.await.len(), 50);
}

#[tokio::test]
async fn a_server_that_never_reads_makes_senders_wait_and_can_be_stopped() {
    let Some(memory) = alone("traffic::a_server_that_never_reads_makes_senders_wait_and_can_be_stopped") else {
        return;
    };
    let (process, mut transport) = start(Duration::ZERO, "time.sleep(1000)");
    let mut sent = 0;
    while timeout(Duration::from_millis(200), transport.send(request(sent, 64 * 1024))).await.is_ok() {
        sent += 1;
        assert!(sent < 1000);
    }
    assert!(memory.growth() < MAX_GROWTH, "{}", memory.growth());
    timeout(LONG, transport.close()).await.unwrap().unwrap();
    process.stop(LONG).await;
}

#[tokio::test]
async fn a_server_that_prints_before_it_speaks_is_understood() {
    let script = "
print('Welcome to the server!\\n\\n{\"level\": \"info\"}\\n[1, 2]', flush=True)
line = sys.stdin.readline()
print('{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"length\":%d}}' % len(line), flush=True)
sys.stdin.read()
";
    let (_process, mut transport) = start(LONG, script);
    transport.send(request(1, 100_000)).await.unwrap();
    let response = serde_json::to_value(transport.receive().await.unwrap()).unwrap();
    assert_eq!(response["id"], 1);
    assert!(response["result"]["length"].as_u64().unwrap() > 100_000);
}

#[tokio::test]
async fn a_server_that_writes_garbage_for_ever_is_given_up() {
    let (_process, mut transport) = start(Duration::ZERO, "while True: os.write(1, b'\\x00\\xff garbage \\n')");
    assert_eq!(failure(&mut transport).await, "the server wrote 1000 lines in a row that are no MCP messages");
}
