//! Tasks over HTTP that fail: only one that the agent surely has not begun is retryable.

use std::net::SocketAddr;

use reqwest::header::HeaderMap;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpSocket};
use toolbus_outbound::egress::{EgressConfig, HostLists};

use super::*;
use crate::a2a::http::HttpAgent;

/// An agent that reads one request of each connection whole, writes the next of these responses, and ends the connection.
async fn agent(responses: Vec<String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    TaskTracker::new().spawn(async move {
        for response in responses {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            let mut length = 0;
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).await.unwrap();
                match line.trim_end().to_ascii_lowercase().split_once(": ") {
                    Some(("content-length", value)) => length = value.parse().unwrap(),
                    Some(_) => {}
                    None if line.trim_end().is_empty() => break,
                    None => {}
                }
            }
            stream.read_exact(&mut vec![0; length]).await.unwrap();
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    });
    address
}

fn response(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn card() -> String {
    let interface = json!({"url": "/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"});
    response("200 OK", &json!({"name": "Bob", "supportedInterfaces": [interface]}).to_string())
}

/// Returns what the agent that gave a task to the one at this address reads, and whether it may give the task again.
async fn end(address: SocketAddr) -> (String, bool) {
    let (site, _of_bob, mut of_ana) = Fixture::with_queues();
    let id = site.dispatch("ana").await;
    let order = TaskOrder { task: site.service.tasks().get(&id).await.unwrap().unwrap(), message: "Add".to_owned() };
    let config = EgressConfig { allow_hosts: vec![address.to_string().parse().unwrap()], ..EgressConfig::default() };
    let egress = Egress::new(EgressRules::new(config, BTreeMap::new(), HostLists::default()), "test").unwrap();
    let http = HttpAgent::new(format!("http://{address}").parse().unwrap(), HeaderMap::new());
    site.service.run_http(order, Arc::new(http), egress, HostLists::default());
    let (_, body) = next(&mut of_ana).await;
    (body["message"].as_str().unwrap().to_owned(), body["isRetryable"].as_bool().unwrap())
}

#[tokio::test]
async fn a_task_whose_connection_is_lost_after_it_was_sent_may_go_on_and_is_not_retryable() {
    let lost = "Agent 'Bob': the connection was lost before its response was complete.";
    let address = agent(vec![card(), String::new()]).await;
    assert_eq!(end(address).await, (format!("{lost} It may go on with the task."), false));
    let address = agent(vec![card(), "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_owned()]).await;
    assert_eq!(end(address).await, (format!("{lost} It may go on with the task."), false));
}

#[tokio::test]
async fn a_task_of_an_agent_without_a_card_was_not_sent() {
    let lost = "Agent 'Bob': the connection was lost before its response was complete.";
    assert_eq!(end(agent(vec![String::new()]).await).await, (lost.to_owned(), true));
    let failed = agent(vec![response("502 Bad Gateway", "")]).await;
    assert_eq!(end(failed).await, ("Agent 'Bob': it answered with HTTP status 502 Bad Gateway.".to_owned(), true));
    // A bound socket that does not listen refuses connections and keeps its port.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind(([127, 0, 0, 1], 0).into()).unwrap();
    assert_eq!(
        end(closed.local_addr().unwrap()).await,
        ("Agent 'Bob': it cannot be reached: the request failed.".to_owned(), true)
    );
}
