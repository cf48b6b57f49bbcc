//! Addresses that the daemon connects to: the collector of telemetry, and MCP servers, with their programs.

use std::collections::BTreeMap;
use std::io;

use futures_util::future::join_all;
use tokio::net::{TcpStream, lookup_host};
use toolbus_mcp_client::config::placeholder;
use toolbus_mcp_client::process::hindrance;
use toolbus_mcp_client::spec::{ServerName, ServerSpec, TransportSpec};
use toolbus_mcp_client::status::{PhaseName, ServerStatus};
use toolbus_telemetry::ExportTarget;
use url::Url;

use super::{Finding, PATIENCE};
use crate::commands::shell_word;
use crate::config::{Config, Role};

const TELEMETRY: &str = "telemetry";
const SERVERS: &str = "MCP servers";

/// Connects to each endpoint of telemetry.
pub(super) async fn telemetry(targets: &[ExportTarget]) -> Vec<Finding> {
    let endpoints: BTreeMap<&str, &str> =
        targets.iter().map(|target| (target.endpoint.as_str(), target.origin.as_str())).collect();
    join_all(endpoints.into_iter().map(|(endpoint, origin)| collector(endpoint, origin))).await
}

async fn collector(endpoint: &str, origin: &str) -> Finding {
    let connected = async {
        let (host, port) = address(&endpoint.parse().map_err(io::Error::other)?)?;
        TcpStream::connect((host.as_str(), port)).await
    };
    match within(connected).await {
        Ok(_) => Finding::ok(TELEMETRY, format!("the collector at {endpoint} takes connections")),
        Err(error) => {
            let text = format!("no metrics, traces or logs arrive at {endpoint}: {error}");
            Finding::problem(TELEMETRY, text).mended_by(format!("start the collector, or correct {origin}"))
        }
    }
}

/// Examines MCP servers: as the daemon has them, and the others by their programs and addresses.
pub(super) async fn servers(config: &Config, running: &[ServerStatus]) -> Vec<Finding> {
    if !config.roles().contains(&Role::Mcp) {
        return Vec::new();
    }
    let is_running =
        |spec: &ServerSpec| running.iter().any(|it| ServerName::parse(&it.name).is_ok_and(|name| name == spec.name));
    let specs = config.mcp_servers().specs;
    let others = specs.iter().filter(|spec| !spec.is_disabled && !is_running(spec)).map(unstarted);
    let others = join_all(others).await;
    running.iter().filter_map(of_daemon).chain(others.into_iter().flatten()).collect()
}

/// A server as the daemon has it; `None` for a disabled one.
fn of_daemon(server: &ServerStatus) -> Option<Finding> {
    let name = shell_word(&server.name);
    let error = server.last_error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
    let text = format!("`{}` is {}", server.name, server.phase.as_str());
    Some(match server.phase {
        PhaseName::Disabled => return None,
        PhaseName::Ready => Finding::ok(SERVERS, format!("{text}, with {} tools", server.tools.len())),
        PhaseName::Idle | PhaseName::Connecting => Finding::ok(SERVERS, text),
        PhaseName::AuthRequired => Finding::problem(SERVERS, format!("{text}{error}"))
            .mended_by(format!("correct the credentials of the server, then toolbus mcp restart {name}")),
        PhaseName::Waiting | PhaseName::Parked | PhaseName::Stopped => {
            Finding::problem(SERVERS, format!("{text}{error}"))
                .mended_by(format!("toolbus mcp show {name} has its last words; then toolbus mcp restart {name}"))
        }
    })
}

/// A server that no daemon runs; `None` if only a session knows the values of its placeholders.
async fn unstarted(spec: &ServerSpec) -> Option<Finding> {
    if placeholder(spec).is_some() {
        return None;
    }
    let name = shell_word(spec.name.as_str());
    let (found, mend) = match &spec.transport {
        TransportSpec::Stdio(program) => {
            let found = hindrance(program).map_or(Ok("its program exists"), Err);
            (
                found,
                format!("install the program, or correct `command` of the server; toolbus mcp test {name} tries it"),
            )
        }
        TransportSpec::Http(endpoint) => {
            let resolved = async {
                let (host, port) = address(&endpoint.url)?;
                let mut found = lookup_host((host.as_str(), port)).await?;
                found.next().ok_or_else(|| io::Error::other("its host has no address"))
            };
            let found = within(resolved).await.map(|_| "its host has an address").map_err(|error| error.to_string());
            (found, format!("correct `url` of the server; toolbus mcp test {name} tries it"))
        }
    };
    Some(match found {
        Ok(text) => Finding::ok(SERVERS, format!("`{}`: {text}", spec.name)),
        Err(error) => Finding::problem(SERVERS, format!("`{}`: {error}", spec.name)).mended_by(mend),
    })
}

/// Host and port of a URL.
fn address(url: &Url) -> io::Result<(String, u16)> {
    let host = url.host_str().map(|host| host.trim_matches(['[', ']']).to_owned());
    host.zip(url.port_or_known_default()).ok_or_else(|| io::Error::other("the address has no host or port"))
}

/// Gives up after some time.
async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::other(format!("no answer within {} s", PATIENCE.as_secs()));
    tokio::time::timeout(PATIENCE, work).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use toolbus_mcp_client::config::ServerConfig;

    use super::*;
    use crate::commands::doctor::Verdict;
    use crate::http::tests::example;

    #[tokio::test]
    async fn each_collector_is_connected_to_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = format!("http://{}", listener.local_addr().unwrap());
        let target = |signal: &str, endpoint: &str| ExportTarget {
            signal: signal.to_owned(),
            endpoint: endpoint.to_owned(),
            origin: "telemetry.otlp_endpoint".to_owned(),
        };
        let gone = "http://127.0.0.1:1/v1/logs";
        let found = telemetry(&[target("traces", &there), target("metrics", &there), target("logs", gone)]).await;
        let [gone, there] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((there.verdict, gone.verdict), (Verdict::Ok, Verdict::Problem));
        assert!(gone.text.contains("refused") && gone.mend.as_ref().unwrap().contains("telemetry.otlp_endpoint"));
    }

    #[tokio::test]
    async fn servers_are_judged_by_the_daemon_and_others_by_program_and_host() {
        let mut config = Config::default();
        let server = |command: &str| ServerConfig { command: Some(command.to_owned()), ..ServerConfig::default() };
        let at = |url: &str| ServerConfig { url: Some(url.to_owned()), ..ServerConfig::default() };
        let disabled = ServerConfig { disabled: true, ..server("no-such-program") };
        let servers = [
            ("Files", server("no-such-program")),
            ("gone", server("no-such-program")),
            ("off", disabled),
            ("here", at("http://127.0.0.1:1/mcp")),
            ("nowhere", at("http://nowhere.invalid/mcp")),
        ];
        config.mcp.servers = servers.map(|(name, server)| (name.to_owned(), server)).into();
        let parked = ServerStatus {
            name: "parked".to_owned(),
            phase: PhaseName::Parked,
            last_error: Some("it ended with exit code 3".to_owned()),
            ..example("files")
        };
        let found = super::servers(&config, &[example("files"), parked]).await;
        let of = |start: &str| found.iter().find(|it| it.text.starts_with(&format!("`{start}`"))).unwrap();
        assert_eq!(found.len(), 5, "{found:?}");
        assert_eq!((of("files").verdict, of("here").verdict), (Verdict::Ok, Verdict::Ok));
        assert_eq!(of("parked").text, "`parked` is parked: it ended with exit code 3");
        assert!(of("gone").text.contains("'no-such-program' was not found"), "{found:?}");
        for wrong in ["parked", "gone", "nowhere"] {
            assert_eq!(of(wrong).verdict, Verdict::Problem, "{wrong}");
        }
    }
}
