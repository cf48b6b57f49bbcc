//! The life of a server: connect, list, watch, and begin anew when it ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::{Keeping, Listener, Ready, Server, State, backoff};
use crate::dial::{DialError, Link};

/// Longest time from a start to the end of the handshake. Package runners fetch what they run first.
const CONNECT_TIME: Duration = Duration::from_secs(60);
/// A server that has been ready for so long has recovered from whatever was wrong.
const STABLE: Duration = Duration::from_secs(60);
/// Changes of a list that come close together are one.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// Time between two looks at a server that nobody uses.
const PING_PERIOD: Duration = Duration::from_secs(30);
/// Longest wait for a server's answer to a ping.
const PING_TIME: Duration = Duration::from_secs(10);
/// Pings in a row without an answer after which a server is started again.
const MAX_SILENCES: u32 = 2;

/// Why a connection is over.
enum End {
    Stopped,
    Idle,
    Restarted,
    Lost(DialError),
}

pub(super) async fn keep(server: &Server, listener: &dyn Listener) {
    let mut failures = 0;
    loop {
        if matches!(server.keeping, Keeping::WhileUsed(_)) && !wanted(server).await {
            break;
        }
        server.state.send_replace(State::Connecting);
        let (end, lasted) = life(server, listener).await;
        if lasted >= STABLE {
            failures = 0;
        }
        match end {
            End::Stopped => break,
            End::Idle if server.keeping == Keeping::UntilListed => {
                server.state.send_replace(State::Idle);
                failures = 0;
                if !wanted(server).await {
                    break;
                }
            }
            End::Idle | End::Restarted => failures = 0,
            End::Lost(error) => {
                failures += 1;
                if !failed(server, error, failures, lasted > Duration::ZERO).await {
                    break;
                }
            }
        }
    }
    server.state.send_replace(State::Stopped);
}

/// Waits until somebody wants the server; false when it is stopped first.
async fn wanted(server: &Server) -> bool {
    server.state.send_replace(State::Idle);
    tokio::select! {
        biased;
        () = server.stop.cancelled() => false,
        () = server.wanted.notified() => true,
        () = server.restart.notified() => true,
    }
}

/// Says what went wrong, and waits until the server is tried again; false when it is stopped first.
async fn failed(server: &Server, error: DialError, failures: u32, was_ready: bool) -> bool {
    let wait = backoff::after(failures, server.dialer.is_process());
    let (name, retry_ms) = (&**server.name.as_str(), u64::try_from(wait.time.as_millis()).unwrap_or(u64::MAX));
    if was_ready {
        server.restarts.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(server = name, error = error.text, retry_ms, "an MCP server ended");
    } else {
        tracing::warn!(server = name, error = error.text, failures, retry_ms, "an MCP server cannot be connected to");
    }
    if wait.is_parked {
        tracing::error!(server = name, failures, retry_ms, "an MCP server fails again and again: parked");
    }
    let state = match (error.needs_credentials, wait.is_parked) {
        (true, _) => State::AuthRequired,
        (false, true) => State::Parked,
        (false, false) => State::Waiting,
    };
    server.remember_error(&error.text, error.stderr);
    server.state.send_replace(state);
    tokio::select! {
        biased;
        () = server.stop.cancelled() => false,
        () = server.restart.notified() => true,
        () = server.wanted.notified() => true,
        () = sleep(wait.time) => true,
    }
}

/// One life of a server. Tells how long it was ready.
async fn life(server: &Server, listener: &dyn Listener) -> (End, Duration) {
    let connecting = timeout(CONNECT_TIME, server.dialer.dial());
    let dialled = tokio::select! {
        biased;
        () = server.stop.cancelled() => return (End::Stopped, Duration::ZERO),
        dialled = connecting => dialled.unwrap_or_else(|_| {
            let seconds = CONNECT_TIME.as_secs();
            Err(DialError::new(format!("the server did not finish its handshake within {seconds} s")))
        }),
    };
    let link = match dialled {
        Ok(link) => link,
        Err(error) => return (End::Lost(error), Duration::ZERO),
    };
    let listed = tokio::select! {
        biased;
        () = server.stop.cancelled() => {
            link.close().await;
            return (End::Stopped, Duration::ZERO);
        }
        listed = list(server, listener, &link) => listed,
    };
    if let Err(error) = listed {
        link.close().await;
        return (End::Lost(DialError { stderr: link.stderr(), ..error }), Duration::ZERO);
    }
    if server.keeping == Keeping::UntilListed {
        link.close().await;
        return (End::Idle, Duration::ZERO);
    }
    let ready = Arc::new(Ready { link, since: Instant::now() });
    tracing::info!(
        server = &**server.name.as_str(),
        transport = server.dialer.transport_name(),
        protocol_version = ready.link.connection.about().protocol_version,
        "an MCP server is ready"
    );
    server.state.send_replace(State::Ready(Arc::clone(&ready)));
    let end = watch(server, listener, &ready.link).await;
    // No further call takes the connection; those that have it end with it.
    server.state.send_replace(State::Connecting);
    let end = match end {
        End::Lost(error) => End::Lost(DialError { stderr: ready.link.stderr(), ..error }),
        other => other,
    };
    ready.link.close().await;
    (end, ready.since.elapsed().max(Duration::from_nanos(1)))
}

async fn list(server: &Server, listener: &dyn Listener, link: &Link) -> Result<(), DialError> {
    let listed = link.connection.list_tools().await?;
    if let Some(cut) = &listed.cut {
        tracing::warn!(server = &**server.name.as_str(), reason = cut, "an MCP server lists more than is taken");
    }
    listener.listed(link.connection.about(), listed).await;
    Ok(())
}

/// Follows a server that is ready until that is over.
async fn watch(server: &Server, listener: &dyn Listener, link: &Link) -> End {
    let connection = &link.connection;
    let mut changes = connection.list_changes();
    let mut silences = 0;
    let period = match server.keeping {
        Keeping::WhileUsed(idle) => idle.min(PING_PERIOD),
        Keeping::Always | Keeping::UntilListed => PING_PERIOD,
    };
    loop {
        let is_changed = tokio::select! {
            biased;
            () = server.stop.cancelled() => return End::Stopped,
            () = server.restart.notified() => return End::Restarted,
            reason = connection.closed() => return End::Lost(DialError::new(reason)),
            () = server.relist.notified() => true,
            changed = changes.changed() => changed.is_ok(),
            () = sleep(period) => false,
        };
        if is_changed {
            sleep(DEBOUNCE).await;
            changes.mark_unchanged();
            if let Err(error) = list(server, listener, link).await {
                let (server, error) = (&**server.name.as_str(), error.text);
                tracing::warn!(server, error, "an MCP server did not list its tools again; the last list stays");
            }
            continue;
        }
        // A server that is busy may answer no ping, and is well.
        if connection.in_flight() > 0 {
            continue;
        }
        if let Keeping::WhileUsed(idle) = server.keeping
            && server.idle_since().elapsed() >= idle
        {
            return End::Idle;
        }
        silences = match timeout(PING_TIME, connection.ping()).await {
            Ok(Ok(_)) => 0,
            _ if connection.in_flight() > 0 => silences,
            _ => silences + 1,
        };
        if silences >= MAX_SILENCES {
            return End::Lost(DialError::new(format!("the server did not answer {silences} pings")));
        }
    }
}
