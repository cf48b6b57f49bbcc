//! Tries one server, step by step, apart from those that run.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use toolbus_trust::scan::Scanner;

use crate::client::{Connection, Listed, ServerInfo, SessionMode};
use crate::events::{Discard, Observer};
use crate::process::Launcher;
use crate::servers::definition::{Definitions, definitions};
use crate::servers::findings::Findings;
use crate::spec::ServerSpec;
use crate::status::{PhaseName, ProbeReport, ProbeStep, ServerStatus};
use crate::supervise::connect::{ConnectError, Connected, Connector, STOP_TIME};

/// Longest time until a server is connected: as long as the bridge waits.
const CONNECT_TIME: Duration = Duration::from_secs(60);
/// Longest wait for the answer to a ping.
const PING_TIME: Duration = Duration::from_secs(30);

/// Starts or connects the server, lists its tools, pings it, and ends it again.
pub async fn probe(spec: &ServerSpec, launcher: &Launcher, scanner: &Scanner) -> ProbeReport {
    // The phase stays so when nothing fails.
    let status = ServerStatus::untried(spec, PhaseName::Ready);
    let mut probe = Probe { spec, scanner, steps: Vec::new(), status };
    if let Some(connected) = probe.connect(launcher).await {
        probe.look(&connected.connection).await;
        connected.close(STOP_TIME).await;
        // What it wrote at its end counts, too.
        probe.status.stderr = connected.stderr();
    }
    ProbeReport { steps: probe.steps, status: probe.status }
}

struct Probe<'a> {
    spec: &'a ServerSpec,
    scanner: &'a Scanner,
    steps: Vec<ProbeStep>,
    status: ServerStatus,
}

impl Probe<'_> {
    async fn connect(&mut self, launcher: &Launcher) -> Option<Connected> {
        let observer: Arc<dyn Observer> = Arc::new(Discard);
        let connector = Connector::new(self.spec, None, launcher, &observer);
        let began = Instant::now();
        let connected = connector.connect(CONNECT_TIME, &CancellationToken::new()).await;
        connector.transport_name().clone_into(&mut self.status.transport);
        let connected =
            self.note("connect", began, connected.map(|connected| (greeting(&connected.connection), connected)))?;
        self.status.pid = connected.pid();
        self.status.protocol_version = Some(connected.connection.server_info().protocol_version.clone());
        self.status.implementation = implementation(&connected.connection);
        Some(connected)
    }

    async fn look(&mut self, connection: &Connection) {
        let began = Instant::now();
        let listed = connection.list_tools().await.map_err(ConnectError::from);
        let listed = listed.map(|listed| (self.sort_out(connection.server_info(), listed), ()));
        if self.note("list", began, listed).is_some() {
            let began = Instant::now();
            let late =
                |_| ConnectError::new(format!("the server did not answer the ping within {} s", PING_TIME.as_secs()));
            let answer = timeout(PING_TIME, connection.ping()).await.map_err(late);
            let answer = answer.and_then(|answer| answer.map_err(ConnectError::from));
            self.status.latency_us = answer.as_ref().ok().map(|latency| micros(*latency));
            self.note("ping", began, answer.map(|_| ("answered".to_owned(), ())));
        }
    }

    /// Takes down what came of a step, and since when it went on.
    fn note<T>(&mut self, name: &str, began: Instant, outcome: Result<(String, T), ConnectError>) -> Option<T> {
        let duration_us = micros(began.elapsed());
        let (passed, text, value) = match outcome {
            Ok((text, value)) => (true, text, Some(value)),
            Err(ConnectError { text, needs_credentials, stderr, .. }) => {
                self.status.phase = if needs_credentials { PhaseName::AuthRequired } else { PhaseName::Stopped };
                self.status.last_error = Some(text.clone());
                self.status.stderr = stderr;
                (false, text, None)
            }
        };
        self.steps.push(ProbeStep { name: name.to_owned(), duration_us, passed, text });
        value
    }

    /// Says how many tools there are, and keeps which.
    fn sort_out(&mut self, about: &ServerInfo, listed: Listed) -> String {
        let count = listed.tools.len() + listed.unreadable.len();
        let definitions = definitions(self.spec, None, listed.tools, listed.unreadable, self.scanner);
        Findings::new(about, &definitions, self.scanner).tell(&mut self.status);
        let Definitions { tools, hidden, .. } = definitions;
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
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn greeting(connection: &Connection) -> String {
    let manner = match connection.session_mode() {
        SessionMode::Sessions => "with sessions",
        SessionMode::Stateless => "without sessions",
    };
    let version = &connection.server_info().protocol_version;
    match implementation(connection) {
        Some(implementation) => format!("{version} {manner}; {implementation}"),
        None => format!("{version} {manner}"),
    }
}

fn implementation(connection: &Connection) -> Option<String> {
    let about = connection.server_info();
    let parts: Vec<&str> = [&about.name, &about.version].into_iter().flatten().map(String::as_str).collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}
