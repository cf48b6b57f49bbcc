//! Tools that each profile leaves, and how profiles are put together.

use insta::assert_snapshot;

use crate::policy::{Profile, ProfileRole};

/// Tools of sources that a profile names, and of MCP servers. What profiles leave of each of the daemon's own tools is
/// written down where it registers them.
const NAMED: [(&str, &str); 8] = [
    ("spawn_subagent", "subagent"),
    ("list_subagents", "subagent"),
    ("invoke_agent", "a2a"),
    ("list_known_agents", "a2a"),
    ("read_file", "mcp:filesystem"),
    ("mcp_register_server", "mcp:evil"),
    ("cancel_scheduled_task", "mcp:evil"),
    ("mcp_register_server_too", "mcp:evil"),
];

fn denied(profile: &Profile) -> String {
    let judged = NAMED.iter().map(|(name, source)| (name, source, profile.judge(name, name, source)));
    let denied = judged.filter(|(.., role)| *role != ProfileRole::Allowed);
    denied.map(|(name, source, role)| format!("{name} ({source}): {role:?}\n")).collect()
}

#[test]
fn the_main_profile_denies_nothing() {
    assert_snapshot!(denied(&Profile::main()), @"");
}

#[test]
fn a_subagent_begins_no_agents_and_changes_neither_schedules_nor_servers() {
    assert_snapshot!(denied(&Profile::subagent()), @r"
    spawn_subagent (subagent): DeniedSource
    list_subagents (subagent): DeniedSource
    mcp_register_server (mcp:evil): DeniedName
    cancel_scheduled_task (mcp:evil): DeniedName
    ");
}

#[test]
fn a_scheduled_run_begins_no_agents_and_changes_no_servers() {
    assert_snapshot!(denied(&Profile::scheduled()), @r"
    spawn_subagent (subagent): DeniedSource
    list_subagents (subagent): DeniedSource
    mcp_register_server (mcp:evil): DeniedName
    ");
}

#[test]
fn a_synthesis_of_replies_of_agents_cannot_invoke_agents() {
    assert_snapshot!(denied(&Profile::a2a_synthesis()), @r"
    invoke_agent (a2a): DeniedSource
    list_known_agents (a2a): DeniedSource
    ");
}

#[test]
fn a_prefix_is_no_way_around_a_denied_name() {
    let role = Profile::subagent().judge("fs.mcp_register_server", "mcp_register_server", "mcp:fs");
    assert_eq!(role, ProfileRole::DeniedName);
}

#[test]
fn a_denial_wins_over_whatever_allows() {
    let profile = Profile::new("mine")
        .allowing_source("web")
        .allowing_names(["echo", "web_browse"])
        .denying_names(["web_browse"])
        .denying_source("rest");
    let judge = |name, source| profile.judge(name, name, source);
    assert_eq!(judge("web_search", "web"), ProfileRole::Allowed);
    assert_eq!(judge("echo", "time"), ProfileRole::Allowed);
    assert_eq!(judge("web_browse", "web"), ProfileRole::DeniedName);
    assert_eq!(judge("echo", "rest"), ProfileRole::DeniedSource);
    assert_eq!(judge("current_time", "time"), ProfileRole::NotAllowed);
}

#[test]
fn a_changed_copy_leaves_the_named_profile_as_it_was() {
    let changed = Profile::main().named("mine").denying_source("web");
    assert_eq!(changed.name(), "mine");
    assert_eq!(changed.judge("web_search", "web_search", "web"), ProfileRole::DeniedSource);
    assert_eq!(Profile::main().judge("web_search", "web_search", "web"), ProfileRole::Allowed);
}

#[test]
fn a_profile_that_allows_nothing_has_nothing() {
    assert_eq!(Profile::new("none").judge("web_search", "web_search", "web"), ProfileRole::NotAllowed);
}

#[test]
fn a_profile_is_meant_by_every_spelling_that_agents_use() {
    let named =
        |name: &str| Profile::all().into_iter().find(|profile| profile.is_named(name)).map(|one| one.name().to_owned());
    for (spelling, name) in [
        ("Main", "main"),
        ("A2ASynthesis", "a2a-synthesis"),
        ("a2a_synthesis", "a2a-synthesis"),
        ("SubAgent", "subagent"),
    ] {
        assert_eq!(named(spelling).as_deref(), Some(name));
    }
    for other in ["", "-", "mains", "a2a synthesis", "mäin"] {
        assert_eq!(named(other), None, "{other}");
    }
}
