//! Servers whose TLS cannot be used.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, UnixTime};
use rustls::{CertificateError, ServerConfig, ServerConnection, Stream};
use serde_json::json;
use tokio_util::task::TaskTracker;
use toolbus_core::failure::Cause;
use toolbus_core::text::with_dates;

use super::tool;
use crate::testing::run;

#[tokio::test]
async fn an_untrusted_certificate_is_refused_with_a_clear_text() {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::task::spawn_blocking(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut connection = ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = Stream::new(&mut connection, &mut socket);
        let mut request = [0; 1024];
        let heard = stream.read(&mut request);
        // Whatever happens to this, nothing may have been heard.
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nsecret");
        heard.is_ok_and(|count| count > 0)
    });
    let failure = run(&tool(format!("https://localhost:{port}/"), |_| {}), json!({})).await.unwrap_err();
    assert_eq!(failure.cause, Cause::Failed, "{failure:?}");
    assert!(failure.message.contains("certificate that is not trusted"), "{}", failure.message);
    assert!(!server.await.unwrap(), "a request was sent over an untrusted connection");
}

#[test]
fn the_times_of_a_certificate_are_shown_as_dates() {
    let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let (time, not_after, not_before) = (at(1_763_852_400), at(1_763_766_000), at(1_763_938_800));
    for error in [
        CertificateError::ExpiredContext { time, not_after },
        CertificateError::NotValidYetContext { time, not_before },
    ] {
        let shown = with_dates(&rustls::Error::InvalidCertificate(error).to_string());
        assert!(
            shown.contains("2025-11-22T23:00:00Z") && !shown.contains("1763") && !shown.contains("UNIX"),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn a_server_without_tls_behind_https_is_refused_with_a_clear_text() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    TaskTracker::new().spawn(async move {
        use tokio::io::AsyncWriteExt as _;
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            super::server::closed(&mut stream).await;
        }
    });
    let failure = run(&tool(format!("https://{address}/"), |_| {}), json!({})).await.unwrap_err();
    assert_eq!(failure.cause, Cause::Failed, "{failure:?}");
    assert!(failure.message.contains("TLS connection"), "{}", failure.message);
}
