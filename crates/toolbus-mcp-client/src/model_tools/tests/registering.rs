use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};
use toolbus_core::caller::Caller;
use toolbus_core::store::Store as _;
use toolbus_testing::faulty_store::StoreFault;
use toolbus_testing::patience::eventually;

use super::fixture::{Fixture, agent, call};
use crate::model_tools::rules::tests::{hostile_line, hostile_url, is_allowed_line};
use crate::spec::TransportSpec;

fn line(name: &str) -> Value {
    json!({"server_name": name, "command": "true"})
}

async fn stored(world: &Fixture) -> Vec<String> {
    world.store.list("mcp.registered").await.unwrap()
}

#[tokio::test]
async fn a_server_is_registered_and_removed() {
    let world = Fixture::new();
    let ana = agent("ana");
    insta::assert_snapshot!(world.register(&ana, line("Mine")).await, @"Server 'Mine' registered successfully. 2 tool(s) available. It stays until you unregister it, also when the daemon restarts.");
    assert_eq!((world.fleet.names(), stored(&world).await), (vec!["Mine".to_owned()], vec!["mine".to_owned()]));
    insta::assert_snapshot!(world.unregister(&ana, "MINE").await, @"Server 'MINE' removed successfully.");
    assert_eq!((world.fleet.names(), stored(&world).await), (vec![], vec![]));
}

#[tokio::test]
async fn the_peers_forms_are_understood() {
    let world = Fixture::new();
    let forms = [
        json!({"name": "a", "type": "sse", "url": "https://mcp.example.com/sse", "display_name": "A", "description": "d"}),
        json!({"server_name": "b", "type": "", "url": "https://mcp.example.com/", "command": null, "args": [], "env": {}}),
        json!({"server_name": "c", "type": "stdio", "command": "npx", "args": ["-y", "@scope/a"]}),
        json!({"server_name": "d", "command": "uvx", "arguments": ["mcp-server-time"], "url": ""}),
        json!({"server_name": "e", "type": "streamable-http", "url": "https://a.tools.example"}),
    ];
    for form in forms {
        let outcome = world.register(&agent("ana"), form).await;
        assert!(outcome.ends_with("registered successfully. 2 tool(s) available. It stays until you unregister it, also when the daemon restarts."), "{outcome}");
    }
    let kinds: Vec<String> = world
        .fleet
        .added
        .lock()
        .iter()
        .map(|transport| match transport {
            TransportSpec::Stdio(program) => format!("{} {:?}", program.command, program.args),
            TransportSpec::Http(endpoint) => format!("{:?} {}", endpoint.kind, endpoint.url),
        })
        .collect();
    insta::assert_snapshot!(kinds.join("\n"), @r#"
    Sse https://mcp.example.com/sse
    Detect https://mcp.example.com/
    npx ["-y", "@scope/a"]
    uvx ["mcp-server-time"]
    Streamable https://a.tools.example/
    "#);
}

#[tokio::test]
async fn every_refusal_has_advice_and_starts_nothing() {
    let world = Fixture::new();
    let cases = [
        json!({"command": "true"}),
        json!({"server_name": "x"}),
        json!({"server_name": "x", "command": "true", "url": "https://mcp.example.com"}),
        json!({"server_name": "x", "url": "https://mcp.example.com", "arguments": ["a"]}),
        json!({"server_name": "x", "command": "true", "type": "sse"}),
        json!({"server_name": "x", "url": "https://mcp.example.com", "type": "stdio"}),
        json!({"server_name": "x", "command": "true", "arguments": "-c id"}),
        json!({"server_name": "x", "command": "true", "arguments": [1]}),
        json!({"server_name": "x", "command": ["true"]}),
        json!({"server_name": "x", "command": "true", "env": {"PATH": "/tmp"}}),
        json!({"server_name": "x", "url": "https://mcp.example.com", "headers": {"a": "b"}}),
        json!({"server_name": "x", "command": "true", "cwd": "/tmp"}),
        json!({"server_name": "x", "command": "sh", "arguments": ["-c", "id"]}),
        json!({"server_name": "x", "url": "https://evil.example"}),
        json!({"server_name": "x", "url": "http://mcp.example.com"}),
        json!({"server_name": "x", "url": "https://a:b@mcp.example.com"}),
        json!({"server_name": "x", "url": "nonsense"}),
        line("files"),
        line("management"),
        line("a b"),
        line("fіles"),
        line(&"x".repeat(65)),
    ];
    let mut outcomes = Vec::new();
    for arguments in cases {
        outcomes.push(world.register(&agent("ana"), arguments).await);
    }
    insta::assert_snapshot!(outcomes.join("\n"), @"
    InvalidArguments: Missing required parameter: server_name
    InvalidArguments: Missing required parameter: command or url
    InvalidArguments: Give either 'command' or 'url', and not both.
    InvalidArguments: A server with a 'url' takes no 'arguments'. Leave them out.
    InvalidArguments: A server with a 'command' is of type 'stdio'. Leave 'type' out.
    InvalidArguments: A server with a 'url' is of type 'http' or 'sse'. Leave 'type' out.
    InvalidArguments: Parameter 'arguments' must be a list of strings, one for each argument of the program.
    InvalidArguments: Parameter 'arguments' must be a list of strings, one for each argument of the program.
    InvalidArguments: Parameter 'command' must be a string.
    InvalidArguments: Parameter 'env' is none of this tool's. A server that needs an environment, headers or credentials must be configured by an operator.
    InvalidArguments: Parameter 'headers' is none of this tool's. A server that needs an environment, headers or credentials must be configured by an operator.
    InvalidArguments: Parameter 'cwd' is none of this tool's. A server that needs an environment, headers or credentials must be configured by an operator.
    error: Failed to register server 'x': this command line is none of those that an operator allows.
    error: Failed to register server 'x': the host of this url, on its port, is none of those that an operator allows.
    error: Failed to register server 'x': the url must begin with https://; http:// is for this machine alone.
    error: Failed to register server 'x': the url must not hold a user name or a password.
    error: Failed to register server 'x': the url is not usable; expected https://host/path of at most 2048 bytes.
    error: Failed to register server 'files': the name is taken; choose another.
    error: Failed to register server 'management': a name has 1 to 64 letters, digits, `.`, `_` and `-`, and is not `management`.
    error: Failed to register server 'a b': a name has 1 to 64 letters, digits, `.`, `_` and `-`, and is not `management`.
    error: Failed to register server 'fіles': a name has 1 to 64 letters, digits, `.`, `_` and `-`, and is not `management`.
    error: Failed to register server 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…': a name has 1 to 64 letters, digits, `.`, `_` and `-`, and is not `management`.
    ");
    assert!(world.fleet.added.lock().is_empty() && stored(&world).await.is_empty());
}

#[tokio::test]
async fn a_server_that_does_not_connect_is_not_kept() {
    let world = Fixture::new();
    world.fleet.fails.store(true, Ordering::Relaxed);
    insta::assert_snapshot!(world.register(&agent("ana"), line("x")).await, @"error: Failed to register server 'x': it ended at once.");
    assert_eq!((world.fleet.names(), stored(&world).await), (vec![], vec![]));
}

#[tokio::test]
async fn a_name_is_replaced_by_its_own_agent_alone() {
    let world = Fixture::new();
    let (ana, bob) = (agent("ana"), agent("bob"));
    world.register(&ana, line("x")).await;
    insta::assert_snapshot!(world.register(&bob, line("X")).await, @"error: Failed to register server 'X': the name is taken; choose another.");
    insta::assert_snapshot!(world.unregister(&bob, "x").await, @"error: Failed to remove server 'x': you have registered no server of this name.");
    insta::assert_snapshot!(world.unregister(&ana, "files").await, @"error: Failed to remove server 'files': you have registered no server of this name.");
    insta::assert_snapshot!(world.unregister(&ana, "none").await, @"error: Failed to remove server 'none': you have registered no server of this name.");
    let other = json!({"server_name": "X", "command": "uvx", "args": ["mcp-server-time"]});
    insta::assert_snapshot!(world.register(&ana, other).await, @"Server 'X' registered successfully. 2 tool(s) available. It stays until you unregister it, also when the daemon restarts.");
    assert_eq!((world.fleet.names(), stored(&world).await), (vec!["X".to_owned()], vec!["x".to_owned()]));
}

#[tokio::test]
async fn a_failed_replacement_restores_the_earlier_server() {
    let world = Fixture::new();
    let ana = agent("ana");
    world.register(&ana, line("x")).await;
    let before = world.store.get("mcp.registered", "x").await.unwrap();
    let spec = world.fleet.servers.lock().get("x").cloned();
    let other = json!({"server_name": "x", "command": "uvx", "args": ["mcp-server-time"]});
    world.fleet.fails.store(true, Ordering::Relaxed);
    assert!(world.register(&ana, other.clone()).await.starts_with("error: "));
    world.fleet.fails.store(false, Ordering::Relaxed);
    world.store.set(StoreFault::Unwritable);
    insta::assert_snapshot!(world.register(&ana, other).await, @"error: Failed to register server 'x': it cannot be stored now; try again later.");
    assert_eq!(world.store.get("mcp.registered", "x").await.unwrap(), before);
    assert_eq!(world.fleet.servers.lock().get("x").cloned(), spec);
}

#[tokio::test]
async fn a_failing_store_undoes_a_registration_or_removal() {
    let world = Fixture::new();
    let ana = agent("ana");
    world.register(&ana, line("old")).await;
    world.store.set(StoreFault::Unwritable);
    insta::assert_snapshot!(world.register(&ana, line("new")).await, @"error: Failed to register server 'new': it cannot be stored now; try again later.");
    insta::assert_snapshot!(world.unregister(&ana, "old").await, @"error: Failed to remove server 'old': it cannot be stored now; try again later.");
    assert_eq!((world.fleet.names(), stored(&world).await), (vec!["old".to_owned()], vec!["old".to_owned()]));
}

#[tokio::test]
async fn an_agent_registers_ten_and_all_of_them_fifty() {
    let world = Fixture::new();
    let register = async |caller: &Caller, name: &str| world.register(caller, line(name)).await;
    for n in 0..10 {
        assert!(register(&agent("ana"), &format!("ana{n}")).await.starts_with("Server"), "{n}");
    }
    insta::assert_snapshot!(register(&agent("ana"), "ana10").await, @"error: Failed to register server 'ana10': no more than 10 servers can be registered by one agent; unregister one of yours first.");
    assert!(register(&agent("ana"), "ana3").await.starts_with("Server"), "one that it has is replaced");
    for n in 10..50 {
        assert!(register(&agent(&format!("agent{n}")), &format!("other{n}")).await.starts_with("Server"), "{n}");
    }
    insta::assert_snapshot!(register(&agent("bob"), "bob").await, @"error: Failed to register server 'bob': no more than 50 servers can be registered; an operator can remove one.");
    world.unregister(&agent("ana"), "ana0").await;
    assert!(register(&agent("bob"), "bob").await.starts_with("Server"));
}

#[tokio::test]
async fn callers_without_a_section_share_the_quota_of_one_agent() {
    let world = Fixture::new();
    let named = |name: &str| Caller { has_section: false, ..agent(name) };
    for n in 0..10 {
        let outcome = world.register(&named(&format!("new{n}")), line(&format!("s{n}"))).await;
        assert!(outcome.starts_with("Server"), "{outcome}");
    }
    assert!(world.register(&named("new10"), line("s10")).await.starts_with("error: "));
    assert!(world.unregister(&named("new1"), "s0").await.starts_with("error: "), "each removes its own alone");
    assert!(world.register(&agent("bob"), line("s10")).await.starts_with("Server"));
}

#[tokio::test]
async fn a_registration_that_is_given_up_is_undone() {
    let world = Fixture::new();
    world.fleet.hangs.store(true, Ordering::Relaxed);
    let call = call(&agent("ana"), "mcp_register_server", line("x"));
    let cancelled = call.cancelled.clone();
    let (outcome, ()) = tokio::join!(world.run("mcp_register_server", call), async {
        eventually("the server is added", async || (!world.fleet.names().is_empty()).then_some(())).await;
        insta::assert_snapshot!(world.register(&agent("ana"), line("X")).await, @"error: Failed to register server 'X': another change of this server is under way; try again when it has ended.");
        insta::assert_snapshot!(world.register(&agent("bob"), line("X")).await, @"error: Failed to register server 'X': the name is taken; choose another.");
        cancelled.cancel();
    });
    insta::assert_snapshot!(outcome.unwrap().content.unwrap(), @"Failed to register server 'x': the call was given up.");
    assert_eq!((world.fleet.names(), stored(&world).await), (vec![], vec![]));
    world.fleet.hangs.store(false, Ordering::Relaxed);
    assert!(world.register(&agent("bob"), line("x")).await.starts_with("Server"), "the name is free again");
}

#[tokio::test]
async fn a_registration_whose_caller_is_gone_is_undone() {
    let world = Fixture::new();
    world.fleet.hangs.store(true, Ordering::Relaxed);
    let call = call(&agent("ana"), "mcp_register_server", line("x"));
    let cancelled = call.cancelled.clone();
    let mut running = Box::pin(world.run("mcp_register_server", call));
    tokio::select! {
        _ = &mut running => panic!("the server connected"),
        () = eventually("the server is added", async || (!world.fleet.names().is_empty()).then_some(())) => {}
    }
    drop(running);
    cancelled.cancel();
    eventually("the server is gone", async || world.fleet.names().is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_server_gets_a_little_less_time_to_connect_than_the_call_has() {
    let deadline = Instant::now() + Duration::from_secs(10);
    let latest = crate::model_tools::register::latest(deadline, Instant::now());
    assert!(latest < deadline && deadline - latest <= Duration::from_millis(500));
    let past = Instant::now();
    assert_eq!(crate::model_tools::register::latest(past, past), past);
}

fn fleet_after(arguments: Value) -> Vec<TransportSpec> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let world = Fixture::new();
        world.register(&agent("ana"), arguments).await;
        std::mem::take(&mut *world.fleet.added.lock())
    })
}

proptest! {
    #[test]
    fn no_command_line_that_the_patterns_do_not_allow_reaches_the_fleet(line in hostile_line()) {
        let arguments = json!({"server_name": "x", "command": line[0], "arguments": line[1..]});
        let added = fleet_after(arguments);
        prop_assert_eq!(added.len(), usize::from(is_allowed_line(&line)));
        for transport in added {
            let TransportSpec::Stdio(program) = transport else { panic!("not a program") };
            prop_assert!(program.env.is_empty() && program.cwd.is_none());
            prop_assert_eq!((&program.command, program.args.as_slice()), (&line[0], &line[1..]));
        }
    }

    #[test]
    fn no_host_that_the_patterns_do_not_allow_reaches_the_fleet(url in hostile_url()) {
        for transport in fleet_after(json!({"server_name": "x", "url": url})) {
            let TransportSpec::Http(endpoint) = transport else { panic!("not HTTP") };
            let host = endpoint.url.host_str().unwrap();
            let known = ["mcp.example.com", "odd.example", "127.0.0.1", "[::1]"];
            prop_assert!(known.contains(&host) || host.ends_with(".tools.example"), "{}", endpoint.url);
            prop_assert!(endpoint.headers.is_empty() && endpoint.url.username().is_empty());
        }
    }
}
