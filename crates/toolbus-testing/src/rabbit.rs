//! A private RabbitMQ node: own ports, own folder, own `epmd`, ended with the test process.

use std::fs;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Where Debian keeps the versions of RabbitMQ. Its wrapper in `/usr/sbin` insists on a user of its own.
const INSTALLED: &str = "/usr/lib/rabbitmq/lib";
/// Longest start of a node on a busy machine.
const START_TIME: Duration = Duration::from_secs(90);
/// A port that was free can be taken by another process before the node binds it.
const START_ATTEMPTS: usize = 3;

/// Runs `epmd` and the node in a process group of their own, and ends both when its standard input closes: because a test
/// wants it, and says so, or because the test process has ended in whatever way; then the folder goes too.
const GUARD: &str = r#"
trap '' INT TERM HUP
setsid sh -c 'epmd -address 127.0.0.1 -port "$ERL_EPMD_PORT" & exec "$1/rabbitmq-server"' node "$1" \
    </dev/null >"$2/console.log" 2>&1 &
said=$(cat)
kill -KILL "-$!"
wait
[ "$said" = keep ] || rm -rf -- "$2"
"#;

/// Files of a TLS listener, as paths of PEM files.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The authority that signed the certificate, and those of clients.
    pub ca: PathBuf,
    /// The node's certificate.
    pub cert: PathBuf,
    /// The key of that certificate.
    pub key: PathBuf,
    /// Whether clients must show a certificate.
    pub verify_client: bool,
}

/// A running node. It ends when dropped, and when the test process ends.
pub struct RabbitNode {
    folder: TempDir,
    sbin: PathBuf,
    ports: Ports,
    guard: Mutex<Option<Child>>,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    amqp: u16,
    tls: u16,
    dist: u16,
    epmd: u16,
}

impl RabbitNode {
    /// Starts a node, and returns once it takes connections (5 s and more).
    ///
    /// # Panics
    ///
    /// When `rabbitmq-server` is not installed, or does not start; the text says what to do.
    pub async fn start() -> Self {
        Self::start_with(None).await
    }

    /// Like [`RabbitNode::start`], with a TLS listener beside the plain one.
    ///
    /// # Panics
    ///
    /// As [`RabbitNode::start`].
    pub async fn start_with_tls(tls: TlsFiles) -> Self {
        Self::start_with(Some(tls)).await
    }

    #[expect(clippy::panic, reason = "a test that needs the broker fails without it")]
    async fn start_with(tls: Option<TlsFiles>) -> Self {
        let mut failure = String::new();
        for _ in 0..START_ATTEMPTS {
            match Self::try_start(tls.as_ref()).await {
                Ok(node) => return node,
                Err(error) => failure = error.to_string(),
            }
        }
        panic!("no RabbitMQ node: {failure}");
    }

    async fn try_start(tls: Option<&TlsFiles>) -> io::Result<Self> {
        let sbin = installed()?;
        let folder = tempfile::Builder::new().prefix("toolbus-rabbit-").tempdir()?;
        let ports = Ports::free()?;
        write_configuration(folder.path(), ports, tls)?;
        let node = Self { folder, sbin, ports, guard: Mutex::new(None) };
        node.run().await?;
        Ok(node)
    }

    /// Where a client connects to, as the user `guest`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("guest", "guest")
    }

    /// Where a client connects to, as a user made with `add_user`.
    #[must_use]
    pub fn url_of(&self, user: &str, password: &str) -> String {
        self.url_on("%2f", user, password)
    }

    /// Where a client connects to, on a virtual host whose name is escaped as in a URL.
    #[must_use]
    pub fn url_on(&self, vhost: &str, user: &str, password: &str) -> String {
        format!("amqp://{user}:{password}@127.0.0.1:{}/{vhost}", self.ports.amqp)
    }

    /// Where a client connects to over TLS, if the node was started with it.
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
    /// before has queues that never answer again.
    ///
    /// # Panics
    ///
    /// When the node does not obey.
    pub async fn flush(&self) {
        self.ctl(&["eval", "[dets:sync(Table) || Table <- dets:all()]."]).await;
    }

    /// Ends the node with SIGKILL. What it has stored stays for [`RabbitNode::restart`].
    pub fn kill(&self) {
        let guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut guard) = guard {
            if let Some(mut stdin) = guard.stdin.take() {
                // A guard that does not listen has ended already.
                drop(stdin.write_all(b"keep"));
            }
            // Its exit status says nothing.
            drop(guard.wait());
        }
    }

    /// Starts the node again on its data and ports, ending it before if it still runs.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[expect(clippy::panic, reason = "a test that needs the broker fails without it")]
    pub async fn restart(&self) {
        self.kill();
        if let Err(error) = self.run().await {
            panic!("the RabbitMQ node did not start again: {error}");
        }
    }

    /// Runs `rabbitmqctl` with these arguments and returns what it prints.
    ///
    /// # Panics
    ///
    /// When it fails, with what it printed.
    #[expect(clippy::panic, reason = "a test whose node does not obey fails")]
    pub async fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = tokio::process::Command::from(self.command("rabbitmqctl"));
        let done = command.arg("--quiet").args(arguments).stdin(Stdio::null()).kill_on_drop(true).output().await;
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
        let file = self.folder.path().join("definitions.json");
        if let Err(error) = fs::write(&file, definitions) {
            panic!("the definitions could not be written: {error}");
        }
        self.ctl(&["import_definitions", &file.to_string_lossy()]).await;
    }

    async fn run(&self) -> io::Result<()> {
        let log = self.folder.path().join("console.log");
        let mut command = self.environment(Command::new("sh"));
        let guard = command
            .args(["-c", GUARD, "guard"])
            .arg(&self.sbin)
            .arg(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        *self.guard.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);

        let started = Instant::now();
        while tokio::net::TcpStream::connect(self.address()).await.is_err() {
            let text = fs::read_to_string(&log).unwrap_or_default();
            if text.contains("BOOT FAILED") || text.contains("terminating") || started.elapsed() > START_TIME {
                self.kill();
                return Err(io::Error::other(format!("rabbitmq-server did not start:\n{text}")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        self.environment(Command::new(self.sbin.join(program)))
    }

    fn environment(&self, mut command: Command) -> Command {
        let folder = self.folder.path();
        command
            .env("HOME", folder)
            .env("RABBITMQ_NODENAME", format!("toolbus{}@localhost", self.ports.dist))
            .env("RABBITMQ_DIST_PORT", self.ports.dist.to_string())
            .env("ERL_EPMD_PORT", self.ports.epmd.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            // By default this is the node's own port and 10 000, which may be no port at all.
            .env("RABBITMQ_CTL_DIST_PORT_MIN", "20000")
            .env("RABBITMQ_CTL_DIST_PORT_MAX", "29999")
            .env("RABBITMQ_MNESIA_BASE", folder.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", folder.join("log"))
            .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf"))
            .env("RABBITMQ_CONF_ENV_FILE", folder.join("none.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("enabled_plugins"))
            .current_dir(folder);
        command
    }
}

impl Drop for RabbitNode {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Ports {
    /// Four ports that are free now. All are held together, so that they differ.
    fn free() -> io::Result<Self> {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let held = [bind()?, bind()?, bind()?, bind()?];
        let [amqp, tls, dist, epmd] = held.each_ref().map(|listener| listener.local_addr().map(|addr| addr.port()));
        Ok(Self { amqp: amqp?, tls: tls?, dist: dist?, epmd: epmd? })
    }
}

fn installed() -> io::Result<PathBuf> {
    let missing = || io::Error::other("install it with `apt-get install rabbitmq-server` (version 3.10 or newer)");
    let versions = fs::read_dir(INSTALLED).map_err(|_| missing())?;
    let mut found: Vec<PathBuf> = versions.flatten().map(|entry| entry.path().join("sbin")).collect();
    found.retain(|sbin| sbin.join("rabbitmq-server").exists());
    found.sort();
    found.pop().ok_or_else(missing)
}

fn write_configuration(folder: &Path, ports: Ports, tls: Option<&TlsFiles>) -> io::Result<()> {
    let mut text = format!("listeners.tcp.default = 127.0.0.1:{}\ndisk_free_limit.absolute = 1MB\n", ports.amqp);
    if let Some(tls) = tls {
        text.push_str(&format!(
            "listeners.ssl.default = 127.0.0.1:{}\nssl_options.cacertfile = {}\nssl_options.certfile = {}\n\
             ssl_options.keyfile = {}\nssl_options.verify = {}\nssl_options.fail_if_no_peer_cert = {}\n",
            ports.tls,
            tls.ca.display(),
            tls.cert.display(),
            tls.key.display(),
            if tls.verify_client { "verify_peer" } else { "verify_none" },
            tls.verify_client,
        ));
    }
    fs::write(folder.join("rabbitmq.conf"), text)?;
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
