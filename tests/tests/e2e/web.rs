//! An agent reads a page of the web over RabbitMQ.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;

const PAGE: &str = "<title>Guide</title><nav>Menu</nav><main><h2>Start</h2><p>Read <a href='/next'>on</a>.</p></main>";

/// A server with one page, on this port.
async fn page_server(page: String) -> (u16, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n", page.len());
            let _ = stream.write_all(format!("{head}{page}").as_bytes()).await;
        }
    });
    (port, serving)
}

#[tokio::test]
async fn a_page_is_read_as_markdown_and_hosts_that_are_not_allowed_are_refused() {
    let (site, (port, _serving)) = (BrokerNamespace::shared().await, page_server(PAGE.to_owned()).await);
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
    let reply = client.exchange(&read("ana", format!("http://127.0.0.1:{port}/"))).await;
    assert_eq!(reply.content(), format!("# Guide\n\n## Start\n\nRead [on](http://127.0.0.1:{port}/next)."));
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

/// A page of six sections, each of some 3 000 characters, with code in it that looks like a heading.
fn long_page() -> String {
    let section = |number: usize| {
        format!(
            "<h2>Section {number}</h2>{}<pre><code class=language-sh># no heading {number}\n</code></pre>",
            format!("<p>Value {number} of it.</p>").repeat(180)
        )
    };
    format!("<title>Manual | all</title><main>{}</main>", (0..6).map(section).collect::<String>())
}

/// The keys that a text names.
fn keys(text: &str) -> Vec<String> {
    text.split('`').filter(|part| part.starts_with("session/s1/web-")).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_long_page_is_kept_in_chunks_that_its_reader_fetches_and_cut_for_others() {
    let (site, (port, _serving)) = (BrokerNamespace::shared().await, page_server(long_page()).await);
    let rules = format!(
        r#"
        [memory]
        [web]
        [egress]
        allow_hosts = ["127.0.0.1:{port}"]
        [identity]
        trust_headers = true
        [agents.ana]
        [agents.bruno]
        allowed_tools = ["web_browse"]
        [results]
        threshold = 5000
        "#
    );
    let daemon = Daemon::start(&site, &rules).await;
    let client = Client::connect(&site).await;
    let call = async |agent: &str, tool: &str, arguments: Value| {
        let body = json!({"toolName": tool, "arguments": arguments, "sessionId": "s1"});
        client.exchange(&client.raw(body.to_string()).by(agent)).await.content()
    };
    let page = json!({"url": format!("http://127.0.0.1:{port}/manual")});
    let table = call("ana", "web_browse", page.clone()).await;
    assert!(table.starts_with("Page \"Manual | all\" is large ("), "{table}");
    let [index, chunks @ ..] = &keys(&table)[..] else { panic!("{table}") };
    assert!(index.starts_with(&format!("session/s1/web-127.0.0.1_{port}_manual-")), "{index}");
    assert_eq!(chunks.len(), 3, "a threshold of 5000 for results splits no page again: {table}");
    let outline = call("ana", "get_from_working_memory", json!({"key": index})).await;
    let mut outlined = keys(&outline);
    outlined.dedup();
    assert_eq!((&outlined[..], outline.contains("no heading")), (chunks, false), "{outline}");
    let mut whole = String::new();
    for key in chunks {
        let chunk = call("ana", "get_from_working_memory", json!({"key": key})).await;
        assert!(chunk.chars().count() <= 8000);
        whole.push_str(&chunk);
    }
    assert!(whole.starts_with("# Manual | all\n\n## Section 0\n\nValue 0 of it.\n"), "{whole}");
    assert_eq!((0..6).map(|number| whole.matches(&format!("Value {number} of it.")).count()).sum::<usize>(), 6 * 180);
    let cut = call("bruno", "web_browse", page).await;
    assert!(cut.starts_with(whole.get(..1000).unwrap()) && cut.ends_with(" chars omitted]"), "{cut}");
    daemon.stop(&site).await;
}
