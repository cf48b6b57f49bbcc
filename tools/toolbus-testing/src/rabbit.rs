//! A private RabbitMQ node: own ports, own folder, own `epmd`, ended with the test process.
//!
//! Tests that do not break it share one ([`RabbitNode::shared`]). `tests/run` has the program of this crate start it for
//! all test processes; a process that runs without it starts its own.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::{NamedTempFile, TempDir};
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::sync::OnceCell;

use crate::guard::{self, KEEP, NodeCommands, NodeGuard};
use crate::tls;

/// Variable with the path of the socket at which the shared node is requested.
pub const SHARED: &str = "TOOLBUS_TEST_BROKER";
/// Variable with the folder of RabbitMQ's programs, for another version than the installed one.
const PROGRAMS: &str = "TOOLBUS_RABBITMQ";
const CONFIGURATION: &str = "rabbitmq.conf";
/// File in a node's folder with its ports.
const PORTS: &str = "ports";

/// Folder in which Debian keeps the versions of RabbitMQ. Its wrapper in `/usr/sbin` insists on a user of its own.
const INSTALLED: &str = "/usr/lib/rabbitmq/lib";
/// Longest start of a node on a busy machine.
const START_TIME: Duration = Duration::from_secs(90);
/// Message of `rabbitmqctl` about a node that has not started completely.
const STARTING: &str = "requires the 'rabbit' app to be running";
/// A port that was free can be taken by another process before the node binds it.
const START_ATTEMPTS: usize = 3;

/// A running node. It ends when dropped, and when the test process ends.
pub struct RabbitNode {
    folder: Folder,
    sbin: PathBuf,
    ports: Ports,
    guard: NodeGuard,
}

enum Folder {
    Own(TempDir),
    /// Of a node that another process started.
    Shared(PathBuf),
}

impl Folder {
    fn path(&self) -> &Path {
        match self {
            Self::Own(folder) => folder.path(),
            Self::Shared(path) => path,
        }
    }
}

/// Refuses what RabbitMQ 4 has for the last time: nothing of ours may need it.
const WITHOUT_DEPRECATED: &str = "\
    deprecated_features.permit.amqp_address_v1 = false
    deprecated_features.permit.global_qos = false
    deprecated_features.permit.management_metrics_collection = false
    deprecated_features.permit.queue_master_locator = false
    deprecated_features.permit.ram_node_type = false
    deprecated_features.permit.transient_nonexcl_queues = false
";

#[derive(Debug, Clone, Copy)]
struct Ports {
    amqp: u16,
    tls: u16,
    dist: u16,
    epmd: u16,
}

impl RabbitNode {
    /// Starts a node with a plain and a TLS listener, and returns once it takes connections (5 s and more).
    ///
    /// # Panics
    ///
    /// If `rabbitmq-server` is not installed, or does not start; the text names the remedy.
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts a node with these further lines of `rabbitmq.conf`.
    ///
    /// # Panics
    ///
    /// As [`RabbitNode::start`].
    #[expect(clippy::panic, reason = "a test that needs the broker fails without it")]
    pub async fn start_with(more: &str) -> Self {
        let mut failure = String::new();
        for _ in 0..START_ATTEMPTS {
            match Self::try_start(more).await {
                Ok(node) => return node,
                Err(error) => failure = error.to_string(),
            }
        }
        panic!("no RabbitMQ node: {failure}");
    }

    /// The node of all tests that do not break it, and that use names of their own on it.
    ///
    /// # Panics
    ///
    /// As [`RabbitNode::start`], or if [`SHARED`] names a socket at which no node can be had.
    pub async fn shared() -> &'static Self {
        static NODE: OnceCell<RabbitNode> = OnceCell::const_new();
        NODE.get_or_init(async || match std::env::var_os(SHARED) {
            Some(socket) => Self::attach(Path::new(&socket)).await,
            None => Self::start().await,
        })
        .await
    }

    #[expect(clippy::panic, reason = "a test that needs the broker fails without it")]
    async fn attach(socket: &Path) -> Self {
        let attached = async {
            let mut folder = String::new();
            UnixStream::connect(socket).await?.read_to_string(&mut folder).await?;
            let folder = PathBuf::from(folder);
            let ports = Ports::parse(&fs::read_to_string(folder.join(PORTS))?)?;
            Ok(Self { folder: Folder::Shared(folder), sbin: installed()?, ports, guard: NodeGuard::default() })
        };
        let attached: io::Result<Self> = attached.await;
        attached.unwrap_or_else(|error| panic!("no shared RabbitMQ node at {}: {error}", socket.display()))
    }

    async fn try_start(more: &str) -> io::Result<Self> {
        let sbin = installed()?;
        let folder = tempfile::Builder::new().prefix("toolbus-rabbit-").tempdir()?;
        let ports = Ports::free()?;
        tls::write_authority(folder.path())?;
        write_configuration(folder.path(), &sbin, ports, more)?;
        fs::write(folder.path().join(PORTS), ports.to_string())?;
        let node = Self { folder: Folder::Own(folder), sbin, ports, guard: NodeGuard::default() };
        node.run().await?;
        Ok(node)
    }

    /// The folder with everything of the node.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The authority that signed the certificate of the TLS listener, as a PEM file.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join(tls::AUTHORITY)
    }

    /// URL for a client, as the user `guest`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("guest", "guest")
    }

    /// URL for a client, as a user made with `add_user`.
    #[must_use]
    pub fn url_of(&self, user: &str, password: &str) -> String {
        self.url_on("%2f", user, password)
    }

    /// URL for a client, on a virtual host whose name is escaped as in a URL.
    #[must_use]
    pub fn url_on(&self, vhost: &str, user: &str, password: &str) -> String {
        format!("amqp://{user}:{password}@127.0.0.1:{}/{vhost}", self.ports.amqp)
    }

    /// URL for a client over TLS.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("amqps://guest:guest@localhost:{}/%2f", self.ports.tls)
    }

    /// The plain listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.amqp))
    }

    /// Writes to disk which quorum queues there are. The node itself does so every three minutes: one that is killed
    /// before has queues that never respond again.
    ///
    /// # Panics
    ///
    /// When the node does not obey.
    pub async fn flush(&self) {
        self.ctl(&["eval", "[dets:sync(Table) || Table <- dets:all()]."]).await;
    }

    /// Ends the node with SIGKILL. What it has stored stays for [`RabbitNode::restart`].
    pub fn kill(&self) {
        self.guard.end(KEEP);
    }

    /// Starts the node again on its data and ports, ending it before if it still runs.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[expect(clippy::panic, reason = "a test that needs the broker fails without it")]
    pub async fn restart(&self) {
        self.kill();
        let started = async {
            self.permit_deprecated()?;
            self.run().await
        };
        if let Err(error) = started.await {
            panic!("the RabbitMQ node did not start again: {error}");
        }
    }

    /// Major and minor version of RabbitMQ, such as `(4, 0)`.
    pub async fn version(&self) -> (u32, u32) {
        let version = self.ctl(&["version"]).await;
        let mut numbers = version.trim().split('.').map_while(|number| number.parse().ok());
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    /// Runs `rabbitmqctl` with these arguments and returns what it prints.
    ///
    /// # Panics
    ///
    /// When it fails, with what it printed.
    #[expect(clippy::panic, reason = "a test whose node does not obey fails")]
    pub async fn ctl(&self, arguments: &[&str]) -> String {
        let began = Instant::now();
        let done = loop {
            let mut command = tokio::process::Command::from(self.command("rabbitmqctl"));
            let done = command.arg("--quiet").args(arguments).stdin(Stdio::null()).kill_on_drop(true).output().await;
            // A node takes connections before it reports that it runs: many seconds before on a busy machine.
            let is_starting = |output: &Output| String::from_utf8_lossy(&output.stderr).contains(STARTING);
            if began.elapsed() > START_TIME || !done.as_ref().is_ok_and(is_starting) {
                break done;
            }
        };
        match done {
            Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
            Ok(output) => panic!(
                "rabbitmqctl {arguments:?} failed: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(error) => panic!("rabbitmqctl {arguments:?} did not run: {error}"),
        }
    }

    /// A shell script that is `rabbitmqctl` for this node, in whatever folder it is run.
    #[must_use]
    pub fn ctl_script(&self) -> String {
        let command = self.command("rabbitmqctl");
        let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let exports = variables.map(|(name, value)| format!("export {}='{}'\n", name.display(), value.display()));
        format!("#!/bin/sh\n{}exec '{}' \"$@\"\n", exports.collect::<String>(), command.get_program().display())
    }

    /// Applies definitions: users, permissions, topic permissions, exchanges, queues and more, as the JSON that
    /// `rabbitmqctl import_definitions` reads. One call (some seconds) instead of one for each of them.
    ///
    /// # Panics
    ///
    /// When the node refuses them.
    #[expect(clippy::panic, reason = "a test whose node does not obey fails")]
    pub async fn import(&self, definitions: &str) {
        let file = NamedTempFile::with_suffix(".json").and_then(|mut file| {
            file.write_all(definitions.as_bytes())?;
            Ok(file)
        });
        match file {
            Ok(file) => drop(self.ctl(&["import_definitions", &file.path().to_string_lossy()]).await),
            Err(error) => panic!("the definitions could not be written: {error}"),
        }
    }

    /// Lets the node start again that was killed with exclusive queues: RabbitMQ 4 counts them as a denied feature in
    /// use before it removes them (rabbitmq-server#17163).
    fn permit_deprecated(&self) -> io::Result<()> {
        let path = self.folder.path().join(CONFIGURATION);
        let text = fs::read_to_string(&path)?;
        fs::write(path, text.replace(WITHOUT_DEPRECATED, ""))
    }

    async fn run(&self) -> io::Result<()> {
        let log = self.folder.path().join("console.log");
        let shell = self.environment(Command::new("sh"));
        let epmd = r#"-address 127.0.0.1 -port "$ERL_EPMD_PORT""#;
        let commands = NodeCommands { within: "", epmd, clean_up: "" };
        self.guard.start(shell, &self.sbin, self.folder.path(), &commands)?;

        let started = Instant::now();
        loop {
            let text = fs::read_to_string(&log).unwrap_or_default();
            // A node takes connections before it counts itself as one that runs, and drops direct replies until then.
            if text.contains("completed with") && tokio::net::TcpStream::connect(self.address()).await.is_ok() {
                return Ok(());
            }
            if text.contains("BOOT FAILED") || text.contains("terminating") || started.elapsed() > START_TIME {
                self.kill();
                return Err(io::Error::other(format!("rabbitmq-server did not start:\n{text}")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn command(&self, program: &str) -> Command {
        self.environment(Command::new(self.sbin.join(program)))
    }

    fn environment(&self, mut command: Command) -> Command {
        guard::set_folder(&mut command, self.folder.path());
        command
            .env("RABBITMQ_NODENAME", format!("toolbus{}@localhost", self.ports.dist))
            .env("RABBITMQ_DIST_PORT", self.ports.dist.to_string())
            .env("ERL_EPMD_PORT", self.ports.epmd.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            // By default this is the node's own port and 10 000, which may be no port at all.
            .env("RABBITMQ_CTL_DIST_PORT_MIN", "20000")
            .env("RABBITMQ_CTL_DIST_PORT_MAX", "29999");
        command
    }
}

impl Drop for RabbitNode {
    fn drop(&mut self) {
        self.kill();
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { amqp, tls, dist, epmd } = self;
        write!(f, "{amqp} {tls} {dist} {epmd}")
    }
}

impl Ports {
    fn parse(text: &str) -> io::Result<Self> {
        let numbers: Vec<u16> = text.split(' ').filter_map(|number| number.parse().ok()).collect();
        match numbers[..] {
            [amqp, tls, dist, epmd] => Ok(Self { amqp, tls, dist, epmd }),
            _ => Err(io::Error::other(format!("no ports: {text:?}"))),
        }
    }

    /// Four ports that are free now. All are held together, so that they differ.
    fn free() -> io::Result<Self> {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let held = [bind()?, bind()?, bind()?, bind()?];
        let [amqp, tls, dist, epmd] = held.each_ref().map(|listener| listener.local_addr().map(|addr| addr.port()));
        Ok(Self { amqp: amqp?, tls: tls?, dist: dist?, epmd: epmd? })
    }
}

pub(crate) fn installed() -> io::Result<PathBuf> {
    if let Some(programs) = std::env::var_os(PROGRAMS) {
        return Ok(PathBuf::from(programs));
    }
    let missing = || io::Error::other("install it with `apt-get install rabbitmq-server` (version 3.10 or newer)");
    let versions = fs::read_dir(INSTALLED).map_err(|_| missing())?;
    let mut found: Vec<PathBuf> = versions.flatten().map(|entry| entry.path().join("sbin")).collect();
    found.retain(|sbin| sbin.join("rabbitmq-server").exists());
    found.sort();
    found.pop().ok_or_else(missing)
}

/// Whether these programs are of RabbitMQ 4, by the folders that Debian has them in.
fn is_4(sbin: &Path) -> bool {
    let root = sbin.parent().map(|folder| folder.join("root/usr/lib/rabbitmq/lib"));
    let versions = root.and_then(|versions| fs::read_dir(versions).ok()).into_iter().flatten().flatten();
    let mut folders = versions.map(|entry| entry.path()).chain([sbin.to_owned()]);
    folders.any(|folder| folder.to_string_lossy().contains("rabbitmq_server-4"))
}

fn write_configuration(folder: &Path, sbin: &Path, ports: Ports, more: &str) -> io::Result<()> {
    let text = format!(
        "listeners.tcp.default = 127.0.0.1:{}\ndisk_free_limit.absolute = 1MB\n\
         listeners.ssl.default = 127.0.0.1:{}\nssl_options.cacertfile = {}\nssl_options.certfile = {}\n\
         ssl_options.keyfile = {}\nssl_options.verify = verify_none\nssl_options.fail_if_no_peer_cert = false\n\
         {}{more}",
        ports.amqp,
        ports.tls,
        folder.join(tls::AUTHORITY).display(),
        folder.join(tls::CERTIFICATE).display(),
        folder.join(tls::KEY).display(),
        if is_4(sbin) { WITHOUT_DEPRECATED } else { "" },
    );
    fs::write(folder.join(CONFIGURATION), text)?;
    fs::write(folder.join("enabled_plugins"), "[].\n")
}

#[cfg(test)]
mod tests {
    use super::RabbitNode;
    use crate::patience::eventually;

    #[tokio::test]
    async fn a_node_starts_obeys_dies_and_starts_again() {
        let node = RabbitNode::start().await;
        node.ctl(&["add_user", "ana", "secret"]).await;
        node.kill();
        eventually("the port to be closed", async || {
            tokio::net::TcpStream::connect(node.address()).await.err().map(drop)
        })
        .await;
        node.restart().await;
        assert!(node.ctl(&["list_users"]).await.contains("ana"));
    }
}
