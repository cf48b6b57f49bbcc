mod retrieval;

use std::sync::atomic::{AtomicU64, Ordering};

use toolbus_core::Clock;
use toolbus_core::HintSource as _;
use toolbus_core::caller::Caller;
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{AgentPolicy, Allowed};
use toolbus_core::registry::Registry;
use toolbus_protocol::AgentSkill;

use super::index::{MAX_CARD, of_agent};
use super::*;
use crate::testing;

/// Two servers, and agents of which `ana` may use reading tools, and `bob` everything.
fn policy() -> PolicyHandle {
    let registry = Registry::new();
    for (name, server, description) in [
        ("create_issue", Some("github"), "Creates an issue in a repository"),
        ("list_pull_requests", Some("github"), "Lists pull requests"),
        ("read_file", Some("files"), "Reads a file, 日本語 included"),
        ("write_file", Some("files"), "Writes a file"),
        ("convert_time", None, "Converts a time to another time zone"),
        ("invoke_agent", None, "Gives another one a task"),
    ] {
        let source = server.map_or("time".to_owned(), |server| format!("mcp:{server}"));
        let descriptor = ToolDescriptor {
            description: description.to_owned(),
            server: server.map(Arc::from),
            parameters: Some(Arc::new(json!({"type": "object"}))),
            ..ToolDescriptor::new(name, source, "mcp")
        };
        registry.register_all(vec![Tool::new(descriptor, testing::UnusedExecutor)]).unwrap();
    }
    let only = Allowed::Only(["read_*", "convert_*"].iter().map(|name| Pattern::parse(name).unwrap()).collect());
    let ana = AgentPolicy { tools: only, ..AgentPolicy::default() };
    let agents = [("ana", ana), ("bob", AgentPolicy::default())];
    testing::policy(registry, agents)
}

/// An agent, to which every caller with the tool may give tasks.
fn agents(_: &Caller) -> Vec<AgentCard> {
    let skill = |id: &str| AgentSkill {
        id: id.to_owned(),
        examples: vec!["Plan the budget".to_owned()],
        ..AgentSkill::default()
    };
    let card = AgentCard {
        agent_name: "Finance".to_owned(),
        description: Some("Knows what things cost".to_owned()),
        skills: ["forecast", "audit", "invoice", "dunning"].map(skill).into(),
        ..AgentCard::default()
    };
    vec![card]
}

/// Fixed descriptions of servers and agents.
fn sources() -> SearchSources {
    let summaries: Summaries = Arc::new(|server| (server == "github").then(|| "Repositories\nand issues".to_owned()));
    SearchSources { summaries, agents: Arc::new(agents), version: Arc::new(|| 0) }
}

async fn search(agent: &str, tool: &str, query: &str) -> String {
    let tools = CallerSearch::new(&policy(), sources()).tools();
    let found = testing::run(&tools, testing::agent(agent), tool, json!({"query": query}), Clock::SYSTEM);
    let found = found.await.unwrap().content.unwrap();
    assert!(!found.contains('\n'), "JSON for models is not indented: {found}");
    found
}

#[tokio::test]
async fn services_are_found_by_their_tools_and_the_best_of_these_come_first() {
    insta::assert_snapshot!(search("bob", SERVICES, "pull requests").await, @r#"{"results":[{"id":"github","type":"mcp","summary":"Repositories\nand issues","relevance_score":1.0,"top_tools":["list_pull_requests","create_issue"]}]}"#);
    assert_eq!(search("ana", SERVICES, "pull requests").await, r#"{"results":[]}"#);
    let of_ana = search("ana", SERVICES, "日本語").await;
    assert!(of_ana.contains(r#""id":"files""#) && !of_ana.contains("write_file"), "{of_ana}");
}

#[tokio::test]
async fn tools_are_found_with_their_schemas_if_the_caller_can_use_them() {
    insta::assert_snapshot!(search("ana", TOOLS, "time zone").await, @r#"{"results":[{"name":"convert_time","description":"Converts a time to another time zone","relevance_score":1.0,"parameters":{"type":"object"}}]}"#);
    let names = async |agent: &str| {
        let found: Value = serde_json::from_str(&search(agent, TOOLS, "file").await).unwrap();
        found["results"].as_array().unwrap().iter().map(|one| one["name"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("ana").await, ["\"read_file\""]);
    assert_eq!(names("bob").await.len(), 2);
}

#[tokio::test]
async fn agents_are_found_by_their_skills_if_the_caller_has_the_tool_that_gives_them_tasks() {
    insta::assert_snapshot!(search("bob", SERVICES, "budget").await, @r#"{"results":[{"id":"Finance","type":"a2a","summary":"Knows what things cost","relevance_score":1.0,"top_skills":["forecast","audit","invoice"]}]}"#);
    assert_eq!(search("ana", SERVICES, "budget").await, r#"{"results":[]}"#);
}

#[test]
fn a_bounded_part_of_a_large_card_is_searched() {
    let skill = |number: usize| AgentSkill {
        id: format!("s{number}"),
        examples: vec!["e".repeat(1000)],
        ..AgentSkill::default()
    };
    let card = AgentCard { agent_name: "m".to_owned(), skills: (0..50).map(skill).collect(), ..AgentCard::default() };
    let text = of_agent(&card);
    assert!(text.starts_with("m s0  eee") && text.len() <= MAX_CARD + 4, "{} bytes", text.len());
}

fn hints(search: &CallerSearch, agent: &str, text: &str) -> String {
    let caller = testing::agent(agent);
    search.hints(&caller, &search.policy.effective(&caller), text)
}

#[test]
fn hints_name_two_services_of_the_caller_each_in_one_line() {
    let search = CallerSearch::new(&policy(), sources());
    insta::assert_snapshot!(hints(&search, "bob", "Please create an issue about the budget for files"), @r"
    Services that may fit this request:
    - github (mcp): Repositories and issues, top tools: create_issue, list_pull_requests
    - files (mcp): files, top tools: write_file, read_file
    ");
    insta::assert_snapshot!(hints(&search, "ana", "Please read the file about the budget"), @r"
    Services that may fit this request:
    - files (mcp): files, top tools: read_file
    ");
    assert!(
        hints(&search, "bob", "the yearly budget")
            .contains("- Finance (a2a): Knows what things cost, top skills: forecast, audit, invoice")
    );
    assert_eq!(hints(&search, "ana", "the budget of an issue"), "", "neither is for ana");
    let nothing = Caller { binding: Some("chat:none".into()), ..testing::agent("bob") };
    assert_eq!(search.hints(&nothing, &search.policy.effective(&nothing), "read a file"), "");
}

#[test]
fn hints_name_the_tool_that_finds_more_if_the_caller_has_it() {
    let policy = policy();
    policy.registry().register_all(CallerSearch::new(&policy, sources()).tools()).unwrap();
    policy.refresh();
    let search = CallerSearch::new(&policy, sources());
    assert!(hints(&search, "bob", "a file").contains("(search_known_services finds others):\n"));
}

#[test]
fn a_change_is_searched_at_once_and_unchanged_text_is_read_once() {
    let (policy, reads) = (policy(), Arc::new(AtomicU64::new(0)));
    let version = Arc::new(AtomicU64::new(0));
    let (counted, now) = (Arc::clone(&reads), Arc::clone(&version));
    let summaries: Summaries = Arc::new(move |server| {
        counted.fetch_add(1, Ordering::Relaxed);
        Some(format!("{server} {}", ["wombat", "quokka"][now.load(Ordering::Relaxed) as usize]))
    });
    let now = Arc::clone(&version);
    let version_now = Arc::new(move || now.load(Ordering::Relaxed));
    let search = CallerSearch::new(&policy, SearchSources { summaries, version: version_now, ..sources() });
    for _ in 0..3 {
        assert!(hints(&search, "bob", "wombat").contains("- files (mcp): files wombat"));
    }
    assert_eq!(reads.load(Ordering::Relaxed), 2, "once for each of the servers");
    version.store(1, Ordering::Relaxed);
    assert!(hints(&search, "bob", "wombat").is_empty() && !hints(&search, "bob", "quokka").is_empty());
    let descriptor = ToolDescriptor {
        description: "Finds a platypus".to_owned(),
        server: Some("zoo".into()),
        ..ToolDescriptor::new("find", "mcp:zoo", "mcp")
    };
    policy.registry().register_all(vec![Tool::new(descriptor, testing::UnusedExecutor)]).unwrap();
    policy.refresh();
    assert!(hints(&search, "bob", "platypus").contains("- zoo (mcp)"));
}
