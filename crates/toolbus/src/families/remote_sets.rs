//! Tool sets whose tools other daemons list: followed, sorted out, published in the registry, and waited for by calls.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use toolbus_core::caller::AgentName;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::policy::EffectiveTools;
use toolbus_core::registry::{Rank, Registry};
use toolbus_core::text::{excerpt, shown};
use toolbus_core::tool::{Membership, Naming, Tool, ToolDescriptor, Validation};
use toolbus_core::{Clock, Lookup, PendingTools, ToolRef};
use toolbus_mcp_client::servers::{Definitions, Limits, SourceToolset, ToolSource, definitions_elsewhere};
use toolbus_mcp_client::spec::ServerName;
use toolbus_mcp_client::status::HiddenTool;
use toolbus_protocol::{is_alias_of, rest_of_alias};
use toolbus_remote::{BridgedServer, RemoteDaemons, RemoteListing, RemoteNews};
use toolbus_telemetry::RemoteSetCounts;
use toolbus_trust::scan::Scanner;

use crate::config::Config;
use crate::config::toolsets::{self, ToolsetConfig};
use crate::http::{RemotePhase, RemoteSetHealth};

/// Retry hint of a call whose tool set has no tools yet.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Longest reason that is shown, in characters.
const MAX_REASON: usize = 300;
/// Time for the first list, in which calls wait; then the other daemon counts as away.
const FIRST_LIST_TIME: Duration = Duration::from_secs(10);

/// The learnt tool sets of this process. Cheap to clone.
#[derive(Clone)]
pub(super) struct RemoteSets {
    parts: Arc<RemoteSetsParts>,
}

struct RemoteSetsParts {
    registry: Registry,
    daemons: RemoteDaemons,
    /// Held while tools are published, so that those of a set that is removed do not come back.
    sets: RwLock<BTreeMap<Arc<str>, Arc<LearntSet>>>,
    /// One for each set.
    followers: Mutex<JoinSet<()>>,
    /// Tools that are on their way otherwise.
    others: Arc<dyn PendingTools>,
}

/// One tool set, whose tools another daemon lists.
struct LearntSet {
    name: Arc<str>,
    prefix: Arc<str>,
    topic: String,
    /// The MCP server of a bridge; absent for others.
    server: Option<ServerName>,
    /// The program that provides the tools; absent for a daemon and a bridge.
    provider: Option<AgentName>,
    state: Mutex<LearntState>,
    /// Whether the other daemon has listed its tools, or its reply is overdue.
    is_tried: watch::Sender<bool>,
}

#[derive(Default)]
struct LearntState {
    is_known: bool,
    /// Time of the last list of the other daemon.
    heard: Option<Instant>,
    last_error: Option<String>,
    tools: usize,
    suspect: usize,
    hidden: Vec<HiddenTool>,
    rivals: Vec<String>,
}

impl RemoteSets {
    /// No sets yet. Their tools go to `registry`; `others` knows which other tools are on their way.
    pub(super) fn new(registry: Registry, daemons: RemoteDaemons, others: Arc<dyn PendingTools>) -> Self {
        let (sets, followers) = (RwLock::default(), Mutex::default());
        Self { parts: Arc::new(RemoteSetsParts { registry, daemons, sets, followers, others }) }
    }

    /// Has the learnt sets of this configuration and no others, from now on. Does not wait for other daemons.
    pub(super) fn apply(&self, config: &Config) {
        let mut next = BTreeMap::new();
        let mut sets = self.parts.sets.write();
        for (name, config) in config.toolsets.iter().filter(|(_, config)| config.is_learnt()) {
            let new = LearntSet::new(name, config);
            let known = sets.get(name.as_str()).filter(|known| known.is_like(&new));
            next.insert(Arc::clone(&new.name), known.cloned().unwrap_or_else(|| Arc::new(new)));
        }
        let gone = std::mem::replace(&mut *sets, next.clone());
        drop(sets);
        for set in gone.values().filter(|set| !next.get(&set.name).is_some_and(|next| Arc::ptr_eq(next, set))) {
            self.parts.registry.forget(&set.source());
        }
        let tools = config.tools.clone();
        let limits: Limits = Arc::new(move |descriptor| tools.limit(descriptor));
        let mut followers = JoinSet::new();
        for set in next.into_values() {
            followers.spawn(self.clone().follow(set, Arc::clone(&limits)));
        }
        // Those before end.
        *self.parts.followers.lock() = followers;
    }

    /// Each set, by name.
    pub(super) fn status(&self) -> Vec<RemoteSetHealth> {
        self.parts.sets.read().values().map(|set| set.status()).collect()
    }

    /// The number of sets in each phase, and the ages of their lists.
    pub(super) fn counts(&self) -> RemoteSetCounts {
        let sets = self.parts.sets.read();
        let all: Vec<_> = sets.values().map(|set| (set.source().to_string(), set.status())).collect();
        let in_phase = |phase| all.iter().filter(|(_, set)| set.phase == phase).count() as u64;
        let phases = RemotePhase::ALL.map(|phase| (phase.as_str(), in_phase(phase))).to_vec();
        let ages = all.iter().filter(|(_, set)| set.phase != RemotePhase::Waiting);
        let ages = ages.filter_map(|(source, set)| Some((source.clone(), set.list_age_seconds?))).collect();
        RemoteSetCounts { phases, ages }
    }

    /// Stops following.
    pub(super) fn stop(&self) {
        self.parts.followers.lock().abort_all();
    }

    async fn follow(self, set: Arc<LearntSet>, limits: Limits) {
        let daemons = &self.parts.daemons;
        let follower = match (&set.server, &set.provider) {
            (Some(server), _) => Some(daemons.follow_server(Arc::clone(server.as_str()))),
            (None, Some(provider)) => daemons.follow_provider(provider.clone()),
            (None, None) => daemons.follow(&set.topic),
        };
        let Some(mut follower) = follower else { return };
        let scanner = match Scanner::new() {
            Ok(scanner) => Arc::new(scanner),
            Err(error) => {
                tracing::error!(set = &*set.name, %error, "a tool set is not learnt");
                return;
            }
        };
        loop {
            match follower.next().await {
                RemoteNews::Listed(listing) => {
                    set.hear();
                    self.take(&set, listing, &limits, &scanner).await;
                }
                RemoteNews::Unchanged => {
                    set.hear();
                    set.note(None);
                }
                RemoteNews::Away(reason) => set.note(Some(readable(&reason))),
            }
            set.is_tried.send_if_modified(|is_tried| !std::mem::replace(is_tried, true));
        }
    }

    /// Registers the tools that the other daemon lists, as far as they can be used.
    async fn take(&self, set: &Arc<LearntSet>, listing: RemoteListing, limits: &Limits, scanner: &Arc<Scanner>) {
        let RemoteListing { agent, tools, notice, bridge, rivals } = listing;
        let (bridge, rivals) =
            (bridge.map(Arc::<str>::from), rivals.iter().map(|rival| shown(rival)).collect::<Vec<_>>());
        let (source, scanner) = (set.tool_source(), Arc::clone(scanner));
        // Schemas are compiled: not on a thread that calls run on.
        let sorting = spawn_blocking(move || definitions_elsewhere(&source, tools, &scanner, Clock::SYSTEM));
        let Ok(definitions) = sorting.await else { return };
        let Definitions { tools, hidden, cleaned: _ } = definitions;
        let suspect = tools.iter().filter(|tool| !tool.suspicions.is_empty()).count();
        let tools: Vec<Tool> =
            tools.into_iter().map(|descriptor| self.tool(set, descriptor, limits, bridge.as_ref())).collect();
        let count = tools.len();
        let sets = self.parts.sets.read();
        if !sets.get(&set.name).is_some_and(|present| Arc::ptr_eq(present, set)) {
            return;
        }
        if let Err(error) = self.parts.registry.publish(Rank::Configured, &set.source(), tools) {
            tracing::error!(set = &*set.name, %error, "tools of another daemon were not registered");
            return;
        }
        drop(sets);
        tracing::info!(set = &*set.name, agent = shown(&agent), tools = count, "another daemon listed its tools");
        set.note(notice.filter(|_| count == 0).map(|notice| readable(&notice)));
        let mut state = set.state.lock();
        if state.hidden != hidden && !hidden.is_empty() {
            let first = hidden.first().map(|tool| format!("{}: {}", tool.name, tool.reason));
            tracing::warn!(set = &*set.name, hidden = hidden.len(), first, "tools of another daemon are not offered");
        }
        if suspect > 0 && state.suspect != suspect {
            tracing::warn!(set = &*set.name, suspect, "definitions of another daemon's tools are suspect");
        }
        if state.rivals != rivals && !rivals.is_empty() {
            let (bridge, others) = (bridge.as_deref().map(shown), rivals.join(", "));
            tracing::warn!(
                set = &*set.name,
                bridge,
                others,
                "several bridges have an MCP server of one name: each runs its calls, and one answers"
            );
        }
        let (heard, last_error) = (state.heard, state.last_error.take());
        *state = LearntState { is_known: true, heard, last_error, tools: count, suspect, hidden, rivals };
    }

    fn tool(
        &self,
        set: &LearntSet,
        mut descriptor: ToolDescriptor,
        limits: &Limits,
        bridge: Option<&Arc<str>>,
    ) -> Tool {
        limits(&mut descriptor);
        descriptor.is_learnt = true;
        let (name, effect) = (Arc::clone(&descriptor.name), descriptor.effect);
        let executor = self.parts.daemons.tool(set.topic.as_str(), name, effect);
        let Some(server) = &set.server else {
            return match &set.provider {
                Some(provider) => Tool::new(descriptor, executor.of_provider(provider.clone())),
                None => Tool::new(descriptor, executor),
            };
        };
        let bridged = BridgedServer { server: Arc::clone(server.as_str()), bridge: bridge.cloned() };
        Tool::new(descriptor, executor.of_server(bridged))
    }

    /// The set that may have the tool that the caller means, and could use, while the set's tools are not known.
    fn unknown_set(&self, wanted: ToolRef<'_>, effective: &EffectiveTools) -> Option<Arc<LearntSet>> {
        let sets = self.parts.sets.read();
        let set = sets.values().find(|set| !set.state.lock().is_known && set.may_have(wanted, effective))?;
        Some(Arc::clone(set))
    }
}

impl PendingTools for RemoteSets {
    fn expect<'a>(
        &'a self,
        wanted: ToolRef<'a>,
        effective: &'a EffectiveTools,
        latest: Instant,
    ) -> Option<BoxFuture<'a, ()>> {
        let set = self.unknown_set(wanted, effective).filter(|set| !*set.is_tried.borrow());
        let Some(set) = set else { return self.parts.others.expect(wanted, effective, latest) };
        Some(Box::pin(async move {
            let mut tried = set.is_tried.subscribe();
            let latest = latest.min(Clock::SYSTEM.now() + FIRST_LIST_TIME);
            let _ = tokio::time::timeout_at(latest.into(), tried.wait_for(|is_tried| *is_tried)).await;
        }))
    }

    fn out_of_reach(&self, wanted: ToolRef<'_>, effective: &EffectiveTools) -> Option<ToolFailure> {
        if self.unknown_set(wanted, effective).is_none() {
            return self.parts.others.out_of_reach(wanted, effective);
        }
        let text = format!(
            "Tool '{}' is not there yet: the daemon that may have it has not said so. Try again in a few seconds.",
            shown(wanted.name)
        );
        Some(ToolFailure::new(Cause::ConnectFailed, text).with_retry_after(RETRY_AFTER))
    }
}

/// A reason as operators read it: escaped, but for the quotes that brokers and daemons put around names.
fn readable(reason: &str) -> String {
    excerpt(reason, MAX_REASON).replace("\\'", "'")
}

impl LearntSet {
    fn new(name: &str, config: &ToolsetConfig) -> Self {
        Self {
            name: name.into(),
            prefix: config.prefix(name).into(),
            topic: config.calls_topic().map(Cow::into_owned).unwrap_or_default(),
            provider: config.provider.clone(),
            server: config.server.as_deref().and_then(|server| ServerName::parse(server).ok()),
            state: Mutex::default(),
            is_tried: watch::Sender::new(false),
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        let is_like = (&self.name, &self.prefix, &self.topic, &self.provider)
            == (&other.name, &other.prefix, &other.topic, &other.provider);
        // Written in another case, it is another source.
        is_like && self.source() == other.source()
    }

    fn source(&self) -> Arc<str> {
        self.server.as_ref().map_or_else(|| toolsets::source(&self.name).into(), |server| Arc::clone(server.source()))
    }

    fn tool_source(&self) -> ToolSource {
        ToolSource {
            source: self.source(),
            provider: toolsets::PROVIDER,
            title: match &self.server {
                Some(server) => format!("MCP server {server}"),
                None => match &self.provider {
                    Some(provider) => format!("the provider {provider}"),
                    None => format!("the daemon of tool set {}", self.name),
                },
            },
            server: self.server.as_ref().map(|server| Arc::clone(server.as_str())),
            naming: Naming::default(),
            toolset: Some(SourceToolset {
                set: Arc::clone(&self.name),
                prefix: Arc::clone(&self.prefix),
                needs_session: false,
            }),
            validation: Validation::default(),
            tool_timeout: None,
        }
    }

    /// Whether the caller could use the tool that it means, if the set had it.
    fn may_have(&self, wanted: ToolRef<'_>, effective: &EffectiveTools) -> bool {
        let admits = |name: &str| effective.admits(&self.imagined(name));
        match (wanted.route, &self.server) {
            (Lookup::Server(named), Some(server)) => {
                ServerName::parse(named).is_ok_and(|named| named == *server) && admits(wanted.name)
            }
            (Lookup::Server(_) | Lookup::AnyServer, None) => false,
            (Lookup::Name | Lookup::AnyServer, _) => {
                let beginning = format!("{}.", self.prefix);
                match wanted.name.strip_prefix(&beginning) {
                    Some(name) => admits(name),
                    // The alias for models yields the name only where no more than the dot was replaced.
                    None => rest_of_alias(wanted.name, &beginning).is_some_and(|rest| {
                        if is_alias_of(wanted.name, &format!("{beginning}{rest}")) {
                            admits(rest)
                        } else {
                            effective.could_have(&self.source(), Some(&self.name))
                        }
                    }),
                }
            }
        }
    }

    /// A tool of the set as it would be, if there were one. `name` is that of the other daemon.
    fn imagined(&self, name: &str) -> ToolDescriptor {
        let (set, needs_session) = (Arc::clone(&self.name), false);
        ToolDescriptor {
            own_name: Some(name.into()),
            server: self.server.as_ref().map(|server| Arc::clone(server.as_str())),
            toolset: Some(Membership { set, name: name.into(), needs_session }),
            ..ToolDescriptor::new(format!("{}.{name}", self.prefix), self.source(), toolsets::PROVIDER)
        }
    }

    /// Notes a list of the other daemon.
    fn hear(&self) {
        self.state.lock().heard = Some(Clock::SYSTEM.now());
    }

    /// Notes the problem of the other daemon, if there is one.
    fn note(&self, error: Option<String>) {
        let mut state = self.state.lock();
        if state.last_error == error {
            return;
        }
        match &error {
            Some(reason) => tracing::warn!(set = &*self.name, reason, "another daemon does not list its tools"),
            None => tracing::info!(set = &*self.name, "another daemon lists its tools again"),
        }
        state.last_error = error;
    }

    fn status(&self) -> RemoteSetHealth {
        let state = self.state.lock();
        let phase = match (state.is_known, &state.last_error) {
            (false, _) => RemotePhase::Waiting,
            (true, None) => RemotePhase::Ready,
            (true, Some(_)) => RemotePhase::Away,
        };
        RemoteSetHealth {
            name: self.name.to_string(),
            phase,
            tools: state.tools,
            hidden: state.hidden.len(),
            suspect: state.suspect,
            list_age_seconds: state.heard.map(|heard| Clock::SYSTEM.since(heard).as_secs()),
            rivals: state.rivals.clone(),
            last_error: state.last_error.clone(),
        }
    }
}
