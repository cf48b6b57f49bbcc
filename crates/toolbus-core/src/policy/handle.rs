//! The present catalogue, and every way to change it.

use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use tokio::sync::watch;
use toolbus_protocol::Envelope;

use super::agent_rules::Rules;
use super::catalogue::Catalogue;
use super::effective::EffectiveTools;
use super::rules::Capacity;
use super::rules::{Policy, UnknownCallers};
use super::switches::{Switch, SwitchError};
use crate::caller::{AgentName, Caller, Identity, IdentitySource};
use crate::quarantine::DefinitionCheck;
use crate::registry::Registry;
use crate::tool::ToolDescriptor;
use crate::turns::Turns;

/// Sessions whose tool sets are remembered.
const MAX_SESSIONS: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Tool sets of a session, by caller and session.
type Sessions = LruCache<(Arc<str>, Arc<str>), Arc<[Arc<str>]>>;

/// The present policy. Cheap to clone.
#[derive(Clone)]
pub struct PolicyHandle {
    shared: Arc<PolicyState>,
}

struct PolicyState {
    registry: Registry,
    capacity: Capacity,
    current: RwLock<Arc<Catalogue>>,
    changing: Mutex<()>,
    catching_up: tokio::sync::Mutex<()>,
    sessions: Mutex<Sessions>,
    version: watch::Sender<u64>,
    turns: Turns,
}

/// The catalogue has all tools of the registry.
struct UpToDate;

impl PolicyHandle {
    /// Puts rules and tools together.
    #[must_use]
    pub fn new(registry: Registry, identity: Identity, policy: Policy, capacity: Capacity) -> Self {
        let rules = Arc::new(Rules::new(identity, policy, capacity, None));
        let catalogue = Catalogue::new(rules, Arc::default(), &registry.snapshot(), None);
        Self {
            shared: Arc::new(PolicyState {
                registry,
                capacity,
                current: RwLock::new(Arc::new(catalogue)),
                changing: Mutex::default(),
                catching_up: tokio::sync::Mutex::default(),
                sessions: Mutex::new(LruCache::new(MAX_SESSIONS)),
                version: watch::Sender::new(0),
                turns: Turns::default(),
            }),
        }
    }

    /// Sets the check of definitions. Later calls have no effect.
    pub fn set_definition_check(&self, check: Arc<dyn DefinitionCheck>) {
        if self.shared.registry.set_definition_check(check) {
            self.refresh();
        }
    }

    /// The policy at this moment.
    #[must_use]
    pub fn current(&self) -> Arc<Catalogue> {
        Arc::clone(&self.shared.current.read())
    }

    /// The sender of a message; `None` if this daemon does not serve that sender.
    #[must_use]
    pub fn identify(&self, user_id: Option<&str>, envelope: &Envelope, topic: &str) -> Option<Caller> {
        let current = self.current();
        let mut caller = current.rules.identity.identify(user_id, envelope, topic)?;
        caller.has_section = current.rules.section_of(&caller) > 0;
        Some(caller)
    }

    /// The sender of a message that has no reply, whichever agents this daemon serves.
    #[must_use]
    pub fn sender(&self, user_id: Option<&str>, envelope: &Envelope) -> Caller {
        let current = self.current();
        let identity = &current.rules.identity;
        let agent = identity.sender(user_id, envelope);
        let verified = identity.source == IdentitySource::Broker && agent.is_some();
        let caller = agent.map_or_else(Caller::unknown, Caller::agent);
        let has_section = current.rules.section_of(&caller) > 0;
        Caller { verified, has_section, ..caller }
    }

    /// A caller that another component has authenticated as this agent; `None`: an unknown caller.
    #[must_use]
    pub fn vouched(&self, agent: Option<AgentName>, session: Arc<str>) -> Caller {
        let known = agent.map(|agent| Caller { verified: true, ..Caller::agent(agent) });
        let mut caller = Caller { session: Some(session), ..known.unwrap_or_else(Caller::unknown) };
        caller.has_section = self.current().rules.section_of(&caller) > 0;
        caller
    }

    /// An agent, as the caller of its earlier requests.
    #[must_use]
    pub fn agent(&self, agent: AgentName) -> Caller {
        let current = self.current();
        let verified = current.rules.identity.source == IdentitySource::Broker;
        let caller = Caller { verified, ..Caller::agent(agent) };
        let has_section = current.rules.section_of(&caller) > 0;
        Caller { has_section, ..caller }
    }

    /// Tools that a caller may use at this moment; in a session that began earlier, with the tool sets of then.
    #[must_use]
    pub fn effective(&self, caller: &Caller) -> EffectiveTools {
        let mut effective = EffectiveTools::new(self.current(), caller);
        if let Some(session) = &caller.session {
            let key = (Arc::clone(&caller.owner), Arc::clone(session));
            effective.frozen = self.sessions().get(&key).cloned();
        }
        effective
    }

    /// The turns for all heavy work of the daemon.
    #[must_use]
    pub fn turns(&self) -> &Turns {
        &self.shared.turns
    }

    /// Whether a caller has no tools any more, or had a section of its own that is gone.
    pub(crate) fn has_left(&self, caller: &Caller) -> bool {
        let effective = EffectiveTools::new(self.current(), caller);
        effective.is_empty() || (caller.has_section && self.current().rules.section_of(caller) == 0)
    }

    /// Every agent that has a section of its own.
    #[must_use]
    pub fn agents(&self) -> Vec<AgentName> {
        self.current().rules.sections().filter_map(|section| section.agent.clone()).collect()
    }

    /// Every agent that this daemon is there for by its configuration: those with a section, and that of a sidecar.
    #[must_use]
    pub fn configured_agents(&self) -> BTreeSet<AgentName> {
        let current = self.current();
        let of_sidecar = current.rules.identity.sidecar.as_ref().map(|sidecar| sidecar.agent.clone());
        current.rules.sections().filter_map(|section| section.agent.clone()).chain(of_sidecar).collect()
    }

    /// Tools for callers without a section.
    #[must_use]
    pub fn unknown_callers(&self) -> UnknownCallers {
        self.current().rules.policy.unknown_callers()
    }

    /// Notes that a session has begun, so that tool sets which are bound later wait for the next one. Callers without
    /// any tool begin none.
    pub(crate) fn begin_session(&self, caller: &Caller, effective: &mut EffectiveTools) {
        let Some(session) = &caller.session else { return };
        if effective.frozen.is_none() && effective.set().is_some() {
            let key = (Arc::clone(&caller.owner), Arc::clone(session));
            // The first of two first calls decides.
            let mut sessions = self.sessions();
            effective.frozen = Some(Arc::clone(sessions.get_or_insert(key, || effective.bound_sets())));
        }
    }

    /// Forgets a session, whose next call begins another.
    pub fn end_session(&self, caller: &Caller, session: &Arc<str>) {
        self.sessions().pop(&(Arc::clone(&caller.owner), Arc::clone(session)));
    }

    /// All tools, independent of callers.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.shared.registry
    }

    /// Replaces the rules, and changes the registry with them, so that no call sees the one change without the other.
    /// Calls under way keep what they have.
    ///
    /// # Errors
    ///
    /// If the registry cannot be changed; the rules then stay, too.
    pub fn replace<E>(
        &self,
        identity: Identity,
        policy: Policy,
        tools: impl FnOnce(&Registry) -> Result<(), E>,
    ) -> Result<(), E> {
        self.try_change(|current, registry| {
            tools(registry)?;
            let rules = Rules::new(identity, policy, self.shared.capacity, Some(&current.rules));
            Ok(Catalogue::new(Arc::new(rules), Arc::clone(&current.switches), &registry.vetted(), None))
        })
    }

    /// Takes the tools that there are now.
    pub fn refresh(&self) {
        self.change(Catalogue::refreshed);
    }

    /// Whether `effective` was taken with all the tools that the registry has now.
    pub(crate) fn has_latest(&self, effective: &EffectiveTools) -> bool {
        self.is_made_from_latest(effective.catalogue())
    }

    /// As [`Self::refresh`], where the catalogue is older than the registry, and not on a thread that calls run on. Of
    /// the calls that wait for it, one makes the catalogue that the others find.
    pub(crate) async fn catch_up(&self) {
        let _one_at_a_time = self.shared.catching_up.lock().await;
        if self.is_made_from_latest(&self.current()) {
            return;
        }
        let handle = self.clone();
        let refreshed = tokio::task::spawn_blocking(move || {
            handle.try_change(|current, registry| {
                // Another change may have brought the tools while this one waited.
                if handle.is_made_from_latest(current) {
                    return Err(UpToDate);
                }
                Ok(current.refreshed(registry))
            })
        });
        let _ = refreshed.await;
    }

    fn is_made_from_latest(&self, catalogue: &Catalogue) -> bool {
        catalogue.version == self.shared.registry.snapshot().version()
    }

    /// Takes the tools that there are after every change of the registry, until that is gone.
    pub async fn follow(&self) {
        let mut changes = self.shared.registry.changes();
        loop {
            // Not on a thread that calls run on.
            let handle = self.clone();
            if tokio::task::spawn_blocking(move || handle.refresh()).await.is_err() || changes.changed().await.is_err()
            {
                return;
            }
        }
    }

    /// Switches something off, at once; false when it was off already.
    ///
    /// # Errors
    ///
    /// If as many switches are off as may be.
    pub fn disable(&self, switch: Switch) -> Result<bool, SwitchError> {
        let mut result = Ok(false);
        self.switch(|switches| result = switches.disable(switch));
        result
    }

    /// Switches something on again, at once; false when it was not off.
    pub fn enable(&self, switch: &Switch) -> bool {
        let mut was_off = false;
        self.switch(|switches| was_off = switches.enable(switch));
        was_off
    }

    /// Whether this tool or this caller has been disabled, or the tool quarantined, since the caller's set was taken.
    pub(crate) fn is_off(&self, caller: &Caller, tool: &ToolDescriptor) -> bool {
        let current = self.current();
        let is_switched_off = || current.switches.of_tool(tool).is_some() || current.has_switched_off(caller);
        current.quarantine.reason(tool).is_some() || (!current.switches.is_empty() && is_switched_off())
    }

    /// The switch that disables this tool for all callers; `None` if none does.
    #[must_use]
    pub fn switch_of(&self, tool: &ToolDescriptor) -> Option<Switch> {
        self.current().switches.of_tool(tool)
    }

    /// Everything that is switched off.
    #[must_use]
    pub fn disabled(&self) -> Vec<Switch> {
        self.current().switches.list()
    }

    /// Notifies of every change; the value counts them.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    fn switch(&self, edit: impl FnOnce(&mut super::switches::Switches)) {
        self.change(|current, registry| {
            let mut switches = (*current.switches).clone();
            edit(&mut switches);
            let rules = Arc::clone(&current.rules);
            Catalogue::new(rules, Arc::new(switches), &registry.snapshot(), Some(current))
        });
    }

    fn change(&self, next: impl FnOnce(&Catalogue, &Registry) -> Catalogue) {
        let Ok(()) = self.try_change(|current, registry| Ok::<_, Infallible>(next(current, registry)));
    }

    fn try_change<E>(&self, next: impl FnOnce(&Catalogue, &Registry) -> Result<Catalogue, E>) -> Result<(), E> {
        let _one_at_a_time = self.shared.changing.lock();
        let mut next = next(&self.current(), &self.shared.registry)?;
        if let Some(check) = self.shared.registry.definition_check() {
            next.quarantine(check);
        }
        let next = Arc::new(next);
        let mut current = self.shared.current.write();
        let previous = std::mem::replace(&mut *current, next);
        drop(current);
        // Freed here, and not under the lock that calls read through.
        drop(previous);
        self.shared.version.send_modify(|version| *version += 1);
        Ok(())
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.shared.sessions.lock()
    }
}
