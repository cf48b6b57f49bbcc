//! Servers that break the rules, and servers that are not there.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use toolbus_core::Clock;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::results::ResultBudget;
use toolbus_core::tool::{ToolCall, ToolOutput};

use super::server::{TestServer, closed, raw, read_head};
use super::tool;
use crate::rest::Method;
use crate::testing::{call, run};

/// Responds with exactly these bytes and closes the connection.
async fn after(bytes: impl Into<Vec<u8>>) -> Result<ToolOutput, ToolFailure> {
    let bytes = Arc::new(bytes.into());
    let origin = raw(move |mut stream| {
        let bytes = Arc::clone(&bytes);
        async move {
            // The client may have gone already.
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            closed(&mut stream).await;
        }
    })
    .await;
    run(&tool(origin, |s| s.max_response = Some("10000B".parse().unwrap())), json!({})).await
}

fn reset(stream: TcpStream) {
    stream.set_zero_linger().unwrap();
}

#[tokio::test]
async fn a_server_that_never_responds_ends_with_the_endpoints_timeout() {
    let origin = raw(|mut stream| async move { closed(&mut stream).await }).await;
    let tool = tool(origin, |s| s.timeout = "100ms".parse().unwrap());
    let failure = run(&tool, json!({})).await.unwrap_err();
    assert_eq!(failure.cause, Cause::DeadlineExceeded);
    assert!(failure.message.contains("within 100 ms"), "{}", failure.message);
}

#[tokio::test]
async fn the_calls_deadline_counts_when_it_is_the_lesser() {
    let origin = raw(|mut stream| async move { closed(&mut stream).await }).await;
    let tool = tool(origin, |s| s.timeout = "1h".parse().unwrap());
    let mut call = call(&tool, json!({}));
    call.deadline = Clock::SYSTEM.now() + Duration::from_millis(100);
    let failure = Arc::clone(&tool.executor).execute_boxed(call).await.unwrap_err();
    assert_eq!(failure.cause, Cause::DeadlineExceeded);
}

#[tokio::test]
async fn a_server_that_drips_bytes_ends_with_the_timeout() {
    let origin = raw(|mut stream| async move {
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        let mut next: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
        while stream.write_all(next).await.is_ok() {
            pace.tick().await;
            next = b"x";
        }
    })
    .await;
    let tool = tool(origin, |s| s.timeout = "200ms".parse().unwrap());
    assert_eq!(run(&tool, json!({})).await.unwrap_err().cause, Cause::DeadlineExceeded);
}

#[tokio::test]
async fn a_call_that_is_dropped_closes_its_connection() {
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let origin = raw(move |mut stream| {
        let arrived = arrived.clone();
        async move {
            arrived.send("request").unwrap();
            closed(&mut stream).await;
            arrived.send("closed").unwrap();
        }
    })
    .await;
    let tool = tool(origin, |_| {});
    let running = TaskTracker::new().spawn(async move { run(&tool, json!({})).await });
    assert_eq!(arrivals.recv().await, Some("request"));
    running.abort();
    let patience = Duration::from_secs(30);
    assert_eq!(tokio::time::timeout(patience, arrivals.recv()).await, Ok(Some("closed")));
}

#[tokio::test]
async fn of_a_huge_response_no_more_is_read_than_allowed() {
    static CHUNK: [u8; 65536] = [b'x'; 65536];
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let origin = raw(move |mut stream| {
        let counter = Arc::clone(&counter);
        async move {
            let mut next = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            while next.is_ok() && counter.fetch_add(CHUNK.len(), Ordering::Relaxed) < 100_000_000 {
                next = stream.write_all(&CHUNK).await;
            }
        }
    })
    .await;
    let failure =
        run(&tool(origin, |s| s.max_response = Some("10000B".parse().unwrap())), json!({})).await.unwrap_err();
    assert_eq!(failure.cause, Cause::ResultTooLarge);
    assert!(sent.load(Ordering::Relaxed) < 50_000_000, "{sent:?} bytes were taken");
}

#[tokio::test]
async fn a_server_may_send_ten_interim_responses_and_no_more() {
    const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n";
    let hinted = |hints: usize| format!("{}HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", HINTS.repeat(hints));
    assert_eq!(after(hinted(10)).await, Ok(ToolOutput::text("ok")));
    let failure = after(hinted(11)).await.unwrap_err();
    assert_eq!(failure.cause, Cause::InvalidResult, "{failure:?}");

    let (ended, mut end) = mpsc::unbounded_channel();
    let origin = raw(move |mut stream| {
        let ended = ended.clone();
        async move {
            while stream.write_all(HINTS.as_bytes()).await.is_ok() {}
            ended.send(()).unwrap();
        }
    })
    .await;
    let failure = run(&tool(origin, |_| {}), json!({})).await.unwrap_err();
    insta::assert_snapshot!(failure.message, @"Tool 't' answered with more than ten interim (1xx) responses.");
    end.recv().await.unwrap();
}

#[tokio::test]
async fn a_response_that_announces_too_much_is_refused_unread() {
    // Nothing follows: reading would end as a lost connection.
    let failure = after("HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n").await.unwrap_err();
    assert_eq!(failure.cause, Cause::ResultTooLarge);
}

#[tokio::test]
async fn a_gzip_bomb_counts_with_its_decompressed_size() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..500 {
        encoder.write_all(&[b'x'; 100_000]).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    let length = bomb.len();
    let server = TestServer::start(move |_| {
        Response::builder().header("content-encoding", "gzip").body(Body::from(bomb.clone())).unwrap()
    })
    .await;
    let failure =
        run(&tool(&server.origin, |s| s.max_response = Some("100000B".parse().unwrap())), json!({})).await.unwrap_err();
    assert!(length < 100_000, "the test is about decompression: {length}");
    assert_eq!(failure.cause, Cause::ResultTooLarge);
}

#[tokio::test]
async fn a_response_is_decompressed_read_up_to_its_length_and_an_error_if_it_breaks_off() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(b"hello").unwrap();
    let gzip = encoder.finish().unwrap();
    let table = [
        ("200 OK\r\ncontent-encoding: gzip", &*gzip, ToolOutput::text("hello")),
        ("200 OK\r\ncontent-length: 3", b"123456", ToolOutput::text("123")),
        ("404 Not Found\r\ncontent-length: 10", b"12345", ToolOutput::error("HTTP 404 Not Found")),
    ];
    for (head, body, expected) in table {
        let response = [b"HTTP/1.1 ", head.as_bytes(), b"\r\n\r\n", body].concat();
        assert_eq!(after(response).await, Ok(expected), "{head}");
    }
}

#[tokio::test]
async fn a_server_that_breaks_off_is_a_lost_connection() {
    let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345";
    // From nothing at all, through the head, to a body that is shorter than announced.
    for length in [0, 5, 30, whole.len()] {
        let failure = after(&whole[..length]).await.unwrap_err();
        assert_eq!(failure.cause, Cause::ConnectionLost, "after {length} bytes: {failure:?}");
    }
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12345\r\n";
    assert_eq!(after(chunked).await.unwrap_err().cause, Cause::ConnectionLost);
}

#[tokio::test]
async fn a_reset_is_a_lost_connection() {
    for start in ["", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345"] {
        let origin = raw(move |mut stream| async move {
            stream.write_all(start.as_bytes()).await.unwrap();
            reset(stream);
        })
        .await;
        let failure = run(&tool(origin, |_| {}), json!({})).await.unwrap_err();
        assert_eq!(failure.cause, Cause::ConnectionLost, "{failure:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_gone_after_a_redirect_may_have_acted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    TaskTracker::new().spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        drop(listener);
        read_head(&mut stream).await;
        let response = b"HTTP/1.1 303 See Other\r\nlocation: /done\r\nconnection: close\r\n\r\n";
        stream.write_all(response).await.unwrap();
    });
    let failure = run(&tool(origin, |s| s.method = Method::Post), json!({})).await.unwrap_err();
    assert_eq!(failure.cause, Cause::ConnectionLost, "{failure:?}");
}

#[tokio::test]
async fn a_response_that_is_no_http_or_wrongly_compressed_is_invalid() {
    let flood = |count: usize| {
        let headers: String = (0..count).map(|n| format!("x-{n}: y\r\n")).collect();
        format!("HTTP/1.1 200 OK\r\n{headers}\r\n")
    };
    let table = [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n".to_owned(),
        "HTTP/1.1 banana\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx".to_owned(),
        flood(1000),
        format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(1_000_000)),
        "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\nnot gzip at all".to_owned(),
    ];
    for response in table {
        let shown = response.chars().take(40).collect::<String>();
        let failure = after(response).await.unwrap_err();
        assert_eq!(failure.cause, Cause::InvalidResult, "{shown}: {failure:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_failed_connection() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for origin in [format!("http://{free}"), "http://no-such-host.invalid".to_owned()] {
        let tool = tool(format!("{origin}/x?key=hunter2&a={{a}}"), |_| {});
        let failure = run(&tool, json!({"a": "private"})).await.unwrap_err();
        assert_eq!(failure.cause, Cause::ConnectFailed, "{failure:?}");
        // Neither text may show what the URL holds, and the caller's not even where it leads.
        for secret in ["hunter2", "private"] {
            assert!(!format!("{failure:?}").contains(secret), "{failure:?}");
        }
        for address in ["127.0.0.1", "no-such-host"] {
            assert!(!failure.message.contains(address), "{failure:?}");
        }
    }
}

#[tokio::test]
async fn a_result_that_is_kept_in_parts_may_have_more_unless_the_endpoint_has_a_limit() {
    let budget = ResultBudget::new(3 << 20, 3 << 20);
    for (size, is_announced, limit, has_room, expected) in [
        (2, true, None, true, None),
        (2, false, None, true, None),
        (2, true, None, false, Some(1 << 20)),
        (2, true, Some("1MiB"), true, Some(1 << 20)),
        (4, true, None, true, Some(3 << 20)),
        (4, false, None, true, Some(3 << 20)),
    ] {
        let length = if is_announced { format!("content-length: {}\r\n", size << 20) } else { String::new() };
        let response = Arc::new(format!("HTTP/1.1 200 OK\r\n{length}\r\n{}", "x".repeat(size << 20)));
        let origin = raw(move |mut stream| {
            let response = Arc::clone(&response);
            async move {
                // The client may have gone already.
                let _ = stream.write_all(response.as_bytes()).await;
            }
        })
        .await;
        let tool = tool(origin, |s| s.max_response = limit.map(|limit: &str| limit.parse().unwrap()));
        let room = has_room.then(|| budget.room());
        let call = ToolCall { room: room.clone(), ..call(&tool, json!({})) };
        let result = Arc::clone(&tool.executor).execute_boxed(call).await;
        match expected {
            None => {
                assert_eq!(result.unwrap().content.unwrap().len(), size << 20);
                assert_eq!(
                    budget.room().take("t", 2 << 20).unwrap_err().cause,
                    Cause::Unavailable,
                    "2 of 3 MiB are taken"
                );
                budget.room().take("t", 1 << 20).unwrap();
            }
            Some(limit) => {
                let failure = result.unwrap_err();
                assert_eq!(failure.cause, Cause::ResultTooLarge);
                assert!(failure.message.contains(&format!("the {limit} bytes")), "{}", failure.message);
            }
        }
    }
}
