//! An agent reads a page of the web over RabbitMQ.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;

const PAGE: &str = "<title>Guide</title><nav>Menu</nav><main><h2>Start</h2><p>Read <a href='/next'>on</a>.</p></main>";

/// A server with one page, on this port.
async fn page_server() -> (u16, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n", PAGE.len());
            let _ = stream.write_all(format!("{head}{PAGE}").as_bytes()).await;
        }
    });
    (port, serving)
}

#[tokio::test]
async fn a_page_is_read_as_markdown_and_hosts_that_are_not_allowed_are_refused() {
    let (site, (port, _serving)) = (BrokerNamespace::shared().await, page_server().await);
    let rules = format!(
        r#"
        [web]
        [egress]
        allow_hosts = ["127.0.0.1:{port}"]
        [identity]
        trust_headers = true
        [agents.ana]
        [agents.bruno]
        denied_hosts = ["127.0.0.0/8"]
        "#
    );
    let daemon = Daemon::start(&site, &rules).await;
    let client = Client::connect(&site).await;
    let read = |agent: &str, url: String| client.request("web_browse", &json!({"url": url})).by(agent);
    let answer = client.exchange(&read("ana", format!("http://127.0.0.1:{port}/"))).await;
    assert_eq!(answer.content(), format!("# Guide\n\n## Start\n\nRead [on](http://127.0.0.1:{port}/next)."));
    let refused = [
        read("bruno", format!("http://127.0.0.1:{port}/")),
        read("ana", "http://127.0.0.1:1/".to_owned()),
        read("ana", "http://169.254.169.254/latest/meta-data/".to_owned()),
        read("ana", "http://[::ffff:127.0.0.1]/".to_owned()),
        read("ana", "file:///etc/passwd".to_owned()),
    ];
    for request in &refused {
        let body = client.exchange(request).await.body();
        let expected = (&json!("not_allowed"), &json!(false), &json!("not_started"));
        assert_eq!((&body["code"], &body["isRetryable"], &body["outcome"]), expected, "{body}");
    }
    daemon.stop(&site).await;
}
