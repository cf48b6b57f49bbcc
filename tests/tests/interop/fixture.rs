//! A daemon with an MCP server for one agent, and tools of MCP servers that others wrote.

use serde_json::json;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::mcp::{TOKEN as OPERATOR, Workplace, environment, ready, status};
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::interpreter;
use toolbus_testing::patience::eventually;

/// Token that the client shows.
pub(crate) const TOKEN: &str = "the-token-of-ana-0123456789";
/// A server whose tool `about` returns the number of its calls.
const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/mcp_small.py");
/// Tools besides those that a test looks at, so that a list has more than one page.
const MANY: usize = 250;

/// Tools that ana may use at first, besides many more.
const ALLOWED: [&str; 6] =
    ["convert_time", "desk.about", "echo", "get-structured-content", "many_*", "trigger-long-running-operation"];

pub(crate) struct Fixture {
    pub(crate) work: Workplace,
    pub(crate) daemon: Daemon,
}

impl Fixture {
    /// Starts a daemon that is reached by HTTP alone.
    pub(crate) async fn new() -> Self {
        Self::on(&BrokerNamespace::embedded()).await
    }

    /// Starts a daemon on this bus.
    pub(crate) async fn on(site: &BrokerNamespace) -> Self {
        let work = Workplace::new().await;
        let names: Vec<_> = (0..MANY).map(|number| format!("many_{number:03}")).collect();
        let small = |name: &str, tools: &str| json!({"command": interpreter(), "args": [SMALL, name, tools], "env": environment()});
        let servers = json!({
            "everything": work.overheard("everything", "heard"),
            "many": small("many", &names.join(",")),
            "desk": small("desk", "about"),
        });
        let more = Self::rules(&work, &ALLOWED);
        work.write(&servers);
        let daemon = Daemon::start(site, &more).await;
        ready(&daemon, "everything").await;
        ready(&daemon, "many").await;
        let has_tools = async || (status(&daemon, "desk").await["tools"].as_array().unwrap().len() == 1).then_some(());
        eventually("the tools of the desk", has_tools).await;
        Self { work, daemon }
    }

    /// Builds the rules that are laid over the configuration.
    fn rules(work: &Workplace, allowed: &[&str]) -> String {
        format!(
            "[http]\nadmin_token = {OPERATOR:?}\ntokens = {{ ana = {TOKEN:?} }}\n\
             [identity]\ntrust_headers = true\n\
             [mcp]\nservers_file = {:?}\n[agents.ana]\nallowed_tools = {allowed:?}\ntoolsets = [\"desk\"]\n\
             [toolsets.desk]\nkind = \"mcp\"\nserver = \"desk\"\nscope = \"session\"\n",
            work.text("mcp.json")
        )
    }

    /// URL of the MCP server.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.daemon.listen())
    }

    /// Lets ana use another tool.
    pub(crate) async fn allow(&self, tool: &str) {
        let allowed = [&ALLOWED[..], &[tool]].concat();
        self.daemon.reload(&Self::rules(&self.work, &allowed)).await;
    }

    /// Waits until the tool set of sessions has this many of them.
    pub(crate) async fn eventually_desks(&self, count: u64) {
        eventually(&format!("{count} sessions of the desk"), async || {
            (status(&self.daemon, "desk").await["sessions"] == count).then_some(())
        })
        .await;
    }

    /// Waits until the server `everything` has received a message.
    pub(crate) async fn eventually_heard(&self, method: &str) {
        eventually(&format!("{method} to be heard"), async || {
            (!self.work.heard("heard", method).is_empty()).then_some(())
        })
        .await;
    }
}
