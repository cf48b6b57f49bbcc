//! How a connection begins: with a server whose generation is known, or has to be found out.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use rmcp::RoleClient;
use rmcp::model::{
    ClientCapabilities, ClientConfig, Implementation, ProtocolVersion, RequestMetaObject, RootsCapabilities,
    ServerPeerInfo,
};
use rmcp::service::{ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, RunningService};
use rmcp::transport::Transport;
use serde_json::{Value, json};
use tokio::time::Instant;
use toolbus_core::redact::Redactor;
use url::Url;

use super::failure::{ConnectError, handshake, unknown_version};
use super::filter::{Gate, Silence};
use super::inflight::Busy;
use super::notifications::Signals;
use super::server_info::About;
use super::timing::Described;
use super::{Connection, Generation, redacted};
use crate::events::Observer;
use crate::spec::ServerName;
use crate::transport::TransportFailure;
use crate::transport::stdio::FastPath;

/// What is to be known of a server before it is spoken to.
pub(crate) struct Opening<'a> {
    /// The server.
    pub(crate) server: &'a ServerName,
    /// `pipe` or `tcp`.
    pub(crate) transport: &'static str,
    /// How it was spoken to last time; absent: it is asked.
    pub(crate) generation: Option<Generation>,
    /// A shorter way for calls, where the transport has one.
    pub(crate) lane: Option<FastPath>,
    /// Where the transport says why it has ended.
    pub(crate) failure: TransportFailure,
    /// Directories that the server is told it may work in.
    pub(crate) roots: Vec<PathBuf>,
    /// Who is told of the traffic.
    pub(crate) observer: Arc<dyn Observer>,
    /// Removes secrets from what the server says.
    pub(crate) redactor: Redactor,
}

impl Connection {
    /// Speaks to the server until it is known how, and which version of the protocol it has. The caller bounds the time.
    ///
    /// # Errors
    ///
    /// When that fails: see [`ConnectError`] for what to do next. A remembered generation may be outdated.
    pub(crate) async fn open<T>(transport: T, opening: Opening<'_>) -> Result<Arc<Self>, ConnectError>
    where
        T: Transport<RoleClient> + 'static,
    {
        let Opening { server, transport: network, generation, lane, failure, roots, observer, redactor } = opening;
        let silence = match (generation, network) {
            (Some(_), _) => Silence::Allowed,
            (None, "pipe") => Silence::Legacy,
            (None, _) => Silence::Failure,
        };
        let roots = roots_result(&roots);
        let client = client(roots.is_some());
        let mut meta = RequestMetaObject::new();
        meta.set_client_info(client.client_info.clone());
        meta.set_client_capabilities(client.capabilities.clone());
        let signals = Arc::new(Signals::default());
        let gate = Gate::new(transport, Arc::clone(&signals), failure, roots, silence);

        let began = Instant::now();
        let opened = client.serve_with_lifecycle(gate, lifecycle(generation)).await;
        let opened = checked(opened, generation, &signals, &redactor);
        let (method, offered) = if signals.is_initializing() {
            ("initialize", ProtocolVersion::LATEST_WITH_INITIALIZE)
        } else {
            ("server/discover", ProtocolVersion::LATEST)
        };
        let version = opened.as_ref().map_or(&offered, |(_, info)| &info.protocol_version);
        let protocol_version = version.to_string();
        let described =
            Described { server: Arc::clone(server.as_str()), transport: network, protocol_version, observer };
        described.tell(method, None, began.elapsed(), opened.as_ref().err().map(ConnectError::error_type));
        let (running, info) = opened?;

        let is_session = signals.is_initializing();
        meta.set_protocol_version(info.protocol_version.clone());
        let connection = Arc::new(Self {
            peer: running.peer().clone(),
            running: Mutex::new(Some(running)),
            signals,
            lane,
            meta: (!is_session).then_some(meta),
            generation: if is_session { Generation::Sessions } else { Generation::Stateless },
            about: About::of(&info, &redactor),
            redactor,
            described: Arc::new(described),
            busy: Busy::default(),
            latency: AtomicU64::new(0),
        });
        let tells_changes = info.capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed != Some(false));
        connection.attend(began, tells_changes && !is_session);
        Ok(connection)
    }
}

type Running = RunningService<RoleClient, ClientConfig>;

/// The server that was reached, if it can be spoken to.
fn checked(
    opened: Result<Running, ClientInitializeError>,
    remembered: Option<Generation>,
    signals: &Signals,
    redactor: &Redactor,
) -> Result<(Running, Arc<ServerPeerInfo>), ConnectError> {
    let running = opened.map_err(|mut error| {
        redacted::handshake(redactor, &mut error);
        let ended = signals.why_ended().map(|end| end.why);
        let asked = if signals.is_initializing() { "initialize" } else { "server/discover" };
        handshake(&error, asked, ended.as_deref(), kind(remembered, signals))
    })?;
    match running.peer().peer_info() {
        Some(info) if ProtocolVersion::KNOWN_VERSIONS.contains(&info.protocol_version) => Ok((running, info)),
        Some(info) => Err(unknown_version(info.protocol_version.as_str())),
        None => Err(unknown_version("")),
    }
}

/// What is to be done about a handshake that failed. Programs that start slowly read the probe after all, and may fail
/// because of it.
fn kind(remembered: Option<Generation>, signals: &Signals) -> fn(String) -> ConnectError {
    let blames_probe = !signals.is_initializing() || signals.is_probe_passed_over();
    match remembered {
        None if signals.is_late() => ConnectError::AnsweredLate,
        None if blames_probe => ConnectError::ProbeFailed,
        _ => ConnectError::Failed,
    }
}

fn lifecycle(generation: Option<Generation>) -> ClientLifecycleMode {
    // A server that has sessions alone is asked for one, whatever it answers to `server/discover`.
    let stateless = || {
        let known = ProtocolVersion::KNOWN_VERSIONS.iter().rev();
        known.filter(|version| !version.has_initialize()).cloned().collect()
    };
    match generation {
        Some(Generation::Sessions) => ClientLifecycleMode::Initialize,
        Some(Generation::Stateless) => ClientLifecycleMode::Discover { preferred_versions: stateless() },
        None => ClientLifecycleMode::Auto { preferred_versions: stateless(), legacy_version: None },
    }
}

fn client(has_roots: bool) -> ClientConfig {
    let mut capabilities = ClientCapabilities::default();
    capabilities.roots = has_roots.then(RootsCapabilities::default);
    let implementation = Implementation::new("toolbus", env!("CARGO_PKG_VERSION"));
    ClientConfig::new(capabilities, implementation).with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
}

/// The answer to `roots/list`, if there are any. A directory that is not absolute cannot be named in it.
fn roots_result(paths: &[PathBuf]) -> Option<Value> {
    let urls = paths.iter().filter_map(|path| Url::from_file_path(path).ok());
    let roots: Vec<Value> = urls.map(|url| json!({ "uri": url.as_str() })).collect();
    (!roots.is_empty()).then(|| json!({ "roots": roots }))
}
