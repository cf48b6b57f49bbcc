//! Short lists for clients that may use more tools than a model can well read.
//!
//! A short list has the tools that find others, and those that the client's agent used most. Unlisted tools of the
//! agent can be called as well.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use toolbus_core::Clock;
use toolbus_core::caller::Caller;
use toolbus_core::policy::{AllowedTool, EffectiveTools};
use toolbus_core::tool::ToolDescriptor;

/// Tools of a short list that are there because they were used.
const MAX_USED: usize = 20;
/// Time for which the same tools are chosen: models read a prompt again from the first difference on.
const CHOICE_TIME: Duration = Duration::from_secs(60 * 60);
/// Agents whose calls are counted.
const MAX_AGENTS: usize = 1024;
/// Tools of an agent whose calls are counted.
const MAX_COUNTED: usize = 512;
/// Clients whose choice is kept.
const MAX_CHOICES: usize = 10_000;

/// Rules for short lists.
#[derive(Debug, Clone, Copy)]
pub struct ShortListRules {
    /// Most tools of a caller that are all listed.
    pub above: usize,
    /// Whether a tool finds others: a caller without one is listed everything.
    pub is_finder: fn(&ToolDescriptor) -> bool,
    /// Whether a tool is in each short list.
    pub is_always: fn(&ToolDescriptor) -> bool,
}

/// Makes short lists, and counts what they depend on.
pub struct ShortLists {
    rules: ShortListRules,
    clock: Clock,
    /// Calls of each agent, by tool.
    calls: Mutex<LruCache<Arc<str>, CallCounts>>,
    choices: Mutex<LruCache<Client, ToolChoice>>,
}

/// Calls by tool.
type CallCounts = HashMap<Arc<str>, u64>;

/// A client: owner, session, profile and binding of its caller.
type Client = (Arc<str>, [Option<Arc<str>>; 3]);

/// The most used tools of a client.
struct ToolChoice {
    tools: Vec<Arc<str>>,
    at: Instant,
}

impl ShortLists {
    /// Lists by these rules; nothing is counted yet.
    #[must_use]
    pub fn new(rules: ShortListRules, clock: Clock) -> Self {
        let (calls, choices) = (LruCache::unbounded(), LruCache::unbounded());
        Self { rules, clock, calls: Mutex::new(calls), choices: Mutex::new(choices) }
    }

    /// Counts a call.
    pub(crate) fn count_call(&self, caller: &Caller, tool: &Arc<str>) {
        let mut calls = self.calls.lock();
        let counts = calls.get_or_insert_mut(Arc::clone(&caller.owner), CallCounts::new);
        if counts.len() >= MAX_COUNTED && !counts.contains_key(tool) {
            counts.values_mut().for_each(|count| *count /= 2);
            counts.retain(|_, count| *count > 0);
        }
        // A tool without room was used less than all others.
        if counts.len() < MAX_COUNTED || counts.contains_key(tool) {
            *counts.entry(Arc::clone(tool)).or_default() += 1;
        }
        if calls.len() > MAX_AGENTS {
            calls.pop_lru();
        }
    }

    /// Returns what a client is listed, sorted by name.
    pub(crate) fn listed<'a>(&self, caller: &Caller, effective: &'a EffectiveTools) -> Vec<AllowedTool<'a>> {
        let mut tools = effective.tools();
        let has_finder = || tools.iter().any(|allowed| (self.rules.is_finder)(&allowed.tool.descriptor));
        if tools.len() <= self.rules.above || !has_finder() {
            return tools;
        }
        let chosen = self.choice(caller, &tools);
        tools.retain(|allowed| {
            let descriptor = &allowed.tool.descriptor;
            (self.rules.is_always)(descriptor) || chosen.contains(&descriptor.name)
        });
        tools
    }

    /// The most used of the caller's tools, as they were chosen when this client listed its tools first, or an hour ago.
    fn choice(&self, caller: &Caller, tools: &[AllowedTool<'_>]) -> Vec<Arc<str>> {
        let narrowed = [&caller.session, &caller.profile, &caller.binding].map(Clone::clone);
        let (client, now) = ((Arc::clone(&caller.owner), narrowed), self.clock.now());
        let mut choices = self.choices.lock();
        if let Some(choice) = choices.get(&client).filter(|choice| now < choice.at + CHOICE_TIME) {
            return choice.tools.clone();
        }
        let tools = self.most_used(caller, tools);
        choices.push(client, ToolChoice { tools: tools.clone(), at: now });
        if choices.len() > MAX_CHOICES {
            choices.pop_lru();
        }
        tools
    }

    fn most_used(&self, caller: &Caller, tools: &[AllowedTool<'_>]) -> Vec<Arc<str>> {
        let mut calls = self.calls.lock();
        let Some(counts) = calls.get(&caller.owner) else { return Vec::new() };
        let names = tools.iter().map(|allowed| &allowed.tool.descriptor).filter(|tool| !(self.rules.is_always)(tool));
        let mut used: Vec<_> = names.filter_map(|tool| Some((Reverse(*counts.get(&tool.name)?), &tool.name))).collect();
        used.sort_unstable();
        used.into_iter().take(MAX_USED).map(|(_, name)| Arc::clone(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use toolbus_core::caller::{AgentName, Identity};
    use toolbus_core::policy::{Capacity, Policy, PolicyHandle};
    use toolbus_core::registry::Registry;
    use toolbus_core::tool::{Tool, ToolOutput};

    use super::*;

    const RULES: ShortListRules = ShortListRules {
        above: 50,
        is_finder: |tool| &*tool.name == "search_tools",
        is_always: |tool| &*tool.source == "search",
    };

    /// A policy with `count` tools, and a finder if `has_finder`.
    fn policy(count: usize, has_finder: bool) -> PolicyHandle {
        let registry = Registry::new();
        let mut tools: Vec<_> = (0..count).map(|n| ToolDescriptor::new(format!("t{n:03}"), "time", "local")).collect();
        tools.extend(has_finder.then(|| ToolDescriptor::new("search_tools", "search", "local")));
        registry.register_all(tools.into_iter().map(|tool| Tool::new(tool, ToolOutput::default())).collect()).unwrap();
        let capacity = Capacity { max_in_flight: 64, max_waiting: 64 };
        PolicyHandle::new(registry, Identity::default(), Policy::default(), capacity)
    }

    fn client(session: &str) -> Caller {
        Caller { session: Some(session.into()), ..Caller::agent(AgentName::parse("ana").unwrap()) }
    }

    fn names(lists: &ShortLists, policy: &PolicyHandle, client: &Caller) -> Vec<String> {
        let effective = policy.effective(client);
        lists.listed(client, &effective).iter().map(|allowed| allowed.tool.descriptor.name.to_string()).collect()
    }

    #[test]
    fn only_a_caller_with_many_tools_and_a_finder_gets_a_short_list() {
        let lists = ShortLists::new(RULES, Clock::SYSTEM);
        assert_eq!(names(&lists, &policy(49, true), &client("a")).len(), 50);
        assert_eq!(names(&lists, &policy(50, true), &client("a")), ["search_tools"]);
        assert_eq!(names(&lists, &policy(80, false), &client("a")).len(), 80);
    }

    #[test]
    fn a_short_list_has_the_tools_that_were_used_most_and_a_client_keeps_its_own() {
        let (policy, clock) = (policy(100, true), Clock::manual());
        let (lists, before) = (ShortLists::new(RULES, clock), client("before"));
        assert_eq!(names(&lists, &policy, &before), ["search_tools"]);
        for (tool, calls) in [("t007", 2), ("t003", 1), ("search_tools", 9)] {
            (0..calls).for_each(|_| lists.count_call(&before, &tool.into()));
        }
        for tool in 10..40 {
            (0..3).for_each(|_| lists.count_call(&before, &format!("t{tool:03}").into()));
        }
        let after = names(&lists, &policy, &client("after"));
        assert_eq!(after.len(), 1 + MAX_USED);
        assert!(
            after.is_sorted() && !after.contains(&"t007".to_owned()) && after.contains(&"t029".to_owned()),
            "{after:?}"
        );
        assert_eq!(names(&lists, &policy, &before), ["search_tools"], "the prompt of a running session stays");
        let bob = Caller { session: Some("b".into()), ..Caller::agent(AgentName::parse("bob").unwrap()) };
        assert_eq!(names(&lists, &policy, &bob), ["search_tools"], "calls of others do not count");
        clock.advance(CHOICE_TIME);
        assert_eq!(names(&lists, &policy, &before), after);
    }

    #[test]
    fn counts_are_bounded_and_old_ones_give_way() {
        let (lists, ana) = (ShortLists::new(RULES, Clock::SYSTEM), client("a"));
        for tool in 0..3 * MAX_COUNTED {
            lists.count_call(&ana, &format!("t{tool}").into());
            lists.count_call(&ana, &"often".into());
        }
        let mut calls = lists.calls.lock();
        let counts = calls.get(&ana.owner).unwrap();
        assert!(counts.len() <= MAX_COUNTED && counts["often"] > 100, "{}", counts.len());
    }
}
