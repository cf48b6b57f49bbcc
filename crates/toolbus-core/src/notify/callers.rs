//! Who called lately.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;

use crate::caller::AgentName;
use crate::policy::Catalogue;

/// Agents without a section of their own that are told, because they called lately.
const MAX_SEEN: NonZeroUsize = NonZeroUsize::new(1_000).unwrap();
/// How long an agent counts as having called lately.
const LATELY: Duration = Duration::from_secs(60 * 60);

/// Agents whose last list waits to be compared with what there is.
const MAX_LISTED: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Agents without a section of their own that called, and what agents were listed.
#[derive(Clone)]
pub(crate) struct Callers {
    seen: Arc<Mutex<LruCache<AgentName, Visit>>>,
    /// What there was when an agent listed its tools last, until that has been compared.
    listed: Arc<Mutex<LruCache<AgentName, Arc<Catalogue>>>>,
}

/// When an agent called last, and what there was when it called first, until that has been compared.
struct Visit {
    last: Instant,
    first: Option<Arc<Catalogue>>,
}

impl Default for Callers {
    fn default() -> Self {
        Self {
            seen: Arc::new(Mutex::new(LruCache::new(MAX_SEEN))),
            listed: Arc::new(Mutex::new(LruCache::new(MAX_LISTED))),
        }
    }
}

impl Callers {
    /// Notes that an agent called.
    pub(crate) fn note(&self, agent: &AgentName, catalogue: &Arc<Catalogue>) {
        let now = Instant::now();
        let mut seen = self.seen();
        match seen.get_mut(agent) {
            Some(visit) => visit.last = now,
            None => drop(seen.put(agent.clone(), Visit { last: now, first: Some(Arc::clone(catalogue)) })),
        }
    }

    /// Notes that an agent has listed all of its tools.
    pub(crate) fn note_list(&self, agent: &AgentName, catalogue: &Arc<Catalogue>) {
        self.listed().put(agent.clone(), Arc::clone(catalogue));
    }

    /// What there was when agents listed their tools last; each is given once.
    pub(super) fn take_listed(&self) -> Vec<(AgentName, Arc<Catalogue>)> {
        let mut listed = self.listed();
        std::iter::from_fn(|| listed.pop_lru()).collect()
    }

    /// The agents that called lately.
    pub(super) fn lately(&self) -> Vec<AgentName> {
        let mut seen = self.seen();
        let is_old = |(agent, visit): (&AgentName, &Visit)| (visit.last.elapsed() >= LATELY).then(|| agent.clone());
        let old: Vec<AgentName> = seen.iter().filter_map(is_old).collect();
        for agent in old {
            seen.pop(&agent);
        }
        seen.iter().map(|(agent, _)| agent.clone()).collect()
    }

    /// What there was when an agent called first; each is given once.
    pub(super) fn take_firsts(&self) -> Vec<(AgentName, Arc<Catalogue>)> {
        self.seen().iter_mut().filter_map(|(agent, visit)| Some((agent.clone(), visit.first.take()?))).collect()
    }

    fn seen(&self) -> MutexGuard<'_, LruCache<AgentName, Visit>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listed(&self) -> MutexGuard<'_, LruCache<AgentName, Arc<Catalogue>>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
