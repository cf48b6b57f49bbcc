//! Small MCP servers, which record their calls and report their environment.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

/// The program that every small server is.
pub(crate) const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/mcp_small.py");

/// A folder in which small servers record their calls, and which has the files of servers.
pub(crate) struct Small {
    folder: TempDir,
}

impl Small {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A server with these tools, as a file of servers has it.
    pub(crate) fn entry(&self, name: &str, tools: &[&str]) -> Value {
        json!({"command": python(), "args": [PROGRAM, name, tools.join(",")], "env": self.environment()})
    }

    /// A server with these tools, as a section; `more` are further keys of it.
    pub(crate) fn section(&self, name: &str, tools: &[&str], more: &str) -> String {
        self.section_with(name, tools, &[], &[], more)
    }

    /// A server with these tools, arguments and variables, as a section.
    pub(crate) fn section_with(
        &self,
        name: &str,
        tools: &[&str],
        arguments: &[&str],
        environment: &[(&str, &str)],
        more: &str,
    ) -> String {
        let tools = tools.join(",");
        let arguments = [&[PROGRAM, name, &tools], arguments].concat();
        let mut variables = self.environment();
        for (name, value) in environment {
            variables[*name] = (*value).into();
        }
        let variables = variables.as_object().unwrap().iter();
        let variables: Vec<String> = variables.map(|(name, value)| format!("{name} = {value}")).collect();
        format!(
            "[mcp.servers.\"{name}\"]\ncommand = {:?}\nargs = {}\nenv = {{ {} }}\n{more}\n",
            python(),
            json!(arguments),
            variables.join(", ")
        )
    }

    /// A process is known to this run of the tests by a variable that daemons do not hand on by themselves.
    fn environment(&self) -> Value {
        let run = std::env::var("TOOLBUS_TEST_RUN").unwrap_or_default();
        json!({"LOG": self.path("calls"), "TOOLBUS_TEST_RUN": run})
    }

    /// Writes the file of these servers anew.
    pub(crate) fn write(&self, servers: &[(&str, Value)]) {
        let servers: serde_json::Map<String, Value> =
            servers.iter().map(|(name, entry)| ((*name).to_owned(), entry.clone())).collect();
        std::fs::write(self.path("new.json"), json!({"mcpServers": servers}).to_string()).unwrap();
        std::fs::rename(self.path("new.json"), self.path("mcp.json")).unwrap();
    }

    /// The section that names the file of servers.
    pub(crate) fn file(&self) -> String {
        format!("[mcp]\nservers_file = {:?}\n", self.path("mcp.json"))
    }

    /// Has a server whose `LIST` is the file `list` list these tools with these descriptions, from its next start on.
    pub(crate) fn list(&self, tools: &[(&str, &str)]) {
        let tool = |(name, description): &(&str, &str)| json!({"name": name, "description": description});
        let tools: Vec<Value> = tools.iter().map(tool).collect();
        std::fs::write(self.path("list.new"), json!(tools).to_string()).unwrap();
        std::fs::rename(self.path("list.new"), self.path("list")).unwrap();
    }

    /// Every call that was run, as `server.tool: text`.
    pub(crate) fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// The interpreter of the tests.
pub(crate) fn python() -> String {
    std::env::var("TOOLBUS_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned())
}

/// Returns the output of `toolbus mcp list`, once the tools of all of these are known.
pub(crate) async fn known(daemon: &Daemon, servers: &[&str]) -> Value {
    eventually("the tools of the servers", async || {
        let listed = daemon.operate(&["mcp", "list", "--output", "json"]).await;
        let all: Value = serde_json::from_str(&listed.out).ok()?;
        let has_tools = |name: &&str| {
            let of_name = |server: &&Value| server["name"] == **name;
            all["servers"].as_array()?.iter().find(of_name)?["tools"].as_array().filter(|tools| !tools.is_empty())
        };
        servers.iter().all(|name| has_tools(name).is_some()).then_some(all)
    })
    .await
}

/// Starts a daemon with a client, and waits until the tools of all of these servers are known.
pub(crate) async fn knowing(more: &str, servers: &[&str]) -> (BrokerNamespace, Daemon, Client) {
    let (site, daemon, client) = Daemon::with_client(more).await;
    known(&daemon, servers).await;
    (site, daemon, client)
}

/// Whether there is a process.
pub(crate) fn is_running(pid: &Value) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
