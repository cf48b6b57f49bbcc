//! The meeting of a policy with the tools that there are, at one moment.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU16;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use toolbus_protocol::{gemini_name, llm_name};

use super::agent_rules::{DEFAULT_SECTION, Rules, ToolList};
use super::bits::Bits;
use super::index::ListId;
use super::profile::ProfileRole;
use super::switches::Switches;
use crate::caller::{AgentName, Caller};
use crate::quarantine::{DefinitionCheck, Quarantine};
use crate::registry::{Clash, Registry, Snapshot};
use crate::tool::{Tool, ToolDescriptor, digest_of};

/// The tools and the rules, arranged for look-ups. Immutable: a change makes another.
pub struct Catalogue {
    pub(super) rules: Arc<Rules>,
    pub(super) switches: Arc<Switches>,
    /// The version of the registry that it was made from.
    pub(super) version: u64,
    /// Every tool by its number; numbers of tools that are gone stay free until a tool takes them.
    tools: Vec<Option<CatalogueTool>>,
    by_name: HashMap<Arc<str>, u32>,
    /// Names that models use instead, for tools whose own name no model accepts.
    by_llm_name: HashMap<Arc<str>, u32>,
    /// Tools that others of their name hide, by source and name.
    shadowed: HashMap<(Arc<str>, Arc<str>), u32>,
    /// Owners of names that only other sources publish now.
    absent: HashMap<Arc<str>, Arc<str>>,
    /// Tools of MCP servers, by the server's name in lower case and by their own.
    by_server: BTreeMap<Box<str>, HashMap<Arc<str>, u32>>,
    /// Tools that each list of patterns matches.
    lists: Vec<Bits>,
    plain: Bits,
    sets: BTreeMap<Arc<str>, Bits>,
    /// Tools that each profile allows.
    profiles: Vec<Bits>,
    disabled: Bits,
    /// Quarantined tools, by number and with the reasons.
    pub(super) withheld: Bits,
    pub(super) quarantine: Quarantine,
    /// The sets that were used, by section, binding and profile.
    built: Vec<Vec<Vec<OnceLock<Arc<SetData>>>>>,
}

/// Arguments that are set for a caller.
#[derive(Debug, PartialEq, Eq)]
pub struct Forced(pub Map<String, Value>);

/// The tools of a set, and what was found out about them.
pub(super) struct SetData {
    pub(super) bits: Bits,
    /// Number of the rate that holds for a tool, plus two; one if none does, zero if not queried yet.
    pub(super) rates: OnceLock<Box<[AtomicU16]>>,
    pub(super) forced: Mutex<HashMap<u32, Option<Arc<Forced>>>>,
    pub(super) version: OnceLock<Arc<str>>,
    pub(super) fingerprint: OnceLock<u64>,
    pub(super) capacity: usize,
}

impl SetData {
    pub(super) fn new(bits: Bits, capacity: usize) -> Self {
        Self {
            bits,
            rates: OnceLock::new(),
            forced: Mutex::default(),
            version: OnceLock::new(),
            fingerprint: OnceLock::new(),
            capacity,
        }
    }
}

/// A tool, and what is known of it beforehand.
#[derive(Clone)]
pub(super) struct CatalogueTool {
    pub(super) tool: Tool,
    /// The same for the same name, whatever the tool's number.
    pub(super) key: u64,
    /// The same for the same definition.
    pub(super) fingerprint: u64,
    /// Channels on which it addresses people.
    pub(super) channels: Arc<[Arc<str>]>,
    /// Whether another tool has its name.
    pub(super) is_shadowed: bool,
}

impl Catalogue {
    /// Makes the catalogue that follows on `previous`: under the same rules, only tools that came or went cost
    /// anything.
    pub(super) fn new(
        rules: Arc<Rules>,
        switches: Arc<Switches>,
        snapshot: &Snapshot,
        previous: Option<&Self>,
    ) -> Self {
        let mut next = match previous.filter(|previous| Arc::ptr_eq(&previous.rules, &rules)) {
            Some(previous) => previous.without(|entry| !entry.is_same(snapshot)),
            None => Self::empty(Arc::clone(&rules)),
        };
        next.switches = switches;
        next.version = snapshot.version();
        next.absent.clone_from(snapshot.absent());
        let mut free: Vec<u32> = (0..).zip(&next.tools).filter(|(_, tool)| tool.is_none()).map(|(n, _)| n).collect();
        let is_new = |tool: &&Tool| !next.by_name.contains_key(&tool.descriptor.name);
        let is_newly_shadowed = |tool: &&Tool| !next.shadowed.contains_key(&key_of(&tool.descriptor));
        let mut added: Vec<(&Tool, bool)> = snapshot.tools().filter(is_new).map(|tool| (tool, false)).collect();
        added.extend(snapshot.shadowed().filter(is_newly_shadowed).map(|tool| (tool, true)));
        added.sort_by(|(a, _), (b, _)| {
            (&a.descriptor.name, &a.descriptor.source).cmp(&(&b.descriptor.name, &b.descriptor.source))
        });
        for (tool, is_shadowed) in added {
            let number = free.pop().unwrap_or_else(|| {
                next.tools.push(None);
                u32::try_from(next.tools.len() - 1).unwrap_or(u32::MAX)
            });
            next.add(number, tool, is_shadowed);
        }
        // A tool that was registered again has another executor.
        for entry in next.tools.iter_mut().flatten() {
            let old = &entry.tool.descriptor;
            if let Some((tool, _)) = snapshot.find(&old.source, &old.name)
                && !Arc::ptr_eq(&tool.descriptor, &entry.tool.descriptor)
            {
                (entry.tool, entry.fingerprint) = (tool.clone(), tool.fingerprint());
            }
        }
        next.disabled = next.switched_off();
        next
    }

    /// The catalogue that follows on this one, with the tools that there are now.
    pub(super) fn refreshed(&self, registry: &Registry) -> Self {
        Self::new(Arc::clone(&self.rules), Arc::clone(&self.switches), &registry.vetted(), Some(self))
    }

    fn empty(rules: Arc<Rules>) -> Self {
        Self {
            tools: Vec::new(),
            by_name: HashMap::new(),
            by_llm_name: HashMap::new(),
            shadowed: HashMap::new(),
            absent: HashMap::new(),
            by_server: BTreeMap::new(),
            lists: vec![Bits::default(); rules.lists.len()],
            plain: Bits::default(),
            sets: BTreeMap::new(),
            profiles: vec![Bits::default(); rules.profiles.len()],
            disabled: Bits::default(),
            withheld: Bits::default(),
            quarantine: Quarantine::default(),
            switches: Arc::default(),
            built: unbuilt(&rules),
            version: 0,
            rules,
        }
    }

    /// A copy without some of its tools.
    fn without(&self, is_gone: impl Fn(&CatalogueTool) -> bool) -> Self {
        let gone: Bits = self.entries().filter(|(_, entry)| is_gone(entry)).map(|(number, _)| number).collect();
        let less = |bits: &Bits| {
            let mut bits = bits.clone();
            bits.remove(&gone);
            bits
        };
        let stays = |number: &u32| !gone.contains(*number);
        let names = |names: &HashMap<Arc<str>, u32>| -> HashMap<Arc<str>, u32> {
            names.iter().filter(|(_, number)| stays(number)).map(|(name, number)| (Arc::clone(name), *number)).collect()
        };
        Self {
            tools: (0..).zip(&self.tools).map(|(number, tool)| tool.clone().filter(|_| stays(&number))).collect(),
            by_name: names(&self.by_name),
            by_llm_name: names(&self.by_llm_name),
            shadowed: self.shadowed.iter().filter(|(_, number)| stays(number)).map(|(k, n)| (k.clone(), *n)).collect(),
            absent: HashMap::new(),
            by_server: self.by_server.iter().map(|(server, tools)| (server.clone(), names(tools))).collect(),
            lists: self.lists.iter().map(less).collect(),
            plain: less(&self.plain),
            sets: self.sets.iter().map(|(set, bits)| (Arc::clone(set), less(bits))).collect(),
            profiles: self.profiles.iter().map(less).collect(),
            disabled: Bits::default(),
            withheld: Bits::default(),
            quarantine: Quarantine::default(),
            switches: Arc::clone(&self.switches),
            built: unbuilt(&self.rules),
            version: self.version,
            rules: Arc::clone(&self.rules),
        }
    }

    fn add(&mut self, number: u32, tool: &Tool, is_shadowed: bool) {
        let descriptor = &tool.descriptor;
        let name = &descriptor.name;
        let (rules, lists) = (&self.rules, &mut self.lists);
        let mut note = |list: ListId, is_bare: bool| {
            let denies = rules.lists.get(list as usize).is_some_and(|list| list.denies);
            if let Some(bits) = lists.get_mut(list as usize).filter(|_| denies || !is_bare) {
                bits.insert(number);
            }
        };
        rules.index.lists_of(name, |list| note(list, false));
        if descriptor.bare_name() != name {
            rules.index.lists_of(descriptor.bare_name(), |list| note(list, true));
        }
        match &descriptor.toolset {
            None => self.plain.insert(number),
            Some(member) => self.sets.entry(Arc::clone(&member.set)).or_default().insert(number),
        }
        for (profile, bits) in self.rules.profiles.iter().zip(&mut self.profiles) {
            if profile.judge(name, descriptor.bare_name(), &descriptor.source) == ProfileRole::Allowed {
                bits.insert(number);
            }
        }
        let outbound = self.rules.policy.outbound.iter();
        let addresses = outbound.filter(|(_, outbound)| outbound.is_for(name, descriptor.bare_name()));
        let channels = addresses.map(|(channel, _)| Arc::clone(channel)).collect();
        let fingerprint = tool.fingerprint();
        let key = if is_shadowed { digest_of(&[name, &descriptor.source]) } else { digest_of(&[name]) };
        let entry = CatalogueTool { tool: tool.clone(), key, fingerprint, channels, is_shadowed };
        if let Some(slot) = self.tools.get_mut(number as usize) {
            *slot = Some(entry);
        }
        if let Some(server) = &descriptor.server {
            let of_server = self.by_server.entry(server.to_lowercase().into()).or_default();
            of_server.insert(Arc::clone(descriptor.bare_name()), number);
        }
        if is_shadowed {
            self.shadowed.insert(key_of(descriptor), number);
            return;
        }
        self.by_name.insert(Arc::clone(name), number);
        for other in [llm_name(name), gemini_name(name)] {
            if *other != **name {
                self.by_llm_name.insert(other.into(), number);
            }
        }
    }

    fn switched_off(&self) -> Bits {
        if self.switches.is_empty() {
            return Bits::default();
        }
        let is_off = |tool: &ToolDescriptor| self.switches.of_tool(tool).is_some();
        self.entries().filter(|(_, entry)| is_off(&entry.tool.descriptor)).map(|(number, _)| number).collect()
    }

    /// Whether an operator has switched off this caller, by its name or with its class.
    pub(super) fn has_switched_off(&self, caller: &Caller) -> bool {
        let name = caller.agent.as_ref().map_or(DEFAULT_SECTION, AgentName::as_str);
        let class = self.rules.section(self.rules.section_of(caller)).name();
        [name, class].iter().any(|name| self.switches.has_agent(name))
    }

    /// Number of the tool of exactly this name; else of the one that models know by this name.
    pub(super) fn numbers_of(&self, name: &str) -> impl Iterator<Item = u32> {
        [self.by_name.get(name), self.by_llm_name.get(name)].into_iter().flatten().copied()
    }

    /// Number of the tool of this name that this MCP server has. The case of letters in the server's name does not
    /// matter.
    pub(super) fn number_at(&self, server: &str, tool: &str) -> Option<u32> {
        self.by_server.get(server.to_lowercase().as_str())?.get(tool).copied()
    }

    /// Numbers of the tools of this name that MCP servers have, by the servers' names.
    pub(super) fn numbers_at_any(&self, tool: &str) -> impl Iterator<Item = u32> {
        self.by_server.values().filter_map(move |tools| tools.get(tool).copied())
    }

    /// Numbers of all tools of MCP servers, by the servers' names.
    pub(super) fn numbers_at_all(&self) -> impl Iterator<Item = u32> {
        self.by_server.values().flat_map(|tools| tools.values().copied())
    }

    pub(super) fn entry(&self, number: u32) -> Option<&CatalogueTool> {
        self.tools.get(number as usize)?.as_ref()
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (u32, &CatalogueTool)> {
        (0..).zip(&self.tools).filter_map(|(number, entry)| Some((number, entry.as_ref()?)))
    }

    /// The source that has this name, if a tool of another is shadowed by it.
    pub(super) fn owner_of_shadowed(&self, name: &Arc<str>) -> Option<&Arc<str>> {
        let holder = self.by_name.get(name).and_then(|number| self.entry(*number));
        holder.map(|entry| &entry.tool.descriptor.source).or_else(|| self.absent.get(name))
    }

    /// Owners of names that only other sources publish now.
    pub(super) const fn absent(&self) -> &HashMap<Arc<str>, Arc<str>> {
        &self.absent
    }

    /// Whether a name belongs to an MCP server, connected or not; of names that a tool is shadowed by.
    pub(super) fn is_of_server(&self, name: &Arc<str>) -> bool {
        let holder = self.by_name.get(name).and_then(|number| self.entry(*number));
        holder.is_none_or(|entry| entry.tool.descriptor.server.is_some())
    }

    /// Sources whose tools of this name are shadowed, sorted.
    pub(super) fn shadowed_at(&self, name: &str) -> Vec<&Arc<str>> {
        let of_name = self.shadowed.keys().filter(|(_, shadowed)| **shadowed == *name);
        let mut sources: Vec<_> = of_name.map(|(source, _)| source).collect();
        sources.sort();
        sources
    }

    /// Every tool that is not called by its name, sorted by name.
    #[must_use]
    pub fn clashes(&self) -> Vec<Clash> {
        let clash = |(shadowed, name): &(Arc<str>, Arc<str>)| {
            let kept = Arc::clone(self.owner_of_shadowed(name)?);
            Some(Clash { name: Arc::clone(name), kept, shadowed: Arc::clone(shadowed) })
        };
        let mut clashes: Vec<_> = self.shadowed.keys().filter_map(clash).collect();
        clashes.sort();
        clashes
    }

    /// Number of all tools, independent of callers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there is no tool at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Every tool that can be called by its name, sorted by name, independent of callers.
    #[must_use]
    pub fn tools(&self) -> Vec<Arc<ToolDescriptor>> {
        let called = self.entries().filter(|(_, entry)| !entry.is_shadowed);
        let mut tools: Vec<_> = called.map(|(_, entry)| Arc::clone(&entry.tool.descriptor)).collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        tools
    }

    /// The set of one section under one binding and one profile, made on first use. `profile` is the one that the
    /// request names, if any.
    pub(super) fn set(&self, section: usize, binding: usize, profile: Option<usize>) -> Option<Arc<SetData>> {
        let slot = profile.map_or(0, |profile| profile + 1);
        let built = self.built.get(section)?.get(binding)?.get(slot)?;
        Some(Arc::clone(built.get_or_init(|| {
            let bits = self.bits(section, binding, profile);
            let allowed = bits.count();
            let denied = (self.len() + self.shadowed.len()).saturating_sub(allowed);
            let (rules, data) = (&self.rules, SetData::new(bits, self.tools.len()));
            let section = rules.section(section);
            if section.binding_rules(binding).is_news(slot, allowed, denied) {
                let named = |number: usize| rules.profiles.get(number).map(|profile| profile.name());
                let binding =
                    Some(section.binding_rules(binding).binding.as_str()).filter(|binding| !binding.is_empty());
                tracing::info!(
                    agent = section.name(),
                    binding,
                    profile = section.profile.or(profile).and_then(named).unwrap_or("main"),
                    narrowed_to = profile.filter(|_| section.profile.is_some()).and_then(named),
                    allowed,
                    denied,
                    "built a set of tools"
                );
            }
            Arc::new(data)
        })))
    }

    /// Sets only shrink from line to line.
    pub(super) fn bits(&self, section: usize, binding: usize, profile: Option<usize>) -> Bits {
        let section = self.rules.section(section);
        if section.is_denied {
            return Bits::default();
        }
        let binding = section.binding_rules(binding);
        let mut bits = self.plain.clone();
        section.toolsets.iter().filter_map(|set| self.sets.get(set)).for_each(|set| bits.add(set));
        self.narrow(&mut bits, section.tools);
        self.take(&mut bits, section.denied);
        self.narrow(&mut bits, binding.tools);
        self.take(&mut bits, binding.denied);
        let profiles = [section.profile.or(self.rules.profile("main")), profile];
        for profile in profiles.into_iter().flatten().filter_map(|number| self.profiles.get(number)) {
            bits.keep(profile);
        }
        bits.remove(&self.disabled);
        bits.remove(&self.withheld);
        bits
    }

    fn narrow(&self, bits: &mut Bits, list: ToolList) {
        match list {
            ToolList::All => {}
            ToolList::None => *bits = Bits::default(),
            ToolList::Only(number) => match self.lists.get(number as usize) {
                Some(list) => bits.keep(list),
                None => *bits = Bits::default(),
            },
        }
    }

    fn take(&self, bits: &mut Bits, list: ToolList) {
        if let ToolList::Only(number) = list
            && let Some(list) = self.lists.get(number as usize)
        {
            bits.remove(list);
        }
    }

    /// Has `check` look at every tool, and withholds those that it names.
    pub(super) fn quarantine(&mut self, check: &dyn DefinitionCheck) {
        let tools: Vec<_> = self.entries().map(|(_, entry)| Arc::clone(&entry.tool.descriptor)).collect();
        self.quarantine = check.review(&tools);
        let is_held = |tool: &ToolDescriptor| self.quarantine.reason(tool).is_some();
        let withheld = self.entries().filter(|(_, entry)| is_held(&entry.tool.descriptor)).map(|(number, _)| number);
        self.withheld = withheld.collect();
    }

    /// Number of quarantined tools.
    #[must_use]
    pub fn held(&self) -> usize {
        self.quarantine.len()
    }

    /// Reason why the tool of this name is in quarantine; `None` if it is not.
    #[must_use]
    pub fn held_back(&self, name: &str) -> Option<&Arc<str>> {
        let tool = self.numbers_of(name).find_map(|number| self.entry(number))?;
        self.quarantine.reason(&tool.tool.descriptor)
    }
}

impl CatalogueTool {
    /// Whether the registry still has it, as far as the policy depends on it.
    fn is_same(&self, snapshot: &Snapshot) -> bool {
        let old = &self.tool.descriptor;
        let now = snapshot.find(&old.source, &old.name);
        now.is_some_and(|(tool, is_shadowed)| {
            let new = &tool.descriptor;
            is_shadowed == self.is_shadowed && new.toolset == old.toolset && new.own_name == old.own_name
        })
    }
}

fn key_of(descriptor: &ToolDescriptor) -> (Arc<str>, Arc<str>) {
    (Arc::clone(&descriptor.source), Arc::clone(&descriptor.name))
}

/// One slot for every set that a request can name: a number that the configuration decides.
fn unbuilt(rules: &Rules) -> Vec<Vec<Vec<OnceLock<Arc<SetData>>>>> {
    let row = || std::iter::repeat_with(OnceLock::new).take(rules.profiles.len() + 1).collect();
    rules.sections().map(|section| (0..section.binding_count()).map(|_| row()).collect()).collect()
}
