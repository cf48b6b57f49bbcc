//! Connects to one server: starts its process or opens its URL, and performs the handshake.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join;
use parking_lot::Mutex;
use tokio::time::{timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::events::McpClientEvents;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::redact::Redactor;
use toolbus_core::text::shown;
use tracing::Span;

use crate::client::{Connection, HandshakeContext, RequestError, SessionMode};
use crate::process::{Launcher, Process};
use crate::spec::{Credential, ServerName, ServerSpec, TransportSpec};
use crate::transport::TransportFailure;
use crate::transport::http::{HttpOpenError, Opener};

/// Time that a process gets to end by itself before it is killed, its supervisor's own patience included.
pub(crate) const STOP_TIME: Duration = Duration::from_secs(5);
/// The same after a failure of the server: its successor waits for the end.
pub(crate) const LOST_TIME: Duration = Duration::from_millis(500);

/// Time after a handshake for reading the server's standard error about the probe.
const PROBE_ECHO: Duration = Duration::from_millis(250);

/// Opens connections to one server, and remembers its session mode.
pub(crate) struct Connector {
    server: ServerName,
    way: ConnectMode,
    roots: Vec<PathBuf>,
    observer: Arc<dyn McpClientEvents>,
    redactor: Redactor,
    clock: Clock,
    session_mode: Remembered,
    /// Directories that are made before its process is started.
    directories: Vec<PathBuf>,
}

/// The session mode of a server, if known. Connectors of the same server may share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remembered(Arc<Mutex<Option<SessionMode>>>);

impl Remembered {
    fn get(&self) -> Option<SessionMode> {
        *self.0.lock()
    }

    fn set(&self, session_mode: Option<SessionMode>) {
        *self.0.lock() = session_mode;
    }
}

enum ConnectMode {
    Stdio(Launcher, crate::spec::StdioSpec),
    Http(Result<Opener, HttpOpenError>),
}

/// Until when a connection is wanted.
struct ConnectLimits<'a> {
    patience: Duration,
    latest: Instant,
    given_up: &'a CancellationToken,
    span: &'a Span,
}

impl ConnectLimits<'_> {
    /// Drops what takes longer.
    async fn hold<T, E: Into<ConnectError>>(
        &self,
        step: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ConnectError> {
        tokio::select! {
            biased;
            () = self.given_up.cancelled() => Err(given_up()),
            done = timeout_at(self.latest.into(), step) => match done {
                Ok(done) => done.map_err(Into::into),
                Err(_) => {
                    let seconds = self.patience.as_secs();
                    Err(ConnectError::new(format!("the server did not finish its handshake within {seconds} s")))
                }
            },
        }
    }
}

fn given_up() -> ConnectError {
    ConnectError::new("the connection was given up")
}

/// A connection, with the process of a local server.
pub(crate) struct Connected {
    pub(crate) connection: Arc<Connection>,
    process: Option<Process>,
}

/// Reason why connecting failed, for operators.
#[derive(Debug, Clone)]
pub(crate) struct ConnectError {
    pub(crate) text: String,
    /// Whether an operator has to provide credentials.
    pub(crate) needs_credentials: bool,
    /// Session mode that the server wants instead.
    pub(crate) next: Option<SessionMode>,
    /// Last lines of the server's standard error.
    pub(crate) stderr: Vec<String>,
}

impl ConnectError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), needs_credentials: false, next: None, stderr: Vec::new() }
    }
}

impl From<RequestError> for ConnectError {
    fn from(error: RequestError) -> Self {
        let needs_credentials = matches!(error, RequestError::AuthRequired(_));
        Self { needs_credentials, next: error.next(), ..Self::new(error.to_string()) }
    }
}

impl From<HttpOpenError> for ConnectError {
    fn from(error: HttpOpenError) -> Self {
        Self { needs_credentials: matches!(error, HttpOpenError::AuthRequired { .. }), ..Self::new(error.to_string()) }
    }
}

impl Connector {
    /// Connections to `spec`, those over HTTP with this credential.
    pub(crate) fn new(
        spec: &ServerSpec,
        credential: Option<&Credential>,
        launcher: &Launcher,
        observer: &Arc<dyn McpClientEvents>,
    ) -> Self {
        let (way, roots) = match &spec.transport {
            TransportSpec::Stdio(program) => {
                (ConnectMode::Stdio(launcher.clone(), program.clone()), program.roots.clone())
            }
            TransportSpec::Http(endpoint) => {
                // Without an agent, tools are listed with the first.
                let credential = credential.or_else(|| endpoint.credentials.all().next()).cloned();
                let opener = Opener::new(endpoint, credential, launcher.redactor(), launcher.clock());
                let large = launcher.large(spec.name.as_str());
                (ConnectMode::Http(opener.map(|opener| opener.with_large(large))), Vec::new())
            }
        };
        let (server, observer) = (spec.name.clone(), Arc::clone(observer));
        let (redactor, clock) = (launcher.redactor().clone(), launcher.clock());
        let (session_mode, directories) = (Remembered::default(), Vec::new());
        Self { server, way, roots, observer, redactor, clock, session_mode, directories }
    }

    /// The same, with a shared memory of the session mode.
    pub(crate) fn remembering(self, session_mode: Remembered) -> Self {
        Self { session_mode, ..self }
    }

    /// The same, which creates these directories if they are missing, for this user alone.
    pub(crate) fn making(self, directories: Vec<PathBuf>) -> Self {
        Self { directories, ..self }
    }

    /// The same, for connections over HTTP that end when the server forgets their session.
    pub(crate) fn ending_with_session(self) -> Self {
        let way = match self.way {
            ConnectMode::Http(opener) => ConnectMode::Http(opener.map(Opener::ending_with_session)),
            way @ ConnectMode::Stdio(..) => way,
        };
        Self { way, ..self }
    }

    /// `stdio`, `http`, `sse`, or `http?` while that is not known.
    pub(crate) fn transport_name(&self) -> &'static str {
        match &self.way {
            ConnectMode::Stdio(..) => "stdio",
            ConnectMode::Http(Ok(opener)) => opener.kind_name(),
            ConnectMode::Http(Err(_)) => "http?",
        }
    }

    /// The clock that measures its server's time.
    pub(crate) const fn clock(&self) -> Clock {
        self.clock
    }

    /// Whether the server is a local process.
    pub(crate) const fn is_process(&self) -> bool {
        matches!(self.way, ConnectMode::Stdio(..))
    }

    /// Connects within `patience`, unless it is given up before. Lifecycle spans are children of `span`. Where that
    /// fails, nothing is left of the server.
    ///
    /// # Errors
    ///
    /// If the server cannot be started or reached, or the handshake fails or times out.
    pub(crate) async fn connect(
        &self,
        patience: Duration,
        given_up: &CancellationToken,
        span: &Span,
    ) -> Result<Connected, ConnectError> {
        let bounds = ConnectLimits { patience, latest: self.clock.now() + patience, given_up, span };
        match self.attempt(&bounds).await {
            // Some servers with sessions end when they are probed for the stateless version.
            Err(ConnectError { next: Some(next), .. }) => {
                self.session_mode.set(Some(next));
                self.attempt(&bounds).await
            }
            attempted => attempted,
        }
    }

    async fn attempt(&self, bounds: &ConnectLimits<'_>) -> Result<Connected, ConnectError> {
        if bounds.given_up.is_cancelled() {
            return Err(given_up());
        }
        let (opened, process) = match &self.way {
            ConnectMode::Stdio(launcher, program) => {
                let admitted = async {
                    made(self.directories.clone()).await?;
                    Ok::<_, ConnectError>(launcher.turn().await)
                };
                let turn = bounds.hold(admitted).await?;
                let started = launcher.start(self.server.as_str(), program);
                let (process, transport) = started.map_err(|error| ConnectError::new(error.to_string()))?;
                let opening = self.opening("pipe", transport.failure(), bounds.span);
                // Standard error about an unknown probe is not logged.
                let is_probed = opening.session_mode.is_none();
                if is_probed {
                    process.hush(bounds.patience);
                }
                let opening = HandshakeContext { fast_path: Some(transport.fast_path()), ..opening };
                let opened = bounds.hold(turn.run(Connection::open(transport, opening))).await;
                if is_probed && opened.is_ok() {
                    process.hush(PROBE_ECHO);
                }
                (opened, Some(process))
            }
            ConnectMode::Http(opener) => {
                let opened = async {
                    let transport = opener.as_ref().map_err(Clone::clone)?.open().await?;
                    let opening = self.opening("tcp", transport.failure(), bounds.span);
                    Ok::<_, ConnectError>(Connection::open(transport, opening).await?)
                };
                (bounds.hold(opened).await, None)
            }
        };
        match opened {
            Ok(connection) => {
                self.session_mode.set(Some(connection.session_mode()));
                Ok(Connected { connection, process })
            }
            Err(error) => {
                // The remembered session mode may be outdated.
                self.session_mode.set(None);
                if let ConnectMode::Http(Ok(opener)) = &self.way
                    && error.next.is_none()
                {
                    opener.forget();
                }
                let Some(process) = process else { return Err(error) };
                process.stop(LOST_TIME).await;
                Err(ConnectError { stderr: process.stderr_tail(), ..error })
            }
        }
    }

    fn opening<'a>(
        &'a self,
        transport: &'static str,
        failure: TransportFailure,
        span: &'a Span,
    ) -> HandshakeContext<'a> {
        HandshakeContext {
            server: &self.server,
            transport,
            session_mode: self.session_mode.get(),
            fast_path: None,
            failure,
            roots: self.roots.clone(),
            observer: Arc::clone(&self.observer),
            redactor: self.redactor.clone(),
            clock: self.clock,
            span,
        }
    }
}

/// Makes directories, each with what leads to it. A file system may take its time.
async fn made(directories: Vec<PathBuf>) -> Result<(), ConnectError> {
    use std::os::unix::fs::DirBuilderExt;
    if directories.is_empty() {
        return Ok(());
    }
    let making = tokio::task::spawn_blocking(move || {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        directories.iter().try_for_each(|path| builder.create(path))
    });
    let error = match making.await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    Err(ConnectError::new(format!("a directory that the server works in cannot be made: {error}")))
}

/// The failure of an agent without a credential, if credentials are per agent.
pub(crate) fn no_credential(server: &ServerName) -> ToolFailure {
    let name = shown(server.as_str());
    let text = format!("MCP server '{name}' has no credentials for this agent. An operator has to give them.");
    ToolFailure::new(Cause::AuthRequired, text)
}

impl Connected {
    /// The process id of the server's supervisor.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Returns the last lines of the server's standard error.
    pub(crate) fn stderr(&self) -> Vec<String> {
        self.process.as_ref().map(Process::stderr_tail).unwrap_or_default()
    }

    /// Ends the connection in order, and the process. What has not ended within `patience` is ended by force; returns
    /// when nothing is left.
    pub(crate) async fn close(&self, patience: Duration) {
        let closing = timeout(patience, self.connection.close());
        match &self.process {
            Some(process) => drop(join(closing, process.stop(patience)).await),
            None => drop(closing.await),
        }
    }
}
