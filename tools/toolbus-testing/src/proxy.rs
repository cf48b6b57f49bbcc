//! A TCP proxy between a client and a server, whose line can be cut, frozen, slowed down and restored.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Connections through one proxy at a time; further ones wait.
const MAX_CONNECTIONS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Open,
    Frozen,
    Slow(Duration),
    Cut,
}

/// A running proxy; it ends when dropped.
pub struct Proxy {
    address: SocketAddr,
    line: watch::Sender<Line>,
    accepted: Arc<AtomicUsize>,
    _server: JoinSet<()>,
}

impl Proxy {
    /// Listens on a free port of the loopback address, and passes everything on to `target`.
    ///
    /// # Errors
    ///
    /// If no port can be bound.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (line, watched) = watch::channel(Line::Open);
        let mut server = JoinSet::new();
        let accepted = Arc::<AtomicUsize>::default();
        server.spawn(serve(listener, target, watched, Arc::clone(&accepted)));
        Ok(Self { address, line, accepted, _server: server })
    }

    /// Address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections that clients have opened so far, also while the line was cut.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Breaks every connection, and refuses new ones.
    pub fn cut(&self) {
        self.line.send_replace(Line::Cut);
    }

    /// Lets nothing pass, without breaking anything: as a network that swallows packets.
    pub fn freeze(&self) {
        self.line.send_replace(Line::Frozen);
    }

    /// Delays everything that passes, piece by piece.
    pub fn slow_down(&self, delay: Duration) {
        self.line.send_replace(Line::Slow(delay));
    }

    /// Lets everything pass again, also what was held while frozen.
    pub fn restore(&self) {
        self.line.send_replace(Line::Open);
    }
}

async fn serve(listener: TcpListener, target: SocketAddr, line: watch::Receiver<Line>, count: Arc<AtomicUsize>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                let Ok((client, _)) = accepted else { continue };
                count.fetch_add(1, Ordering::Relaxed);
                if *line.borrow() != Line::Cut {
                    connections.spawn(connect(client, target, line.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connect(client: TcpStream, target: SocketAddr, mut line: watch::Receiver<Line>) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    // The proxy must not add delays of its own to what is measured through it.
    if client.set_nodelay(true).and(server.set_nodelay(true)).is_err() {
        return;
    }
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    tokio::select! {
        _ = pass(client_reads, server_writes, line.clone()) => {}
        _ = pass(server_reads, client_writes, line.clone()) => {}
        _ = line.wait_for(|line| *line == Line::Cut) => {}
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut line: watch::Receiver<Line>,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut buffer).await?;
        let now = line.wait_for(|line| *line != Line::Frozen).await.map(|line| *line);
        match now {
            Err(_) => return Ok(()),
            Ok(Line::Slow(delay)) => tokio::time::sleep(delay).await,
            Ok(_) => {}
        }
        match buffer.get(..length) {
            Some(bytes) if length > 0 => to.write_all(bytes).await?,
            _ => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::Proxy;

    async fn line() -> (Proxy, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
        let client = TcpStream::connect(proxy.address()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        (proxy, client, server)
    }

    #[tokio::test]
    async fn data_held_while_frozen_arrives_when_restored() {
        let (proxy, mut client, mut server) = line().await;
        proxy.freeze();
        client.write_all(b"held").await.unwrap();
        let mut bytes = [0; 4];
        let early = tokio::time::timeout(Duration::from_millis(50), server.read(&mut bytes)).await;
        assert!(early.is_err(), "frozen, and yet it passed");
        proxy.restore();
        server.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"held");
    }

    #[tokio::test]
    async fn a_slow_line_delays_what_passes() {
        let (proxy, mut client, mut server) = line().await;
        let delay = Duration::from_millis(50);
        proxy.slow_down(delay);
        let sent = Instant::now();
        client.write_all(b"late").await.unwrap();
        server.read_exact(&mut [0; 4]).await.unwrap();
        assert!(sent.elapsed() >= delay);
    }

    #[tokio::test]
    async fn a_cut_line_breaks_connections_and_takes_no_new_ones() {
        let (proxy, mut client, _server) = line().await;
        proxy.cut();
        assert_eq!(client.read(&mut [0; 1]).await.unwrap_or(0), 0);
        let mut late = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(late.read(&mut [0; 1]).await.unwrap_or(0), 0);
    }
}
