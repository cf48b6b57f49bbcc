//! The supervision loop of a server: connect, list, watch, and start again when it ends.
//!
//! There is one process of a server at a time: the next one is started when the last one is gone. A failed server gets
//! half a second to end, so that the next start is not delayed for long.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{sleep, sleep_until, timeout_at};
use toolbus_core::{lifecycle, milliseconds};
use toolbus_protocol::Random;
use tracing::field::Empty;
use tracing::{Instrument as _, Span, info_span};

use super::connect::{ConnectError, Connected, LOST_TIME, STOP_TIME};
use super::{Lifetime, Listener, Ready, ServerState, SupervisedServer, Timeouts};
use crate::client::Connection;

/// Pings in a row without a response after which a server is started again.
const MAX_SILENCES: u32 = 2;
/// Attempts to start a parked server for its calls take one part in so many of the time: a hanging server must not keep
/// its callers waiting all the time.
const RETRY_SHARE: u32 = 10;
/// Listing a server whose list takes long and changes often takes one part in so many of the time.
const LISTING_SHARE: u32 = 10;
/// Longest pause between two listings.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Reason why a connection has ended.
enum LifeEnd {
    Stopped,
    /// The server had no call for its idle time.
    Idle,
    Restarted,
    Lost(ConnectError),
}

/// One run of a server, from its start to its end.
struct Life {
    end: LifeEnd,
    /// Time for which the server was ready; `None` if it never was.
    ready: Option<Duration>,
}

pub(super) async fn keep(server: &SupervisedServer, listener: &dyn Listener) {
    let mut failures = 0;
    let mut is_due = !matches!(server.lifetime, Lifetime::WhileUsed(_));
    loop {
        if !is_due && !wanted(server).await {
            break;
        }
        server.begin();
        let Life { end, ready } = life(server, listener, failures + 1).await;
        if ready.is_some_and(|lasted| lasted >= server.timeouts.stable) {
            failures = 0;
        }
        match end {
            LifeEnd::Stopped => break,
            LifeEnd::Idle => (failures, is_due) = (0, false),
            LifeEnd::Restarted => (failures, is_due) = (0, true),
            LifeEnd::Lost(error) if server.lifetime == Lifetime::Once => {
                let name = &**server.name.as_str();
                tracing::warn!(
                    server = name,
                    error = error.text,
                    "the MCP server of a session ended, or did not start"
                );
                server.remember_error(&error.text, error.stderr);
                break;
            }
            LifeEnd::Lost(error) => {
                failures += 1;
                // The next call starts a server that is started by calls.
                is_due = !matches!(server.lifetime, Lifetime::WhileUsed(_));
                match failed(server, error, failures, ready.is_some()).await {
                    Next::Stopped => break,
                    Next::Restarted => (failures, is_due) = (0, true),
                    Next::Due => {}
                }
            }
        }
    }
    server.state.send_replace(ServerState::Stopped);
}

/// Waits for a call or a restart. Returns `false` if the server is stopped first.
async fn wanted(server: &SupervisedServer) -> bool {
    server.state.send_replace(ServerState::Idle);
    tokio::select! {
        biased;
        () = server.stop.cancelled() => false,
        () = server.wanted.notified() => true,
        () = server.restart.notified() => true,
    }
}

/// Next step after a failure.
enum Next {
    Stopped,
    Restarted,
    Due,
}

/// Logs the failure, and waits until the server is tried again.
async fn failed(server: &SupervisedServer, error: ConnectError, failures: u32, was_ready: bool) -> Next {
    let Timeouts { parked, random, .. } = server.timeouts;
    let wait = after(failures, server.connector.is_process(), parked, random);
    let (name, retry_ms) = (&**server.name.as_str(), milliseconds(wait.time));
    if was_ready {
        server.restarts.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(server = name, error = error.text, retry_ms, "an MCP server ended");
    } else {
        tracing::warn!(server = name, error = error.text, failures, retry_ms, "an MCP server cannot be connected to");
    }
    let took = if was_ready { Duration::ZERO } else { server.clock.since(server.tried()) };
    let state = match (error.needs_credentials, wait.is_parked) {
        (true, _) => ServerState::AuthRequired,
        (false, true) => {
            ServerState::Parked { due: server.clock.now() + server.timeouts.retry.max(took * RETRY_SHARE) }
        }
        (false, false) => ServerState::Waiting,
    };
    if matches!(state, ServerState::Parked { .. }) && failures == PARKED_AFTER {
        tracing::error!(server = name, failures, retry_ms, "an MCP server failed too often: parked");
    }
    server.remember_error(&error.text, error.stderr);
    server.state.send_replace(state);
    tokio::select! {
        biased;
        () = server.stop.cancelled() => Next::Stopped,
        () = server.restart.notified() => Next::Restarted,
        () = server.wanted.notified() => Next::Due,
        () = sleep(wait.time) => Next::Due,
    }
}

async fn life(server: &SupervisedServer, listener: &dyn Listener, attempt: u32) -> Life {
    let connected = match connected(server, listener, attempt).await {
        Ok(connected) => connected,
        Err(end) => return Life { end, ready: None },
    };
    if server.lifetime == Lifetime::UntilListed {
        connected.close(STOP_TIME).await;
        return Life { end: LifeEnd::Idle, ready: None };
    }
    let ready = Arc::new(Ready { connected, since: server.clock.now() });
    tracing::info!(
        server = &**server.name.as_str(),
        transport = server.connector.transport_name(),
        protocol_version = ready.connected.connection.server_info().protocol_version,
        "an MCP server is ready"
    );
    server.active_calls.note();
    let end = loop {
        server.state.send_replace(ServerState::Ready(Arc::clone(&ready)));
        let end = watch(server, listener, &ready.connected).await;
        // No further call takes the connection; those that have it end with it.
        server.state.send_replace(ServerState::Connecting);
        if !matches!(end, LifeEnd::Idle) || server.active_calls.count() == 0 {
            break end;
        }
    };
    let lasted = server.clock.since(ready.since);
    let end = match end {
        LifeEnd::Lost(error) => {
            ready.connected.close(LOST_TIME).await;
            LifeEnd::Lost(ConnectError { stderr: ready.connected.stderr(), ..error })
        }
        other => {
            ready.connected.close(STOP_TIME).await;
            other
        }
    };
    Life { end, ready: Some(lasted) }
}

/// Connects and lists the tools. On failure or cancellation the process has ended when this returns.
async fn connected(server: &SupervisedServer, listener: &dyn Listener, attempt: u32) -> Result<Connected, LifeEnd> {
    let given_up = server.stop.child_token();
    let span = info_span!(
        target: lifecycle::TARGET,
        "mcp start",
        toolbus.mcp.server = &**server.name.as_str(),
        attempt = i64::from(attempt),
        otel.status_description = Empty
    );
    let mut connecting = pin!(async {
        let connected = server.connector.connect(server.timeouts.connect, &given_up, &span).await?;
        let listed = tokio::select! {
            biased;
            () = given_up.cancelled() => Err(ConnectError::new("given up")),
            listed = first_list(server, listener, &connected, &span) => listed,
        };
        match listed {
            Ok(()) => Ok(connected),
            Err(error) => {
                connected.close(LOST_TIME).await;
                Err(ConnectError { stderr: connected.stderr(), ..error })
            }
        }
    });
    let connected = tokio::select! {
        biased;
        () = server.restart.notified() => {
            given_up.cancel();
            if let Ok(connected) = connecting.await {
                connected.close(STOP_TIME).await;
            }
            lifecycle::fail(&span, "restarted");
            return Err(LifeEnd::Restarted);
        }
        connected = &mut connecting => connected,
    };
    if let Err(error) = &connected {
        lifecycle::fail(&span, &error.text);
    }
    connected.map_err(|error| if server.stop.is_cancelled() { LifeEnd::Stopped } else { LifeEnd::Lost(error) })
}

/// Lists the tools, unless a later listing replaces them, within a lifecycle span.
async fn first_list(
    server: &SupervisedServer,
    listener: &dyn Listener,
    connected: &Connected,
    start: &Span,
) -> Result<(), ConnectError> {
    if server.lifetime == Lifetime::Once {
        return Ok(());
    }
    let span = info_span!(
        target: lifecycle::TARGET,
        parent: start,
        "mcp list",
        toolbus.mcp.tools = Empty,
        otel.status_description = Empty
    );
    let listed = list(server, listener, connected).instrument(span.clone()).await;
    match listed {
        Ok(tools) => drop(span.record("toolbus.mcp.tools", lifecycle::count(tools))),
        Err(error) => {
            lifecycle::fail(&span, &error.text);
            return Err(error);
        }
    }
    Ok(())
}

/// Lists the tools, and returns their number.
async fn list(
    server: &SupervisedServer,
    listener: &dyn Listener,
    connected: &Connected,
) -> Result<usize, ConnectError> {
    if server.lifetime == Lifetime::Once {
        return Ok(0);
    }
    let listed = connected.connection.list_tools().await?;
    let count = listed.tools.len();
    if let Some(cut) = &listed.cut {
        tracing::warn!(server = &**server.name.as_str(), reason = cut, "an MCP server lists more than is taken");
    }
    listener.listed(connected.connection.server_info(), listed).await;
    Ok(count)
}

/// Watches a ready server until it ends. No slow response of the server delays the end.
async fn watch(server: &SupervisedServer, listener: &dyn Listener, connected: &Connected) -> LifeEnd {
    let connection = &connected.connection;
    tokio::select! {
        biased;
        () = server.stop.cancelled() => LifeEnd::Stopped,
        () = server.restart.notified() => LifeEnd::Restarted,
        reason = connection.closed() => LifeEnd::Lost(ConnectError::new(reason)),
        () = unused(server) => LifeEnd::Idle,
        error = silent(server, connection) => LifeEnd::Lost(error),
        never = follow(server, listener, connected) => match never {},
    }
}

/// Returns when the server has been idle for the time of [`Lifetime::WhileUsed`]; never for another lifetime.
async fn unused(server: &SupervisedServer) {
    let Lifetime::WhileUsed(idle) = server.lifetime else { return std::future::pending().await };
    loop {
        let since = server.active_calls.idle_since();
        if server.active_calls.count() == 0 && server.clock.since(since) >= idle {
            return;
        }
        sleep_until((since + idle).max(server.clock.now() + idle / 10).into()).await;
    }
}

/// Returns when the server has left [`MAX_SILENCES`] pings in a row without a response.
async fn silent(server: &SupervisedServer, connection: &Connection) -> ConnectError {
    let mut silences = 0;
    while silences < MAX_SILENCES {
        if silences == 0 {
            sleep(server.timeouts.ping_period).await;
        }
        // A busy server may leave pings without a response.
        if connection.is_busy() {
            silences = 0;
            continue;
        }
        let until = server.clock.now() + server.timeouts.ping_time;
        silences = match timeout_at(until.into(), connection.ping()).await {
            Ok(Ok(_)) => 0,
            _ if connection.is_busy() => silences,
            _ => silences + 1,
        };
        if silences > 0 {
            // A ping that fails at once, as it may over HTTP, is given its time as well.
            sleep_until(until.into()).await;
        }
    }
    ConnectError::new(format!("the server did not answer {silences} pings"))
}

/// Lists the tools again on each change notification and each request to relist.
async fn follow(server: &SupervisedServer, listener: &dyn Listener, connected: &Connected) -> Infallible {
    let mut changes = connected.connection.list_changes();
    loop {
        tokio::select! {
            () = server.relist.notified() => {}
            // The sender is the connection's, so there is always a next one to wait for.
            _ = changes.changed() => {}
        }
        sleep(server.timeouts.debounce).await;
        changes.mark_unchanged();
        let began = server.clock.now();
        if let Err(error) = list(server, listener, connected).await {
            let (server, error) = (&**server.name.as_str(), error.text);
            tracing::warn!(server, error, "an MCP server did not list its tools again; the last list stays");
        }
        sleep((server.clock.since(began) * (LISTING_SHARE - 1)).min(MAX_PAUSE)).await;
    }
}

/// Failures in a row after which a server is parked.
pub(super) const PARKED_AFTER: u32 = 6;
/// Longest wait before a remote server is tried again: connecting to it costs little.
const LONGEST: Duration = Duration::from_secs(30);
/// Wait after the first failure.
const FIRST: Duration = Duration::from_millis(100);
/// Factor between consecutive waits.
const FACTOR: u32 = 4;

/// Wait after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) time: Duration,
    /// Whether the server is parked.
    pub(super) is_parked: bool,
}

/// The wait after this many failures in a row, at least 1. A parked process waits for `parked`.
pub(super) fn after(failures: u32, is_process: bool, parked: Duration, random: Random) -> Wait {
    let is_parked = failures >= PARKED_AFTER;
    let time = match (is_parked, is_process) {
        (true, true) => parked,
        (true, false) => LONGEST,
        (false, _) => FIRST.saturating_mul(FACTOR.saturating_pow(failures.saturating_sub(1))).min(LONGEST),
    };
    // Servers that ended together do not start together.
    Wait { time: time + random.below(time / 2), is_parked }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARKED: Duration = Duration::from_secs(300);

    #[test]
    fn a_single_failure_costs_less_than_a_fifth_of_a_second() {
        for _ in 0..100 {
            let wait = after(1, true, PARKED, Random::SYSTEM);
            assert!(!wait.is_parked && wait.time >= FIRST && wait.time < FIRST * 2, "{wait:?}");
        }
    }

    #[test]
    fn servers_that_end_together_do_not_start_together() {
        let waits: std::collections::HashSet<_> =
            (0..100).map(|_| after(1, true, PARKED, Random::SYSTEM).time).collect();
        assert!(waits.len() > 20, "{waits:?}");
    }

    #[test]
    fn waits_grow_until_a_process_is_parked_and_a_remote_server_is_tried_twice_a_minute() {
        let seconds = |is_process| {
            (1..9)
                .map(|failures| after(failures, is_process, PARKED, Random::SYSTEM).time.as_secs())
                .collect::<Vec<_>>()
        };
        let (process, remote) = (seconds(true), seconds(false));
        assert!(
            process[..6].is_sorted() && process[4] < 46 && process[5..].iter().all(|seconds| *seconds >= 300),
            "{process:?}"
        );
        assert!(remote.iter().all(|seconds| *seconds <= 45), "{remote:?}");
        assert!(
            after(6, true, PARKED, Random::SYSTEM).is_parked
                && after(6, false, PARKED, Random::SYSTEM).is_parked
                && !after(5, true, PARKED, Random::SYSTEM).is_parked
        );
    }
}
