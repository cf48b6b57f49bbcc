//! One server: supervised once, or once for each agent with its own credential.

use std::collections::BTreeMap;
use std::hash::RandomState;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use futures_util::future::{BoxFuture, join_all};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::events::McpClientEvents;
use toolbus_core::failure::ToolFailure;
use toolbus_core::policy::EffectiveTools;
use toolbus_core::tool::{Membership, Naming, ToolDescriptor};
use toolbus_protocol::{is_alias_of, rest_of_alias};

use super::definition::is_reserved;
use super::findings::Findings;
use super::{ServerToolset, ServerWithSet, ServersState, sessions};
use crate::process::Launcher;
use crate::spec::{Credentials, ServerSpec, TransportSpec};
use crate::status::{HiddenTool, PhaseName, ServerDescription, ServerStatus, ShadowedTool};
use crate::supervise::connect::{Connector, no_credential};
use crate::supervise::{Lifetime, Listener, ServerState, SupervisedServer, Timeouts};

/// A server, with its tools and its instances.
pub(super) struct ServerEntry {
    pub(super) server: ServerWithSet,
    /// `None` if the server is disabled.
    pub(super) main: Option<Arc<SupervisedServer>>,
    /// Instances of agents with their own credentials. The first lists the tools, or else any that can.
    agents: BTreeMap<AgentName, Arc<SupervisedServer>>,
    known: Mutex<ListedTools>,
    /// Purpose of the server, in the operator's words; changes without a restart.
    summary: Mutex<Option<Arc<str>>>,
    /// Whether its tools are known: it was connected to before.
    pub(super) is_known: watch::Sender<bool>,
    /// Where its tools are registered.
    pub(super) shared: OnceLock<std::sync::Weak<ServersState>>,
}

#[derive(Default)]
pub(super) struct ListedTools {
    pub(super) tools: Vec<ToolDescriptor>,
    pub(super) hidden: Vec<HiddenTool>,
    pub(super) about: ServerDescription,
    pub(super) implementation: Option<String>,
    /// The index of the instance that has listed them.
    lister: Option<usize>,
    pub(super) vetted: Findings,
    /// Fingerprint of the last listing; `None` if its tools found no room.
    pub(super) last_fingerprint: Option<u64>,
    pub(super) fingerprints: RandomState,
}

impl ServerEntry {
    pub(super) fn new(
        with_set: ServerWithSet,
        timeouts: Timeouts,
        launcher: &Launcher,
        observer: &Arc<dyn McpClientEvents>,
    ) -> Arc<Self> {
        let spec = &with_set.spec;
        let is_per_session = with_set.set.as_ref().is_some_and(|set| set.sessions.is_some());
        let lifetime = match (is_per_session, spec.is_lazy) {
            (true, _) => Lifetime::UntilListed,
            (false, true) => Lifetime::WhileUsed(timeouts.idle),
            (false, false) => Lifetime::Always,
        };
        let listing = if is_per_session { sessions::for_listing(spec) } else { spec.clone() };
        let server = |credential| {
            let connector = Connector::new(&listing, credential, launcher, observer);
            let directories = if is_per_session { sessions::directories(&listing) } else { Vec::new() };
            SupervisedServer::new(spec.name.clone(), lifetime, timeouts, connector.making(directories))
        };
        let mut agents = BTreeMap::new();
        let mut main = None;
        if !spec.is_disabled {
            match &spec.transport {
                TransportSpec::Http(endpoint) if let Credentials::PerAgent(credentials) = &endpoint.credentials => {
                    let of_agent = |(agent, credential): (&AgentName, _)| (agent.clone(), server(Some(credential)));
                    agents = credentials.iter().map(of_agent).collect();
                    main = agents.values().next().cloned();
                }
                _ => main = Some(server(None)),
            }
        }
        Arc::new(Self {
            summary: Mutex::new(with_set.spec.summary.clone()),
            server: with_set,
            main,
            agents,
            known: Mutex::default(),
            is_known: watch::Sender::new(false),
            shared: OnceLock::new(),
        })
    }

    pub(super) const fn spec(&self) -> &ServerSpec {
        &self.server.spec
    }

    /// Whether `other` is configured equally, but for the summary.
    pub(super) fn is(&self, other: &ServerWithSet) -> bool {
        let toolset = |server: &ServerWithSet| {
            let ServerToolset { name, prefix, sessions } = server.set.clone()?;
            Some((name, prefix, sessions.map(|set| Arc::as_ptr(&set))))
        };
        self.server.spec.runs_like(&other.spec) && toolset(&self.server) == toolset(other)
    }

    /// Starts supervision, after the instances of `before` have ended: both may need the same exclusive resource. Each
    /// instance reports to its own listener, which is made with its index.
    pub(super) fn keep<L: Listener + 'static>(
        &self,
        shared: &Arc<ServersState>,
        before: Option<&Arc<Self>>,
        listener: impl Fn(usize) -> Arc<L>,
    ) {
        let _ = self.shared.set(Arc::downgrade(shared));
        for (index, server) in self.servers().enumerate() {
            let listener = listener(index);
            let leaving: Vec<_> =
                before.iter().flat_map(|before| before.servers()).map(|server| server.states()).collect();
            let server = Arc::clone(server);
            shared.tasks.spawn(async move {
                for mut states in leaving {
                    let _ = states.wait_for(|state| matches!(state, ServerState::Stopped)).await;
                }
                server.keep(listener).await;
            });
        }
    }

    pub(super) fn servers(&self) -> impl Iterator<Item = &Arc<SupervisedServer>> {
        let main = self.main.iter().filter(|_| self.agents.is_empty());
        main.chain(self.agents.values())
    }

    pub(super) fn stop(&self) {
        self.servers().for_each(|server| server.stop());
    }

    pub(super) fn restart(&self) {
        self.servers().for_each(|server| server.restart());
    }

    pub(super) fn relist(&self) {
        let ready = self.servers().find(|server| matches!(server.state(), ServerState::Ready(_)));
        ready.or(self.main.as_ref()).into_iter().for_each(|server| server.relist());
    }

    /// Whether the list of this instance counts: none has listed before it that can list again.
    pub(super) fn takes_list_of(&self, index: usize) -> bool {
        let mut known = self.known();
        let can_list = |server: &Arc<SupervisedServer>| {
            let state = server.state();
            !matches!(state, ServerState::Parked { .. } | ServerState::AuthRequired | ServerState::Stopped)
        };
        let earlier = known.lister.filter(|lister| *lister < index);
        if earlier.and_then(|lister| self.servers().nth(lister)).is_some_and(can_list) {
            return false;
        }
        known.lister = Some(index);
        true
    }

    /// The server that runs this caller's calls.
    pub(super) fn server_for(&self, caller: &Caller) -> Result<&Arc<SupervisedServer>, ToolFailure> {
        let of_agent = || caller.agent.as_ref().and_then(|agent| self.agents.get(agent));
        let server = if self.agents.is_empty() { self.main.as_ref() } else { of_agent() };
        server.ok_or_else(|| no_credential(&self.spec().name))
    }

    /// Whether its tools are known: it was connected to before.
    pub(super) fn is_known(&self) -> bool {
        *self.is_known.borrow()
    }

    /// Until when a call waits for its tools that does not name the server.
    pub(super) fn promising_until(&self) -> Option<Instant> {
        self.servers().map(|server| server.promising_until()).max()
    }

    /// Whether its tools are unknown and its first attempt to connect is pending.
    pub(super) fn is_untried(&self) -> bool {
        !self.is_known() && self.servers().any(|server| server.is_untried())
    }

    /// Whether the server has listed a tool of this name: its own name, the registered one, or the one that models use
    /// for that.
    pub(super) fn has_brought(&self, name: &str) -> bool {
        let has =
            |tool: &ToolDescriptor| &*tool.name == name || &**tool.bare_name() == name || is_alias_of(name, &tool.name);
        self.known().tools.iter().any(has)
    }

    /// The failure of a call while its tools are unknown; `None` for a disabled server.
    pub(super) fn out_of_reach(&self) -> Option<ToolFailure> {
        Some(self.main.as_ref()?.out_of_reach())
    }

    /// Whether its tools are unknown because it is lazy and has not been started.
    pub(super) fn is_asleep(&self) -> bool {
        self.main.is_some() && self.server.spec.is_lazy && !self.is_known()
    }

    /// Whether the server starts without a call.
    pub(super) const fn starts_at_once(&self) -> bool {
        self.main.is_some() && !self.server.spec.is_lazy
    }

    /// Waits until its tools are known, or no attempt follows soon; with `patient` false, only until the
    /// first attempt has failed. Starts a lazy server.
    pub(super) fn arrival(self: &Arc<Self>, patient: bool) -> BoxFuture<'static, ()> {
        let mut is_known = self.is_known.subscribe();
        let servers: Vec<_> = self.servers().cloned().collect();
        Box::pin(async move {
            let all_tried = join_all(servers.iter().map(async |server| {
                let mut states = server.states();
                loop {
                    let is_over = match &*states.borrow_and_update() {
                        ServerState::Waiting => !patient,
                        state => state.is_final(server.clock()),
                    };
                    if is_over {
                        return;
                    }
                    server.wake();
                    if states.changed().await.is_err() {
                        return;
                    }
                }
            }));
            tokio::select! {
                biased;
                _ = is_known.wait_for(|is_known| *is_known) => {}
                _ = all_tried => {}
            }
        })
    }

    /// The descriptor that a tool of this name would have; `None` if the server cannot have such a tool.
    pub(super) fn imagined(&self, name: &str, is_published: bool) -> Option<ToolDescriptor> {
        let (spec, naming) = (self.spec(), self.naming());
        let own = if is_published { naming.own(name)? } else { name };
        let published = naming.published(own);
        let mut descriptor = ToolDescriptor::new(published, Arc::clone(spec.name.source()), "mcp");
        descriptor.own_name = Some(own.into());
        if let Some(set) = &self.server.set {
            let needs_session = set.sessions.is_some();
            descriptor.toolset = Some(Membership { set: Arc::clone(&set.name), name: own.into(), needs_session });
        }
        descriptor.server = Some(Arc::clone(spec.name.as_str()));
        let name = descriptor.bare_name();
        let may_offer = spec.tools.admits(name) && !is_reserved(name);
        may_offer.then_some(descriptor)
    }

    /// Whether the caller could use the tool for which models use `alias`, if the server had it. An alias reveals the
    /// name that it stands for only where no more than the set's dot was replaced; elsewhere the caller must be able to
    /// use some tool of the server.
    pub(super) fn may_offer_as(&self, alias: &str, effective: &EffectiveTools) -> bool {
        let naming = self.naming();
        let beginning = match (&naming.set, &naming.prefix) {
            (Some(set), _) => format!("{set}."),
            (None, Some(prefix)) => format!("{prefix}_"),
            (None, None) => return false,
        };
        let Some(rest) = rest_of_alias(alias, &beginning) else { return false };
        let likely = format!("{beginning}{rest}");
        if is_alias_of(alias, &likely) {
            return self.imagined(&likely, true).is_some_and(|descriptor| effective.admits(&descriptor));
        }
        self.is_within_reach(effective)
    }

    fn naming(&self) -> Naming {
        let set = self.server.set.as_ref().map(|set| Arc::clone(&set.prefix));
        Naming { set, ..self.spec().naming.clone() }
    }

    /// Whether the policy admits some tool of this server, even before it lists any.
    pub(super) fn is_within_reach(&self, effective: &EffectiveTools) -> bool {
        effective.could_have(self.spec().name.source(), self.server.set.as_ref().map(|set| &set.name))
    }

    pub(super) fn describe(&self) -> Option<ServerDescription> {
        let (name, summary) = (self.spec().name.to_string(), self.summary.lock().clone());
        Some(ServerDescription { name, summary, ..self.known().about.clone() })
    }

    /// Takes the operator's summary; returns whether it is another one.
    pub(super) fn set_summary(&self, summary: Option<Arc<str>>) -> bool {
        let mut present = self.summary.lock();
        std::mem::replace(&mut *present, summary) != *present
    }

    /// The own names of its offered tools.
    pub(super) fn tool_names(&self) -> Vec<String> {
        let known = self.known();
        known.tools.iter().map(|tool| tool.bare_name().to_string()).collect()
    }

    /// The last error, for the caller that registered it.
    pub(super) fn last_error(&self) -> Option<String> {
        self.servers().find_map(|server| server.last_error())
    }

    pub(super) fn known(&self) -> MutexGuard<'_, ListedTools> {
        self.known.lock()
    }
}

/// Most shadowed tools that a status names.
const MAX_SHADOWED: usize = 200;

impl ServerEntry {
    pub(super) fn status(&self) -> ServerStatus {
        let mut status = ServerStatus::untried(self.spec(), PhaseName::Disabled);
        if let Some(set) = &self.server.set {
            status.toolset = Some(set.name.to_string());
            status.sessions = set.sessions.as_ref().map_or(0, |set| set.sessions());
        }
        let Some(main) = &self.main else { return status };
        {
            let known = self.known();
            status.tools = known.tools.iter().map(|tool| tool.name.to_string()).collect();
            status.hidden.clone_from(&known.hidden);
            known.vetted.report(&mut status);
            status.implementation.clone_from(&known.implementation);
        }
        self.report_shadowed(&mut status);
        // Of several instances, a ready one has the most to show.
        let server = self.servers().find(|server| matches!(server.state(), ServerState::Ready(_))).unwrap_or(main);
        server.connector().transport_name().clone_into(&mut status.transport);
        let state = server.state();
        status.phase = state.phase();
        status.last_error = self.last_error();
        status.restarts = self.servers().map(|server| server.restarts()).sum();
        status.stderr = server.stderr();
        status.in_flight = self.servers().map(|server| server.in_flight()).sum();
        if let ServerState::Ready(ready) = &state {
            let connection = &ready.connected.connection;
            status.pid = ready.connected.pid();
            status.protocol_version = Some(connection.server_info().protocol_version.clone());
            status.ready_seconds = Some(server.clock().since(ready.since).as_secs());
            status.latency_us =
                connection.last_latency().map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        }
        status
    }

    fn report_shadowed(&self, status: &mut ServerStatus) {
        let Some(shared) = self.shared.get().and_then(Weak::upgrade) else { return };
        let snapshot = shared.registry.snapshot();
        let mut clashes: Vec<_> =
            snapshot.clashes().filter(|clash| clash.shadowed == *self.spec().name.source()).collect();
        clashes.sort();
        status.shadowed_total = clashes.len();
        let shadowed = clashes.into_iter().take(MAX_SHADOWED);
        status.shadowed = shadowed
            .map(|clash| ShadowedTool { name: clash.name.to_string(), owner: clash.kept.to_string() })
            .collect();
    }
}
