//! The running daemon: whether there is one, its version, and what blocks its readiness.

use axum::http::Method;
use toolbus_mcp_client::status::ServerStatus;

use super::{Finding, PATIENCE, STORE};
use crate::commands::daemon::reason;
use crate::commands::target::{DaemonArgs, Operator, TargetError};
use crate::http::Blocker;
use crate::http::admin::client::{AdminClient, AdminClientError};
use crate::http::admin::view::{DaemonStatus, McpServerList};

const SUBJECT: &str = "daemon";

/// The state of the running daemon, and the findings about it.
#[derive(Default)]
pub(super) struct RunningDaemon {
    pub(super) findings: Vec<Finding>,
    /// MCP servers of the daemon; empty without one.
    pub(super) servers: Vec<ServerStatus>,
    /// Whether its state is lost when it ends.
    pub(super) has_state_in_memory: bool,
}

impl RunningDaemon {
    /// Whether a part of the installation has a finding of the daemon's.
    pub(super) fn has_finding(&self, subject: &str) -> bool {
        self.findings.iter().any(|finding| finding.subject == subject)
    }
}

/// Examines the daemon, if one runs.
///
/// # Errors
///
/// If the options that name a daemon cannot be used.
pub(super) async fn examine(args: &DaemonArgs, operator: &Operator) -> Result<RunningDaemon, TargetError> {
    let only = |finding| Ok(RunningDaemon { findings: vec![finding], ..RunningDaemon::default() });
    let Ok(opened) = tokio::time::timeout(PATIENCE, args.open(operator)).await else {
        let text = format!("it did not answer within {} s", PATIENCE.as_secs());
        return only(Finding::problem(SUBJECT, text).mended_by("its log may tell why; restart it"));
    };
    match opened {
        Ok(client) => Ok(of_daemon(&client).await),
        Err(error @ TargetError::Usage(_)) => Err(error),
        // Its mistakes are separate findings.
        Err(TargetError::Configuration(_)) => Ok(RunningDaemon::default()),
        Err(TargetError::Client(AdminClientError::Unreachable { address, source })) => {
            let text = format!("none runs: on {address}, {source}");
            only(Finding::ok(SUBJECT, text).mended_by("toolbus serve, if one should run"))
        }
        Err(error @ TargetError::NoSocket(_)) => only(Finding::ok(SUBJECT, error.to_string())),
        Err(error) => only(Finding::warning(SUBJECT, error.to_string())),
    }
}

async fn of_daemon(client: &AdminClient) -> RunningDaemon {
    let status = client.send_within::<DaemonStatus>(PATIENCE, Method::GET, "/v1/status").await;
    let servers = client.send_within::<McpServerList>(PATIENCE, Method::GET, "/v1/mcp").await;
    let has_state_in_memory = status.as_ref().is_ok_and(|status| status.state_in_memory);
    let mut findings = match status {
        Ok(status) => of_status(&status),
        Err(error) => vec![Finding::problem(SUBJECT, error.to_string())],
    };
    let servers = servers.map(|list| list.servers).unwrap_or_else(|error| {
        findings.push(Finding::warning(SUBJECT, format!("its MCP servers are not known: {error}")));
        Vec::new()
    });
    RunningDaemon { findings, servers, has_state_in_memory }
}

fn of_status(DaemonStatus { blocked_by, status, .. }: &DaemonStatus) -> Vec<Finding> {
    let version = format!("{} ({})", status.build.version, status.build.commit);
    let version = if version == crate::VERSION {
        Finding::ok(SUBJECT, format!("runs, version {version}"))
    } else {
        Finding::warning(SUBJECT, format!("runs version {version}, and this program is {}", crate::VERSION))
            .mended_by("restart the daemon, or use its own program")
    };
    let blockers = blocked_by.iter().map(|blocker| {
        let reason = reason(blocker);
        if let Blocker::StoreAway { .. } = blocker {
            let mend = "make room where a disk is full, start a server that is away, restart the daemon if its file was \
                        removed: it begins a new one";
            return Finding::problem(STORE, format!("the running daemon takes no calls: {reason}")).mended_by(mend);
        }
        Finding::problem(SUBJECT, format!("takes no calls: {reason}"))
            .mended_by("toolbus status; docs/operations.md, Health, has every reason")
    });
    let reload = status.reload.as_ref().filter(|last| !last.report.applied).map(|last| {
        let why = last.report.error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
        Finding::warning(SUBJECT, format!("runs an older configuration, because the last reload was refused{why}"))
            .mended_by("toolbus check, then toolbus reload")
    });
    let breakers = status.breakers.iter().map(|breaker| {
        let text = format!("{} gets no calls after {} failures in a row", breaker.name, breaker.failures);
        Finding::warning(SUBJECT, text).mended_by("mend what it calls; toolbus breaker list shows the next trial")
    });
    std::iter::once(version).chain(blockers).chain(reload).chain(breakers).collect()
}
