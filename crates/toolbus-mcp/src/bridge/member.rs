//! One server of the bridge: kept once, or once for each agent that has a credential of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{Membership, ToolDescriptor};

use super::executor::McpTool;
use super::{Placed, SetPlace, Shared};
use crate::connection::{About, Listed};
use crate::definition::{Definitions, ToolsetPlace, definitions};
use crate::dial::{Dialer, no_credential};
use crate::observe::Observer;
use crate::peers::AboutServer;
use crate::process::Launcher;
use crate::server::{Keeping, Listener, Server, State};
use crate::sessions;
use crate::spec::{Credentials, Origin, ServerSpec, TransportSpec};
use crate::status::{HiddenTool, PhaseName, ServerStatus};

/// Time without a call after which a lazy server is stopped.
const LAZY_TIME: Duration = Duration::from_secs(5 * 60);

/// A server with all that is known of it.
pub(super) struct Member {
    placed: Placed,
    /// Absent for one that is not to be used.
    main: Option<Arc<Server>>,
    /// Of agents that have credentials of their own; the first lists the tools.
    agents: BTreeMap<AgentName, Arc<Server>>,
    known: Mutex<Known>,
    /// Where its tools are registered.
    shared: OnceLock<std::sync::Weak<Shared>>,
}

#[derive(Default)]
struct Known {
    /// Absent until the server was connected to for the first time.
    tools: Option<Vec<ToolDescriptor>>,
    hidden: Vec<HiddenTool>,
    about: AboutServer,
    implementation: Option<String>,
}

impl Member {
    pub(super) fn new(placed: Placed, launcher: &Launcher, observer: &Arc<dyn Observer>) -> Arc<Self> {
        let spec = &placed.spec;
        let is_per_session = placed.set.as_ref().is_some_and(|set| set.sessions.is_some());
        let keeping = match (is_per_session, spec.is_lazy) {
            (true, _) => Keeping::UntilListed,
            (false, true) => Keeping::WhileUsed(LAZY_TIME),
            (false, false) => Keeping::Always,
        };
        let listing = if is_per_session { sessions::for_listing(spec) } else { spec.clone() };
        let server =
            |credential| Server::new(spec.name.clone(), keeping, Dialer::new(&listing, credential, launcher, observer));
        let mut agents = BTreeMap::new();
        let mut main = None;
        if !spec.is_disabled {
            match &spec.transport {
                TransportSpec::Http(endpoint) if let Credentials::PerAgent(credentials) = &endpoint.credentials => {
                    let of_agents = credentials.iter().filter_map(|(agent, credential)| {
                        Some((AgentName::parse(agent).ok()?, server(Some(credential))))
                    });
                    agents = of_agents.collect();
                    main = agents.values().next().cloned();
                }
                _ => main = Some(server(None)),
            }
        }
        Arc::new(Self { placed, main, agents, known: Mutex::default(), shared: OnceLock::new() })
    }

    pub(super) const fn spec(&self) -> &ServerSpec {
        &self.placed.spec
    }

    /// Whether nothing would be different with `other` in its place.
    pub(super) fn is(&self, other: &Placed) -> bool {
        let place = |placed: &Placed| {
            let SetPlace { name, prefix, sessions } = placed.set.clone()?;
            Some((name, prefix, sessions.map(|set| Arc::as_ptr(&set))))
        };
        self.placed.spec == other.spec && place(&self.placed) == place(other)
    }

    /// Keeps its servers from now on.
    pub(super) fn keep(self: &Arc<Self>, shared: &Arc<Shared>) {
        let _ = self.shared.set(Arc::downgrade(shared));
        for server in self.servers() {
            let is_main = self.main.as_ref().is_some_and(|main| Arc::ptr_eq(main, server));
            let listener: Arc<dyn Listener> = match is_main {
                true => Arc::new(Lists(Arc::clone(self))),
                false => Arc::new(NotAsked),
            };
            tokio::spawn(shared.keepers.track_future(Arc::clone(server).keep(listener)));
        }
    }

    fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
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
        self.main.iter().for_each(|server| server.relist());
    }

    /// The server that runs this caller's calls.
    pub(super) fn server_for(&self, caller: &Caller) -> Result<&Arc<Server>, ToolFailure> {
        let of_agent = || caller.agent.as_ref().and_then(|agent| self.agents.get(agent));
        let server = if self.agents.is_empty() { self.main.as_ref() } else { of_agent() };
        server.ok_or_else(|| no_credential(&self.spec().name))
    }

    /// Whether its tools are known: it was connected to before.
    pub(super) fn is_known(&self) -> bool {
        self.known().tools.is_some()
    }

    /// Whether it needs no call to be started.
    pub(super) const fn starts_at_once(&self) -> bool {
        self.main.is_some() && !self.placed.spec.is_lazy
    }

    /// Over when its tools are known, or when nothing more will be tried soon; with `patient` false already when the first
    /// try has failed. Starts the server if it waits for that.
    pub(super) fn arrival(self: &Arc<Self>, patient: bool) -> BoxFuture<'static, ()> {
        let member = Arc::clone(self);
        Box::pin(async move {
            let Some(main) = &member.main else { return };
            let mut states = main.states();
            loop {
                main.wake();
                let is_over = match &*states.borrow_and_update() {
                    state if state.is_final() => true,
                    State::Waiting => !patient,
                    _ => false,
                };
                if is_over || member.is_known() || states.changed().await.is_err() {
                    return;
                }
            }
        })
    }

    /// A tool of this name as it would be if the server had it; none when it cannot be the server's.
    pub(super) fn imagined(&self, name: &str, is_published: bool) -> Option<ToolDescriptor> {
        let spec = self.spec();
        let mut descriptor = ToolDescriptor::new(name, spec.name.source(), "mcp");
        if let Some(set) = &self.placed.set {
            let bare = match is_published {
                true => name.strip_prefix(&*set.prefix)?.strip_prefix('.')?,
                false => name,
            };
            descriptor.name = format!("{}.{bare}", set.prefix).into();
            let needs_session = set.sessions.is_some();
            descriptor.toolset = Some(Membership { set: Arc::clone(&set.name), name: bare.into(), needs_session });
        }
        descriptor.server = Some(Arc::clone(spec.name.as_str()));
        Some(descriptor)
    }

    pub(super) fn about(&self) -> Option<AboutServer> {
        Some(AboutServer { name: self.spec().name.to_string(), ..self.known().about.clone() })
    }

    /// Names of the tools that it offers, as it calls them.
    pub(super) fn tool_names(&self) -> Vec<String> {
        let known = self.known();
        known.tools.iter().flatten().map(|tool| tool.bare_name().to_string()).collect()
    }

    /// Why it is not there, for whoever added it.
    pub(super) fn last_error(&self) -> Option<String> {
        self.main.as_ref().and_then(|server| server.last_error())
    }

    pub(super) fn status(&self) -> ServerStatus {
        let spec = self.spec();
        let mut status = ServerStatus {
            name: spec.name.to_string(),
            transport: match &spec.transport {
                TransportSpec::Stdio(_) => "stdio".to_owned(),
                TransportSpec::Http(_) => "http?".to_owned(),
            },
            phase: PhaseName::Disabled,
            last_error: None,
            protocol_version: None,
            implementation: None,
            tools: Vec::new(),
            hidden: Vec::new(),
            pid: None,
            restarts: 0,
            ready_seconds: None,
            in_flight: 0,
            latency_us: None,
            stderr: Vec::new(),
            origin: match spec.origin {
                Origin::Configuration => "configuration".to_owned(),
                Origin::Registration => "registration".to_owned(),
            },
            toolset: self.placed.set.as_ref().map(|set| set.name.to_string()),
            sessions: self.placed.set.as_ref().and_then(|set| set.sessions.as_ref()).map_or(0, |set| set.sessions()),
        };
        let Some(main) = &self.main else { return status };
        {
            let known = self.known();
            status.tools = known.tools.iter().flatten().map(|tool| tool.name.to_string()).collect();
            status.hidden.clone_from(&known.hidden);
            status.implementation.clone_from(&known.implementation);
        }
        main.dialer().transport_name().clone_into(&mut status.transport);
        let state = main.state();
        status.phase = state.phase();
        status.last_error = main.last_error();
        status.restarts = self.servers().map(|server| server.restarts()).sum();
        status.stderr = main.stderr();
        if let State::Ready(ready) = &state {
            let connection = &ready.link.connection;
            status.pid = ready.link.pid();
            status.protocol_version = Some(connection.about().protocol_version.clone());
            status.ready_seconds = Some(ready.since.elapsed().as_secs());
            status.latency_us =
                connection.last_latency().map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
            status.in_flight = connection.in_flight();
        }
        status
    }

    /// Registers what is known of its tools, with the limits as they are now.
    pub(super) fn register(self: &Arc<Self>, shared: &Arc<Shared>) {
        let Some(mut tools) = self.known().tools.clone() else { return };
        let limits = shared.limits();
        let tools = tools.drain(..).map(|mut descriptor| {
            limits(&mut descriptor);
            match self.placed.set.as_ref().and_then(|set| set.sessions.as_ref()) {
                Some(sessions) => sessions.tool(descriptor),
                None => McpTool::tool(Arc::clone(self), descriptor),
            }
        });
        shared.publish(self.spec(), tools.collect());
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the tools of a member.
struct Lists(Arc<Member>);

impl Listener for Lists {
    fn listed(&self, about: &About, listed: Listed) -> BoxFuture<'_, ()> {
        let (member, about) = (Arc::clone(&self.0), about.clone());
        Box::pin(async move {
            let Some(shared) = member.shared.get().and_then(std::sync::Weak::upgrade) else { return };
            // Schemas are compiled: not on a thread that calls run on.
            let _ = tokio::task::spawn_blocking(move || take(&member, &shared, about, listed)).await;
        })
    }
}

fn take(member: &Arc<Member>, shared: &Arc<Shared>, about: About, listed: Listed) {
    let spec = member.spec();
    let place = member.placed.set.as_ref().map(|set| ToolsetPlace {
        set: Arc::clone(&set.name),
        prefix: Arc::clone(&set.prefix),
        needs_session: set.sessions.is_some(),
    });
    let Definitions { tools, hidden } = definitions(spec, place.as_ref(), listed.tools, listed.unreadable);
    let name = &**spec.name.as_str();
    {
        let mut known = member.known();
        if known.hidden != hidden && !hidden.is_empty() {
            let first = hidden.first().map(|tool| format!("{}: {}", tool.name, tool.reason));
            tracing::warn!(server = name, hidden = hidden.len(), first, "tools of an MCP server are not offered");
        }
        let called = [about.name.as_deref(), about.version.as_deref()];
        known.implementation = about.name.is_some().then(|| called.into_iter().flatten().collect::<Vec<_>>().join(" "));
        known.about = AboutServer {
            name: String::new(),
            description: about.description.or(about.title),
            instructions: about.instructions,
        };
        tracing::debug!(server = name, tools = tools.len(), "an MCP server listed its tools");
        known.tools = Some(tools);
        known.hidden = hidden;
    }
    member.register(shared);
}

/// Of a server whose tools another one lists.
struct NotAsked;

impl Listener for NotAsked {
    fn listed(&self, _: &About, _: Listed) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}
