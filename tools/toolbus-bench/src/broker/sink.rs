//! A collector that takes everything and keeps nothing, so that exporting has somewhere to go.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// An OTLP/HTTP receiver on a free port of 127.0.0.1.
pub(super) struct Sink {
    address: SocketAddr,
    bytes: Arc<AtomicU64>,
    server: JoinHandle<io::Result<()>>,
}

impl Sink {
    pub(super) async fn start() -> io::Result<Self> {
        let bytes = Arc::<AtomicU64>::default();
        let of_traces = Arc::clone(&bytes);
        let traces = move |body: Bytes| {
            let received = Arc::clone(&of_traces);
            async move {
                received.fetch_add(body.len() as u64, Ordering::Relaxed);
            }
        };
        let routes = Router::new()
            .route("/v1/traces", post(traces))
            .route("/v1/metrics", post(async |_: Bytes| ()))
            .layer(DefaultBodyLimit::max(64 * 1024 * 1024));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(Self { address, bytes, server })
    }

    /// Returns the value to give as `telemetry.otlp_endpoint`.
    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Bytes of spans that came so far.
    pub(super) fn spans(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.server.abort();
    }
}
