//! Frequency with which search finds the tool that is meant: tools of some sixty servers, and queries as
//! users would write them.
//!
//! The first tools of the file are those of the MCP servers that other tests run, word for word; the others were written in
//! the style of real ones. Each query was written for one tool, and copies neither its name nor its description. Groups of
//! queries: `english`; `free`, also English, in words that descriptions of tools seldom have; `own`, in the language of the
//! tool's description; `other`, in another one.

use std::collections::BTreeMap;
use std::sync::Arc;

use toolbus_core::policy::AgentPolicy;
use toolbus_core::registry::Registry;
use toolbus_core::tool::{Tool, ToolDescriptor};

use super::super::{CallerSearch, MAX_RESULTS};
use super::sources;
use crate::testing;

/// Server, name and description of each tool.
const TOOLS: &str = include_str!("../../../tests/retrieval/tools.tsv");
/// Group, language, tool and text of each query.
const QUERIES: &str = include_str!("../../../tests/retrieval/queries.tsv");
/// Of each group, and of all, the least part that finds the tool first and among the five results, in percent.
const FLOORS: [(&str, usize, usize); 5] =
    [("english", 70, 88), ("free", 40, 64), ("own", 90, 95), ("other", 5, 10), ("all", 62, 79)];

fn search() -> CallerSearch {
    let registry = Registry::new();
    let tools = TOOLS.lines().map(|line| {
        let [server, name, description] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let descriptor = ToolDescriptor {
            description: str::to_owned(description),
            server: Some(Arc::from(server)),
            ..ToolDescriptor::new(name, format!("mcp:{server}"), "mcp")
        };
        Tool::new(descriptor, testing::UnusedExecutor)
    });
    registry.register_all(tools.collect()).unwrap();
    CallerSearch::new(&testing::policy(registry, [("ana", AgentPolicy::default())]), sources())
}

#[test]
fn most_queries_find_the_tool_that_is_meant_among_the_first_five() {
    let search = search();
    let effective = search.policy.effective(&testing::agent("ana"));
    let index = search.indexes.tools(&effective).unwrap();
    assert!(TOOLS.lines().count() >= 300 && QUERIES.lines().count() >= 500);
    let mut groups: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for line in QUERIES.lines() {
        let [group, _, tool, query] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        assert!(effective.get(tool).is_some(), "{tool}");
        let found = index.search(query, MAX_RESULTS);
        let rank = found.iter().position(|(name, _)| *name == tool);
        for group in [group, "all"] {
            let [count, first, five] = groups.entry(group).or_default();
            *count += 1;
            *first += usize::from(rank == Some(0));
            *five += usize::from(rank.is_some());
        }
    }
    let mut low = Vec::new();
    for (group, least_first, least_five) in FLOORS {
        let [count, first, five] = groups[group];
        let percent = |part: usize| part as f64 * 100.0 / count as f64;
        println!("{group}: {count} queries, first {:.1} %, first five {:.1} %", percent(first), percent(five));
        if first * 100 < least_first * count || five * 100 < least_five * count {
            low.push(group);
        }
    }
    assert!(low.is_empty(), "below the floors: {low:?}");
}
