//! A collector that keeps what it is sent: OTLP over gRPC and over HTTP, on free ports of the loopback address.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{LogsService, LogsServiceServer};
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

pub use opentelemetry_proto::tonic as proto;

/// Exports that are kept; further ones are confirmed and dropped.
const MAX_KEPT: usize = 10_000;

/// Behaviour of the receiver with an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Keeps it and confirms it.
    Accept,
    /// Responds that it is unavailable.
    Refuse,
    /// Does not respond until the behaviour changes.
    Hang,
}

/// A running receiver; it ends when dropped.
pub struct Receiver {
    inbox: Inbox,
    behaviour: watch::Sender<Behaviour>,
    grpc: SocketAddr,
    http: SocketAddr,
    _servers: JoinSet<()>,
}

impl Receiver {
    /// Starts on two free ports.
    ///
    /// # Errors
    ///
    /// If no port can be bound.
    pub async fn start() -> io::Result<Self> {
        let (behaviour, behaves) = watch::channel(Behaviour::Accept);
        let inbox = Inbox { kept: Arc::default(), behaves };
        let grpc_listener = TcpListener::bind("127.0.0.1:0").await?;
        let http_listener = TcpListener::bind("127.0.0.1:0").await?;
        let (grpc, http) = (grpc_listener.local_addr()?, http_listener.local_addr()?);

        let grpc_server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(inbox.clone()))
            .add_service(MetricsServiceServer::new(inbox.clone()))
            .add_service(LogsServiceServer::new(inbox.clone()))
            .serve_with_incoming(TcpIncoming::from(grpc_listener));
        let routes = axum::Router::new()
            .route("/v1/traces", post(http_traces))
            .route("/v1/metrics", post(http_metrics))
            .route("/v1/logs", post(http_logs))
            .with_state(inbox.clone());
        let mut servers = JoinSet::new();
        // A server that fails is noticed by the test that waits for what it should have received.
        servers.spawn(async move { drop(grpc_server.await) });
        servers.spawn(async move { drop(axum::serve(http_listener, routes).await) });
        Ok(Self { inbox, behaviour, grpc, http, _servers: servers })
    }

    /// Base address for OTLP over gRPC.
    #[must_use]
    pub fn grpc_endpoint(&self) -> String {
        format!("http://{}", self.grpc)
    }

    /// Base address for OTLP over HTTP, without `/v1/…`.
    #[must_use]
    pub fn http_endpoint(&self) -> String {
        format!("http://{}", self.http)
    }

    /// Changes what is done with exports from now on, and with those that hang.
    pub fn behave(&self, behaviour: Behaviour) {
        self.behaviour.send_replace(behaviour);
    }

    /// Exports that arrived, whatever became of them.
    #[must_use]
    pub fn attempts(&self) -> usize {
        self.inbox.with(|kept| kept.attempts)
    }

    /// Every span received.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        let scopes = self.inbox.with(|kept| kept.spans.clone()).into_iter().flat_map(|spans| spans.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// The metrics of the last export received. They are cumulative: earlier exports hold nothing more.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let last = self.inbox.with(|kept| kept.metrics.last().cloned());
        let scopes = last.into_iter().flat_map(|metrics| metrics.scope_metrics);
        scopes.flat_map(|scope| scope.metrics).collect()
    }

    /// Every log record received, with its target.
    #[must_use]
    pub fn logs(&self) -> Vec<(String, LogRecord)> {
        let scopes = self.inbox.with(|kept| kept.logs.clone()).into_iter().flat_map(|logs| logs.scope_logs);
        let of_scope = |logs: ScopeLogs| {
            let target = logs.scope.unwrap_or_default().name;
            logs.log_records.into_iter().map(move |record| (target.clone(), record))
        };
        scopes.flat_map(of_scope).collect()
    }

    /// The resources that metrics, spans and log records were sent for, in this order.
    #[must_use]
    pub fn resources(&self) -> Vec<Resource> {
        self.inbox.with(|kept| {
            let metrics = kept.metrics.iter().filter_map(|metrics| metrics.resource.clone());
            let spans = kept.spans.iter().filter_map(|spans| spans.resource.clone());
            metrics.chain(spans).chain(kept.logs.iter().filter_map(|logs| logs.resource.clone())).collect()
        })
    }
}

#[derive(Default)]
struct Kept {
    attempts: usize,
    spans: Vec<ResourceSpans>,
    metrics: Vec<ResourceMetrics>,
    logs: Vec<ResourceLogs>,
}

#[derive(Clone)]
struct Inbox {
    kept: Arc<Mutex<Kept>>,
    behaves: watch::Receiver<Behaviour>,
}

/// An export that was refused.
struct Refused;

impl Inbox {
    fn with<T>(&self, look: impl FnOnce(&mut Kept) -> T) -> T {
        look(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits while the receiver hangs. A receiver that ends refuses.
    async fn admit(&self) -> Result<(), Refused> {
        self.with(|kept| kept.attempts += 1);
        let mut behaves = self.behaves.clone();
        let behaviour = behaves.wait_for(|behaviour| *behaviour != Behaviour::Hang).await.map_err(|_| Refused)?;
        if *behaviour == Behaviour::Refuse { Err(Refused) } else { Ok(()) }
    }

    fn keep_spans(&self, export: ExportTraceServiceRequest) {
        self.with(|kept| {
            let room = MAX_KEPT.saturating_sub(kept.spans.len());
            kept.spans.extend(export.resource_spans.into_iter().take(room));
        });
    }

    fn keep_metrics(&self, export: ExportMetricsServiceRequest) {
        self.with(|kept| {
            let room = MAX_KEPT.saturating_sub(kept.metrics.len());
            kept.metrics.extend(export.resource_metrics.into_iter().take(room));
        });
    }

    fn keep_logs(&self, export: ExportLogsServiceRequest) {
        self.with(|kept| {
            let room = MAX_KEPT.saturating_sub(kept.logs.len());
            kept.logs.extend(export.resource_logs.into_iter().take(room));
        });
    }
}

impl From<Refused> for Status {
    fn from(_: Refused) -> Self {
        Self::unavailable("told to refuse")
    }
}

#[tonic::async_trait]
impl TraceService for Inbox {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.admit().await?;
        self.keep_spans(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Inbox {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.admit().await?;
        self.keep_metrics(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Inbox {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        self.admit().await?;
        self.keep_logs(request.into_inner());
        Ok(Response::new(ExportLogsServiceResponse::default()))
    }
}

async fn http_traces(State(inbox): State<Inbox>, body: Bytes) -> StatusCode {
    receive(&inbox, body, Inbox::keep_spans).await
}

async fn http_metrics(State(inbox): State<Inbox>, body: Bytes) -> StatusCode {
    receive(&inbox, body, Inbox::keep_metrics).await
}

async fn http_logs(State(inbox): State<Inbox>, body: Bytes) -> StatusCode {
    receive(&inbox, body, Inbox::keep_logs).await
}

async fn receive<M: Message + Default>(inbox: &Inbox, body: Bytes, keep: impl FnOnce(&Inbox, M)) -> StatusCode {
    if inbox.admit().await.is_err() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    match M::decode(body) {
        Ok(export) => {
            keep(inbox, export);
            StatusCode::OK
        }
        Err(_) => StatusCode::BAD_REQUEST,
    }
}
