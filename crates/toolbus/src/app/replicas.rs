//! State that replicas share through a store on a server: switches and registered MCP servers, read again when another
//! replica has changed them; and the list of replicas.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use toolbus_core::Clock;
use toolbus_core::policy::PolicyHandle;
use toolbus_core::store::StoreError;
use toolbus_mcp_client::model_tools::Registrar;
use toolbus_protocol::new_message_id;
use toolbus_store::{Redis, Versions};

use crate::config::Config;
use crate::http::admin::{LoadError, SWITCHES, SwitchStore};
use crate::http::{Replica, SharedState};

/// Time between two questions whether something has changed.
const PERIOD: Duration = Duration::from_millis(500);
/// Interval of a replica's announcements.
const ANNOUNCE_PERIOD: Duration = Duration::from_secs(5);
/// Lifetime of an announcement.
const ANNOUNCE_TIME: Duration = Duration::from_secs(15);
/// Longest time for taking the announcement back.
const LEAVE_TIME: Duration = Duration::from_secs(2);
/// Largest announcement that is read, in bytes.
const MAX_ANNOUNCEMENT: usize = 4096;

/// Keeps one replica in step with the others.
pub(super) struct Replicas {
    redis: Arc<Redis>,
    switches: Arc<SwitchStore>,
    policy: PolicyHandle,
    registrar: Option<Arc<Registrar>>,
    digest: watch::Receiver<String>,
    own: Replica,
    state: watch::Sender<SharedState>,
    /// As of the last reading; `None` where everything has to be read.
    known: Option<Versions>,
    /// The last versions that were seen, to notice lost data.
    last: Option<Versions>,
    announced: Option<Instant>,
    clock: Clock,
}

/// Announcement of this replica.
pub(super) struct Announcement {
    redis: Arc<Redis>,
    id: String,
}

impl Announcement {
    /// Takes it back.
    pub(super) async fn end(self) {
        // Where that fails, it ends with its time.
        let _ = timeout(LEAVE_TIME, self.redis.leave(&self.id)).await;
    }
}

/// Reason why replicas are out of step.
#[derive(Debug, thiserror::Error)]
enum OutOfStep {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    SwitchStore(#[from] LoadError),
}

impl Replicas {
    pub(super) fn new(
        redis: Arc<Redis>,
        (policy, switches, registrar): (PolicyHandle, Arc<SwitchStore>, Option<Arc<Registrar>>),
        digest: watch::Receiver<String>,
        own: Replica,
        state: watch::Sender<SharedState>,
    ) -> Self {
        state.send_replace(SharedState { is_unread: true, own: own.id.clone(), ..SharedState::default() });
        let clock = Clock::SYSTEM;
        let (known, last, announced) = (None, None, None);
        Self { redis, switches, policy, registrar, digest, own, state, known, last, announced, clock }
    }

    /// Keeps in step until it is dropped.
    pub(super) async fn run(mut self) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.step().await;
        }
    }

    /// The announcement of this replica.
    pub(super) fn announcement(&self) -> Announcement {
        Announcement { redis: Arc::clone(&self.redis), id: self.own.id.clone() }
    }

    /// Takes over changes. At the start this is everything; after a failure, the next step tries again.
    pub(super) async fn step(&mut self) {
        let found = self.look().await;
        let mut state = self.state.borrow().clone();
        match found {
            Ok(announced) => {
                if state.away.take().is_some() {
                    tracing::info!("the store is there again");
                }
                state.is_unread = false;
                if let Some((replicas, clock_skew)) = announced {
                    state.clock_skew = Some(clock_skew);
                    warn_of_others(&state, &SharedState { replicas: replicas.clone(), ..state.clone() });
                    state.replicas = replicas;
                }
            }
            Err(error) => {
                // Everything is read again once it is back.
                (self.known, self.announced, state.clock_skew) = (None, None, None);
                if state.away.is_none() {
                    match state.is_unread {
                        true => tracing::warn!(%error, "waiting for the store: no call is taken before"),
                        false => tracing::warn!(%error, "the store is away: what was disabled stays so"),
                    }
                }
                state.away = Some(error.to_string());
            }
        }
        self.state.send_if_modified(|known| std::mem::replace(known, state.clone()) != state);
    }

    /// Takes over changes; returns the replicas, and the seconds by which this clock is ahead of the server's, where
    /// they were queried.
    async fn look(&mut self) -> Result<Option<(Vec<Replica>, i64)>, OutOfStep> {
        let versions = self.redis.versions(&[SWITCHES, Registrar::NAMESPACE]).await?;
        if self.last.as_ref().is_some_and(|last| versions.have_lost(last)) {
            tracing::warn!("the store has lost what it had; writing what is known here");
            self.switches.write_again(&self.policy).await?;
            if let Some(registrar) = &self.registrar {
                registrar.write_again().await?;
            }
            self.known = None;
        }
        if self.known.as_ref() != Some(&versions) || self.switches.has_unstored().await {
            self.switches.follow(&self.policy).await?;
            let is_complete = match &self.registrar {
                Some(registrar) => registrar.follow().await?,
                None => true,
            };
            self.known = is_complete.then(|| versions.clone());
        }
        self.last = Some(versions);
        let digest = self.digest.borrow_and_update().clone();
        let is_due = self.announced.is_none_or(|last| self.clock.since(last) >= ANNOUNCE_PERIOD);
        if !is_due && digest == self.own.config_digest {
            return Ok(None);
        }
        self.own.config_digest = digest;
        let about = serde_json::to_vec(&self.own).unwrap_or_default();
        let before = self.clock.since_epoch();
        let (time, found) = self.redis.announce(&self.own.id, &about, ANNOUNCE_TIME).await?;
        let clock_skew = clock_skew(before, time, self.clock.since_epoch());
        self.announced = Some(self.clock.now());
        let readable = found.iter().filter(|text| text.len() <= MAX_ANNOUNCEMENT);
        let mut replicas: Vec<Replica> = readable.filter_map(|text| serde_json::from_slice(text).ok()).collect();
        replicas.sort();
        Ok(Some((replicas, clock_skew)))
    }
}

/// Returns the seconds by which this clock is ahead of the server's, which was read between two times of this one; 0 if
/// it may be the same.
fn clock_skew(before: Duration, server: Duration, after: Duration) -> i64 {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    seconds(before.saturating_sub(server)) - seconds(server.saturating_sub(after))
}

/// Returns the announcement of a replica with this configuration.
pub(super) fn own(config: &Config) -> Replica {
    Replica {
        name: config.bus.name.clone(),
        version: crate::VERSION.to_owned(),
        config_digest: String::new(),
        roles: config.roles().iter().map(|role| role.as_str().to_owned()).collect(),
        started: Clock::SYSTEM.since_epoch().as_secs(),
        id: new_message_id(),
    }
}

/// Warns of each replica that differs, once.
fn warn_of_others(before: &SharedState, now: &SharedState) {
    for replica in now.replicas.iter().filter(|replica| now.differs(replica)) {
        if !(before.replicas.contains(replica) && before.differs(replica)) {
            let Replica { name, version, config_digest, .. } = replica;
            tracing::warn!(name, version, config_digest, "a replica runs with another configuration");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_not_counted_as_clock_skew() {
        let skew = |server| {
            let [before, server, after] = [100.0, server, 103.0].map(Duration::from_secs_f64);
            clock_skew(before, server, after)
        };
        assert_eq!([100.0, 101.5, 103.0, 99.5].map(skew), [0; 4]);
        assert_eq!((skew(40.0), skew(163.5)), (60, -60));
    }
}
