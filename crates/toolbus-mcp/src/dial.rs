//! Getting a connection to one server: its process is started, or its URL is opened, and the handshake is made.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::connection::{ConnectError, Connection, Generation, Opening};
use crate::observe::Observer;
use crate::process::{Launcher, Process};
use crate::spec::{Credential, Credentials, Endpoint, ServerName, ServerSpec, TransportSpec};
use crate::transport::TransportFailure;
use crate::transport::http::{HttpTransport, OpenError, Opener};
use crate::transport::stdio::StdioTransport;

/// Time that a process gets to end by itself before it is killed, its supervisor's own patience included.
const STOP_TIME: Duration = Duration::from_secs(5);

/// Opens connections to one server, and remembers how it is spoken to.
pub(crate) struct Dialer {
    server: ServerName,
    way: Way,
    roots: Vec<PathBuf>,
    observer: Arc<dyn Observer>,
    generation: Mutex<Option<Generation>>,
}

enum Way {
    Stdio(Launcher, crate::spec::Program),
    Http(Result<Opener, OpenError>),
}

/// A server that was started or reached, and not spoken to yet.
pub(crate) struct Reached {
    transport: Transport,
    process: Option<Process>,
}

enum Transport {
    Stdio(StdioTransport),
    Http(HttpTransport),
}

/// A connection, with the process at its other end if that is ours.
pub(crate) struct Link {
    pub(crate) connection: Arc<Connection>,
    process: Option<Process>,
}

/// Why there is no connection, for operators.
#[derive(Debug, Clone)]
pub(crate) struct DialError {
    pub(crate) text: String,
    /// Whether a person has to give credentials.
    pub(crate) needs_credentials: bool,
    /// How the server wants to be spoken to instead.
    pub(crate) next: Option<Generation>,
    /// What the server wrote to its standard error last.
    pub(crate) stderr: Vec<String>,
}

impl DialError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), needs_credentials: false, next: None, stderr: Vec::new() }
    }
}

impl From<ConnectError> for DialError {
    fn from(error: ConnectError) -> Self {
        let needs_credentials = matches!(error, ConnectError::AuthRequired(_));
        Self { needs_credentials, next: error.next(), ..Self::new(error.to_string()) }
    }
}

impl From<OpenError> for DialError {
    fn from(error: OpenError) -> Self {
        Self { needs_credentials: matches!(error, OpenError::AuthRequired { .. }), ..Self::new(error.to_string()) }
    }
}

impl Dialer {
    /// Connections to `spec`, those over HTTP with this credential.
    pub(crate) fn new(
        spec: &ServerSpec,
        credential: Option<&Credential>,
        launcher: &Launcher,
        observer: &Arc<dyn Observer>,
    ) -> Self {
        let (way, roots) = match &spec.transport {
            TransportSpec::Stdio(program) => (Way::Stdio(launcher.clone(), program.clone()), program.roots.clone()),
            TransportSpec::Http(endpoint) => {
                let credential = credential.cloned().or_else(|| shared(endpoint));
                (Way::Http(Opener::new(endpoint, credential)), Vec::new())
            }
        };
        let (server, observer) = (spec.name.clone(), Arc::clone(observer));
        Self { server, way, roots, observer, generation: Mutex::default() }
    }

    /// `stdio`, `http`, `sse`, or `http?` while that is not known.
    pub(crate) fn transport_name(&self) -> &'static str {
        match &self.way {
            Way::Stdio(..) => "stdio",
            Way::Http(Ok(opener)) => opener.kind_name(),
            Way::Http(Err(_)) => "http?",
        }
    }

    /// Whether its server is a process of ours.
    pub(crate) const fn is_process(&self) -> bool {
        matches!(self.way, Way::Stdio(..))
    }

    /// Connects.
    pub(crate) async fn dial(&self) -> Result<Link, DialError> {
        let reached = self.reach().await?;
        match self.shake(reached).await {
            // Some servers of the old generation end when they are asked for the new one.
            Err(DialError { next: Some(next), .. }) => {
                self.remember(Some(next));
                let reached = self.reach().await?;
                self.shake(reached).await
            }
            shaken => shaken,
        }
    }

    /// Starts the server, or reaches it.
    pub(crate) async fn reach(&self) -> Result<Reached, DialError> {
        match &self.way {
            Way::Stdio(launcher, program) => {
                let started = launcher.start(self.server.as_str(), program);
                let (process, transport) = started.map_err(|error| DialError::new(error.to_string()))?;
                Ok(Reached { transport: Transport::Stdio(transport), process: Some(process) })
            }
            Way::Http(opener) => {
                let transport = opener.as_ref().map_err(Clone::clone)?.open().await?;
                Ok(Reached { transport: Transport::Http(transport), process: None })
            }
        }
    }

    /// Agrees with the server on how to speak.
    pub(crate) async fn shake(&self, reached: Reached) -> Result<Link, DialError> {
        let Reached { transport, process } = reached;
        let generation = *self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        let opening = |transport, failure: TransportFailure| Opening {
            server: &self.server,
            transport,
            generation,
            failure,
            roots: self.roots.clone(),
            observer: Arc::clone(&self.observer),
        };
        let opened = match transport {
            Transport::Stdio(transport) => {
                let failure = transport.failure();
                Connection::open(transport, opening("pipe", failure)).await
            }
            Transport::Http(transport) => {
                let failure = transport.failure();
                Connection::open(transport, opening("tcp", failure)).await
            }
        };
        match opened {
            Ok(connection) => {
                self.remember(Some(connection.generation()));
                Ok(Link { connection, process })
            }
            Err(error) => {
                // What was remembered may be outdated.
                self.remember(None);
                let stderr = match &process {
                    Some(process) => process.stderr_tail(),
                    None => Vec::new(),
                };
                Err(DialError { stderr, ..error.into() })
            }
        }
    }

    fn remember(&self, generation: Option<Generation>) {
        *self.generation.lock().unwrap_or_else(PoisonError::into_inner) = generation;
    }
}

/// The credential with which the tools are listed.
fn shared(endpoint: &Endpoint) -> Option<Credential> {
    match &endpoint.credentials {
        Credentials::None => None,
        Credentials::Shared(credential) => Some(credential.clone()),
        Credentials::PerAgent(agents) => agents.values().next().cloned(),
    }
}

impl Link {
    /// The process id of the server's supervisor.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// What the server wrote to its standard error last.
    pub(crate) fn stderr(&self) -> Vec<String> {
        self.process.as_ref().map(Process::stderr_tail).unwrap_or_default()
    }

    /// Ends the connection in order, and the process.
    pub(crate) async fn close(&self) {
        self.connection.close().await;
        if let Some(process) = &self.process {
            process.stop(STOP_TIME).await;
        }
    }
}
