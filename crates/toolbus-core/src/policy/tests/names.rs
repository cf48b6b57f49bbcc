//! Whose tool a name means, and under which names a tool is meant.

use super::*;
use crate::failure::Cause;
use crate::gates::{Gates, StepName};
use crate::registry::Rank;
use crate::request::{Lookup, ToolRef};

/// A tool of a server, published under this name.
fn of_server(server: &str, own: &str, published: &str) -> Tool {
    let mut tool = plain(published, &format!("mcp:{server}"));
    let descriptor = Arc::make_mut(&mut tool.descriptor);
    descriptor.server = Some(server.into());
    descriptor.own_name = (own != published).then(|| own.into());
    tool
}

fn publish(access: &PolicyHandle, server: &str, names: &[(&str, &str)]) {
    let tools = names.iter().map(|(own, published)| of_server(server, own, published)).collect();
    access.registry().publish(Rank::Configured, &format!("mcp:{server}").into(), tools).unwrap();
    access.refresh();
}

/// Rules for one agent, and two servers of which the second has begun to list a tool of the first.
fn contested() -> PolicyHandle {
    let access = access(Vec::new(), policy([("ana", AgentPolicy::default())]));
    publish(&access, "zzz", &[("read_file", "read_file")]);
    access.registry().keep_names();
    publish(&access, "aaa", &[("read_file", "read_file"), ("list", "list")]);
    access
}

fn server_of(allowed: Option<crate::policy::AllowedTool<'_>>) -> Option<String> {
    Some(allowed?.tool.descriptor.server.as_ref()?.to_string())
}

#[test]
fn a_contested_name_means_its_owners_tool_and_the_others_is_reached_by_its_server() {
    let access = contested();
    let effective = access.effective(&caller("ana"));
    assert_eq!(server_of(effective.get("read_file")).as_deref(), Some("zzz"));
    assert_eq!(server_of(effective.of_any_server("read_file")).as_deref(), Some("zzz"));
    assert_eq!(server_of(effective.of_server("aaa", "read_file")).as_deref(), Some("aaa"));
    assert_eq!(names(&effective), ["list", "read_file"]);
}

#[test]
fn a_name_whose_owner_is_away_finds_no_tool_even_among_all_servers() {
    let access = contested();
    publish(&access, "zzz", &[]);
    let effective = access.effective(&caller("ana"));
    assert!(effective.get("read_file").is_none() && effective.of_any_server("read_file").is_none());
    assert_eq!(server_of(effective.of_server("aaa", "read_file")).as_deref(), Some("aaa"));
    assert_eq!(names(&effective), ["list"]);
    let all = effective.explain_all();
    assert_eq!(all.iter().map(|explanation| &*explanation.tool).collect::<Vec<_>>(), ["list", "read_file"]);
    insta::assert_snapshot!(all[1].because, @"the name belongs to `mcp:zzz`, which does not offer it now; `mcp:aaa` also has a tool of this name, which is called by its server");
}

#[test]
fn a_tool_of_no_server_leaves_its_name_to_a_server_among_servers() {
    let access = access(vec![plain("read_file", "rest")], policy([("ana", AgentPolicy::default())]));
    publish(&access, "aaa", &[("read_file", "read_file")]);
    let effective = access.effective(&caller("ana"));
    assert_eq!(server_of(effective.get("read_file")), None);
    assert_eq!(server_of(effective.of_any_server("read_file")).as_deref(), Some("aaa"));
}

#[test]
fn a_name_that_others_have_too_is_explained_with_them() {
    let gates = Gates::new(contested());
    let steps = gates.explain(&caller("ana"), "read_file", None);
    let step = steps.iter().find(|step| step.name == StepName::Resolve).unwrap();
    insta::assert_snapshot!(step.text, @"no list restricts it; `mcp:aaa` also has a tool of this name, which is called by its server");
    assert_eq!(gates.policy().current().clashes().len(), 1);
}

#[test]
fn denials_apply_to_a_tools_own_name_and_permissions_do_not() {
    let sections = [
        ("ana", denying(&["read_file"])),
        ("bob", denying(&["files_*"])),
        ("eve", allowing(&["read_file"])),
        ("kim", allowing(&["files_read_file"])),
        ("sub", AgentPolicy::default()),
    ];
    let access = access(Vec::new(), policy(sections));
    publish(
        &access,
        "fs",
        &[("read_file", "files_read_file"), ("cancel_scheduled_task", "files_cancel_scheduled_task")],
    );
    let all = ["files_cancel_scheduled_task", "files_read_file"];
    assert_eq!(of(&access, &caller("ana")), all[..1]);
    assert_eq!(of(&access, &caller("bob")), [""; 0]);
    assert_eq!(of(&access, &caller("eve")), [""; 0]);
    assert_eq!(of(&access, &caller("kim")), all[1..]);
    assert_eq!(of(&access, &caller("sub")), all);
    assert_eq!(of(&access, &with_profile(caller("sub"), "subagent")), all[1..]);
}

#[test]
fn a_tool_that_gets_another_tools_published_name_is_known_by_its_own() {
    let access = access(Vec::new(), policy([("ana", denying(&["delete"]))]));
    publish(&access, "fs", &[("read", "open")]);
    assert_eq!(of(&access, &caller("ana")), ["open"]);
    let tools = vec![of_server("fs", "delete", "open")];
    access.registry().publish(Rank::Configured, &"mcp:fs".into(), tools).unwrap();
    access.refresh();
    let effective = access.effective(&caller("ana"));
    assert_eq!(names(&effective), [""; 0]);
    assert!(effective.of_server("fs", "read").is_none());
}

#[test]
fn a_refusal_of_an_unknown_tool_lists_the_servers_tools_or_the_servers() {
    let access = access(Vec::new(), policy([("ana", AgentPolicy::default())]));
    let many: Vec<_> = (0..21).map(|number| format!("t{number:02}")).collect();
    publish(&access, "Many", &many.iter().map(|name| (&**name, &**name)).collect::<Vec<_>>());
    publish(&access, "One", &[("read", "read")]);
    let gates = Gates::new(access);
    let not_found = |route| {
        let wanted = ToolRef { route, name: "send" };
        let failure = gates.resolve(&gates.enter(&caller("ana")), &caller("ana"), wanted).err().unwrap();
        (failure.cause, failure.message)
    };
    let (cause, text) = not_found(Lookup::Server("one"));
    assert!(cause == Cause::UnknownTool && text.contains("on server 'one'. Available tools: [read]."), "{text}");
    let (cause, text) = not_found(Lookup::Server("MANY"));
    let listed = format!("Available tools: [{}, …].", many[..20].join(", "));
    assert!(cause == Cause::UnknownTool && text.contains(&listed), "{text}");
    let (cause, text) = not_found(Lookup::Server("none"));
    assert_eq!((cause, &*text), (Cause::UnknownServer, "Unknown MCP server 'none'. Registered servers: [Many, One]."));
    assert_eq!(not_found(Lookup::AnyServer).0, Cause::UnknownServer);
    assert_eq!(not_found(Lookup::Name).0, Cause::UnknownTool);
}
