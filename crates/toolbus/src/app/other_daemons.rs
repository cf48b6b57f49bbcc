//! Other daemons on the same broker. Each daemon publishes its identity and the queues and topics from which it takes
//! calls, so that daemons are noticed that take the same calls under another configuration: a forgotten
//! `bus.queue_prefix`, another team.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::bus::{Bus, BusState, Delivery, Outgoing, Ownership, Subscription, Target};
use toolbus_core::text::shown;
use toolbus_protocol::{DaemonIntake, Envelope, Pong, Properties, Random, message_type, new_message_id, topic};

use crate::config::daemon::Role;
use crate::config::{BusUrl, Config};
use crate::http::{HeardDaemons, OtherDaemon, SharedIntake};

/// Time between two announcements.
const PERIOD: Duration = Duration::from_secs(60);
/// Shortest time between two announcements, and so the longest until a new daemon learns of this one.
const PAUSE: Duration = Duration::from_secs(1);
/// Time for which an announcement holds.
const HOLDS: Duration = Duration::from_secs(3 * 60);
/// Longest wait for a confirm.
const PUBLISH_TIME: Duration = Duration::from_secs(4);
/// Other daemons that are remembered.
const MAX_DAEMONS: usize = 256;
/// Largest announcement that is read, in bytes.
const MAX_ANNOUNCEMENT: usize = 16 * 1024;
/// Topics and roles of an announcement that are compared.
const MAX_NAMES: usize = 64;
/// Announcements that may wait.
const PREFETCH: u16 = 64;

/// Announces this daemon, and receives the announcements of others.
pub(super) struct OtherDaemons {
    bus: Arc<dyn Bus>,
    own: Pong,
    digest: watch::Receiver<String>,
    known: BTreeMap<String, KnownDaemon>,
    heard: watch::Sender<HeardDaemons>,
    clock: Clock,
}

struct KnownDaemon {
    heard: Instant,
    conflict: Option<OtherDaemon>,
    /// Seconds by which the clock of this daemon is ahead. The queue of announcements ends with its connection, so that
    /// none comes that is old.
    clock_skew: Option<i64>,
}

impl OtherDaemons {
    /// Creates the announcer of a daemon of this configuration; `heard` gets the announcements of others that concern
    /// it.
    pub(super) fn new(
        config: &Config,
        bus: Arc<dyn Bus>,
        digest: watch::Receiver<String>,
        heard: watch::Sender<HeardDaemons>,
    ) -> Self {
        let roles = config.roles();
        let calls = roles.contains(&Role::Invoke).then(|| config.invoke_topics());
        let scripts = roles.contains(&Role::Scripts).then(|| topic::SCRIPT_INVOKE.to_owned());
        let own = Pong {
            name: config.bus.name.clone(),
            version: crate::VERSION.to_owned(),
            config_digest: digest.borrow().clone(),
            roles: roles.iter().map(|role| role.as_str().to_owned()).collect(),
            uptime_seconds: 0,
            in_flight: 0,
            tools: 0,
            takes: Some(DaemonIntake {
                instance: new_message_id(),
                queue_prefix: config.queue_prefix(),
                topics: calls.into_iter().flatten().chain(scripts).collect(),
                agent: config.identity.agent.as_ref().map(ToString::to_string),
            }),
        };
        Self { bus, own, digest, known: BTreeMap::new(), heard, clock: Clock::SYSTEM }
    }

    /// The queue of announcements; `None` on the bus inside the process, which no other daemon reaches.
    pub(super) fn queue(config: &Config) -> Option<Subscription> {
        (config.bus.url != BusUrl::Embedded).then(|| Subscription {
            queue: format!("{}.replica.daemons.{}", config.queue_prefix(), new_message_id()),
            topics: vec![topic::TOOL_PING.to_owned()],
            prefetch: PREFETCH,
            max_body: MAX_ANNOUNCEMENT,
            ownership: Ownership::Replica,
            is_inbox: false,
        })
    }

    /// Announces this daemon and consumes the announcements of others from `queue`, until `stop` is cancelled. An
    /// announcement that has begun is finished.
    pub(super) async fn run(mut self, queue: Subscription, stop: CancellationToken) {
        let name = queue.queue.clone();
        let hears = |state: &BusState| state.connected && state.consumers.iter().any(|(of, on)| *on && *of == name);
        let mut deliveries = self.bus.consume(queue);
        let mut state = self.bus.state();
        state.mark_changed();
        let mut was_hearing = false;
        // The next announcement. Without the broker there is none.
        let mut next = None::<Instant>;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                delivery = deliveries.recv() => {
                    let Some(delivery) = delivery else { return };
                    if self.hear(&delivery) {
                        // Daemons that start at the same time share one announcement.
                        let soon = self.clock.now() + PAUSE;
                        next = next.map(|next| next.min(soon));
                    }
                    delivery.settle.acknowledge().await;
                }
                changed = state.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let is_hearing = hears(&state.borrow_and_update());
                    if is_hearing != was_hearing {
                        next = is_hearing.then(|| self.clock.now());
                    }
                    was_hearing = is_hearing;
                }
                changed = self.digest.changed(), if next.is_some() => {
                    if changed.is_err() {
                        return;
                    }
                    next = Some(self.clock.now());
                }
                () = sleep_until(next.unwrap_or_else(|| self.clock.now()).into()), if next.is_some() => {
                    self.announce().await;
                    self.forget();
                    next = Some(self.clock.now() + PERIOD);
                }
            }
        }
    }

    /// Publishes the announcement of this daemon. Where the broker does not permit that, the others do not get it.
    async fn announce(&mut self) {
        self.own.config_digest = self.digest.borrow_and_update().clone();
        let envelope = Envelope::outgoing(message_type::PONG, &self.own.name, Random::SYSTEM.id(), self.clock.wall());
        let properties = Properties { persistent: false, ..envelope.into_properties() };
        let message = Outgoing {
            target: Target::Topic(topic::TOOL_PING.to_owned()),
            mandatory: false,
            proven: false,
            properties: properties.into(),
            body: serde_json::to_vec(&self.own).unwrap_or_default().into(),
        };
        // It is published again; without the right to, the others do not get it.
        if let Ok(Err(error)) = timeout(PUBLISH_TIME, self.bus.publish(&message)).await {
            tracing::debug!(%error, "other daemons are not told of this one");
        }
    }

    /// Takes note of an announcement; returns whether it is the first of its daemon, which then does not know this one.
    fn hear(&mut self, delivery: &Delivery) -> bool {
        let is_announcement = delivery.properties.message_type.as_deref() == Some(message_type::PONG);
        let read = || serde_json::from_slice::<Pong>(delivery.body.get(..delivery.size)?).ok();
        let Some((pong, takes)) =
            is_announcement.then(read).flatten().and_then(|pong| Some((pong.clone(), pong.takes?)))
        else {
            return false;
        };
        let is_own = self.own.takes.as_ref().is_some_and(|own| own.instance == takes.instance);
        let is_new = !self.known.contains_key(&takes.instance);
        if is_own || (is_new && self.known.len() >= MAX_DAEMONS) {
            return false;
        }
        let shares = self.shares(&pong, &takes);
        let conflict = shares.map(|shares| OtherDaemon {
            name: shown(&pong.name),
            version: shown(&pong.version),
            config_digest: shown(&pong.config_digest),
            queue_prefix: shown(&takes.queue_prefix),
            topics: takes.topics.iter().take(MAX_NAMES).map(|topic| shown(topic)).collect(),
            shares,
        });
        let now = i64::try_from(self.clock.since_epoch().as_secs()).ok();
        let clock_skew = now.zip(delivery.properties.timestamp).map(|(now, sent)| now.saturating_sub_unsigned(sent));
        let known = KnownDaemon { heard: self.clock.now(), conflict: conflict.clone(), clock_skew };
        let before = self.known.insert(takes.instance, known);
        if let Some(other) = conflict.filter(|now| before.and_then(|before| before.conflict).as_ref() != Some(now)) {
            warn_of(&other);
        }
        self.publish();
        is_new
    }

    /// Returns the queues and topics of this daemon that the other one takes.
    fn shares(&self, pong: &Pong, takes: &DaemonIntake) -> Option<SharedIntake> {
        let own = self.own.takes.as_ref()?;
        if own.queue_prefix == takes.queue_prefix {
            // Daemons under one prefix may share the work by roles.
            let has_role = pong.roles.iter().take(MAX_NAMES).any(|role| self.own.roles.contains(role));
            return (has_role && self.own.config_digest != pong.config_digest).then_some(SharedIntake::Queues);
        }
        // Sidecars take the same calls, and each leaves those of other agents.
        let are_sidecars = own.agent.is_some() && takes.agent.is_some() && own.agent != takes.agent;
        let has_topic = takes.topics.iter().take(MAX_NAMES).any(|topic| own.topics.contains(topic));
        (!are_sidecars && has_topic).then_some(SharedIntake::Topics)
    }

    /// Forgets daemons that have gone.
    fn forget(&mut self) {
        let (clock, before) = (self.clock, self.known.len());
        self.known.retain(|_, other| clock.since(other.heard) < HOLDS);
        if self.known.len() < before {
            self.publish();
        }
    }

    fn publish(&self) {
        let mut conflicts: Vec<_> = self.known.values().filter_map(|other| other.conflict.clone()).collect();
        conflicts.sort_by(|left, right| (&left.name, left.shares).cmp(&(&right.name, right.shares)));
        let skews = self.known.values().filter_map(|other| other.clock_skew);
        let heard = HeardDaemons { conflicts, clock_skew: skews.max_by_key(|skew| skew.unsigned_abs()) };
        self.heard.send_if_modified(|known| std::mem::replace(known, heard.clone()) != heard);
    }
}

fn warn_of(other: &OtherDaemon) {
    let OtherDaemon { name, version, config_digest, queue_prefix, topics, shares } = other;
    let topics = topics.iter().collect::<BTreeSet<_>>();
    match shares {
        SharedIntake::Queues => tracing::warn!(
            name,
            version,
            config_digest,
            queue_prefix,
            ?topics,
            "another daemon takes calls from the same queues under another configuration, so that each call is judged and \
             run by either; during an update this passes, else give one of them another bus.queue_prefix and invoke.topics"
        ),
        SharedIntake::Topics => tracing::warn!(
            name,
            version,
            config_digest,
            queue_prefix,
            ?topics,
            "another daemon takes the same calls with queues of its own, so that each call is run by both; give one of them \
             other invoke.topics, or another bus.exchange"
        ),
    }
}

#[cfg(test)]
mod tests {
    use toolbus_broker::embedded::Embedded;
    use toolbus_core::caller::AgentName;

    use super::*;
    use crate::config::DaemonConfig;

    fn daemon(config: &Config) -> (OtherDaemons, watch::Receiver<HeardDaemons>) {
        let (heard, seen) = watch::channel(HeardDaemons::default());
        let digest = watch::channel(config.digest()).1;
        (OtherDaemons::new(config, Arc::new(Embedded::new()), digest, heard), seen)
    }

    fn shares(one: &Config, other: &Config) -> Option<SharedIntake> {
        let (one, (other, _)) = (daemon(one).0, daemon(other));
        one.shares(&other.own, other.own.takes.as_ref().unwrap())
    }

    fn of_prefix(prefix: &str, topic: &str) -> Config {
        let mut config = Config::default();
        config.bus.queue_prefix = Some(prefix.to_owned());
        config.invoke.topics = vec![topic.to_owned()];
        config.daemon = DaemonConfig { roles: Some([Role::Invoke].into()), ..DaemonConfig::default() };
        config
    }

    fn sidecar(agent: &str) -> Config {
        let mut config = of_prefix(agent, "tool.invoke");
        config.identity.agent = Some(AgentName::parse(agent).unwrap());
        config
    }

    #[test]
    fn daemons_that_share_queues_or_topics_without_the_same_configuration_conflict() {
        let (one, other) = (of_prefix("toolbus", "tool.invoke"), of_prefix("toolbus", "tool.invoke.lab"));
        assert_eq!(shares(&one, &other), Some(SharedIntake::Queues));
        assert_eq!(shares(&one, &one.clone()), None, "a replica");
        assert_eq!(shares(&one, &of_prefix("lab", "tool.invoke")), Some(SharedIntake::Topics));
        assert_eq!(shares(&one, &of_prefix("lab", "tool.invoke.lab")), None);
        let mut scripts = one.clone();
        scripts.daemon.roles = Some([Role::Scripts].into());
        assert_eq!(shares(&one, &scripts), None, "another part of the same work");
        assert_eq!(shares(&sidecar("ana"), &sidecar("bea")), None);
        assert_eq!(shares(&sidecar("ana"), &one), Some(SharedIntake::Topics));
    }
}
