//! HTTP+SSE.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use parking_lot::Mutex;
use rmcp::transport::Transport as _;
use serde_json::json;
use tokio::sync::mpsc;
use toolbus_core::failure::Cause;
use toolbus_testing::patience::eventually;

use super::server::{Open, Server, endless, events, orderly, silent_after, status, text_result};
use super::{call, cancel, open, received};
use crate::spec::HttpKind;
use crate::transport::MAX_VALUES;
use crate::transport::http::{HttpOpenError, HttpTransport, classify};

const HERE: &str = "event: endpoint\ndata: /messages?session=1\n\n";

/// A stream of events that the test writes.
struct Writer(mpsc::UnboundedSender<Bytes>);

impl Writer {
    fn write(&self, text: impl Into<Bytes>) {
        self.0.send(text.into()).unwrap();
    }
}

/// A server whose stream the test writes, and that responds to posts by `posted`.
async fn written(posted: impl Fn() -> Response + Send + Sync + 'static) -> (Server, Writer) {
    let (writer, reader) = mpsc::unbounded_channel();
    let reader = Mutex::new(Some(reader));
    let server = Server::start(move |request| match request.method {
        Method::GET => {
            let reader: mpsc::UnboundedReceiver<Bytes> = reader.lock().take().unwrap();
            let chunks = futures_util::stream::unfold(reader, async |mut reader| {
                Some((Ok::<_, std::io::Error>(reader.recv().await?), reader))
            });
            events(Body::from_stream(chunks))
        }
        _ => posted(),
    });
    (server.await, Writer(writer))
}

async fn opened(server: &Server, writer: &Writer) -> HttpTransport {
    writer.write(HERE);
    open(&server.url, HttpKind::Sse).await.unwrap()
}

#[tokio::test]
async fn messages_are_posted_to_the_announced_address_and_responses_come_by_the_stream() {
    let (server, writer) = written(|| status(202, "Accepted")).await;
    let mut transport = opened(&server, &writer).await;
    transport.send(call(1)).await.unwrap();
    let posted = server.requests().pop().unwrap();
    assert_eq!((posted.method.as_str(), posted.path.as_str()), ("POST", "/messages?session=1"));
    assert_eq!(posted.header("content-type"), Some("application/json"));
    let response = json!({ "jsonrpc": "2.0", "id": 1, "result": text_result("hello") });
    writer.write(format!(": ping\n\nevent: other\ndata: x\n\nevent: message\ndata: {response}\n\n"));
    assert_eq!(received(&mut transport).await, response);
}

#[tokio::test]
async fn an_unknown_event_may_come_before_the_address() {
    let (server, writer) = written(|| status(202, "Accepted")).await;
    writer.write("event: ping\ndata: 1\n\n");
    opened(&server, &writer).await;
}

#[tokio::test]
async fn a_response_is_whole_even_if_its_receiver_gives_up() {
    let (server, writer) = written(|| status(202, "")).await;
    let mut transport = opened(&server, &writer).await;
    let response = json!({ "jsonrpc": "2.0", "id": 1, "result": text_result("hello") }).to_string();
    let (first, second) = response.split_at(20);
    for part in [format!("data: {first}"), second.to_owned()] {
        writer.write(part);
        let patience = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(patience, transport.receive()).await.is_err());
    }
    writer.write("\n\n");
    assert_eq!(received(&mut transport).await["result"], text_result("hello"));
}

/// Reason why no connection comes about with a stream that begins with `text`.
async fn refused(text: String) -> String {
    let open_streams = Arc::new(AtomicUsize::new(0));
    let server = Server::start(move |_| silent_after(&text, &open_streams)).await;
    let Err(HttpOpenError::Other(text)) = open(&server.url, HttpKind::Sse).await else { panic!() };
    text.replace(&server.url.origin().ascii_serialization(), "ORIGIN")
}

#[tokio::test]
async fn messages_are_never_posted_to_another_origin() {
    let other = Server::start(orderly).await;
    let mut addresses = vec![other.url.to_string(), format!("//{}/messages", other.url.authority())];
    addresses.extend(
        ["https://127.0.0.1/", "http://localhost/", "file:///etc/passwd", "javascript:alert(1)"].map(str::to_owned),
    );
    for address in addresses {
        let text = refused(format!("event: endpoint\ndata: {address}\n\n")).await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(text, @"the MCP server at ORIGIN wants messages posted to another server, which is refused");
        }
    }
    assert_eq!(other.requests().len(), 0);
}

#[tokio::test]
async fn a_stream_must_begin_with_the_address() {
    let message = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
    let long = format!("event: endpoint\ndata: /{}\n\n", "x".repeat(5000));
    for text in
        [format!("data: {message}\n\n"), "event: endpoint\n\n".to_owned(), "data: /messages\n\n".to_owned(), long]
    {
        let text = refused(text).await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(text, @"the MCP server at ORIGIN does not begin its stream with where to post messages");
        }
    }
    let text = refused("event: endpoint\ndata: http://[\n\n".to_owned()).await;
    insta::assert_snapshot!(text, @"the MCP server at ORIGIN gives no usable place to post messages");
}

#[tokio::test]
async fn a_response_that_is_no_event_stream_is_refused() {
    type Respond = fn() -> Response;
    let table: [(Respond, &str); 3] = [
        (|| status(404, "no"), "answered HTTP 404; check the path of its URL, and its transport"),
        (|| status(200, "<h1>Welcome</h1>"), "answered no events: check the path of its URL"),
        (|| events(""), "ended its stream of events at once"),
    ];
    for (respond, expected) in table {
        let server = Server::start(move |_| respond()).await;
        let Err(HttpOpenError::Other(text)) = open(&server.url, HttpKind::Sse).await else { panic!() };
        assert!(text.ends_with(expected), "{text}");
    }
}

#[tokio::test]
async fn comments_without_end_are_not_waited_for() {
    let server = Server::start(|_| {
        tokio::time::pause();
        events(endless(": still here\n\n", &Arc::default()))
    })
    .await;
    // The clock stands while there are comments to read.
    let opening = async { open(&server.url, HttpKind::Sse).await.err() };
    let (error, ()) = tokio::join!(opening, async {
        while server.requests().is_empty() {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(std::time::Duration::from_secs(16)).await;
    });
    insta::assert_snapshot!(error.unwrap(), @"the MCP server did not answer within 15 s");
}

#[tokio::test]
async fn the_end_of_the_stream_ends_the_connection_with_a_reason() {
    let huge = format!("data: {}\n\n", "x".repeat(17 * 1024 * 1024));
    let crowded = format!("data: [{}0]\n\n", "0,".repeat(MAX_VALUES));
    let garbage = "data: {half\n\n".repeat(1001);
    let table = [
        ("", "the MCP server ended its stream of events"),
        (huge.as_str(), "sent an event of more than 16777216 bytes"),
        (crowded.as_str(), "sent an event of more than 500000 values"),
        (garbage.as_str(), "sent 1000 events in a row that are no messages"),
    ];
    for (text, expected) in table {
        let (server, writer) = written(|| status(202, "")).await;
        let mut transport = opened(&server, &writer).await;
        writer.write(text.to_owned());
        drop(writer);
        assert!(transport.receive().await.is_none());
        assert!(transport.receive().await.is_none());
        let failure = transport.failure();
        assert!(failure.get().unwrap().ends_with(expected), "{failure:?}");
    }
}

#[tokio::test]
async fn a_few_events_that_are_no_messages_are_left_out() {
    let (server, writer) = written(|| status(202, "")).await;
    let mut transport = opened(&server, &writer).await;
    let note = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
    for _ in 0..2 {
        writer.write(format!("{}data: {note}\n\n", "data: {half\n\n".repeat(900)));
        assert_eq!(received(&mut transport).await, note);
    }
}

#[tokio::test]
async fn a_message_that_is_not_accepted_is_an_error() {
    for (code, cause) in [(503, Cause::Unavailable), (401, Cause::AuthRequired), (404, Cause::Failed)] {
        let (server, writer) = written(move || status(code, "no")).await;
        let mut transport = opened(&server, &writer).await;
        let error = transport.send(call(1)).await.unwrap_err();
        assert_eq!((classify(&error), error.status), (Some(cause), Some(code)));
    }
}

#[tokio::test]
async fn a_post_that_hangs_ends_when_its_request_is_cancelled_or_its_sender_or_the_connection_is_gone() {
    for how in ["cancelled", "aborted", "closed", "dropped"] {
        let hanging = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&hanging);
        let server = Server::slow(move |request| {
            let counter = Arc::clone(&counter);
            Box::pin(async move {
                if request.method == Method::GET {
                    return silent_after(HERE, &Arc::default());
                }
                if !request.does("tools/call") {
                    return StatusCode::ACCEPTED.into_response();
                }
                let _open = Open::new(&counter);
                std::future::pending().await
            })
        });
        let server = server.await;
        let mut transport = open(&server.url, HttpKind::Sse).await.unwrap();
        let sending = tokio::spawn(transport.send(call(1)));
        let until = async |count| {
            eventually(how, async || (hanging.load(Ordering::SeqCst) == count).then_some(())).await;
        };
        until(1).await;
        match how {
            "cancelled" => transport.send(cancel(1)).await.unwrap(),
            "aborted" => sending.abort(),
            "closed" => transport.close().await.unwrap(),
            _ => drop(transport),
        }
        until(0).await;
    }
}
