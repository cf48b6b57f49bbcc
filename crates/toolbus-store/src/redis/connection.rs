//! The connection to a Redis server: opened when it is needed, and again after a failure, with growing delays.

use std::time::{Duration, Instant};

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, RedisError, ScriptInvocation};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;
use toolbus_core::Clock;
use toolbus_core::store::StoreError;

/// Longest time that one operation takes, waiting for the connection included.
const OPERATION_TIME: Duration = Duration::from_secs(5);
/// Longest time that the server takes for one response.
const RESPONSE_TIME: Duration = Duration::from_secs(2);
/// Longest time for opening a connection, TLS and login included.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Operations that wait for their responses; further ones wait for a slot.
const MAX_IN_FLIGHT: usize = 256;
/// First delay after an attempt to connect that failed. Until it has passed, operations fail at once.
const SHORTEST_DELAY: Duration = Duration::from_millis(50);
/// Longest of these delays.
const LONGEST_DELAY: Duration = Duration::from_secs(1);
/// Error of a server that has become a replica, so that another one takes writes under its name now.
const READ_ONLY: &str = "READONLY";

/// One server, over one connection that all operations share.
pub(super) struct Connection {
    client: Client,
    address: String,
    link: Mutex<Link>,
    slots: Semaphore,
    clock: Clock,
}

struct Link {
    open: Option<MultiplexedConnection>,
    /// Counts connections, so that a failure ends none but the one that it happened on.
    number: u64,
    delays: ExponentialBackoff,
    /// Earliest time of the next attempt, and the reason that the last one failed.
    next: Option<(Instant, String)>,
}

/// Reason why an attempt failed.
enum RedisFailure {
    /// There is no connection.
    Away(String),
    /// The server or the connection.
    Redis { error: RedisError, is_broken: bool },
}

impl Connection {
    /// Connects with the first operation.
    pub(super) fn new(client: Client, address: String, clock: Clock) -> Self {
        let link = Link { open: None, number: 0, delays: delays(), next: None };
        Self { client, address, link: Mutex::new(link), slots: Semaphore::new(MAX_IN_FLIGHT), clock }
    }

    /// Runs a script; once more where the connection turns out to have been lost. Run twice, a script must do the same
    /// as once.
    pub(super) async fn run<T: FromRedisValue>(&self, script: &ScriptInvocation<'_>) -> Result<T, StoreError> {
        let work = async {
            let _slot = self.slots.acquire().await;
            match self.attempt(script).await {
                Err(RedisFailure::Redis { error, is_broken: true }) if !error.is_timeout() => {
                    self.attempt(script).await
                }
                result => result,
            }
        };
        let why = match timeout(OPERATION_TIME, work).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(RedisFailure::Away(why))) => format!("it could not be reached at {}: {why}", self.address),
            Ok(Err(RedisFailure::Redis { error, .. })) => format!("at {}: {}", self.address, described(&error)),
            Err(_) => format!("it has not answered at {} for {} s", self.address, OPERATION_TIME.as_secs()),
        };
        Err(StoreError::Failed(why))
    }

    async fn attempt<T: FromRedisValue>(&self, script: &ScriptInvocation<'_>) -> Result<T, RedisFailure> {
        let (mut connection, number) = self.connection().await?;
        let error = match script.invoke_async(&mut connection).await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let is_broken = error.is_io_error() || error.is_unrecoverable_error() || error.code() == Some(READ_ONLY);
        if is_broken {
            let mut link = self.link.lock().await;
            if link.number == number {
                link.open = None;
            }
        }
        Err(RedisFailure::Redis { error, is_broken })
    }

    /// The open connection with its number, or a new one.
    async fn connection(&self) -> Result<(MultiplexedConnection, u64), RedisFailure> {
        let mut link = self.link.lock().await;
        if let Some(open) = &link.open {
            return Ok((open.clone(), link.number));
        }
        if let Some((_, why)) = link.next.as_ref().filter(|(next, _)| self.clock.now() < *next) {
            return Err(RedisFailure::Away(why.clone()));
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIME))
            .set_response_timeout(Some(RESPONSE_TIME));
        match self.client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(open) => {
                let number = link.number.wrapping_add(1);
                *link = Link { open: Some(open.clone()), number, delays: delays(), next: None };
                Ok((open, number))
            }
            Err(error) => {
                let why = described(&error);
                let delay = link.delays.next().unwrap_or(LONGEST_DELAY).min(LONGEST_DELAY);
                link.next = Some((self.clock.now() + delay, why.clone()));
                Err(RedisFailure::Away(why))
            }
        }
    }
}

fn delays() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(SHORTEST_DELAY)
        .with_max_delay(LONGEST_DELAY)
        .without_max_times()
        .with_jitter()
        .build()
}

/// Describes an error for operators.
fn described(error: &RedisError) -> String {
    if error.is_timeout() {
        return format!("no response within {} s", RESPONSE_TIME.as_secs());
    }
    if error.kind() == ErrorKind::AuthenticationFailed {
        return "it refuses the login; check user and password".to_owned();
    }
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}
