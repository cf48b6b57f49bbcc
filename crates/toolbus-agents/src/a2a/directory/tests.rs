use std::fs;

use serde_json::{Value, json};

use super::*;
use crate::a2a::card::{MAX_SKILLS, MAX_TEXT, MAX_WORDS};

fn name(text: &str) -> AgentName {
    AgentName::parse(text).unwrap()
}

fn directory(config: &A2aConfig) -> (AgentDirectory, Clock) {
    let clock = Clock::manual();
    (AgentDirectory::new(config, "toolbus", clock).unwrap(), clock)
}

/// Announces a card of this name as this sender.
fn announce(directory: &AgentDirectory, sender: &str, card: &Value) -> &'static str {
    directory.announce(AgentName::parse(sender).ok().as_ref(), card.to_string().as_bytes())
}

fn card(name: &str) -> Value {
    json!({"agentName": name, "description": "Counts", "skills": [{"id": "sum", "name": "Sum"}]})
}

fn names(directory: &AgentDirectory) -> Vec<String> {
    directory.list(|_| true).iter().map(|agent| agent.name.to_string()).collect()
}

#[test]
fn an_agent_is_known_by_its_announcement_in_any_case_until_that_expires() {
    let (directory, clock) = directory(&A2aConfig::default());
    assert_eq!(announce(&directory, "Bob", &card("Bob")), "new");
    assert_eq!(directory.get("BOB").unwrap().card.skills[0].id, "sum");
    clock.advance(Duration::from_secs(599));
    assert_eq!(announce(&directory, "Bob", &json!({"agentName": "Bob", "description": "Adds"})), "known");
    clock.advance(Duration::from_secs(599));
    assert_eq!(directory.get("bob").unwrap().card.description.as_deref(), Some("Adds"), "the last one counts");
    clock.advance(Duration::from_secs(1));
    assert!(directory.get("bob").is_none() && names(&directory).is_empty());
}

#[test]
fn an_agent_that_deregisters_is_gone_at_once() {
    let (directory, _) = directory(&A2aConfig::default());
    announce(&directory, "Bob", &card("Bob"));
    let leaving = json!({"agentName": "Bob", "isDeregistering": true});
    assert_eq!(announce(&directory, "eve", &leaving), "not_own");
    assert_eq!(names(&directory), ["Bob"]);
    assert_eq!(announce(&directory, "Bob", &leaving), "left");
    assert!(names(&directory).is_empty());
}

#[test]
fn an_agent_cannot_announce_another_agent_or_the_daemon_or_a_second_name() {
    let (directory, _) = directory(&A2aConfig::default());
    assert_eq!(announce(&directory, "bob", &card("bob")), "new");
    for (sender, named) in
        [("eve", "bob"), ("bob", "carol"), ("", "dave"), ("toolbus", "toolbus"), ("Toolbus", "Toolbus")]
    {
        assert_eq!(announce(&directory, sender, &card(named)), "not_own", "{sender} as {named}");
    }
    // Another agent whose name differs in case alone.
    assert_eq!(announce(&directory, "Bob", &card("Bob")), "taken");
    assert_eq!(names(&directory), ["bob"]);
}

#[test]
fn a_malformed_card_is_ignored() {
    let (directory, _) = directory(&A2aConfig::default());
    for body in ["", "[]", "{}", r#"{"agentName":"a b"}"#, r#"{"agentName":"status"}"#, r#"{"agentName":"cancel.bob"}"#]
    {
        assert_eq!(directory.announce(Some(&name("bob")), body.as_bytes()), "malformed", "{body}");
    }
}

#[test]
fn a_flood_of_cards_fills_the_directory_and_known_agents_stay() {
    let (directory, clock) = directory(&A2aConfig { max_agents: 100, ..A2aConfig::default() });
    announce(&directory, "bob", &card("bob"));
    for number in 0..100_000 {
        let agent = format!("agent-{number}");
        announce(&directory, &agent, &card(&agent));
    }
    assert_eq!(names(&directory).len(), 100);
    assert_eq!(announce(&directory, "carol", &card("carol")), "full");
    assert_eq!(announce(&directory, "bob", &card("bob")), "known");
    clock.advance(Duration::from_secs(601));
    assert_eq!(announce(&directory, "carol", &card("carol")), "new", "what has expired makes room");
    assert_eq!(names(&directory), ["carol"]);
}

#[test]
fn a_flood_of_the_largest_cards_takes_no_more_memory_than_the_limits_say() {
    let (directory, _) = directory(&A2aConfig { max_agents: 20, ..A2aConfig::default() });
    let words = |count: usize| vec!["\u{1f9a6}".repeat(100); count];
    let skill = |number| json!({"id": format!("s{number}"), "name": "n", "tags": words(1), "examples": words(1)});
    let mut largest = 0;
    for number in 0..200 {
        let agent = format!("agent-{}", number % 100);
        let skills: Vec<Value> = (0..70).map(skill).collect();
        let card = json!({"agentName": agent, "description": words(20).join(" "), "skills": skills});
        largest = largest.max(card.to_string().len());
        announce(&directory, &agent, &card);
    }
    assert!(largest > 60_000, "{largest}");
    let kept: usize =
        directory.list(|_| true).iter().map(|agent| serde_json::to_vec(&*agent.card).unwrap().len()).sum();
    assert!(kept <= 20 * largest, "{kept}");
    assert_eq!(names(&directory).len(), 20);
}

#[test]
fn a_card_is_kept_within_bounds_and_without_an_address() {
    let (directory, _) = directory(&A2aConfig::default());
    let skill = json!({"id": "x".repeat(1000), "name": "y", "tags": vec!["tag"; 100]});
    let skills = vec![skill; 100];
    let long = "d".repeat(5000);
    let card = json!({"agentName": "bob", "description": long, "skills": skills, "url": "http://10.0.0.1/"});
    assert_eq!(announce(&directory, "bob", &card), "new");
    let known = directory.get("bob").unwrap();
    assert_eq!(known.card.description.as_ref().unwrap().chars().count(), MAX_TEXT + 1);
    assert_eq!((known.card.skills.len(), known.card.skills[0].tags.len()), (MAX_SKILLS, MAX_WORDS));
    assert_eq!(known.card.skills[0].id.chars().count(), MAX_NAME + 1);
    assert!(known.card.url.is_none() && known.http.is_none(), "an announcement makes the daemon reach nothing");
}

fn configured_bob(url: Option<&str>) -> A2aConfig {
    let agent = json!({"name": "Bob", "description": "Of the operator", "url": url});
    let agents = vec![serde_json::from_value(agent).unwrap()];
    A2aConfig { agents, ..A2aConfig::default() }
}

#[test]
fn a_configured_agent_is_always_known_as_configured() {
    let (directory, clock) = directory(&configured_bob(None));
    assert_eq!(directory.get("bob").unwrap().last_seen, None);
    assert_eq!(announce(&directory, "Bob", &card("Bob")), "well_known");
    assert_eq!(announce(&directory, "Bob", &json!({"agentName": "Bob", "isDeregistering": true})), "well_known");
    clock.advance(Duration::from_secs(1_000_000));
    let known = directory.get("bob").unwrap();
    assert_eq!((known.card.description.as_deref(), known.last_seen.is_some()), (Some("Of the operator"), true));
}

#[test]
fn the_file_of_the_peers_is_read() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let cards = json!([
        {"AgentName": "Research", "Skills": [{"Id": "find", "Name": "Find"}], "Url": "https://agents.example/",
         "AuthHeaderName": "X-Api-Key", "AuthHeaderValueBase64": "czNjcmV0"},
        {"agentName": "Local", "url": null},
    ]);
    fs::write(file.path(), cards.to_string()).unwrap();
    let config = A2aConfig { agents_file: Some(file.path().to_owned()), ..A2aConfig::default() };
    let (directory, _) = directory(&config);
    assert_eq!(names(&directory), ["Local", "Research"]);
    let has_http = |name| directory.get(name).unwrap().http.is_some();
    assert_eq!((has_http("research"), has_http("local")), (true, false));
}

#[test]
fn an_unusable_file_or_agent_is_an_error_with_advice() {
    let error = |config: &A2aConfig| AgentDirectory::new(config, "toolbus", Clock::SYSTEM).err().unwrap().to_string();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "{}").unwrap();
    let config = A2aConfig { agents_file: Some(file.path().to_owned()), ..A2aConfig::default() };
    assert!(error(&config).contains("it is no list of agents"), "{}", error(&config));
    assert_eq!(error(&configured_bob(Some("ftp://a"))), "a2a: agent `Bob`: the URL is none of http or https");
    let twice = [configured_bob(None).agents, configured_bob(None).agents].concat();
    let config = A2aConfig { agents: twice, ..A2aConfig::default() };
    assert_eq!(error(&config), "a2a: agent `Bob`: there are two of this name");
    let spelt = serde_json::from_value(json!({"name": "BOB"})).unwrap();
    let config = A2aConfig { agents: [configured_bob(None).agents, vec![spelt]].concat(), ..A2aConfig::default() };
    assert_eq!(error(&config), "a2a: agent `BOB`: there are two of this name", "in another spelling");
}

#[test]
fn without_sections_every_agent_is_allowed_and_with_them_the_listed_ones() {
    let caller = |name: &str| Caller::agent(AgentName::parse(name).unwrap());
    let patterns = |list: &[&str]| list.iter().map(|pattern| Pattern::parse(pattern).unwrap()).collect::<Vec<_>>();
    assert!(AllowedAgents::new(BTreeMap::new(), None).allows(&Caller::unknown(), "bob"));
    let sections = BTreeMap::from([(name("ana"), patterns(&["bob", "re*"])), (name("eve"), Vec::new())]);
    let rules = AllowedAgents::new(sections.clone(), None);
    let allowed = |rules: &AllowedAgents, caller: &Caller, agent: &str| rules.allows(caller, agent);
    assert!(allowed(&rules, &caller("ana"), "bob") && allowed(&rules, &caller("ana"), "research"));
    assert!(!allowed(&rules, &caller("ana"), "Bob") && !allowed(&rules, &caller("eve"), "bob"));
    assert!(!allowed(&rules, &caller("zoe"), "bob") && !allowed(&rules, &Caller::unknown(), "bob"));
    let rules = AllowedAgents::new(sections, Some(patterns(&["carol"])));
    assert!(allowed(&rules, &Caller::unknown(), "carol") && !allowed(&rules, &caller("eve"), "carol"));
}
