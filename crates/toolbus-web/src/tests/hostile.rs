//! Servers, redirects and names that mean harm, each kind in a test of its own.

use std::io::Write as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::server::{Server, TestResponse, html, redirect, response, typed};
use super::*;

const LOST: &str = "Failed to fetch page: the connection was lost, or the response is damaged.";
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n";

fn raw(bytes: &str) -> TestResponse {
    TestResponse::Bytes(bytes.as_bytes().to_vec())
}

fn with_timeout(timeout: &str) -> WebConfig {
    with_browse(BrowseConfig { timeout: timeout.to_owned().try_into().unwrap(), ..BrowseConfig::default() })
}

fn with_max_page(size: &str) -> WebConfig {
    with_browse(BrowseConfig { max_page: size.to_owned().try_into().unwrap(), ..BrowseConfig::default() })
}

#[tokio::test]
async fn a_slow_page_ends_with_the_time() {
    let server = Server::start(|_| {
        let first_bytes = [HEAD, b"begun".as_slice()].concat();
        vec![("/stalled", TestResponse::Stalled(first_bytes)), ("/silent", TestResponse::Stalled(Vec::new()))]
    })
    .await;
    let tool = browse_with(&[&server], with_timeout("300ms"), names(&[]));
    for path in ["/stalled", "/silent"] {
        let late = error(&tool, json!({"url": server.url(path)})).await;
        assert_eq!(late, "Failed to fetch page: it was not complete within the time of the call, at most 300 ms.");
    }
}

#[tokio::test]
async fn an_endless_page_is_cut_and_endless_headers_are_refused() {
    let server = Server::start(|_| {
        vec![
            ("/endless", TestResponse::Endless(HEAD.to_vec(), b"more of the same\n".repeat(100))),
            ("/headers", TestResponse::Endless(b"HTTP/1.1 200 OK\r\n".to_vec(), b"x-more: and more\r\n".to_vec())),
        ]
    })
    .await;
    let tool = browse_with(&[&server], with_max_page("2KiB"), names(&[]));
    let endless = text(&tool, json!({"url": server.url("/endless")})).await;
    assert!(endless.starts_with("> Only the first 2048 bytes of the page were read.\n\nmore"), "{endless}");
    let headers = error(&tool, json!({"url": server.url("/headers")})).await;
    assert!(headers.starts_with("Failed to fetch page: "), "{headers}");
}

#[tokio::test]
async fn a_truncated_page_is_no_page() {
    let mut whole = GzEncoder::new(Vec::new(), Compression::best());
    whole.write_all(&b"a text of some length, ".repeat(1000)).unwrap();
    let whole = whole.finish().unwrap();
    let half = &whole[..whole.len() / 2];
    let server = Server::start(|_| {
        let gzip = [("content-encoding", "gzip"), ("content-type", "text/plain")];
        vec![
            ("/body", raw("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this")),
            ("/chunk", raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nwo")),
            ("/last-chunk", raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")),
            ("/gzip", TestResponse::Bytes(response("200 OK", &gzip, half))),
        ]
    })
    .await;
    for path in ["/body", "/chunk", "/last-chunk", "/gzip"] {
        assert_eq!(error(&browse(&[&server]), json!({"url": server.url(path)})).await, LOST, "{path}");
    }
}

#[tokio::test]
async fn a_wrong_length_adds_nothing_to_a_page_and_waits_for_nothing() {
    let server = Server::start(|_| {
        vec![
            ("/longer", raw("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello and more")),
            ("/huge", raw("HTTP/1.1 200 OK\r\ncontent-length: 1099511627776\r\n\r\nhello")),
            ("/two", raw("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 7\r\n\r\nhello")),
            ("/negative", raw("HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello")),
            ("/no-number", raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n")),
        ]
    })
    .await;
    let tool = browse(&[&server]);
    assert_eq!(text(&tool, json!({"url": server.url("/longer")})).await, "hello");
    for path in ["/huge", "/two", "/negative", "/no-number"] {
        assert_eq!(error(&tool, json!({"url": server.url(path)})).await, LOST, "{path}");
    }
}

#[tokio::test]
async fn a_page_of_a_wrong_type_is_read_by_type_or_content_without_harm() {
    let page = "<!DOCTYPE html><title>T</title><main><p>text</main>";
    let server = Server::start(|_| {
        vec![
            ("/untyped", TestResponse::Bytes(response("200 OK", &[], page.as_bytes()))),
            ("/garbage", typed(";;; /", page)),
            ("/html-as-text", typed("text/plain", page)),
            ("/html-as-json", typed("application/json", page)),
            ("/html-as-image", typed("image/png", page)),
            ("/image-as-html", typed("text/html", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")),
            ("/image-as-pdf", typed("application/pdf", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")),
            ("/untyped-image", TestResponse::Bytes(response("200 OK", &[], b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"))),
        ]
    })
    .await;
    let tool = browse(&[&server]);
    let at = |path: &str| json!({"url": server.url(path)});
    for path in ["/untyped", "/garbage"] {
        assert_eq!(text(&tool, at(path)).await, "# T\n\ntext", "{path}");
    }
    for path in ["/html-as-text", "/html-as-json"] {
        assert_eq!(text(&tool, at(path)).await, page, "{path}");
    }
    assert!(text(&tool, at("/image-as-html")).await.contains("PNG"));
    for path in ["/html-as-image", "/image-as-pdf", "/untyped-image"] {
        let message = error(&tool, at(path)).await;
        assert!(message.starts_with("The page has no text: "), "{path}: {message}");
    }
}

#[tokio::test]
async fn a_gzip_bomb_is_cut_where_pages_are() {
    let head = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let bomb = [&head, crate::confined::tests::spaces(256).as_slice()].concat();
    assert!(bomb.len() < 1 << 20);
    let headers = [("content-encoding", "gzip"), ("content-type", "text/plain")];
    let server = Server::start(|_| vec![("/", TestResponse::Bytes(response("200 OK", &headers, &bomb)))]).await;
    let tool = browse_with(&[&server], with_max_page("1MiB"), names(&[]));
    let found = text(&tool, json!({"url": server.url("/")})).await;
    assert_eq!(found, "> Only the first 1048576 bytes of the page were read.");
}

#[tokio::test]
async fn a_loop_of_redirects_ends() {
    let server = Server::start(|_| {
        vec![("/self", redirect("/self")), ("/there", redirect("/back")), ("/back", redirect("/there?x"))]
    })
    .await;
    let tool = browse(&[&server]);
    let itself = error(&tool, json!({"url": server.url("/self")})).await;
    assert_eq!(itself, "Failed to fetch page: it redirects more than 5 times.");
    assert_eq!(server.count("/self"), 6);
    let none = BrowseConfig { max_redirects: 0, ..BrowseConfig::default() };
    let tool = browse_with(&[&server], with_browse(none), names(&[]));
    let at_once = error(&tool, json!({"url": server.url("/there")})).await;
    assert_eq!(at_once, "Failed to fetch page: it redirects more than 0 times.");
    assert_eq!(server.count("/back"), 0);
}

#[tokio::test]
async fn a_redirect_to_an_address_that_is_not_public_is_refused_without_a_request() {
    let private = Server::start(|_| vec![("/", html("secret"))]).await;
    let target = private.url("/");
    let server = Server::start(|address| {
        vec![
            ("/loopback", redirect(&target)),
            ("/ten", redirect("http://10.0.0.1/")),
            ("/number", redirect("http://2130706433/")),
            ("/metadata", redirect("http://169.254.169.254/latest/meta-data/")),
            ("/mapped", redirect("http://[::ffff:10.0.0.1]/")),
            ("/unique-local", redirect("http://[fd00::1]/")),
            ("/no-scheme", redirect("//192.168.1.1/")),
            ("/name", redirect("http://inner.example.com/")),
            ("/mapped-metadata", redirect("http://[::ffff:169.254.169.254]/latest")),
            ("/file", redirect("file:///etc/passwd")),
            ("/local-name", redirect(&format!("http://local.example.com:{}/", address.port()))),
        ]
    })
    .await;
    let lookup = names(&[("inner.example.com", "172.16.0.1"), ("local.example.com", "127.0.0.2")]);
    let tool = browse_with(&[&server], WebConfig::default(), lookup);
    let numbers = ["/loopback", "/ten", "/number", "/metadata", "/mapped", "/mapped-metadata", "/unique-local"];
    for path in numbers.into_iter().chain(["/no-scheme", "/file", "/name", "/local-name"]) {
        let message = refusal(&tool, &server.url(path)).await;
        assert!(message.contains("it redirects to an address that may not be reached"), "{path}: {message}");
    }
    assert!(private.requests.lock().is_empty());
}

#[tokio::test]
async fn a_name_that_resolves_to_an_address_that_is_not_public_is_refused() {
    let lookup = names(&[
        ("loopback.example.com", "127.0.0.1"),
        ("private.example.com", "192.168.0.1"),
        ("shared.example.com", "100.64.0.1"),
        ("metadata.example.com", "169.254.169.254"),
        ("zero.example.com", "0.0.0.0"),
        ("six.example.com", "::1"),
        ("mapped.example.com", "::ffff:10.0.0.1"),
        ("nat64.example.com", "64:ff9b::a00:1"),
        ("several.example.com", "10.0.0.1"),
        ("several.example.com", "fe80::1"),
    ]);
    let tool = browse_with(&[], WebConfig::default(), lookup);
    for name in ["loopback", "private", "shared", "metadata", "zero", "six", "mapped", "nat64", "several"] {
        let message = refusal(&tool, &format!("http://{name}.example.com/")).await;
        assert!(message.contains(&format!("the address of `{name}.example.com` is not public")), "{name}: {message}");
    }
}

#[tokio::test]
async fn the_address_that_is_connected_to_is_the_one_that_was_checked() {
    let server = Server::start(|_| vec![("/", html("there"))]).await;
    // The first response has an address that may be reached among others, each further one none.
    let lookups = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&lookups);
    let lookup: HostLookup = Arc::new(move |_| {
        let is_first = count.fetch_add(1, Ordering::Relaxed) == 0;
        let found: &[&str] = if is_first { &["10.0.0.1", "127.0.0.1"] } else { &["10.0.0.1"] };
        let found: Vec<IpAddr> = found.iter().map(|address| address.parse().unwrap()).collect();
        Box::pin(async move { Ok(found) })
    });
    let tool = browse_with(&[&server], WebConfig::default(), lookup);
    let url = format!("http://rebinding.example.com:{}/", server.address.port());
    assert_eq!(text(&tool, json!({"url": url})).await, "there");
    assert_eq!(lookups.load(Ordering::Relaxed), 1, "a second lookup would return another address");
    assert!(refusal(&tool, &url).await.contains("is not public"));
    assert_eq!(server.count("/"), 1);
}

#[tokio::test]
async fn pages_over_ipv6_are_read() {
    let server = Server::start_at("[::1]:0", |_| vec![("/", html("<p>six"))]).await;
    assert_eq!(text(&browse(&[&server]), json!({"url": server.url("/")})).await, "six");
}

#[tokio::test]
async fn cookies_of_a_page_are_not_sent_back() {
    let server = Server::start(|_| {
        vec![
            ("/", TestResponse::Bytes(response("302 Found", &[("set-cookie", "id=1"), ("location", "/next")], b""))),
            ("/next", html("x")),
        ]
    })
    .await;
    text(&browse(&[&server]), json!({"url": server.url("/")})).await;
    assert!(server.requests.lock().iter().all(|request| !request.to_lowercase().contains("cookie")));
}
