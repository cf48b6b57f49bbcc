use toolbus_core::Clock;
use toolbus_core::caller::Caller;
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{AgentPolicy, Allowed};
use toolbus_core::registry::Registry;
use toolbus_protocol::AgentSkill;

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
        registry.register_all(vec![Tool::new(descriptor, testing::Unused)]).unwrap();
    }
    let only = Allowed::Only(["read_*", "convert_*"].iter().map(|name| Pattern::parse(name).unwrap()).collect());
    let ana = AgentPolicy { tools: only, ..AgentPolicy::default() };
    let agents = [("ana", ana), ("bob", AgentPolicy::default())];
    testing::policy(registry, agents)
}

/// One agent, to which every caller may give tasks that has the tool for that.
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

async fn search(agent: &str, tool: &str, query: &str) -> String {
    let summaries: Summaries = Arc::new(|server| (server == "github").then(|| "Repositories and issues".to_owned()));
    let tools = tools(&policy(), summaries, Arc::new(agents));
    let found = testing::run(&tools, testing::agent(agent), tool, json!({"query": query}), Clock::SYSTEM);
    found.await.unwrap().content.unwrap()
}

#[tokio::test]
async fn services_are_found_by_their_tools_and_the_best_of_these_come_first() {
    insta::assert_snapshot!(search("bob", SERVICES, "pull requests").await, @r#"
    {
      "results": [
        {
          "id": "github",
          "type": "mcp",
          "summary": "Repositories and issues",
          "relevance_score": 1.0,
          "top_tools": [
            "list_pull_requests",
            "create_issue"
          ]
        }
      ]
    }
    "#);
    assert_eq!(search("ana", SERVICES, "pull requests").await, "{\n  \"results\": []\n}");
    let of_ana = search("ana", SERVICES, "日本語").await;
    assert!(of_ana.contains("\"id\": \"files\"") && !of_ana.contains("write_file"), "{of_ana}");
}

#[tokio::test]
async fn tools_are_found_with_their_schemas_if_the_caller_can_use_them() {
    insta::assert_snapshot!(search("ana", TOOLS, "time zone").await, @r#"
    {
      "results": [
        {
          "name": "convert_time",
          "description": "Converts a time to another time zone",
          "relevance_score": 1.0,
          "parameters": {
            "type": "object"
          }
        }
      ]
    }
    "#);
    let names = async |agent: &str| {
        let found: Value = serde_json::from_str(&search(agent, TOOLS, "file").await).unwrap();
        found["results"].as_array().unwrap().iter().map(|one| one["name"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("ana").await, ["\"read_file\""]);
    assert_eq!(names("bob").await.len(), 2);
}

#[tokio::test]
async fn agents_are_found_by_their_skills_if_the_caller_has_the_tool_that_gives_them_tasks() {
    insta::assert_snapshot!(search("bob", SERVICES, "budget").await, @r#"
    {
      "results": [
        {
          "id": "Finance",
          "type": "a2a",
          "summary": "Knows what things cost",
          "relevance_score": 1.0,
          "top_skills": [
            "forecast",
            "audit",
            "invoice"
          ]
        }
      ]
    }
    "#);
    assert_eq!(search("ana", SERVICES, "budget").await, "{\n  \"results\": []\n}");
}

#[test]
fn of_a_large_card_a_bounded_part_is_searched() {
    let skill = |number: usize| AgentSkill {
        id: format!("s{number}"),
        examples: vec!["e".repeat(1000)],
        ..AgentSkill::default()
    };
    let card = AgentCard { agent_name: "m".to_owned(), skills: (0..50).map(skill).collect(), ..AgentCard::default() };
    let text = of_agent(&card);
    assert!(text.starts_with("m s0  eee") && text.len() <= MAX_CARD + 4, "{} bytes", text.len());
}
