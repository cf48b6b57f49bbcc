//! MCP servers that others wrote, as `tests/run` installs them, and what they work on.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use toolbus_testing::patience::eventually;

use crate::client::{Client, Request};
use crate::daemon::Daemon;
use crate::message::Message;
use crate::namespace::BrokerNamespace;

/// By which operators are known.
pub const TOKEN: &str = "a-token-of-the-tests";
/// Longest response of the HTTP server.
const HTTP_TIME: Duration = Duration::from_secs(10);
/// The type of reports of progress.
const PROGRESS: &str = "Toolbus.ToolProgress";

/// The servers that are there.
pub const ALL: [&str; 6] = ["everything", "filesystem", "git", "memory", "sqlite", "time"];

/// A folder with what the servers work on: `files/hello.txt`, a git repository `repository` with one commit, a database, a
/// memory, and the file of servers `mcp.json`.
pub struct Workplace {
    folder: TempDir,
}

impl Workplace {
    /// A fresh one.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    pub async fn new() -> Self {
        let workplace = Self { folder: tempfile::tempdir().unwrap() };
        for folder in ["files", "repository"] {
            std::fs::create_dir(workplace.path(folder)).unwrap();
        }
        std::fs::write(workplace.path("files/hello.txt"), "hello\nworld\n").unwrap();
        let repository = workplace.path("repository");
        for arguments in
            [vec!["init", "--quiet", "-b", "main"], vec!["commit", "--quiet", "--allow-empty", "-m", "Begin"]]
        {
            git(&repository, &arguments).await;
        }
        workplace
    }

    /// A path in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A path in it, as text.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Returns the sections of these servers in `mcp.json`.
    #[must_use]
    pub fn servers(&self, names: &[&str]) -> Value {
        Value::Object(names.iter().map(|name| ((*name).to_owned(), self.server(name))).collect::<Map<_, _>>())
    }

    /// Returns the section of one server in `mcp.json`.
    #[must_use]
    pub fn server(&self, name: &str) -> Value {
        let args = match name {
            "filesystem" => vec![self.text("files")],
            "git" => vec!["--repository".to_owned(), self.text("repository")],
            "sqlite" => vec!["--db-path".to_owned(), self.text("database")],
            "time" => vec!["--local-timezone".to_owned(), "Europe/Madrid".to_owned()],
            _ => Vec::new(),
        };
        let mut server = json!({"command": installed(name), "args": args, "env": environment()});
        if name == "memory" {
            server["env"]["MEMORY_FILE_PATH"] = json!(self.text("memory.jsonl"));
        }
        server
    }

    /// Configuration of a server whose input is also written to the file `log`.
    ///
    /// # Panics
    ///
    /// When there is no Python environment.
    #[must_use]
    pub fn overheard(&self, name: &str, log: &str) -> Value {
        let mut server = self.server(name);
        let tee = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/mcp_tee.py").display().to_string();
        let mut args = vec![json!(tee), json!(self.text(log)), server["command"].take()];
        args.extend(server["args"].as_array().cloned().unwrap_or_default());
        server["command"] = json!(std::env::var("TOOLBUS_PYTHON").expect("TOOLBUS_PYTHON is not set: run ./tests/run"));
        server["args"] = Value::Array(args);
        server
    }

    /// The messages of a method that were noted in a file.
    #[must_use]
    pub fn heard(&self, log: &str, method: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path(log)).unwrap_or_default();
        let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        messages.filter(|message| message["method"] == method).collect()
    }

    /// Writes `mcp.json` anew.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn write(&self, servers: &Value) {
        let next = self.path("mcp.json.next");
        std::fs::write(&next, json!({"mcpServers": servers}).to_string()).unwrap();
        std::fs::rename(next, self.path("mcp.json")).unwrap();
    }

    /// A fresh one, and a daemon with a client, on which these servers are ready: a call waits only some seconds for a
    /// server, which a busy machine may need. `more` is laid over the daemon's configuration.
    pub async fn serving(servers: &[&str], more: &str) -> (BrokerNamespace, Self, Daemon, Client) {
        let (site, work) = (BrokerNamespace::shared().await, Self::new().await);
        let daemon = work.daemon(&site, &work.servers(servers), more).await;
        for server in servers {
            ready(&daemon, server).await;
        }
        let client = Client::connect(&site).await;
        (site, work, daemon, client)
    }

    /// Starts a daemon with these servers; `more` is laid over its configuration.
    pub async fn daemon(&self, site: &BrokerNamespace, servers: &Value, more: &str) -> Daemon {
        self.write(servers);
        let file = self.text("mcp.json");
        Daemon::start(site, &format!("[http]\nadmin_token = {TOKEN:?}\n[mcp]\nservers_file = {file:?}\n{more}")).await
    }
}

/// Returns the daemon's status of all servers, by name.
///
/// # Panics
///
/// When it reports none.
pub async fn statuses(daemon: &Daemon) -> Vec<Value> {
    let client = reqwest::Client::builder().timeout(HTTP_TIME).no_proxy().build().unwrap();
    let request = client.get(format!("http://{}/v1/mcp", daemon.listen())).bearer_auth(TOKEN);
    let body: Value = serde_json::from_str(&request.send().await.unwrap().text().await.unwrap()).unwrap();
    body["servers"].as_array().unwrap().clone()
}

/// Returns the daemon's status of one server.
///
/// # Panics
///
/// When it does not know the server.
pub async fn status(daemon: &Daemon, name: &str) -> Value {
    let all = statuses(daemon).await;
    all.into_iter().find(|server| server["name"] == name).unwrap_or_else(|| panic!("no server {name}"))
}

/// Waits until a server takes calls.
pub async fn ready(daemon: &Daemon, name: &str) -> Value {
    eventually(&format!("server {name} to be ready"), async || {
        let status = status(daemon, name).await;
        (status["phase"] == "ready").then_some(status)
    })
    .await
}

/// The process of a server, which is the child of its supervisor.
///
/// # Panics
///
/// When it is not running.
pub async fn process(daemon: &Daemon, name: &str) -> u32 {
    let supervisor = ready(daemon, name).await["pid"].as_u64().unwrap();
    let children = std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
    children.split_whitespace().next().unwrap().parse().unwrap()
}

/// Sends a process a signal, such as `KILL`.
///
/// # Panics
///
/// When it cannot be sent.
pub async fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().await.unwrap();
    assert!(sent.success());
}

/// A call of a server's tool by the bridge's own topic; the server is named in the header.
#[must_use]
pub fn at(client: &Client, server: &str, tool: &str, arguments: &Value) -> Request {
    client.request(tool, arguments).on("tool.invoke.mcp").header("rb-rb-mcp-server", server)
}

/// The reports of progress of a call, and its reply.
pub async fn with_progress(client: &Client, request: &Request) -> (Vec<Value>, Message) {
    eventually("a reply besides progress", async || {
        let (reports, replies): (Vec<_>, Vec<_>) =
            client.replies_to(&request.correlation).into_iter().partition(|message| message.kind() == PROGRESS);
        let reports = reports.iter().map(Message::body).collect();
        replies.into_iter().next().map(|reply| (reports, reply))
    })
    .await
}

/// The program of a server.
fn installed(name: &str) -> PathBuf {
    brought().join("bin").join(format!("mcp-server-{name}"))
}

/// The folder of what `tests/run` installs.
fn brought() -> PathBuf {
    let folder = std::env::var_os("TOOLBUS_MCP");
    folder.expect("TOOLBUS_MCP is not set: run ./tests/run, which brings MCP servers that others wrote").into()
}

/// Python with the current generation of the SDK.
///
/// # Panics
///
/// When it was not brought.
#[must_use]
pub fn python() -> PathBuf {
    brought().join("current/bin/python")
}

/// Returns what servers need of the tests' environment: where programs are, and by what their processes are known
/// afterwards.
#[must_use]
pub fn environment() -> Value {
    let names = ["PATH", "TOOLBUS_TEST_RUN"];
    names
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), json!(std::env::var(name).ok()?))))
        .collect::<Map<_, _>>()
        .into()
}

/// `server-everything` as a server over HTTP; it ends when dropped.
pub struct HttpServer {
    process: tokio::process::Child,
    /// Port that it listens on.
    pub port: u16,
}

impl HttpServer {
    /// Starts it on a free port, as `streamableHttp` or `sse`.
    pub async fn start(transport: &str) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        Self::start_on(transport, port).await
    }

    /// Starts it on this port.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub async fn start_on(transport: &str, port: u16) -> Self {
        let process = Command::new(installed("everything"))
            .arg(transport)
            .env("PORT", port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        eventually("the server to listen", async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok())
            .await;
        Self { process, port }
    }

    /// A URL of it.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Kills it, and waits until it is gone.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub async fn kill(mut self) -> u16 {
        self.process.kill().await.unwrap();
        self.port
    }
}

/// Runs git with nothing of this machine's configuration, and always to the same result.
async fn git(folder: &Path, arguments: &[&str]) {
    const PERSON: [(&str, &str); 8] = [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_AUTHOR_NAME", "Ana"),
        ("GIT_AUTHOR_EMAIL", "ana@example.com"),
        ("GIT_AUTHOR_DATE", "2026-01-02T03:04:05Z"),
        ("GIT_COMMITTER_NAME", "Ana"),
        ("GIT_COMMITTER_EMAIL", "ana@example.com"),
        ("GIT_COMMITTER_DATE", "2026-01-02T03:04:05Z"),
    ];
    let run = Command::new("git").args(arguments).current_dir(folder).envs(PERSON).status().await.unwrap();
    assert!(run.success(), "git {arguments:?}");
}
