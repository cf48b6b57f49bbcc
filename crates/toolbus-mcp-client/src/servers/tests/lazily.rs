use std::time::Instant;

use toolbus_core::caller::{AgentName, Caller, Identity};
use toolbus_core::failure::Cause;
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{AgentPolicy, Allowed, Capacity, Policy, PolicyHandle};
use toolbus_core::tool::Naming;
use toolbus_core::{Lookup, PendingTools as _, ToolRef};
use toolbus_protocol::llm_name;

use super::fixture::{Fixture, HASTE};
use super::*;
use crate::spec::ToolFilter;
use crate::status::PhaseName;

/// The agents `ana`, with all tools, and `eve`, without the tools of a server named `a`.
fn access(registry: &Registry) -> PolicyHandle {
    let eve = AgentPolicy { tools: Allowed::None, ..AgentPolicy::default() };
    let agents = [("ana", AgentPolicy::default()), ("eve", eve)];
    let agents = agents.map(|(name, section)| (AgentName::parse(name).unwrap(), section)).into();
    let policy = Policy { agents, ..Policy::default() };
    PolicyHandle::new(registry.clone(), Identity::default(), policy, Capacity { max_in_flight: 16, max_waiting: 16 })
}

impl Fixture {
    /// Waits for a tool as a call does. Returns whether there was anything to wait for.
    async fn expect(&self, agent: &str, route: Lookup<'_>, name: &str) -> bool {
        let access = access(&self.registry);
        let effective = access.effective(&Caller::agent(AgentName::parse(agent).unwrap()));
        let latest = Instant::now() + Duration::from_secs(60);
        match self.bridge.expect(ToolRef { route, name }, &effective, latest) {
            Some(arrival) => arrival.await,
            None => return false,
        }
        assert!(Instant::now() < latest, "the wait took all the time");
        true
    }
}

#[tokio::test]
async fn a_lazy_server_is_started_by_the_first_call_stopped_when_idle_and_started_again() {
    let world = Fixture::new();
    world.apply([world.lazy("a"), world.server("b", "well")]);
    world.bridge.settled(Duration::from_secs(60)).await;
    world.refresh("a");
    world.refresh("b");
    world.phase("b", PhaseName::Ready).await;
    assert_eq!(world.status("a").phase, PhaseName::Idle);
    assert!(world.noted("a", "pids").is_empty());

    assert!(world.expect("ana", Lookup::Name, "a_echo").await);
    let first = world.call("a_echo").await.unwrap();
    world.phase("a", PhaseName::Idle).await;
    assert!(world.registry.snapshot().get("a_echo").is_some(), "its tools stay");
    assert!(!super::fixture::is_running(&first));
    assert!(!world.expect("ana", Lookup::Server("a"), "nothing").await, "its tools are known");

    let second = world.call("a_echo").await.unwrap();
    assert_ne!(first, second);
    world.phase("a", PhaseName::Idle).await;
    assert_eq!(world.noted("a", "pids"), [first, second], "nothing but a call starts it");
    assert_eq!(world.status("a").restarts, 0);
    world.end().await;
}

#[tokio::test]
async fn a_lazy_server_is_started_by_a_call_that_names_it() {
    let world = Fixture::new();
    world.apply([world.lazy("a"), world.lazy("b")]);
    assert!(world.expect("ana", Lookup::Server("A"), "a_echo").await);
    assert!(world.registry.snapshot().get("a_echo").is_some());
    assert!(world.noted("b", "pids").is_empty());
    assert!(!world.expect("ana", Lookup::Server("c"), "a_echo").await, "there is no such server");
    world.end().await;
}

#[tokio::test]
async fn a_caller_that_may_not_use_its_tools_cannot_start_a_server() {
    let world = Fixture::new();
    world.apply([world.lazy("a")]);
    for route in [Lookup::Name, Lookup::AnyServer, Lookup::Server("a")] {
        assert!(!world.expect("eve", route, "a_echo").await, "{route:?}");
    }
    world.refresh("a");
    assert_eq!(world.status("a").phase, PhaseName::Idle);
    assert!(world.noted("a", "pids").is_empty());
    world.end().await;
}

#[tokio::test]
async fn a_server_of_which_a_caller_could_use_nothing_is_out_of_its_reach() {
    let world = Fixture::new();
    let set = ServerToolset { name: "files".into(), prefix: "fs".into(), sessions: None };
    let servers = [("a", None), ("Set", Some(set))].map(|(name, set)| ServerWithSet { spec: world.lazy(name), set });
    world.bridge.apply(servers.to_vec(), Arc::new(|_| {}));
    let access = access(&world.registry);
    for (agent, expected) in [("ana", &["a"][..]), ("eve", &[])] {
        let effective = access.effective(&Caller::agent(AgentName::parse(agent).unwrap()));
        let within_reach: Vec<_> = world.bridge.within_reach(&effective).iter().map(ToString::to_string).collect();
        assert_eq!(within_reach, expected, "{agent}");
    }
    world.end().await;
}

#[tokio::test]
async fn a_lazy_server_of_a_set_is_started_by_the_name_that_models_use() {
    let world = Fixture::new();
    let in_set = |spec: ServerSpec, prefix: &str| ServerWithSet {
        spec,
        set: Some(ServerToolset { name: prefix.into(), prefix: prefix.into(), sessions: None }),
    };
    let naming = Naming { renamed: [("b_echo".into(), "b.echo".into())].into(), ..Naming::default() };
    let mute = ServerWithSet { spec: world.server("c", "mute"), set: None };
    let other = in_set(ServerSpec { naming, ..world.lazy("b") }, "other");
    world.bridge.apply(vec![in_set(world.lazy("a"), "fs"), other, mute], Arc::new(|_| {}));

    let section = |toolsets: &[&str], tools| AgentPolicy {
        toolsets: toolsets.iter().map(|set| (*set).into()).collect(),
        tools,
        ..AgentPolicy::default()
    };
    let echo = Allowed::Only(vec![Pattern::parse("fs.b_echo").unwrap()]);
    let agents = [("ana", section(&["fs", "other"], Allowed::All)), ("eve", section(&["fs"], echo))];
    let agents = agents.map(|(name, section)| (AgentName::parse(name).unwrap(), section)).into();
    let toolsets = ["fs", "other"].map(|set| (set.into(), set.into())).into();
    let policy = Policy { agents, toolsets, ..Policy::default() };
    let capacity = Capacity { max_in_flight: 16, max_waiting: 16 };
    let access = PolicyHandle::new(world.registry.clone(), Identity::default(), policy, capacity);
    let effective = |agent: &str| access.effective(&Caller::agent(AgentName::parse(agent).unwrap()));
    let (ana, eve, latest) = (effective("ana"), effective("eve"), Instant::now() + Duration::from_secs(60));
    for name in ["fs.a_echo", "other.b.echo"] {
        let wanted = ToolRef { route: Lookup::Name, name: &llm_name(name) };
        assert!(world.bridge.expect(wanted, &eve, latest).is_none(), "she could not use it: {name}");
        assert!(world.registry.snapshot().get(name).is_none());
        world.bridge.expect(wanted, &ana, latest).unwrap().await;
        assert!(world.registry.snapshot().get(name).is_some(), "{name}");
        assert_eq!(world.status("c").phase, PhaseName::Connecting, "nothing waits for another server: {name}");
    }
    world.end().await;
}

#[tokio::test]
async fn no_server_is_started_for_a_name_that_it_cannot_offer() {
    let world = Fixture::new();
    let tools = ToolFilter::new(vec!["a_echo".to_owned(), "mcp_register_server".to_owned()], Vec::new());
    world.apply([ServerSpec { tools, ..world.lazy("a") }]);
    for name in ["other", "mcp_register_server"] {
        assert!(!world.expect("ana", Lookup::Name, name).await, "{name}");
    }
    assert!(world.noted("a", "pids").is_empty());
    assert!(world.expect("ana", Lookup::Name, "a_echo").await);
    world.end().await;
}

#[tokio::test]
async fn an_unknown_name_is_waited_for_while_a_server_may_have_it() {
    let world = Fixture::new();
    world.touch("broken");
    world.apply([world.server("a", "well"), ServerSpec { is_disabled: true, ..world.server("b", "well") }]);
    world.expect("ana", Lookup::Name, "unknown").await;
    assert_ne!(world.status("a").phase, PhaseName::Connecting, "it had been tried");
    world.remove("broken");
    assert!(world.expect("ana", Lookup::Server("a"), "unknown").await);
    world.phase("a", PhaseName::Ready).await;
    assert!(!world.expect("ana", Lookup::Server("a"), "unknown").await);
    world.end().await;
}

#[tokio::test]
async fn a_tool_is_waited_for_until_its_own_server_has_brought_it() {
    let world = Fixture::new();
    world.apply([world.server("a", "mute"), world.lazy("b")]);
    for route in [Lookup::Name, Lookup::AnyServer] {
        world.expect("ana", route, "b_echo").await;
        assert!(world.registry.snapshot().get("b_echo").is_some());
        assert_eq!(world.status("a").phase, PhaseName::Connecting, "its handshake is not over");
    }
    world.end().await;
}

#[tokio::test]
async fn an_unknown_name_is_not_waited_for_until_the_end_of_a_handshake() {
    let world = Fixture::with_timeouts(Timeouts { arrival: Duration::from_millis(100), ..HASTE });
    world.apply([world.server("a", "mute"), world.lazy("b")]);
    assert!(world.expect("ana", Lookup::Name, "unknown").await);
    assert_eq!(world.status("a").phase, PhaseName::Connecting);

    let (policy, wanted) = (access(&world.registry), ToolRef { route: Lookup::Name, name: "unknown" });
    let not_yet = |agent: &str| {
        let effective = policy.effective(&Caller::agent(AgentName::parse(agent).unwrap()));
        world.bridge.out_of_reach(wanted, &effective)
    };
    let failure = not_yet("ana").unwrap();
    assert_eq!(failure.cause, Cause::ConnectFailed);
    insta::assert_snapshot!(failure.message, @"Tool 'unknown' is not there yet: an MCP server that may have it is still being connected to. Try again in a few seconds.");
    assert!(not_yet("eve").is_none(), "she could not use it");
    world.apply([world.server("c", "ends")]);
    world.phase("c", PhaseName::Waiting).await;
    assert!(not_yet("ana").is_none(), "it has been tried");
    world.end().await;
}

#[tokio::test]
async fn a_server_in_use_is_not_idle() {
    let world = Fixture::new();
    world.apply([world.lazy("a"), world.lazy("b")]);
    for tool in ["b_echo", "a_echo"] {
        world.expect("ana", Lookup::AnyServer, tool).await;
        assert!(world.registry.snapshot().get(tool).is_some());
    }
    // The one that was there first has the name.
    let waiting = tokio::spawn(world.begin("wait", Instant::now() + Duration::from_secs(60)));
    let has_call = |server: &&str| !world.noted(server, "calls").is_empty();
    let used = eventually("the call", async || ["a", "b"].into_iter().find(has_call)).await;
    let other = if used == "a" { "b" } else { "a" };
    world.phase(other, PhaseName::Idle).await;
    world.call(&format!("{other}_echo")).await.unwrap();
    world.phase(other, PhaseName::Idle).await;
    world.touch("go");
    assert!(waiting.await.unwrap().is_ok());
    assert_eq!(world.noted(used, "pids").len(), 1);
    world.end().await;
}
