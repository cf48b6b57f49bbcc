//! Tries one server, step by step, apart from those that run.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::connection::{ConnectError, Connection, Generation, Listed, Opening};
use crate::definition::{Definitions, definitions};
use crate::observe::Silent;
use crate::process::{Launcher, Process};
use crate::spec::{Credential, Credentials, Origin, ServerSpec, TransportSpec};
use crate::status::{PhaseName, ProbeReport, ProbeStep, ServerStatus};
use crate::transport::http::{HttpTransport, OpenError, Opener};
use crate::transport::stdio::StdioTransport;

/// Longest handshake, and longest wait for the answer to a ping.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time that the server has to end.
const STOP: Duration = Duration::from_secs(5);
/// What a server wrote before it failed may still be on its way.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Starts or connects the server, shakes hands, lists its tools, pings it, and ends it again.
pub async fn probe(spec: &ServerSpec, launcher: &Launcher) -> ProbeReport {
    let mut probe = Probe { spec, launcher, steps: Vec::new(), status: unknown(spec), process: None };
    let connection = probe.all().await;
    probe.end(connection).await
}

struct Probe<'a> {
    spec: &'a ServerSpec,
    launcher: &'a Launcher,
    steps: Vec<ProbeStep>,
    status: ServerStatus,
    process: Option<Process>,
}

/// A way to a server that has not been spoken to.
enum Wire {
    Stdio(StdioTransport),
    Http(HttpTransport),
}

/// Why a step failed.
struct Failure {
    text: String,
    phase: PhaseName,
}

impl Failure {
    fn new(text: impl ToString) -> Self {
        Self { text: text.to_string(), phase: PhaseName::Stopped }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let is_for_a_person = matches!(error, ConnectError::AuthRequired(_));
        let phase = if is_for_a_person { PhaseName::AuthRequired } else { PhaseName::Stopped };
        Self { text: error.to_string(), phase }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let is_for_a_person = matches!(error, OpenError::AuthRequired { .. });
        let phase = if is_for_a_person { PhaseName::AuthRequired } else { PhaseName::Stopped };
        Self { text: error.to_string(), phase }
    }
}

impl Probe<'_> {
    /// Takes every step until one fails. Returns the connection, if there is one to be closed.
    async fn all(&mut self) -> Option<Arc<Connection>> {
        let began = Instant::now();
        let started = self.start().await;
        let started = started.map(|wire| (self.began_as(), wire));
        let wire = self.note("start", began, started)?;

        let began = Instant::now();
        let opened = self.shake_hands(wire).await;
        let opened = opened.map(|connection| (greeting(&connection), connection));
        let connection = self.note("handshake", began, opened)?;
        self.status.protocol_version = Some(connection.about().protocol_version.clone());
        self.status.implementation = implementation(&connection);

        let began = Instant::now();
        let listed = connection.list_tools().await.map_err(Failure::from);
        let listed = listed.map(|listed| self.sort_out(listed));
        if self.note("list", began, listed.map(|text| (text, ()))).is_some() {
            let began = Instant::now();
            let answer = timeout(PATIENCE, connection.ping()).await;
            let answer = answer.map_err(|_| late("ping")).and_then(|answer| answer.map_err(Failure::from));
            self.status.latency_us = answer.as_ref().ok().map(|latency| micros(*latency));
            self.note("ping", began, answer.map(|_| ("answered".to_owned(), ())));
        }
        Some(connection)
    }

    /// Takes down what came of a step, and since when it went on.
    fn note<T>(&mut self, name: &str, began: Instant, outcome: Result<(String, T), Failure>) -> Option<T> {
        let duration_us = micros(began.elapsed());
        let (passed, text, value) = match outcome {
            Ok((text, value)) => (true, text, Some(value)),
            Err(Failure { text, phase }) => {
                self.status.phase = phase;
                self.status.last_error = Some(text.clone());
                (false, text, None)
            }
        };
        self.steps.push(ProbeStep { name: name.to_owned(), duration_us, passed, text });
        value
    }

    async fn start(&mut self) -> Result<Wire, Failure> {
        match &self.spec.transport {
            TransportSpec::Stdio(program) => {
                let started = self.launcher.start(self.spec.name.as_str(), program);
                let (process, transport) = started.map_err(Failure::new)?;
                self.status.pid = Some(process.pid());
                self.process = Some(process);
                Ok(Wire::Stdio(transport))
            }
            TransportSpec::Http(endpoint) => {
                let opener = Opener::new(endpoint, first(&endpoint.credentials))?;
                let transport = opener.open().await;
                self.status.transport = opener.kind_name().to_owned();
                Ok(Wire::Http(transport?))
            }
        }
    }

    /// Finds out how the server is spoken to, as the bridge does: one that does not survive the question is started again.
    async fn shake_hands(&mut self, wire: Wire) -> Result<Arc<Connection>, Failure> {
        match self.open(wire, None).await? {
            Err(error) if error.next().is_some() => {
                let wire = self.start().await?;
                Ok(self.open(wire, error.next()).await??)
            }
            opened => Ok(opened?),
        }
    }

    async fn open(
        &self,
        wire: Wire,
        generation: Option<Generation>,
    ) -> Result<Result<Arc<Connection>, ConnectError>, Failure> {
        let (transport, failure, roots) = match (&wire, &self.spec.transport) {
            (Wire::Stdio(stdio), TransportSpec::Stdio(program)) => ("pipe", stdio.failure(), program.roots.clone()),
            (Wire::Stdio(stdio), TransportSpec::Http(_)) => ("pipe", stdio.failure(), Vec::new()),
            (Wire::Http(http), _) => ("tcp", http.failure(), Vec::new()),
        };
        let server = &self.spec.name;
        let opening = Opening { server, transport, generation, failure, roots, observer: Arc::new(Silent) };
        let opened = async {
            match wire {
                Wire::Stdio(stdio) => Connection::open(stdio, opening).await,
                Wire::Http(http) => Connection::open(http, opening).await,
            }
        };
        timeout(PATIENCE, opened).await.map_err(|_| late("handshake"))
    }

    /// Says how many tools there are, and keeps which.
    fn sort_out(&mut self, listed: Listed) -> String {
        let count = listed.tools.len() + listed.unreadable.len();
        let Definitions { tools, hidden } = definitions(self.spec, None, listed.tools, listed.unreadable);
        self.status.tools = tools.iter().map(|tool| tool.name.to_string()).collect();
        self.status.hidden = hidden;
        let (offered, hidden) = (tools.len(), self.status.hidden.len());
        let left_out = count.saturating_sub(offered + hidden);
        let mut text = format!("{offered} tools, {hidden} hidden, {left_out} not allowed by the configuration");
        if let Some(cut) = listed.cut {
            text = format!("{text}; {cut}");
        }
        text
    }

    fn began_as(&self) -> String {
        self.status.pid.map_or_else(|| format!("transport {}", self.status.transport), |pid| format!("process {pid}"))
    }

    async fn end(mut self, connection: Option<Arc<Connection>>) -> ProbeReport {
        if let Some(connection) = connection {
            connection.close().await;
        }
        if let Some(process) = &self.process {
            process.stop(STOP).await;
            sleep(LAST_WORDS).await;
            self.status.stderr = process.stderr_tail();
        }
        ProbeReport { steps: self.steps, status: self.status }
    }
}

fn late(step: &str) -> Failure {
    Failure::new(format!("the server did not answer the {step} within {} s", PATIENCE.as_secs()))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The credential with which tools are listed.
fn first(credentials: &Credentials) -> Option<Credential> {
    match credentials {
        Credentials::None => None,
        Credentials::Shared(credential) => Some(credential.clone()),
        Credentials::PerAgent(agents) => agents.values().next().cloned(),
    }
}

fn greeting(connection: &Connection) -> String {
    let manner = match connection.generation() {
        Generation::Sessions => "with sessions",
        Generation::Stateless => "without sessions",
    };
    let version = &connection.about().protocol_version;
    match implementation(connection) {
        Some(implementation) => format!("{version} {manner}; {implementation}"),
        None => format!("{version} {manner}"),
    }
}

fn implementation(connection: &Connection) -> Option<String> {
    let about = connection.about();
    let parts: Vec<&str> = [&about.name, &about.version].into_iter().flatten().map(String::as_str).collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// What is known before anything is tried. Phase and error stay so when nothing fails.
fn unknown(spec: &ServerSpec) -> ServerStatus {
    let transport = match &spec.transport {
        TransportSpec::Stdio(_) => "stdio",
        TransportSpec::Http(_) => "http?",
    };
    let origin = match spec.origin {
        Origin::Configuration => "configuration",
        Origin::Registration => "registration",
    };
    ServerStatus {
        name: spec.name.to_string(),
        transport: transport.to_owned(),
        phase: PhaseName::Ready,
        last_error: None,
        protocol_version: None,
        implementation: None,
        tools: Vec::new(),
        hidden: Vec::new(),
        pid: None,
        restarts: 0,
        ready_seconds: None,
        in_flight: 0,
        latency_us: None,
        stderr: Vec::new(),
        origin: origin.to_owned(),
        toolset: None,
        sessions: 0,
    }
}

#[cfg(test)]
mod tests;
