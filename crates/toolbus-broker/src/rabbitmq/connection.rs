//! Keeps one connection open: connects, watches, and connects again with back-off.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::StreamExt;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::uri::AMQPUri;
use lapin::{BasicProperties, Connection, ConnectionProperties, Event};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolbus_bus::lifecycle;
use toolbus_protocol::bounded;
use tracing::field::Empty;
use tracing::{Span, debug, error, info, warn};

use super::cause::{self, ACCESS_REFUSED};
use super::settings::{Checked, host_of};
use super::state::{ConnectionKind, StateTracker};
use super::topology::{self, TopologyError};

/// Longest time for name, TCP, TLS and login together.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Longest wait for the broker's response to an orderly close.
const CLOSE_TIME: Duration = Duration::from_secs(3);
/// Time between two looks at a connection, in case its loss was not announced.
const PULSE: Duration = Duration::from_secs(1);

/// Time after which whatever lasted that long was healthy, even if it carried nothing.
pub(super) const HEALTHY: Duration = Duration::from_secs(5);
/// Time between two messages that show whether the broker takes and confirms messages.
const PROBE_PERIOD: Duration = Duration::from_secs(10);
/// Longest wait for the confirm of such a message until the bus is not ready.
const CONFIRM_TIME: Duration = Duration::from_secs(10);

/// Shortest and longest wait before the next attempt. A broker that is back is found within the longest: agents wait for
/// nothing else.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The connection while it is open; it ends with the supervisor, when the bus is closed.
#[derive(Clone)]
pub(super) struct ConnectionHandle {
    connection: watch::Receiver<Option<Arc<Connection>>>,
    carried: Arc<AtomicBool>,
    ended: Arc<Mutex<CancellationToken>>,
}

/// The bus has been closed.
#[derive(Debug)]
pub(super) struct ConnectionClosed;

impl ConnectionHandle {
    /// Waits for an open connection.
    pub(super) async fn open(&self) -> Result<Arc<Connection>, ConnectionClosed> {
        let mut connection = self.connection.clone();
        let usable = |it: &Option<Arc<Connection>>| it.as_ref().is_some_and(|it| it.status().connected());
        let connection = connection.wait_for(usable).await.map_err(|_| ConnectionClosed)?;
        connection.clone().ok_or(ConnectionClosed)
    }

    /// Whether there is a connection now.
    pub(super) fn is_open(&self) -> bool {
        self.connection.borrow().as_ref().is_some_and(|connection| connection.status().connected())
    }

    /// Cancelled once the present connection has ended.
    pub(super) fn ended(&self) -> CancellationToken {
        self.ended.lock().clone()
    }

    /// Notes that the connection has carried a message: after its loss, the next one is tried soon.
    pub(super) fn carried(&self) {
        self.carried.store(true, Ordering::Relaxed);
    }

    /// Whether the bus has been closed.
    pub(super) fn is_closed(&self) -> bool {
        self.connection.has_changed().is_err()
    }
}

/// Supervisor of one connection.
pub(super) struct ConnectionSupervisor {
    kind: ConnectionKind,
    settings: Arc<Checked>,
    state: Arc<StateTracker>,
    closing: CancellationToken,
    connection: watch::Sender<Option<Arc<Connection>>>,
    /// Whether the present connection has carried a message.
    carried: Arc<AtomicBool>,
    /// Cancelled once the present connection has ended.
    ended: Arc<Mutex<CancellationToken>>,
}

impl ConnectionSupervisor {
    pub(super) fn new(
        kind: ConnectionKind,
        settings: Arc<Checked>,
        state: Arc<StateTracker>,
        closing: CancellationToken,
    ) -> (Self, ConnectionHandle) {
        let (sender, connection) = watch::channel(None);
        let carried = Arc::new(AtomicBool::new(false));
        let ended = Arc::<Mutex<CancellationToken>>::default();
        let handle = ConnectionHandle { connection, carried: carried.clone(), ended: ended.clone() };
        (Self { kind, settings, state, closing, connection: sender, carried, ended }, handle)
    }

    /// Runs until the bus is closed, or until something is wrong that no retry mends.
    pub(super) async fn run(self) {
        let closing = self.closing.clone();
        let mut backoff = Backoff::new();
        let mut logged = String::new();
        let mut attempts = Attempts::begin(self.kind, None);
        // The endpoint that is tried first.
        let mut first = 0;
        loop {
            let mut opened = None;
            attempts.count += 1;
            let reason = match closing.run_until_cancelled(self.connect(first)).await {
                None => return attempts.end(Some("the bus was closed")),
                Some(Ok((connection, index))) => {
                    attempts.end(None);
                    opened = Some((self.settings.clock.now(), index));
                    let host = self.settings.endpoints.get(index).map(host_of);
                    let connection = Arc::new(connection);
                    info!(role = %self.kind, broker = host, "connected to the broker");
                    self.state.opened(self.kind);
                    // Traffic of the previous connection may have been noted after its loss.
                    self.carried.store(false, Ordering::Relaxed);
                    *self.ended.lock() = CancellationToken::new();
                    self.connection.send_replace(Some(connection.clone()));
                    let lost = closing.run_until_cancelled(self.keep(&connection)).await;
                    self.connection.send_replace(None);
                    self.ended.lock().cancel();
                    let Some(reason) = lost else { return self.close(&connection).await };
                    self.state.lost(self.kind, &reason);
                    attempts = Attempts::begin(self.kind, Some(&reason));
                    reason
                }
                Some(Err(TopologyError::Lost(reason))) => {
                    self.state.failed(&reason);
                    reason
                }
                Some(Err(TopologyError::Refused(reason))) => {
                    self.state.refused(&reason);
                    reason
                }
                Some(Err(TopologyError::Fatal(reason))) => {
                    error!(role = %self.kind, reason, "the broker cannot be used like this");
                    self.state.fatal(&reason);
                    attempts.end(Some(&reason));
                    return closing.cancelled().await;
                }
            };
            let carried = self.carried.swap(false, Ordering::Relaxed);
            // A node that carried nothing may be cut off from the others, though it takes connections.
            first = opened.filter(|_| !carried).map_or(0, |(_, index)| index + 1);
            let lasted = |(opened, _)| self.settings.clock.since(opened) >= HEALTHY;
            let wait = backoff.after(carried || opened.is_some_and(lasted));
            // Logged once per loss, and again when the reason changes.
            if opened.is_some() || logged != reason {
                warn!(role = %self.kind, reason, next_attempt_ms = wait.as_millis(), "no connection to the broker");
                logged = reason;
            } else {
                debug!(role = %self.kind, reason, next_attempt_ms = wait.as_millis(), "still no connection");
            }
            if closing.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return attempts.end(Some("the bus was closed"));
            }
        }
    }

    /// Tries the endpoints in turn, beginning with that of this index; returns the index of the one that is connected to. A
    /// connection counts once the exchanges exist.
    async fn connect(&self, first: usize) -> Result<(Connection, usize), TopologyError> {
        let mut failure = TopologyError::Lost("no broker is configured".to_owned());
        let endpoints = self.settings.endpoints.iter().enumerate();
        for (index, endpoint) in endpoints.cycle().skip(first).take(self.settings.endpoints.len()) {
            let host = host_of(endpoint);
            match tokio::time::timeout(CONNECT_TIME, self.open(endpoint)).await {
                Ok(Ok(connection)) => return Ok((connection, index)),
                Ok(Err(TopologyError::Lost(reason))) => failure = TopologyError::Lost(format!("{host}: {reason}")),
                Ok(Err(TopologyError::Refused(reason))) => {
                    failure = TopologyError::Refused(format!("{host}: {reason}"))
                }
                Ok(Err(fatal)) => return Err(fatal),
                Err(_) => {
                    let reason = format!("{host}: no answer within {} s", CONNECT_TIME.as_secs());
                    failure = TopologyError::Lost(reason);
                }
            }
        }
        Err(failure)
    }

    async fn open(&self, endpoint: &AMQPUri) -> Result<Connection, TopologyError> {
        let lost = |error: &lapin::Error| TopologyError::Lost(cause::connecting(error));
        let name = format!("{} {}", self.settings.name, self.kind);
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let runtime = {
            let _thread = self.settings.thread.enter();
            lapin::runtime::default_runtime().map_err(|error| lost(&error))?
        };
        let tls = self.settings.tls.clone();
        let connecting = Connection::connect_uri_with_config(endpoint.clone(), properties, tls, runtime);
        let connection = match connecting.await {
            Ok(connection) => connection,
            Err(error) if cause::is_refusal(&error) => return Err(TopologyError::Refused(cause::connecting(&error))),
            Err(error) if cause::code(&error).is_some() => return Err(lost(&error)),
            Err(error) => {
                let other = cause::other_protocol(endpoint).await;
                return Err(other.map_or_else(|| lost(&error), TopologyError::Lost));
            }
        };
        topology::exchanges(&connection, &self.settings).await?;
        Ok(connection)
    }

    /// Waits for the end of a connection, and returns its reason.
    async fn keep(&self, connection: &Connection) -> String {
        if self.kind != ConnectionKind::Publish {
            return self.watch(connection).await;
        }
        tokio::select! {
            reason = self.watch(connection) => reason,
            never = self.probe(connection) => match never {},
        }
    }

    /// Publishes a message that no queue takes, again and again, and notes whether the broker confirms it.
    ///
    /// A broker reports an alarm to publishing connections only, so a daemon without calls would not know of it.
    async fn probe(&self, connection: &Connection) -> Infallible {
        loop {
            let mut probe = pin!(confirmed(connection));
            let outcome = match tokio::time::timeout(CONFIRM_TIME, &mut probe).await {
                Ok(outcome) => outcome,
                // A second message would wait behind the first, so that one is waited for. An alarm was logged already.
                Err(_) => {
                    if !self.state.is_blocked() {
                        let seconds = CONFIRM_TIME.as_secs();
                        let reason = format!("the broker has not confirmed a message for {seconds} s");
                        warn!(reason, "the broker takes no messages for now");
                        self.state.unconfirmed(Some(&reason));
                    }
                    probe.await
                }
            };
            self.state.unconfirmed(None);
            match outcome {
                Err(error) if cause::code(&error) == Some(ACCESS_REFUSED) => {
                    debug!("this user may not write to the default exchange; missing confirms will not be noticed");
                    return std::future::pending().await;
                }
                Err(error) => debug!(%error, "whether the broker confirms messages is not known"),
                Ok(()) => {}
            }
            tokio::time::sleep(PROBE_PERIOD).await;
        }
    }

    /// Follows the events of a connection until its end, and returns the reason.
    async fn watch(&self, connection: &Connection) -> String {
        let mut events = connection.events_listener();
        let mut pulse = tokio::time::interval(PULSE);
        let mut reason = "the connection was closed".to_owned();
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                _ = pulse.tick() => None,
            };
            match event {
                // Errors that end a channel are announced here, too.
                Some(Event::Error(error)) if !connection.status().connected() => reason = cause::words(&error),
                Some(Event::ConnectionBlocked(why)) => {
                    warn!(reason = why, "the broker takes no messages for now");
                    self.state.blocked(Some(&why));
                }
                Some(Event::ConnectionUnblocked) => {
                    info!("the broker takes messages again");
                    self.state.blocked(None);
                }
                _ => {}
            }
            if !connection.status().connected() {
                return reason;
            }
        }
    }

    async fn close(&self, connection: &Connection) {
        self.state.closed(self.kind);
        let close = connection.close(200, "closed by the client".into());
        match tokio::time::timeout(CLOSE_TIME, close).await {
            Ok(Ok(())) => info!(role = %self.kind, "connection to the broker closed"),
            Ok(Err(error)) => debug!(role = %self.kind, %error, "connection closed before it could be closed in order"),
            Err(_) => warn!(role = %self.kind, "the broker did not confirm the close in time"),
        }
    }
}

/// The attempts to open one connection, with the span that covers all of them and the waits between them. The span is
/// never entered: the client would keep it for its own thread, which lasts as long as the connection.
struct Attempts {
    span: Span,
    count: usize,
}

impl Attempts {
    /// Begins at the start, or after a loss for the reason `lost`.
    fn begin(kind: ConnectionKind, lost: Option<&str>) -> Self {
        let span = tracing::info_span!(
            target: lifecycle::TARGET,
            "broker connect",
            toolbus.broker.connection = kind.as_str(),
            toolbus.broker.lost = lost.map(bounded),
            toolbus.broker.attempts = Empty,
            otel.status_description = Empty
        );
        Self { span, count: 0 }
    }

    /// Ends the span. `error` is the reason that there is no connection.
    fn end(&mut self, error: Option<&str>) {
        let span = std::mem::replace(&mut self.span, Span::none());
        span.record("toolbus.broker.attempts", lifecycle::count(self.count));
        if let Some(error) = error {
            lifecycle::fail(&span, error);
        }
    }
}

/// Publishes a message that no queue takes, and waits for its confirm. The name of a queue is never empty.
async fn confirmed(connection: &Connection) -> Result<(), lapin::Error> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let (nowhere, options) = ("".into(), BasicPublishOptions::default());
    let publish = channel.basic_publish("".into(), nowhere, options, &[], BasicProperties::default());
    publish.await?.await?;
    channel.close(200, "done".into()).await
}

/// Waits that double from 100 ms to 500 ms, each with up to as much again in jitter: many clients do not come back at once.
pub(super) struct Backoff {
    waits: ExponentialBackoff,
}

impl Backoff {
    pub(super) fn new() -> Self {
        let waits = ExponentialBuilder::new()
            .with_min_delay(SHORTEST_WAIT)
            .with_max_delay(LONGEST_WAIT / 2)
            .without_max_times()
            .with_jitter()
            .build();
        Self { waits }
    }

    /// The wait before the next attempt. After a healthy connection, the waits start from the shortest again.
    pub(super) fn after(&mut self, was_healthy: bool) -> Duration {
        if was_healthy {
            *self = Self::new();
        }
        self.waits.next().unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::{Backoff, LONGEST_WAIT, SHORTEST_WAIT};

    #[test]
    fn waits_grow_to_the_longest_and_stay_there() {
        let mut backoff = Backoff::new();
        let waits: Vec<_> = (0..20).map(|_| backoff.after(false)).collect();
        assert!(waits[0] >= SHORTEST_WAIT && waits[0] <= SHORTEST_WAIT * 2, "{waits:?}");
        assert!(waits[5] > waits[0]);
        assert!(waits[10..].iter().all(|wait| (LONGEST_WAIT / 2..=LONGEST_WAIT).contains(wait)), "{waits:?}");
        assert!(waits[10..].iter().any(|wait| *wait != waits[10]), "clients spread: {waits:?}");
    }

    #[test]
    fn waits_start_from_the_shortest_after_a_healthy_connection() {
        let mut backoff = Backoff::new();
        for _ in 0..10 {
            backoff.after(false);
        }
        assert!(backoff.after(true) <= SHORTEST_WAIT * 2);
    }
}
