use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::ToolCall;
use toolbus_core::toolsets::SessionLimits;

use super::fixture::{Fixture, is_running, kill};
use super::remote::{Remote, not_found};
use super::*;
use crate::servers::sessions::ServerSessions;

/// A world in which `a` is started for each session of the set `desk`.
struct Desk {
    world: Fixture,
    set: Arc<SessionSet>,
}

impl Desk {
    async fn new(cwd: Option<&str>) -> Self {
        let world = Fixture::new();
        let mut spec = world.server("a", "well");
        if let (TransportSpec::Stdio(program), Some(cwd)) = (&mut spec.transport, cwd) {
            program.cwd = Some(world.folder.path().join(cwd));
        }
        Self::of(world, spec, "desk.pid").await
    }

    /// A desk of this server, which has `tool`.
    async fn of(world: Fixture, spec: ServerSpec, tool: &str) -> Self {
        let launcher = Launcher::of_tests(Duration::from_millis(200));
        let sessions = ServerSessions::new(spec.clone(), launcher, Arc::new(Discard));
        let limits = SessionLimits { idle_timeout: Duration::from_secs(3600), max_lifetime: None, max_sessions: 8 };
        let set = SessionSet::new("desk", sessions, limits);
        let toolset = ServerToolset { name: "desk".into(), prefix: "desk".into(), sessions: Some(Arc::clone(&set)) };
        world.bridge.apply(vec![ServerWithSet { spec, set: Some(toolset) }], Arc::new(|_| {}));
        eventually("the tools of the set", async || world.registry.snapshot().get(tool).map(drop)).await;
        Self { world, set }
    }

    fn begin(&self, tool: &str, session: &str) -> impl Future<Output = Result<String, ToolFailure>> + use<> {
        let tool = self.world.registry.snapshot().get(&format!("desk.{tool}")).unwrap().clone();
        let caller = Caller { session: Some(session.into()), ..Caller::agent(AgentName::parse("ana").unwrap()) };
        let call = ToolCall { caller: Arc::new(caller), ..testing::call(tool.descriptor.bare_name()) };
        let result = Arc::clone(&tool.executor).execute_boxed(call);
        async move { result.await.map(|output| output.content.unwrap()) }
    }

    async fn call(&self, tool: &str, session: &str) -> Result<String, ToolFailure> {
        self.begin(tool, session).await
    }

    async fn end(self) {
        self.set.shutdown().await;
        self.world.end().await;
    }
}

#[tokio::test]
async fn the_loss_of_a_session_is_reported_once() {
    let desk = Desk::new(None).await;
    let pid = desk.call("pid", "s").await.unwrap();
    kill(&pid);
    eventually("the end of the server", async || (!is_running(&pid)).then_some(())).await;
    let processes = desk.world.noted("a", "pids").len();
    let failure = desk.call("pid", "s").await.unwrap_err();
    // The process is gone a moment before its end is read, and a call in between was sent.
    let message = failure.message.replace("It may have acted on the call.", "The tool was not run.");
    insta::assert_snapshot!(message, @"MCP server 'a' of this session has ended, and what it held for the session is lost. The tool was not run. The next call starts it anew.");
    assert_eq!(desk.world.noted("a", "pids").len(), processes, "not started meanwhile");
    let next = desk.call("pid", "s").await.unwrap();
    assert_ne!(next, pid);
    assert_eq!(desk.call("pid", "s").await.unwrap(), next);
    desk.end().await;
}

#[tokio::test]
async fn a_call_that_kills_the_server_of_its_session_may_have_acted_and_the_next_one_begins_anew() {
    let desk = Desk::new(None).await;
    let other = desk.call("pid", "other").await.unwrap();
    let failure = desk.call("die", "s").await.unwrap_err();
    assert_eq!(failure.cause, Cause::ConnectionLost);
    insta::assert_snapshot!(failure.message, @"MCP server 'a' of this session has ended, and what it held for the session is lost. It may have acted on the call. The next call starts it anew.");
    desk.call("pid", "s").await.unwrap();
    assert_eq!(desk.call("pid", "other").await.unwrap(), other, "another session goes on");
    desk.end().await;
}

#[tokio::test]
async fn a_session_that_a_server_over_http_forgot_is_lost_and_its_call_is_not_repeated() {
    let remote = Remote::start(|request, number| match request["method"].as_str() {
        Some("tools/call") if number == 2 => not_found(),
        _ => None,
    })
    .await;
    let desk = Desk::of(Fixture::new(), remote.spec("a"), "desk.echo").await;
    let first = desk.call("echo", "s").await.unwrap();
    let sessions = remote.count("initialize");
    let failure = desk.call("echo", "s").await.unwrap_err();
    assert_eq!(failure.cause, Cause::ConnectionLost);
    insta::assert_snapshot!(failure.message, @"MCP server 'a' of this session has ended, and what it held for the session is lost. It may have acted on the call. The next call starts it anew.");
    assert_eq!([remote.count("initialize"), remote.count("tools/call")], [sessions, 2]);
    assert_ne!(desk.call("echo", "s").await.unwrap(), first);
    assert_eq!([remote.count("initialize"), remote.count("tools/call")], [sessions + 1, 3]);
    desk.end().await;
}

#[tokio::test]
async fn a_session_server_gets_no_probe_and_no_listing_request() {
    let desk = Desk::new(None).await;
    desk.call("pid", "one").await.unwrap();
    desk.world.remove("a.asked");
    desk.call("pid", "two").await.unwrap();
    assert_eq!(desk.world.noted("a", "asked"), ["initialize", "notifications/initialized", "tools/call"]);
    desk.end().await;
}

#[tokio::test]
async fn session_directories_are_made_and_failures_reported_to_operators() {
    let desk = Desk::new(Some("desks/{agent}/{session}")).await;
    desk.call("pid", "s").await.unwrap();
    let made = desk.world.folder.path().join("desks/ana/s");
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(made).unwrap()) & 0o777, 0o700);
    desk.world.touch("desks/ana/t");
    let failure = desk.call("pid", "t").await.unwrap_err();
    assert!(!failure.message.contains("desks"), "{}", failure.message);
    insta::assert_snapshot!(failure.message, @"MCP server 'a' could not be started for the session. Try again later.");
    insta::assert_snapshot!(failure.detail.unwrap(), @"a directory that the server works in cannot be made: File exists (os error 17)");
    desk.end().await;
}
