use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Largest answer that is read, in bytes.
const MAX_ANSWER: u64 = 64 * 1024;

/// Why a running daemon could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The configuration leaves the port to the system.
    #[error("http.listen has port 0, which the system replaces by a free one: give the real port, with --listen")]
    NoPort,
    /// Nobody answers there.
    #[error("no daemon answers on {address} (http.listen): {source}")]
    Unreachable {
        /// The address that was tried.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The time is over.
    #[error("no answer from {0} in time")]
    TimedOut(SocketAddr),
    /// Something answers that is no HTTP server.
    #[error("{0} does not speak HTTP")]
    NotHttp(SocketAddr),
}

/// Asks the daemon that listens on `listen` for `path`; returns the status code and the body.
///
/// For containers that hold no other HTTP client. An unspecified address is asked on loopback.
///
/// # Errors
///
/// When there is no answer within `patience`.
pub async fn probe(listen: SocketAddr, path: &str, patience: Duration) -> Result<(u16, String), ProbeError> {
    if listen.port() == 0 {
        return Err(ProbeError::NoPort);
    }
    let address = reachable(listen);
    let answer = tokio::time::timeout(patience, ask(address, path)).await;
    let answer = answer
        .map_err(|_| ProbeError::TimedOut(address))?
        .map_err(|source| ProbeError::Unreachable { address, source })?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(ProbeError::NotHttp(address))?;
    let code = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|code| code.parse().ok());
    Ok((code.ok_or(ProbeError::NotHttp(address))?, body.to_owned()))
}

async fn ask(address: SocketAddr, path: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    Ok(answer)
}

fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn port_zero_is_no_place_to_ask() {
        let refused = probe("127.0.0.1:0".parse().unwrap(), "/readyz", Duration::from_secs(1)).await.unwrap_err();
        assert!(matches!(refused, ProbeError::NoPort), "{refused}");
    }
}
