//! Interpreters that fork for each script: one for each agent and set of packages, which runs no script itself.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use toolbus_core::Clock;
use toolbus_sandbox::{Plan, Sandbox, SandboxError, Template, Waiting};

/// Most templates at a time.
const MOST: usize = 16;
/// Most scripts of one: with it they share the seed of hashes and the addresses of what they have loaded.
const SCRIPTS: u32 = 200;
/// Longest use of a template.
const LIFE: Duration = Duration::from_secs(600);
/// Time that a template stays after its last script.
const IDLE: Duration = Duration::from_secs(120);
/// Forks that wait for a script of a template in use.
const READY: usize = 2;
/// Time that a template has for its imports.
const IMPORTS: Duration = Duration::from_secs(30);
/// Scripts that a template may still fork for when the next is started.
const LAST_SCRIPTS: u32 = 50;
/// Time that a template is still used when the next is started: the time that this has for its imports.
const LAST_TIME: Duration = IMPORTS;
/// Templates that start at a time, one of each agent at the most: their imports are not in the queue of scripts.
const STARTING: usize = 2;
/// Pause after a template could not be started.
const BACKOFF: Duration = Duration::from_secs(600);

/// Log text for packages that no template can be used for.
const REFUSED: &str = "no interpreter forks for these scripts; each gets one of its own";

/// Key of templates. Scripts of different agents never share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TemplateKey {
    pub(super) owner: Arc<str>,
    pub(super) packages: Option<PathBuf>,
}

/// Starts templates, and ends them.
pub(super) struct Templates {
    shared: Arc<TemplatesShared>,
    end: CancellationToken,
}

struct TemplatesShared {
    sandbox: Sandbox,
    state: Mutex<TemplatesState>,
}

#[derive(Default)]
struct TemplatesState {
    entries: HashMap<TemplateKey, Entry>,
    is_over: bool,
}

struct Entry {
    last_used: Instant,
    state: TemplateState,
    /// The one that follows, from shortly before it is needed.
    next: Option<TemplateState>,
    /// Ends what starts and keeps this entry, with it.
    _keeping: DropGuard,
}

enum TemplateState {
    Starting,
    Ready(InUse),
    /// The template could not be started then.
    Refused(Instant),
}

struct InUse {
    template: Arc<Template>,
    since: Instant,
    /// Scripts that it may still fork for.
    left: u32,
    waiting: VecDeque<Waiting>,
}

impl Templates {
    /// Creates the set without a running template.
    pub(super) fn new(sandbox: Sandbox) -> Self {
        Self { shared: Arc::new(TemplatesShared { sandbox, state: Mutex::default() }), end: CancellationToken::new() }
    }

    /// A fork for a script, if there is a template. Otherwise one is started, by this plan, for the scripts that follow.
    pub(super) fn take(&self, key: &TemplateKey, plan: impl FnOnce() -> Plan) -> Option<Waiting> {
        let now = Clock::SYSTEM.now();
        let mut state = self.shared.state.lock();
        if state.is_over {
            return None;
        }
        let may_start = state.may_start(&key.owner);
        if let Some(entry) = state.entries.get_mut(key) {
            entry.last_used = now;
            match &mut entry.state {
                TemplateState::Starting => return None,
                TemplateState::Refused(at) if Clock::SYSTEM.since(*at) < BACKOFF => return None,
                TemplateState::Refused(_) => {}
                TemplateState::Ready(in_use) if let Some(why) = in_use.misbehaved() => {
                    tracing::warn!(error = why, agent = &*key.owner, "{REFUSED}");
                    (entry.state, entry.next) = (TemplateState::Refused(now), None);
                    return None;
                }
                TemplateState::Ready(in_use) => {
                    if let Some(waiting) = in_use.take_or_replace(&mut entry.next) {
                        if may_start && in_use.ends_soon() && entry.next.is_none() {
                            entry.next = Some(TemplateState::Starting);
                            let (shared, key, plan) = (Arc::clone(&self.shared), key.clone(), plan());
                            spawn(self.end.clone(), async move { shared.follow(key, plan).await });
                        }
                        return Some(waiting);
                    }
                    if matches!(entry.next, Some(TemplateState::Starting)) {
                        return None;
                    }
                }
            }
        }
        if !may_start {
            return None;
        }
        state.make_room(key);
        let end = self.end.child_token();
        let keeping = end.clone().drop_guard();
        let entry = Entry { last_used: now, state: TemplateState::Starting, next: None, _keeping: keeping };
        state.entries.insert(key.clone(), entry);
        drop(state);
        let (shared, key, plan) = (Arc::clone(&self.shared), key.clone(), plan());
        spawn(end, async move { shared.keep(key, plan).await });
        None
    }

    /// Forks that wait.
    pub(super) fn ready(&self) -> usize {
        let waiting = |state: &TemplateState| match state {
            TemplateState::Ready(in_use) => in_use.waiting.len(),
            TemplateState::Starting | TemplateState::Refused(_) => 0,
        };
        let state = self.shared.state.lock();
        state.entries.values().flat_map(|entry| entry.next.iter().chain([&entry.state])).map(waiting).sum()
    }

    /// Ends them all, once their scripts have ended.
    pub(super) fn shutdown(&self) {
        self.end.cancel();
        let mut state = self.shared.state.lock();
        state.is_over = true;
        state.entries.clear();
    }
}

impl Drop for Templates {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

fn spawn(end: CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
    #[expect(clippy::disallowed_methods, reason = "`Templates::shutdown` and its drop cancel it")]
    tokio::spawn(async move { end.run_until_cancelled(task).await });
}

impl TemplatesState {
    /// Whether another one may start for an agent.
    fn may_start(&self, owner: &str) -> bool {
        let is_starting = |state: &TemplateState| matches!(state, TemplateState::Starting);
        let starting =
            self.entries.iter().filter(|(_, entry)| entry.next.iter().chain([&entry.state]).any(is_starting));
        let (mut all, mut own) = (0, 0);
        for (key, _) in starting {
            all += 1;
            own += usize::from(&*key.owner == owner);
        }
        own == 0 && all < STARTING
    }

    /// Ends the one that was not used for longest, of the agent that has the most.
    fn make_room(&mut self, key: &TemplateKey) {
        if self.entries.len() < MOST || self.entries.contains_key(key) {
            return;
        }
        let mut counts: HashMap<Arc<str>, usize> = HashMap::from([(Arc::clone(&key.owner), 1)]);
        for key in self.entries.keys() {
            *counts.entry(Arc::clone(&key.owner)).or_default() += 1;
        }
        let count = |key: &TemplateKey| Reverse(counts.get(&key.owner).copied());
        let oldest = self.entries.iter().min_by_key(|(key, entry)| (count(key), entry.last_used));
        let oldest = oldest.map(|(key, _)| key.clone());
        oldest.and_then(|oldest| self.entries.remove(&oldest));
    }
}

impl InUse {
    fn new(template: Template) -> Self {
        let mut in_use =
            Self { template: Arc::new(template), since: Clock::SYSTEM.now(), left: SCRIPTS, waiting: VecDeque::new() };
        in_use.fill();
        in_use
    }

    /// The next fork, of the template that follows if this one has ended or is worn; `None` if that is not ready.
    fn take_or_replace(&mut self, next: &mut Option<TemplateState>) -> Option<Waiting> {
        self.take().or_else(|| {
            let Some(TemplateState::Ready(following)) = next.take_if(|next| matches!(next, TemplateState::Ready(_)))
            else {
                return None;
            };
            *self = following;
            self.take()
        })
    }

    /// Whether the next template is to be started.
    fn ends_soon(&self) -> bool {
        self.left <= LAST_SCRIPTS || Clock::SYSTEM.since(self.since) > LIFE - LAST_TIME
    }

    /// Takes the reason for which the template was ended, if it was.
    fn misbehaved(&self) -> Option<String> {
        self.template.is_gone().then(|| self.template.misbehaved()).flatten()
    }

    /// The next fork; `None` if the template has ended or is worn.
    fn take(&mut self) -> Option<Waiting> {
        if self.template.is_gone() || Clock::SYSTEM.since(self.since) > LIFE {
            return None;
        }
        // One that was killed while it waited is of no use.
        self.waiting.retain(|waiting| !waiting.is_gone());
        let taken = self.waiting.pop_front().or_else(|| self.fork());
        self.fill();
        taken
    }

    fn fork(&mut self) -> Option<Waiting> {
        self.left = self.left.checked_sub(1)?;
        self.template.fork().ok()
    }

    fn fill(&mut self) {
        while self.waiting.len() < READY {
            let Some(waiting) = self.fork() else { return };
            self.waiting.push_back(waiting);
        }
    }
}

impl TemplatesShared {
    async fn start(&self, key: &TemplateKey, plan: Plan) -> TemplateState {
        let started = match timeout(IMPORTS, self.sandbox.template(&plan)).await {
            Ok(started) => started,
            Err(_) => Err(SandboxError::Confinement("it did not finish its imports in time".to_owned())),
        };
        match started {
            Ok(template) => TemplateState::Ready(InUse::new(template)),
            Err(error) => {
                let agent = &*key.owner;
                tracing::warn!(%error, agent, "{REFUSED}");
                TemplateState::Refused(Clock::SYSTEM.now())
            }
        }
    }

    /// Starts the template that follows one.
    async fn follow(&self, key: TemplateKey, plan: Plan) {
        let next = self.start(&key, plan).await;
        if let Some(entry) = self.state.lock().entries.get_mut(&key)
            && matches!(entry.next, Some(TemplateState::Starting))
        {
            entry.next = Some(next);
        }
    }

    /// Starts a template, and ends it when it is idle.
    async fn keep(&self, key: TemplateKey, plan: Plan) {
        let state = self.start(&key, plan).await;
        match self.state.lock().entries.get_mut(&key) {
            Some(entry) if matches!(entry.state, TemplateState::Starting) => entry.state = state,
            _ => return,
        }
        loop {
            let idle = {
                let mut state = self.state.lock();
                let Some(entry) = state.entries.get(&key) else { return };
                let idle = Clock::SYSTEM.since(entry.last_used);
                let longest = match &entry.state {
                    TemplateState::Starting => return,
                    TemplateState::Ready(_) => IDLE,
                    TemplateState::Refused(_) => BACKOFF,
                };
                if idle >= longest {
                    state.entries.remove(&key);
                    return;
                }
                longest - idle
            };
            sleep(idle).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;
    use toolbus_sandbox::Level;

    use super::*;
    use crate::commands::probe;

    #[tokio::test(start_paused = true)]
    async fn a_template_that_is_tried_repeatedly_has_one_task() {
        let templates = Templates::new(Sandbox::with_helper("/nonexistent", Level::NoNamespaces).unwrap());
        let key = TemplateKey { owner: "agent".into(), packages: None };
        let alive = || Handle::current().metrics().num_alive_tasks();
        let before = alive();
        for _ in 0..10 {
            assert!(templates.take(&key, probe).is_none());
            sleep(BACKOFF / 2).await;
        }
        assert_eq!(alive() - before, 1);
        sleep(BACKOFF).await;
        assert_eq!((alive() - before, templates.shared.state.lock().entries.len()), (0, 0));
    }

    fn key(owner: &str, packages: usize) -> TemplateKey {
        TemplateKey { owner: owner.into(), packages: Some(format!("/{packages}").into()) }
    }

    #[tokio::test]
    async fn an_agent_with_many_sets_of_packages_ends_its_own_templates() {
        let now = Clock::SYSTEM.now();
        let mut state = TemplatesState::default();
        let entry = |age| Entry {
            last_used: now.checked_sub(Duration::from_secs(age)).unwrap(),
            state: TemplateState::Refused(now),
            next: None,
            _keeping: CancellationToken::new().drop_guard(),
        };
        state.entries.insert(key("calm", 0), entry(100));
        state.entries.extend((1..MOST).map(|number| (key("busy", number), entry(number as u64))));
        state.make_room(&key("busy", MOST));
        assert!(state.entries.contains_key(&key("calm", 0)));
        assert!(!state.entries.contains_key(&key("busy", MOST - 1)), "the one that was not used for longest");
        assert_eq!(state.entries.len(), MOST - 1);
    }

    #[tokio::test(start_paused = true)]
    async fn few_templates_import_at_a_time_and_one_of_each_agent() {
        let templates = Templates::new(Sandbox::with_helper("/nonexistent", Level::NoNamespaces).unwrap());
        // Their tasks run when this one waits.
        let keys = [key("a", 1), key("a", 2), key("b", 1), key("c", 1)];
        for key in &keys {
            assert!(templates.take(key, probe).is_none());
        }
        let is_tried = || keys.each_ref().map(|key| templates.shared.state.lock().entries.contains_key(key));
        assert_eq!(is_tried(), [true, false, true, false]);
        sleep(IMPORTS).await;
        for key in &keys {
            assert!(templates.take(key, probe).is_none());
        }
        assert_eq!(is_tried(), [true; 4]);
    }
}
