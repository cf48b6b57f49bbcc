//! One server without the daemon: [`probe`] tries it step by step, [`Direct`] calls it for measurements.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::events::{Discard, McpClientEvents};
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{ToolCall, ToolOutput};
use toolbus_trust::scan::Scanner;

use crate::client::{Connection, ServerInfo, ServerListing, SessionMode};
use crate::process::Launcher;
use crate::servers::definition::{Definitions, definitions};
use crate::servers::findings::Findings;
use crate::spec::ServerSpec;
use crate::status::{PhaseName, ProbeReport, ProbeStep, ServerStatus};
use crate::supervise::connect::{ConnectError, Connected, Connector, STOP_TIME};

/// Timeout of connecting, the same as in the daemon.
const CONNECT_TIME: Duration = Duration::from_secs(60);
/// Longest wait for the response to a ping.
const PING_TIME: Duration = Duration::from_secs(30);

/// Starts or connects the server, lists its tools, pings it, and ends it again.
pub async fn probe(spec: &ServerSpec, launcher: &Launcher, scanner: &Scanner) -> ProbeReport {
    // The phase if no step fails.
    let status = ServerStatus::untried(spec, PhaseName::Ready);
    let mut probe = ProbeRun { spec, scanner, clock: launcher.clock(), steps: Vec::new(), status };
    if let Some(connected) = probe.connect(launcher).await {
        probe.look(&connected.connection).await;
        connected.close(STOP_TIME).await;
        // What it wrote at its end counts, too.
        probe.status.stderr = connected.stderr();
    }
    ProbeReport { steps: probe.steps, status: probe.status }
}

struct ProbeRun<'a> {
    spec: &'a ServerSpec,
    scanner: &'a Scanner,
    clock: Clock,
    steps: Vec<ProbeStep>,
    status: ServerStatus,
}

impl ProbeRun<'_> {
    async fn connect(&mut self, launcher: &Launcher) -> Option<Connected> {
        let observer: Arc<dyn McpClientEvents> = Arc::new(Discard);
        let connector = Connector::new(self.spec, None, launcher, &observer);
        let began = self.clock.now();
        let connected = connector.connect(CONNECT_TIME, &CancellationToken::new(), &tracing::Span::none()).await;
        connector.transport_name().clone_into(&mut self.status.transport);
        let connected =
            self.note("connect", began, connected.map(|connected| (greeting(&connected.connection), connected)))?;
        self.status.pid = connected.pid();
        self.status.protocol_version = Some(connected.connection.server_info().protocol_version.clone());
        self.status.implementation = implementation(&connected.connection);
        Some(connected)
    }

    async fn look(&mut self, connection: &Connection) {
        let began = self.clock.now();
        let listed = connection.list_tools().await.map_err(ConnectError::from);
        let listed = listed.map(|listed| (self.sort_out(connection.server_info(), listed), ()));
        if self.note("list", began, listed).is_some() {
            let began = self.clock.now();
            let late =
                |_| ConnectError::new(format!("the server did not answer the ping within {} s", PING_TIME.as_secs()));
            let response = timeout(PING_TIME, connection.ping()).await.map_err(late);
            let response = response.and_then(|response| response.map_err(ConnectError::from));
            self.status.latency_us = response.as_ref().ok().map(|latency| micros(*latency));
            self.note("ping", began, response.map(|_| ("answered".to_owned(), ())));
        }
    }

    /// Takes down what came of a step, and since when it went on.
    fn note<T>(&mut self, name: &str, began: Instant, outcome: Result<(String, T), ConnectError>) -> Option<T> {
        let duration_us = micros(self.clock.since(began));
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

    /// Returns the number of tools as text, and keeps their names.
    fn sort_out(&mut self, about: &ServerInfo, listed: ServerListing) -> String {
        let count = listed.tools.len() + listed.unreadable.len();
        let definitions = definitions(self.spec, None, listed.tools, listed.unreadable, self.scanner, self.clock);
        Findings::new(about, &definitions, self.scanner).report(&mut self.status);
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

/// Longest time until the server takes calls.
const START_TIME: Duration = Duration::from_secs(60);

/// A server over the same transport and connection as in the daemon, without registry and dispatcher.
pub struct Direct(Connected);

/// Reason why a server cannot be called. The text is for an operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DirectError(String);

impl Direct {
    /// Starts or connects the server, within 60 s.
    ///
    /// # Errors
    ///
    /// If the server cannot be started or reached, or the handshake fails.
    pub async fn start(spec: &ServerSpec, launcher: &Launcher) -> Result<Self, DirectError> {
        let observer: Arc<dyn McpClientEvents> = Arc::new(Discard);
        let connected = Connector::new(spec, None, launcher, &observer)
            .connect(START_TIME, &CancellationToken::new(), &tracing::Span::none())
            .await;
        Ok(Self(connected.map_err(|error| DirectError(error.text))?))
    }

    /// Calls a tool by its own name.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached, or the call failed, was cancelled or timed out.
    pub async fn call(&self, tool: &str, call: &ToolCall) -> Result<ToolOutput, ToolFailure> {
        self.0.connection.call(tool, call).await.map_err(|error| error.failure)
    }

    /// The process id of the server's supervisor, if it is a child process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.0.pid()
    }

    /// Ends the server in order.
    pub async fn stop(self) {
        self.0.close(STOP_TIME).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Map, Value};
    use toolbus_testing::patience::eventually;

    use super::*;
    use crate::spec::{Credentials, HttpKind, HttpSpec, ToolFilter, TransportSpec};
    use crate::testing;

    /// Has sessions and three tools, one of them with a schema that cannot be used.
    const GOOD: &str = r#"
import json, sys
def tool(name, schema):
    return {"name": name, "description": "", "inputSchema": schema}
tools = [tool("add", {"type": "object"}), tool("secret", {"type": "object"}), tool("odd", {"type": "string"})]
print("listening", file=sys.stderr, flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    response = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] == "initialize":
        response["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "sums", "version": "7"}}
    elif request["method"] == "tools/list":
        response["result"] = {"tools": tools}
    elif request["method"] == "ping":
        response["result"] = {}
    else:
        response["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(response), flush=True)
"#;
    /// Exits on an unknown request.
    const FRAGILE: &str = r#"
line = sys.stdin.readline()
if "server/discover" in line:
    sys.exit(9)
class First:
    def __iter__(self):
        yield line
        yield from iter(sys.__stdin__.readline, "")
sys.stdin = First()
"#;

    fn spec(transport: TransportSpec) -> ServerSpec {
        ServerSpec {
            tools: ToolFilter::new(Vec::new(), vec!["secret".to_owned()]),
            ..ServerSpec::of_tests("sums", transport)
        }
    }

    fn python(script: &str) -> ServerSpec {
        spec(TransportSpec::Stdio(testing::program("python3", &["-c", &format!("import sys\n{script}")])))
    }

    async fn tried(spec: &ServerSpec) -> ProbeReport {
        probe(spec, &Launcher::of_tests(Duration::from_secs(1)), &Scanner::new().unwrap()).await
    }

    fn steps(report: &ProbeReport) -> Vec<(&str, bool, &str)> {
        report.steps.iter().map(|step| (step.name.as_str(), step.passed, step.text.as_str())).collect()
    }

    #[tokio::test]
    async fn each_step_of_a_good_server_is_reported_and_the_server_is_gone_afterwards() {
        let report = tried(&python(GOOD)).await;
        let pid = report.status.pid.unwrap();
        assert_eq!(
            steps(&report),
            [
                ("connect", true, "2025-06-18 with sessions; sums 7"),
                ("list", true, "1 tools, 1 hidden, 1 not allowed by the configuration"),
                ("ping", true, "answered"),
            ]
        );
        assert!(report.passed());
        let process = std::path::PathBuf::from(format!("/proc/{pid}"));
        eventually("the end of the server", async || (!process.exists()).then_some(())).await;
        let status = report.status;
        assert_eq!(
            (status.phase, &*status.tools, status.last_error),
            (PhaseName::Ready, &["add".to_owned()][..], None)
        );
        assert_eq!(status.hidden[0].name, "odd");
        assert_eq!(status.stderr, ["listening"]);
    }

    #[tokio::test]
    async fn a_server_that_exits_on_the_probe_is_connected_to_without_it() {
        let report = tried(&python(&format!("{FRAGILE}{}", GOOD.replace("import json, sys", "import json")))).await;
        assert!(report.passed(), "{report:?}");
        assert_eq!(report.steps.len(), 3);
    }

    #[tokio::test]
    async fn a_server_that_ends_at_once_is_reported_with_its_standard_error() {
        let report = tried(&python("print('no such database', file=sys.stderr); sys.exit(3)")).await;
        let steps = steps(&report);
        assert_eq!((steps.len(), steps[0].0, steps[0].1), (1, "connect", false));
        assert!(steps[0].2.contains("exit code 3"), "{}", steps[0].2);
        assert_eq!((report.passed(), report.status.phase), (false, PhaseName::Stopped));
        assert_eq!(report.status.stderr, ["no such database"]);
        assert_eq!(report.status.last_error.as_deref(), Some(steps[0].2));
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_fails_at_the_start() {
        let mut missing = python("");
        if let TransportSpec::Stdio(program) = &mut missing.transport {
            program.command = "no-such-program".to_owned();
        }
        let report = tried(&missing).await;
        assert_eq!(
            steps(&report),
            [("connect", false, "program 'no-such-program' was not found; give its full path, or check PATH")]
        );
    }

    #[tokio::test]
    async fn an_unreachable_url_is_reported() {
        // Installed by the daemon's `main`; a second installation is refused, and does no harm.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
        drop(listener);
        let (kind, headers, credentials) = (HttpKind::Detect, BTreeMap::new(), Credentials::None);
        let report = tried(&spec(TransportSpec::Http(HttpSpec { url, kind, headers, credentials }))).await;
        assert_eq!((report.steps.len(), report.passed(), &*report.status.transport), (1, false, "http?"));
    }

    /// Responds to every call with the given text.
    const ECHO: &str = r#"
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request.get("method") == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "e", "version": "1"}}
    else:
        result = {"content": [{"type": "text", "text": request.get("params", {}).get("arguments", {}).get("text", "")}]}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"#;

    async fn start(script: &str) -> Result<Direct, DirectError> {
        let transport = TransportSpec::Stdio(testing::program("python3", &["-c", script]));
        Direct::start(&ServerSpec::of_tests("echo", transport), &Launcher::of_tests(Duration::from_secs(1))).await
    }

    #[tokio::test]
    async fn a_call_has_its_result_and_nothing_is_left_of_the_server() {
        let direct = start(ECHO).await.unwrap();
        let arguments: Map<String, Value> = [("text".to_owned(), Value::from("hi"))].into_iter().collect();
        let call = ToolCall { arguments: Arc::new(arguments), ..testing::call("echo") };
        assert_eq!(direct.call("echo", &call).await.unwrap(), ToolOutput::text("hi"));
        let pid = direct.pid().unwrap();
        direct.stop().await;
        let process = std::path::PathBuf::from(format!("/proc/{pid}"));
        eventually("the end of the server", async || (!process.exists()).then_some(())).await;
    }

    #[tokio::test]
    async fn a_server_that_does_not_shake_hands_is_an_error() {
        let error = start("import sys; sys.exit(3)").await.err().unwrap().to_string();
        assert!(error.contains("exit code 3"), "{error}");
    }
}
