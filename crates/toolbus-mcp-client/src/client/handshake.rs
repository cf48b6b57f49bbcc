//! The handshake with a server, whose session mode is known or probed.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use rmcp::RoleClient;
use rmcp::model::{
    ClientCapabilities, ClientConfig, Implementation, ProtocolVersion, RequestMetaObject, RootsCapabilities,
    ServerPeerInfo,
};
use rmcp::service::{ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, RunningService};
use rmcp::transport::Transport;
use serde_json::{Value, json};
use toolbus_core::Clock;
use toolbus_core::events::McpClientEvents;
use toolbus_core::lifecycle;
use toolbus_core::redact::Redactor;
use toolbus_trust::text::{Removed, clean};
use tracing::field::Empty;
use tracing::{Span, info_span};
use url::Url;

use super::failure::{RequestError, handshake, unknown_version};
use super::filter::{NotificationFilter, Silence};
use super::inflight::{ConnectionLabels, InFlight};
use super::notifications::Notifications;
use super::{Connection, SessionMode, redacted};
use crate::spec::ServerName;
use crate::transport::TransportFailure;
use crate::transport::stdio::FastPath;

/// Knowledge of a server before its handshake.
pub(crate) struct HandshakeContext<'a> {
    /// The server.
    pub(crate) server: &'a ServerName,
    /// `pipe` or `tcp`.
    pub(crate) transport: &'static str,
    /// Session mode of the last connection; `None`: the server is probed.
    pub(crate) session_mode: Option<SessionMode>,
    /// The fast path of calls, if the transport has one.
    pub(crate) fast_path: Option<FastPath>,
    /// Holds the reason once the transport has ended.
    pub(crate) failure: TransportFailure,
    /// Directories sent to the server as MCP roots.
    pub(crate) roots: Vec<PathBuf>,
    /// Receives the events.
    pub(crate) observer: Arc<dyn McpClientEvents>,
    /// Removes secrets from the server's texts.
    pub(crate) redactor: Redactor,
    /// Measures the server's time.
    pub(crate) clock: Clock,
    /// The lifecycle span of the start, which has those of probe and handshake as children.
    pub(crate) span: &'a Span,
}

impl Connection {
    /// Finds out the session mode and the protocol version of the server. The caller bounds the
    /// time.
    ///
    /// # Errors
    ///
    /// If the handshake fails: [`RequestError::next`] gives the next attempt. A remembered session mode may be
    /// outdated.
    pub(crate) async fn open<T>(transport: T, opening: HandshakeContext<'_>) -> Result<Arc<Self>, RequestError>
    where
        T: Transport<RoleClient> + 'static,
    {
        let HandshakeContext { server, transport: network, session_mode, fast_path, failure, roots, .. } = opening;
        let HandshakeContext { observer, redactor, clock, span, .. } = opening;
        let silence = match (session_mode, network) {
            (Some(_), _) => Silence::Allowed,
            (None, "pipe") => Silence::Legacy,
            (None, _) => Silence::Failure,
        };
        let roots = roots_result(&roots);
        let client = client(roots.is_some());
        let mut meta = RequestMetaObject::new();
        meta.set_client_info(client.client_info.clone());
        meta.set_client_capabilities(client.capabilities.clone());
        let notifications = Arc::new(Notifications::default());
        let filter = NotificationFilter::new(transport, Arc::clone(&notifications), failure, roots, silence, clock);

        let began = clock.now();
        let mut serving = pin!(client.serve_with_lifecycle(filter, client_lifecycle(session_mode)));
        let mut step = step_span(span, session_mode);
        let opened = tokio::select! {
            biased;
            opened = &mut serving => opened,
            () = notifications.initialize_sent(), if session_mode.is_none() => {
                drop(step);
                step = step_span(span, Some(SessionMode::Sessions));
                serving.await
            }
        };
        let opened = lifecycle::checked(&step, checked(opened, session_mode, &notifications, &redactor));
        drop(step);
        let (method, offered) = if notifications.is_initializing() {
            ("initialize", ProtocolVersion::LATEST_WITH_INITIALIZE)
        } else {
            ("server/discover", ProtocolVersion::LATEST)
        };
        let version = opened.as_ref().map_or(&offered, |(_, info)| &info.protocol_version);
        let protocol_version = version.to_string();
        let server = Arc::clone(server.as_str());
        let labels = ConnectionLabels { server, transport: network, protocol_version, observer, clock };
        labels.report(method, None, clock.since(began), opened.as_ref().err().map(RequestError::error_type));
        let (running, info) = opened?;

        let is_session = notifications.is_initializing();
        meta.set_protocol_version(info.protocol_version.clone());
        let connection = Arc::new(Self {
            peer: running.peer().clone(),
            running: Mutex::new(Some(running)),
            notifications,
            fast_path,
            meta: (!is_session).then_some(meta),
            session_mode: if is_session { SessionMode::Sessions } else { SessionMode::Stateless },
            server_info: ServerInfo::of(&info, &redactor),
            redactor,
            labels: Arc::new(labels),
            inflight: InFlight::new(clock),
            latency: AtomicU64::new(0),
        });
        let notifies_changes = info.capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed != Some(false));
        connection.attend(began, notifies_changes && !is_session);
        Ok(connection)
    }
}

/// The lifecycle span of the probe, for a server whose mode is not known, or else of the handshake. It is held and not
/// entered: rmcp would keep it for the task of the connection.
fn step_span(start: &Span, session_mode: Option<SessionMode>) -> Span {
    match session_mode {
        _ if start.is_disabled() => Span::none(),
        None => info_span!(target: lifecycle::TARGET, parent: start, "mcp probe", otel.status_description = Empty),
        Some(_) => {
            info_span!(target: lifecycle::TARGET, parent: start, "mcp handshake", otel.status_description = Empty)
        }
    }
}

type RunningClient = RunningService<RoleClient, ClientConfig>;

/// The connected server, if its version is supported.
fn checked(
    opened: Result<RunningClient, ClientInitializeError>,
    remembered: Option<SessionMode>,
    notifications: &Notifications,
    redactor: &Redactor,
) -> Result<(RunningClient, Arc<ServerPeerInfo>), RequestError> {
    let running = opened.map_err(|mut error| {
        redacted::handshake(redactor, &mut error);
        let ended = notifications.why_ended().map(|end| end.why);
        let method = if notifications.is_initializing() { "initialize" } else { "server/discover" };
        handshake(&error, method, ended.as_deref(), kind(remembered, notifications))
    })?;
    match running.peer().peer_info() {
        Some(info) if ProtocolVersion::KNOWN_VERSIONS.contains(&info.protocol_version) => Ok((running, info)),
        Some(info) => Err(unknown_version(info.protocol_version.as_str())),
        None => Err(unknown_version("")),
    }
}

/// Selects the error of a failed handshake. Programs that start slowly read the probe after all, and may fail because
/// of it.
fn kind(remembered: Option<SessionMode>, notifications: &Notifications) -> fn(String) -> RequestError {
    let blames_probe = !notifications.is_initializing() || notifications.is_probe_passed_over();
    match remembered {
        None if notifications.is_late() => RequestError::RespondedLate,
        None if blames_probe => RequestError::ProbeFailed,
        _ => RequestError::Failed,
    }
}

fn client_lifecycle(session_mode: Option<SessionMode>) -> ClientLifecycleMode {
    // A server that has sessions alone gets `initialize`, even if it responds to `server/discover`.
    let stateless = || {
        let known = ProtocolVersion::KNOWN_VERSIONS.iter().rev();
        known.filter(|version| !version.has_initialize()).cloned().collect()
    };
    match session_mode {
        Some(SessionMode::Sessions) => ClientLifecycleMode::Initialize,
        Some(SessionMode::Stateless) => ClientLifecycleMode::Discover { preferred_versions: stateless() },
        None => ClientLifecycleMode::Auto { preferred_versions: stateless(), legacy_version: None },
    }
}

fn client(has_roots: bool) -> ClientConfig {
    let mut capabilities = ClientCapabilities::default();
    capabilities.roots = has_roots.then(RootsCapabilities::default);
    let implementation = Implementation::new("toolbus", env!("CARGO_PKG_VERSION"));
    ClientConfig::new(capabilities, implementation).with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
}

/// The response to `roots/list`, if there are any. A directory that is not absolute cannot be named in it.
fn roots_result(paths: &[PathBuf]) -> Option<Value> {
    let urls = paths.iter().filter_map(|path| Url::from_file_path(path).ok());
    let roots: Vec<Value> = urls.map(|url| json!({ "uri": url.as_str() })).collect();
    (!roots.is_empty()).then(|| json!({ "roots": roots }))
}

/// Longest name, title or version of a server, in bytes.
const MAX_LABEL: usize = 128;
/// Longest description or instructions of a server, in bytes.
const MAX_PROSE: usize = 16_000;

/// Name, version and instructions of a server. The texts are bounded, cleaned, and without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    /// Version of the protocol that was agreed on.
    pub(crate) protocol_version: String,
    /// Name that the server gives itself.
    pub(crate) name: Option<String>,
    /// Name for people.
    pub(crate) title: Option<String>,
    /// Version of the server.
    pub(crate) version: Option<String>,
    /// Description of the server.
    pub(crate) description: Option<String>,
    /// Instructions on the use of the server.
    pub(crate) instructions: Option<String>,
    /// Parts that were removed from these texts.
    pub(crate) removed: Removed,
}

impl ServerInfo {
    pub(super) fn of(info: &ServerPeerInfo, redactor: &Redactor) -> Self {
        let mut removed = Removed::default();
        let mut cleaned = |text: Option<&String>, limit: usize| {
            // Before it is cut: a part of a secret would not be known for one.
            let redacted = redactor.text(text?);
            let cleaned = clean(&redacted, limit);
            removed.add(&cleaned.removed);
            Some(cleaned.text.into_owned())
        };
        let server = info.server_info.as_ref();
        Self {
            protocol_version: info.protocol_version.to_string(),
            name: cleaned(server.map(|server| &server.name), MAX_LABEL),
            title: cleaned(server.and_then(|server| server.title.as_ref()), MAX_LABEL),
            version: cleaned(server.map(|server| &server.version), MAX_LABEL),
            description: cleaned(server.and_then(|server| server.description.as_ref()), MAX_PROSE),
            instructions: cleaned(info.instructions.as_ref(), MAX_PROSE),
            removed,
        }
    }
}
