//! Information that a request must give of itself to get in.

use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::http::{Connection, HttpResponse, hello};

use crate::tokens::{ANA, RULES};

async fn with(daemon: &Daemon, head: &[&str]) -> HttpResponse {
    Connection::open(daemon.listen()).await.post(head, &hello()).await
}

#[tokio::test]
async fn a_token_is_needed_one_and_the_right_one() {
    let daemon = Daemon::alone(RULES).await;
    let response = with(&daemon, &[ANA]).await;
    assert!(response.code == 200 && response.header("mcp-session-id").is_some(), "{response:?}");
    for head in [&[][..], &[ANA, ANA], &["Authorization: Basic YW5hOmFuYQ=="], &["Authorization: Bearer"]] {
        let response = with(&daemon, head).await;
        assert_eq!((response.code, response.header("www-authenticate")), (401, Some("bearer")), "{head:?}");
        assert!(response.json()["error"]["message"].as_str().unwrap().contains("Authorization"), "{response:?}");
    }
    let response = with(&daemon, &["Authorization: Bearer not-the-token-of-ana"]).await;
    assert_eq!(response.code, 401);
    let mut connection = Connection::open(daemon.listen()).await;
    connection.write("POST /mcp?access_token=x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(connection.response().await.code, 400);
    daemon.end().await;
}

#[tokio::test]
async fn other_hosts_and_other_pages_are_refused() {
    let names = "allowed_hosts = [\"toolbus.example.com\"]\nallowed_origins = [\"https://app.example.com\"]\n";
    let daemon = Daemon::alone(&format!("{RULES}{names}")).await;
    let table = [
        ("localhost", None, 200),
        ("127.0.0.1:8471", None, 200),
        ("toolbus.example.com", None, 200),
        ("evil.example", None, 421),
        ("evil.example", Some("http://evil.example"), 421),
        ("localhost", Some("http://evil.example"), 403),
        ("localhost", Some("null"), 403),
        ("localhost", Some("http://localhost:6274"), 200),
        ("localhost", Some("https://app.example.com"), 200),
        ("localhost", Some("https://other.example.com"), 403),
    ];
    for (host, origin, expected) in table {
        let (host, origin) = (format!("Host: {host}"), origin.map(|origin| format!("Origin: {origin}")));
        let head: Vec<&str> = [Some(ANA), Some(&host), origin.as_deref()].into_iter().flatten().collect();
        assert_eq!(with(&daemon, &head).await.code, expected, "{head:?}");
    }
    let mut connection = Connection::open(daemon.listen()).await;
    let preflight = "Host: localhost\r\nOrigin: http://localhost:6274\r\nAccess-Control-Request-Method: POST";
    connection.write(&format!("OPTIONS /mcp HTTP/1.1\r\n{preflight}\r\n\r\n")).await;
    let response = connection.response().await;
    assert_eq!((response.code, response.header("access-control-allow-origin")), (204, Some("http://localhost:6274")));
    daemon.end().await;
}

#[tokio::test]
async fn the_mcp_server_is_closed_without_tokens_and_open_for_anybody_where_that_is_said() {
    let daemon = Daemon::alone("").await;
    assert_eq!(with(&daemon, &[ANA]).await.code, 404);
    daemon.reload("[http]\nopen = true\n").await;
    assert_eq!(with(&daemon, &[]).await.code, 200);
    assert_eq!(with(&daemon, &[ANA]).await.code, 401, "a wrong token is no token");
    daemon.reload("").await;
    assert_eq!(with(&daemon, &[]).await.code, 404);
    daemon.end().await;
}
