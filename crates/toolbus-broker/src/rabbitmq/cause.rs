//! Messages for operators about errors of the AMQP client.

use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Error, ErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use toolbus_bus::with_dates;

/// Longest wait for the first bytes of a listener of unknown protocol.
const LOOK_TIME: Duration = Duration::from_secs(2);
/// Bytes that begin AMQP 0-9-1, and end a request to servers that wait for lines.
const GREETING: &[u8] = b"AMQP\x00\x00\x09\x01\r\n\r\n";

/// AMQP reply codes that mean something here.
pub(super) const ACCESS_REFUSED: u16 = 403;
pub(super) const NOT_FOUND: u16 = 404;
pub(super) const RESOURCE_LOCKED: u16 = 405;
pub(super) const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// The broker's reply code, if the error is the broker's.
pub(super) fn code(error: &Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

/// Returns what went wrong. The broker's own text where there is one; it holds no credentials.
pub(super) fn words(error: &Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        ErrorKind::IOError(error) => with_dates(&error.to_string()),
        _ => with_dates(&error.to_string()),
    }
}

/// Whether the broker refuses the login or the virtual host.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(code(error), Some(ACCESS_REFUSED | NOT_ALLOWED))
}

/// The broker's words, if it refused the address.
pub(super) fn refusal(error: &Error) -> Option<String> {
    matches!(code(error)?, ACCESS_REFUSED | NOT_FOUND | PRECONDITION_FAILED).then(|| words(error))
}

/// Reason why a connection could not be opened.
pub(super) fn connecting(error: &Error) -> String {
    match code(error) {
        Some(ACCESS_REFUSED) => {
            format!("the broker refused the login: check user and password in bus.url ({})", words(error))
        }
        Some(NOT_ALLOWED) => {
            format!(
                "the broker refused the virtual host: check its name in bus.url and the user's rights ({})",
                words(error)
            )
        }
        _ => with_key(words(error)),
    }
}

/// The words of a failed TLS handshake, with the key of the configuration that decides it.
fn with_key(words: String) -> String {
    let has = |parts: &[&str]| parts.iter().any(|part| words.contains(part));
    let advice = if has(&["NotValidForName", "not valid for name"]) {
        "the host in bus.url must be a name of the broker's certificate"
    } else if has(&["Expired", "certificate expired", "NotValidYet"]) {
        "the broker's certificate must be renewed, or the clock of this machine be set"
    } else if has(&["invalid peer certificate"]) {
        "bus.tls.ca must be the authority that signed the broker's certificate"
    } else if has(&["fatal alert", "KeyMismatch", "keys may not be consistent"]) {
        "bus.tls.cert and bus.tls.key must be a certificate that the broker trusts, and its key"
    } else {
        return words;
    };
    format!("{words}: {advice}")
}

/// Returns what listens there instead of a broker of the URL, and what to change: the client itself reports frames or
/// records that it cannot read.
pub(super) async fn other_protocol(uri: &AMQPUri) -> Option<String> {
    let authority = &uri.authority;
    let looking = async {
        let mut stream = TcpStream::connect((authority.host.as_str(), authority.port)).await.ok()?;
        stream.write_all(GREETING).await.ok()?;
        let mut response = [0; 5];
        stream.read_exact(&mut response).await.ok()?;
        Some(response)
    };
    let response = tokio::time::timeout(LOOK_TIME, looking).await.ok().flatten()?;
    let (is_tls, port) = (uri.scheme == AMQPScheme::AMQPS, authority.port);
    match &response {
        b"HTTP/" => Some(format!(
            "port {port} speaks HTTP, not AMQP: give bus.url the broker's AMQP port, by default 5672, or 5671 with amqps://"
        )),
        // An alert or a handshake.
        [0x15 | 0x16, 0x03, ..] if !is_tls => Some(format!(
            "port {port} speaks TLS: use amqps:// in bus.url, or the broker's plain port, by default 5672"
        )),
        // The first frame of a broker, or the version that it would rather speak.
        [0x01, 0x00, 0x00, ..] | b"AMQP\x00" if is_tls => Some(format!(
            "port {port} speaks AMQP without TLS: use amqp:// in bus.url, or the broker's TLS port, by default 5671"
        )),
        _ => None,
    }
}
