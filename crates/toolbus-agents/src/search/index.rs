//! Index of what callers can use, as words: kept for each set of tools until it is another one.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::policy::{EffectiveTools, ToolSetId};
use toolbus_core::text::shortened;
use toolbus_core::tool::ToolDescriptor;
use toolbus_memory::rank::{TextWords, WordIndex, rank_words};
use toolbus_protocol::AgentCard;

use super::SearchSources;
use super::query::terms;
use crate::a2a::tools::INVOKE;

/// Tools or skills of a service that are named.
const MAX_TOP: usize = 3;
/// Longest summary, in characters.
const MAX_SUMMARY: usize = 300;
/// Longest text by which an agent is found, in bytes: its card is what an outsider wrote, and there may be many.
pub(super) const MAX_CARD: usize = 4096;
/// Memory that the kept indexes of one kind take, in bytes. The last one is kept, whatever its size.
const MAX_SIZE: usize = 64 * 1024 * 1024;

/// The indexes of the callers that searched last.
#[derive(Default)]
pub(super) struct Indexes {
    tools: Mutex<IndexCache<ToolSetId, ToolIndex>>,
    services: Mutex<IndexCache<ServiceKey, ServiceIndex>>,
}

/// Values that the services of a caller depend on.
#[derive(PartialEq, Eq, Hash)]
struct ServiceKey {
    tools: ToolSetId,
    version: u64,
    /// The caller, if it may give tasks to other agents: which ones depends on it.
    agent: Option<Option<AgentName>>,
}

/// Indexes with their sizes, the one that was used last first.
struct IndexCache<K: Hash + Eq, V> {
    entries: LruCache<K, (Arc<V>, usize)>,
    size: usize,
}

impl<K: Hash + Eq, V> Default for IndexCache<K, V> {
    fn default() -> Self {
        Self { entries: LruCache::unbounded(), size: 0 }
    }
}

impl<K: Hash + Eq, V> IndexCache<K, V> {
    fn get(&mut self, key: &K) -> Option<Arc<V>> {
        self.entries.get(key).map(|(index, _)| Arc::clone(index))
    }

    fn put(&mut self, key: K, index: &Arc<V>, size: usize) {
        let replaced = self.entries.push(key, (Arc::clone(index), size));
        self.size = self.size + size - replaced.map_or(0, |(_, (_, size))| size);
        while self.size > MAX_SIZE && self.entries.len() > 1 {
            let Some((_, (_, size))) = self.entries.pop_lru() else { break };
            self.size -= size;
        }
    }
}

impl Indexes {
    /// The tools of a caller, as they are now; `None` if it is denied everything.
    pub(super) fn tools(&self, effective: &EffectiveTools) -> Option<Arc<ToolIndex>> {
        let key = effective.id()?;
        let kept = self.tools.lock().get(&key);
        Some(kept.unwrap_or_else(|| {
            let index = Arc::new(ToolIndex::new(effective));
            self.tools.lock().put(key, &index, index.words.size());
            index
        }))
    }

    /// The services of a caller, as they are now; `None` if it is denied everything.
    pub(super) fn services(
        &self,
        caller: &Caller,
        effective: &EffectiveTools,
        sources: &SearchSources,
    ) -> Option<Arc<ServiceIndex>> {
        // An agent is called by a tool, which the caller must be able to use.
        let agent = effective.get(INVOKE).map(|_| caller.agent.clone());
        // Before what it stands for is read: what changes meanwhile is read again the next time.
        let key = ServiceKey { tools: effective.id()?, version: (sources.version)(), agent };
        let kept = self.services.lock().get(&key);
        Some(kept.unwrap_or_else(|| {
            let agents = if key.agent.is_some() { (sources.agents)(caller) } else { Vec::new() };
            let index = Arc::new(ServiceIndex::new(effective, sources, agents));
            self.services.lock().put(key, &index, index.size());
            index
        }))
    }
}

/// The tools of a caller.
pub(super) struct ToolIndex {
    names: Vec<Arc<str>>,
    words: WordIndex<usize>,
}

impl ToolIndex {
    fn new(effective: &EffectiveTools) -> Self {
        let (mut names, mut words) = (Vec::new(), WordIndex::default());
        for (position, allowed) in effective.tools().into_iter().enumerate() {
            let descriptor = &allowed.tool.descriptor;
            let server = descriptor.server.as_deref().unwrap_or_default();
            words.insert(position, &format!("{server} {}", text(descriptor)));
            names.push(Arc::clone(&descriptor.name));
        }
        Self { names, words }
    }

    /// The names of the best tools, with their relevance.
    pub(super) fn search(&self, query: &str, max: usize) -> Vec<(&str, f64)> {
        let best = best(self.words.search(&terms(query)), max).into_iter();
        best.filter_map(|(position, relevance)| Some((&**self.names.get(*position)?, relevance))).collect()
    }
}

/// The services of a caller: MCP servers, and agents.
pub(super) struct ServiceIndex {
    services: Vec<IndexedService>,
    words: WordIndex<usize>,
}

/// A service.
pub(super) struct IndexedService {
    pub(super) id: String,
    pub(super) kind: ServiceKind,
    pub(super) summary: String,
    /// Tools of the service, each with its words, or the first of its skills.
    parts: Vec<(String, TextWords)>,
}

/// Kind of a service.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceKind {
    /// An MCP server.
    Server,
    /// Another agent.
    Agent,
}

impl ServiceKind {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Server => "mcp",
            Self::Agent => "a2a",
        }
    }

    pub(super) const fn is_agent(self) -> bool {
        matches!(self, Self::Agent)
    }
}

/// A service that fits a query.
pub(super) struct ServiceMatch<'a> {
    pub(super) service: &'a IndexedService,
    /// 1 is that of the best, to two decimals.
    pub(super) relevance_score: f64,
    /// Tools of the service that fit best, or its first skills.
    pub(super) top: Vec<&'a str>,
}

impl ServiceIndex {
    fn new(effective: &EffectiveTools, sources: &SearchSources, agents: Vec<AgentCard>) -> Self {
        let mut servers: BTreeMap<Arc<str>, Vec<(String, String)>> = BTreeMap::new();
        for allowed in effective.of_servers() {
            let descriptor = &allowed.tool.descriptor;
            if let Some(server) = &descriptor.server {
                let tool = (descriptor.bare_name().to_string(), text(descriptor));
                servers.entry(Arc::clone(server)).or_default().push(tool);
            }
        }
        let mut index = Self { services: Vec::new(), words: WordIndex::default() };
        for (name, tools) in servers {
            let summary = (sources.summaries)(&name);
            let own = [&*name, summary.as_deref().unwrap_or_default()].into_iter();
            let all = own.chain(tools.iter().map(|(_, text)| &**text)).collect::<Vec<_>>().join(" ");
            let summary = shortened(summary.as_deref().unwrap_or(&name), MAX_SUMMARY).into_owned();
            let parts = tools.into_iter().map(|(name, text)| (name, TextWords::of(&text))).collect();
            index.add(IndexedService { id: name.to_string(), kind: ServiceKind::Server, summary, parts }, &all);
        }
        for card in agents {
            let all = of_agent(&card);
            let summary = card.description.as_deref().unwrap_or(&card.agent_name);
            let summary = shortened(summary, MAX_SUMMARY).into_owned();
            let parts = card.skills.into_iter().take(MAX_TOP).map(|skill| (skill.id, TextWords::of(""))).collect();
            index.add(IndexedService { id: card.agent_name, kind: ServiceKind::Agent, summary, parts }, &all);
        }
        index
    }

    fn add(&mut self, service: IndexedService, text: &str) {
        self.words.insert(self.services.len(), text);
        self.services.push(service);
    }

    /// The best services.
    pub(super) fn search(&self, query: &str, max: usize) -> Vec<ServiceMatch<'_>> {
        let terms = terms(query);
        let best = best(self.words.search(&terms), max).into_iter();
        best.filter_map(|(position, relevance_score)| {
            let service = self.services.get(*position)?;
            Some(ServiceMatch { service, relevance_score, top: service.top(&terms) })
        })
        .collect()
    }

    /// About the memory that it takes, in bytes.
    fn size(&self) -> usize {
        let parts = self.services.iter().flat_map(|service| &service.parts);
        self.words.size()
            + parts.map(|(name, words)| size_of::<(String, TextWords)>() + name.len() + words.size()).sum::<usize>()
    }
}

impl IndexedService {
    /// The tools that fit best, and then others in their order.
    fn top(&self, terms: &str) -> Vec<&str> {
        let ranked = match self.kind {
            ServiceKind::Server => rank_words(terms, self.parts.iter().map(|(_, words)| words)),
            ServiceKind::Agent => Vec::new(),
        };
        let mut order: Vec<usize> = ranked.into_iter().map(|(part, _)| part).take(MAX_TOP).collect();
        for part in 0..self.parts.len() {
            if order.len() >= MAX_TOP {
                break;
            }
            if !order.contains(&part) {
                order.push(part);
            }
        }
        order.into_iter().filter_map(|part| self.parts.get(part)).map(|(name, _)| &**name).collect()
    }
}

/// Returns the text by which an agent is found.
pub(super) fn of_agent(card: &AgentCard) -> String {
    let own = [Some(&card.agent_name), card.description.as_ref()];
    let skills = card.skills.iter().flat_map(|skill| {
        let named = [Some(&skill.id), Some(&skill.name), skill.description.as_ref()];
        named.into_iter().flatten().chain(&skill.tags).chain(&skill.examples)
    });
    let mut text = String::new();
    for part in own.into_iter().flatten().chain(skills) {
        if text.len() >= MAX_CARD {
            break;
        }
        text.push_str(&shortened(part, MAX_CARD - text.len()));
        text.push(' ');
    }
    text
}

/// Returns the text by which a tool is found.
fn text(descriptor: &ToolDescriptor) -> String {
    format!("{} {} {}", descriptor.name, descriptor.title.as_deref().unwrap_or_default(), descriptor.description)
}

/// The first of what was ranked, with their relevance.
fn best<T>(ranked: Vec<(T, f64)>, max: usize) -> Vec<(T, f64)> {
    let most = ranked.first().map_or(1.0, |(_, score)| *score);
    let relative = |score: f64| (score / most * 100.0).round() / 100.0;
    ranked.into_iter().take(max).map(|(what, score)| (what, relative(score))).collect()
}
