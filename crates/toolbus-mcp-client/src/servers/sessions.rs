//! Servers that are started for each session of a tool set.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use toolbus_core::events::McpClientEvents;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::secret::Secret;
use toolbus_core::text::shown;
use toolbus_core::tool::{Executor, ToolCall, ToolOutput};
use toolbus_core::toolsets::{Instance, SessionFactory, SessionKey};
use toolbus_protocol::llm_name;

use crate::client::{ServerInfo, ServerListing};
use crate::process::Launcher;
use crate::spec::{Credential, Credentials, HttpSpec, ServerSpec, StdioSpec, TransportSpec};
use crate::supervise::connect::{Connector, Remembered, no_credential};
use crate::supervise::{Lifetime, Listener, ServerState, SupervisedServer, Timeouts};

/// Stands for the caller's agent.
const AGENT: &str = "{agent}";
/// Stands for the caller's session.
const SESSION: &str = "{session}";
/// Whose session it is when a server is started to list its tools. No agent's name begins so.
const LISTING: (&str, &str) = ("_toolbus", "_listing");
/// Prefix of names that are derived from other names.
const MADE: &str = "x-";
/// Longest start of a session's server.
const START_TIME: Duration = Duration::from_secs(60);
/// Longest end of a session's server.
const STOP_TIME: Duration = Duration::from_secs(9);

/// Starts a server for each session.
pub struct ServerSessions {
    spec: ServerSpec,
    launcher: Launcher,
    observer: Arc<dyn McpClientEvents>,
    /// Session mode of the server, which sessions learn for later ones.
    remembered: Remembered,
}

/// The server of one session. Dropping it ends the server.
pub struct SessionServer {
    server: Arc<SupervisedServer>,
    /// Whether a call has reported that the server ended by itself.
    was_reported: AtomicBool,
}

impl ServerSessions {
    /// Sessions of this server.
    #[must_use]
    pub fn new(spec: ServerSpec, launcher: Launcher, observer: Arc<dyn McpClientEvents>) -> Self {
        Self { spec, launcher, observer, remembered: Remembered::default() }
    }
}

impl SessionFactory for ServerSessions {
    type Instance = SessionServer;

    async fn start(&self, key: SessionKey) -> Result<SessionServer, ToolFailure> {
        let credential = credential(&self.spec, &key.owner)?;
        let spec = expanded(&self.spec, &key.owner, &key.session);
        let connector = Connector::new(&spec, credential, &self.launcher, &self.observer)
            .remembering(self.remembered.clone())
            .making(directories(&spec))
            .ending_with_session();
        let server = SupervisedServer::new(spec.name.clone(), Lifetime::Once, Timeouts::DEFAULT, connector);
        #[expect(
            clippy::disallowed_methods,
            reason = "ends when the `SessionServer` is dropped, which stops the server"
        )]
        tokio::spawn(Arc::clone(&server).keep(Arc::new(DiscardTools)));
        let started = SessionServer { server, was_reported: AtomicBool::new(false) };
        let (mut states, clock) = (started.server.states(), started.server.clock());
        let settled = states.wait_for(|state| matches!(state, ServerState::Ready(_)) || state.is_final(clock));
        let is_ready = match timeout(START_TIME, settled).await {
            Ok(Ok(state)) => matches!(*state, ServerState::Ready(_)),
            _ => false,
        };
        if is_ready {
            return Ok(started);
        }
        let why = started.server.last_error().unwrap_or_else(|| "it did not get ready in time".to_owned());
        started.stop().await;
        Err(failed(&spec).with_detail(why))
    }
}

/// The credential of the agent whose session it is, where each has one of its own. The key of an unknown caller is the
/// name of no agent.
fn credential<'a>(spec: &'a ServerSpec, owner: &str) -> Result<Option<&'a Credential>, ToolFailure> {
    match &spec.transport {
        TransportSpec::Http(HttpSpec { credentials: Credentials::PerAgent(agents), .. }) => {
            agents.get(owner).map(Some).ok_or_else(|| no_credential(&spec.name))
        }
        _ => Ok(None),
    }
}

fn failed(spec: &ServerSpec) -> ToolFailure {
    let name = shown(spec.name.as_str());
    ToolFailure::new(
        Cause::ConnectFailed,
        format!("MCP server '{name}' could not be started for the session. Try again later."),
    )
}

impl Executor for SessionServer {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        // What a session holds in its server is lost with it: no call is repeated as if nothing had happened.
        let result = self.server.call(&call.tool, &call, false, &|| true).await;
        match result {
            Err(failure) if self.is_gone() => {
                self.was_reported.store(true, Ordering::Release);
                Err(self.lost(failure))
            }
            result => result,
        }
    }
}

impl SessionServer {
    /// Whether the server has ended: it was there before.
    fn is_gone(&self) -> bool {
        !matches!(self.server.state(), ServerState::Ready(ready) if !ready.connected.connection.is_over())
    }

    /// Replaces `failure` by one that reports the loss of the session's state.
    fn lost(&self, failure: ToolFailure) -> ToolFailure {
        let name = shown(self.server.name.as_str());
        let what = match failure.cause {
            Cause::ConnectFailed | Cause::Expired | Cause::CancelledBeforeStart => "The tool was not run.",
            _ => "It may have acted on the call.",
        };
        let message = format!(
            "MCP server '{name}' of this session has ended, and what it held for the session is lost. {what} The next call \
             starts it anew."
        );
        let detail = failure.detail.or_else(|| self.server.last_error());
        ToolFailure { message, detail, ..failure }
    }
}

impl Instance for SessionServer {
    async fn stop(&self) {
        self.server.stop();
        let gone =
            async { self.server.states().wait_for(|state| matches!(state, ServerState::Stopped)).await.map(drop) };
        let _ = timeout(STOP_TIME, gone).await;
    }

    fn is_over(&self) -> bool {
        // Not as soon as the server has ended: the next call would silently use another one.
        self.was_reported.load(Ordering::Acquire)
    }
}

impl Drop for SessionServer {
    fn drop(&mut self) {
        self.server.stop();
    }
}

/// Listener for a server whose tools are known already.
struct DiscardTools;

impl Listener for DiscardTools {
    fn listed(&self, _: &ServerInfo, _: ServerListing) -> futures_util::future::BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// The server as it is started to list its tools, outside of any session.
pub(crate) fn for_listing(spec: &ServerSpec) -> ServerSpec {
    let (agent, session) = LISTING;
    fill(spec, agent, session)
}

/// The server of one session of one caller.
fn expanded(spec: &ServerSpec, owner: &str, session: &str) -> ServerSpec {
    fill(spec, &as_file_name(owner), &as_file_name(session))
}

/// A safe file name: letters, digits, `_` and `-`, and dots within. Different texts have different names: a text
/// that looks like a derived name is derived again.
fn as_file_name(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_safe = text.len() <= 64
        && text.chars().all(is_plain)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !text.contains("..")
        && !text.starts_with(MADE);
    if is_safe { text.to_owned() } else { format!("{MADE}{}", llm_name(&format!("{text} "))) }
}

fn fill(spec: &ServerSpec, agent: &str, session: &str) -> ServerSpec {
    let text = |text: &str| text.replace(AGENT, agent).replace(SESSION, session);
    let path = |path: &PathBuf| PathBuf::from(text(&path.to_string_lossy()));
    let TransportSpec::Stdio(program) = &spec.transport else { return spec.clone() };
    let env: BTreeMap<_, _> =
        program.env.iter().map(|(name, value)| (name.clone(), Secret::new(text(value.expose())))).collect();
    let program = StdioSpec {
        command: program.command.clone(),
        args: program.args.iter().map(|argument| text(argument)).collect(),
        env,
        cwd: program.cwd.as_ref().map(path),
        roots: program.roots.iter().map(path).collect(),
    };
    ServerSpec { transport: TransportSpec::Stdio(program), ..spec.clone() }
}

/// The directories that a session works in: they are its own, so that they are made for it.
pub(crate) fn directories(spec: &ServerSpec) -> Vec<PathBuf> {
    let TransportSpec::Stdio(program) = &spec.transport else { return Vec::new() };
    program.cwd.iter().chain(&program.roots).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use toolbus_core::caller::AgentName;

    use super::*;
    use crate::testing;

    fn spec(program: StdioSpec) -> ServerSpec {
        ServerSpec::of_tests("files", TransportSpec::Stdio(program))
    }

    #[test]
    fn a_session_is_named_in_arguments_environment_directory_and_roots() {
        let program = StdioSpec {
            command: "{agent}".to_owned(),
            args: vec!["--for={agent}/{session}".to_owned()],
            env: [("WHO".to_owned(), Secret::new("{agent}"))].into(),
            cwd: Some("data/{agent}".into()),
            roots: vec!["data/{agent}/{session}".into()],
        };
        let TransportSpec::Stdio(filled) = expanded(&spec(program), "ana", "s1").transport else { panic!() };
        assert_eq!(filled.command, "{agent}", "the program itself is the operator's choice alone");
        assert_eq!(filled.args, ["--for=ana/s1"]);
        assert_eq!(filled.env["WHO"].expose(), "ana");
        assert_eq!(filled.cwd.as_deref(), Some(Path::new("data/ana")));
        assert_eq!(filled.roots, [PathBuf::from("data/ana/s1")]);
    }

    #[test]
    fn a_session_has_the_credential_of_its_own_agent_and_no_other() {
        let agent = |name| AgentName::parse(name).unwrap();
        let token = |text: &str| Credential::Bearer(Secret::new(text));
        let endpoint = HttpSpec {
            url: "https://mcp.example.com/mcp".parse().unwrap(),
            kind: crate::spec::HttpKind::Detect,
            headers: BTreeMap::new(),
            credentials: Credentials::PerAgent(["ana", "bruno"].map(|name| (agent(name), token(name))).into()),
        };
        let plain = spec(testing::program("x", &[]));
        let http = ServerSpec { transport: TransportSpec::Http(endpoint), ..plain.clone() };
        assert_eq!(credential(&http, "bruno"), Ok(Some(&token("bruno"))));
        for owner in ["carla", "unknown:0::ana"] {
            assert_eq!(credential(&http, owner).unwrap_err().cause, Cause::AuthRequired, "{owner}");
        }
        assert_eq!(credential(&plain, "carla"), Ok(None));
    }

    #[test]
    fn names_that_are_plain_stay_as_they_are() {
        for name in ["ana", "s1", "ana.b-2_c", "0"] {
            assert_eq!(as_file_name(name), name);
        }
    }

    #[test]
    fn no_name_takes_the_file_name_of_another() {
        let made = as_file_name("a/b");
        assert_ne!(as_file_name(&made), made);
        assert_eq!(as_file_name("ax-1"), "ax-1");
    }

    proptest! {
        #[test]
        fn no_name_leads_out_of_its_directory(name in any::<String>(), dots in "[./\\\\a-z]{0,12}") {
            for name in [name, dots] {
                let safe = as_file_name(&name);
                let path = Path::new("data").join(&safe).join("x");
                let parts: Vec<_> = path.components().collect();
                prop_assert_eq!(parts.len(), 3, "{:?} became {:?}", name, safe);
                prop_assert!(!safe.starts_with(['.', '_', '-']) && !safe.contains(".."));
            }
        }

        #[test]
        fn two_names_never_share_a_file_name(a in "[a./ ]{0,4}", b in "[a./ ]{0,4}") {
            prop_assert_eq!(as_file_name(&a) == as_file_name(&b), a == b);
        }
    }
}
