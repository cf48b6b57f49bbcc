//! Three RabbitMQ nodes that are one cluster on this machine, each in a network namespace of its own, whose network can be
//! cut between any two. Needs root, and `ip` of iproute2.

use std::fs::{self, Permissions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::guard::{self, KEEP, NodeCommands, NodeGuard};
use crate::rabbit::installed;

/// Nodes of the cluster.
pub const NODES: usize = 3;
/// Longest start of all nodes on a busy machine.
const START_TIME: Duration = Duration::from_secs(150);
/// Networks that are tried until one is free: `10.213.NUMBER.0/24`.
const NETWORKS: std::ops::Range<u8> = 1..250;
const PORT: u16 = 5672;
/// Seconds of silence after which a node counts as down among the others.
const TICK_SECONDS: u32 = 5;
/// Expression of Erlang for the queues that a node counts as down.
const DOWN_QUEUES: &str = r#"rabbit_amqqueue:list_down(<<"/">>)."#;
const COOKIE: &str = "toolbus-tests";

/// A running cluster. It ends when dropped, and when the test process ends.
pub struct RabbitCluster {
    folder: TempDir,
    sbin: PathBuf,
    network: ClusterNetwork,
    guards: [NodeGuard; NODES],
}

impl RabbitCluster {
    /// Starts three nodes, and returns once each has joined and takes connections (15 s and more).
    ///
    /// # Panics
    ///
    /// If `rabbitmq-server` or `ip` is not installed, or this process may not make network namespaces.
    #[expect(clippy::panic, reason = "a test that needs the cluster fails without it")]
    pub async fn start() -> Self {
        match Self::try_start().await {
            Ok(cluster) => cluster,
            Err(error) => panic!("no cluster of RabbitMQ nodes: {error}"),
        }
    }

    async fn try_start() -> io::Result<Self> {
        let sbin = installed()?;
        let folder = tempfile::Builder::new().prefix("toolbus-cluster-").tempdir()?;
        let network = ClusterNetwork::new()?;
        let cluster = Self { folder, sbin, network, guards: Default::default() };
        for node in 0..NODES {
            cluster.write_configuration(node)?;
            cluster.run(node)?;
        }
        for node in 0..NODES {
            cluster.wait_for(node).await?;
        }
        cluster.wait_until_whole().await?;
        Ok(cluster)
    }

    /// Waits until all nodes run, see each other, and know where every queue is.
    ///
    /// # Errors
    ///
    /// If they do not in time.
    pub async fn wait_until_whole(&self) -> io::Result<()> {
        let started = Instant::now();
        for node in 0..NODES {
            while !self.is_whole(node).await {
                if started.elapsed() > START_TIME {
                    return Err(io::Error::other("the nodes did not join"));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// Whether a node runs, sees all others run, and counts no queue as down: after a partition, the tables of nodes that
    /// are one cluster again may differ until one of them starts again.
    pub async fn is_whole(&self, node: usize) -> bool {
        // `rabbitmqctl` takes a second of CPU time.
        self.takes_connections(node).await
            && self.ctl(node, &["cluster_status"]).await.is_ok_and(|status| has_all(&status))
            && self.ctl(node, &["eval", DOWN_QUEUES]).await.is_ok_and(|queues| queues.trim() == "[]")
    }

    /// Whether a node takes connections: one that does not see a majority takes none.
    pub async fn takes_connections(&self, node: usize) -> bool {
        let connecting = tokio::net::TcpStream::connect(self.address(node));
        matches!(tokio::time::timeout(Duration::from_secs(1), connecting).await, Ok(Ok(_)))
    }

    /// URLs for clients, each node's in turn.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        (0..NODES).map(|node| format!("amqp://guest:guest@{}/%2f", self.address(node))).collect()
    }

    fn address(&self, node: usize) -> SocketAddr {
        SocketAddr::from((self.network.address(node), PORT))
    }

    /// The node that leads a quorum queue, as `queried` reports.
    ///
    /// # Errors
    ///
    /// If none is known, or the queried node does not obey.
    pub async fn leader(&self, queried: usize, queue: &str) -> io::Result<usize> {
        let listed = self.ctl(queried, &["list_queues", "name", "leader"]).await?;
        let is_leader = |node: &usize| value(&listed, queue) == self.name(*node);
        (0..NODES).find(is_leader).ok_or_else(|| io::Error::other(format!("no leader of {queue}: {listed}")))
    }

    /// The node that a classic queue is on, as `queried` reports.
    ///
    /// # Errors
    ///
    /// If there is no such queue, or the queried node does not obey.
    pub async fn home(&self, queried: usize, queue: &str) -> io::Result<usize> {
        let listed = self.ctl(queried, &["list_queues", "name", "pid"]).await?;
        let is_home = |node: &usize| value(&listed, queue).starts_with(&format!("<{}.", self.name(*node)));
        (0..NODES).find(is_home).ok_or_else(|| io::Error::other(format!("no home of {queue}: {listed}")))
    }

    /// Writes to a node's disk which quorum queues there are: see [`crate::rabbit::RabbitNode::flush`].
    ///
    /// # Panics
    ///
    /// When the node does not obey.
    #[expect(clippy::panic, reason = "a test that needs the cluster fails without it")]
    pub async fn flush(&self, node: usize) {
        if let Err(error) = self.ctl(node, &["eval", "[dets:sync(Table) || Table <- dets:all()]."]).await {
            panic!("node {node} did not write what it has: {error}");
        }
    }

    /// Runs `rabbitmqctl` at a node, and returns what it prints.
    ///
    /// # Errors
    ///
    /// If it fails, with what it printed.
    pub async fn ctl(&self, node: usize, arguments: &[&str]) -> io::Result<String> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.network.namespace(node)]).arg(self.sbin.join("rabbitmqctl"));
        self.environment(&mut command, node);
        let mut command = tokio::process::Command::from(command);
        let Output { status, stdout, stderr } =
            command.arg("--quiet").args(arguments).stdin(Stdio::null()).kill_on_drop(true).output().await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if status.success() { Ok(text(&stdout)) } else { Err(io::Error::other(text(&stdout) + &text(&stderr))) }
    }

    /// Ends a node with SIGKILL. What it has stored stays for [`RabbitCluster::restart`].
    pub fn kill(&self, node: usize) {
        self.end(node, KEEP);
    }

    /// Starts a node again that was killed, and waits until it takes connections.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[expect(clippy::panic, reason = "a test that needs the cluster fails without it")]
    pub async fn restart(&self, node: usize) {
        let started = match self.run(node) {
            Ok(()) => self.wait_for(node).await,
            Err(error) => Err(error),
        };
        if let Err(error) = started {
            panic!("node {node} did not start again: {error}");
        }
    }

    /// Drops what one node sends to another, in this direction alone.
    ///
    /// # Panics
    ///
    /// When the network does not obey.
    #[expect(clippy::panic, reason = "a test whose network does not obey fails")]
    pub fn cut(&self, from: usize, to: usize) {
        if let Err(error) = self.network.route("add", from, to) {
            panic!("node {from} could not be cut from node {to}: {error}");
        }
    }

    /// Cuts a node from both others, in both directions. Clients still reach it.
    pub fn isolate(&self, node: usize) {
        for other in (0..NODES).filter(|other| *other != node) {
            self.cut(node, other);
            self.cut(other, node);
        }
    }

    /// Lets everything pass again.
    pub fn heal(&self) {
        for (from, to) in (0..NODES).flat_map(|from| (0..NODES).map(move |to| (from, to))) {
            // Those that were not cut have nothing to remove.
            drop(self.network.route("del", from, to));
        }
    }

    /// Waits until a node takes connections.
    ///
    /// # Errors
    ///
    /// If it does not in time, with what it has printed.
    pub async fn wait_for(&self, node: usize) -> io::Result<()> {
        let started = Instant::now();
        while !self.takes_connections(node).await {
            if started.elapsed() > START_TIME {
                let log = fs::read_to_string(self.path(node).join("console.log")).unwrap_or_default();
                return Err(io::Error::other(format!("node {node} takes no connections:\n{log}")));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn end(&self, node: usize, input: &[u8]) {
        if let Some(guard) = self.guards.get(node) {
            guard.end(input);
        }
    }

    fn path(&self, node: usize) -> PathBuf {
        self.folder.path().join(node.to_string())
    }

    fn name(&self, node: usize) -> String {
        format!("rabbit@{}", self.network.address(node))
    }

    fn write_configuration(&self, node: usize) -> io::Result<()> {
        let folder = self.path(node);
        fs::create_dir(&folder)?;
        let mut text =
            "loopback_users = none\ndisk_free_limit.absolute = 1MB\ncluster_partition_handling = pause_minority\n\
                        cluster_formation.peer_discovery_backend = classic_config\n"
                .to_owned();
        for other in 0..NODES {
            text += &format!("cluster_formation.classic_config.nodes.{} = {}\n", other + 1, self.name(other));
        }
        fs::write(folder.join("rabbitmq.conf"), text)?;
        fs::write(folder.join("enabled_plugins"), "[].\n")?;
        let cookie = folder.join(".erlang.cookie");
        fs::write(&cookie, COOKIE)?;
        fs::set_permissions(cookie, Permissions::from_mode(0o400))
    }

    fn run(&self, node: usize) -> io::Result<()> {
        let mut shell = Command::new("sh");
        self.environment(&mut shell, node);
        let (namespace, bridge) = (self.network.namespace(node), self.network.bridge());
        let within = format!("ip netns exec {namespace}");
        let clean_up = format!("ip netns del {namespace}; ip link del {bridge};");
        let commands = NodeCommands { within: &within, epmd: "-port 4369", clean_up: &clean_up };
        self.guards.get(node).map_or(Ok(()), |guard| guard.start(shell, &self.sbin, &self.path(node), &commands))
    }

    fn environment(&self, command: &mut Command, node: usize) {
        guard::set_folder(command, &self.path(node));
        command
            .env("RABBITMQ_USE_LONGNAME", "true")
            .env("RABBITMQ_NODENAME", self.name(node))
            .env("RABBITMQ_DIST_PORT", "25672")
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", format!("-kernel net_ticktime {TICK_SECONDS}"));
    }
}

impl Drop for RabbitCluster {
    fn drop(&mut self) {
        for node in 0..NODES {
            self.end(node, b"");
        }
    }
}

/// Returns the value that a list of two columns has beside a name.
fn value<'a>(listed: &'a str, name: &str) -> &'a str {
    let mut rows = listed.lines().filter_map(|line| line.split_once('\t'));
    rows.find_map(|(first, value)| (first == name).then(|| value.trim())).unwrap_or_default()
}

/// Whether all nodes are among those that run.
fn has_all(status: &str) -> bool {
    let running = status.split("Running Nodes").nth(1).unwrap_or_default();
    running.lines().skip(1).skip_while(|line| line.is_empty()).take_while(|line| line.contains('@')).count() == NODES
}

/// A bridge with a namespace for each node.
struct ClusterNetwork {
    number: u8,
}

impl ClusterNetwork {
    fn new() -> io::Result<Self> {
        let mut failure = io::Error::other("no network is free");
        for number in NETWORKS {
            // The owner of the bridge owns the network, and removes it when dropped. Of one that has just ended, some
            // names may be in use for a moment.
            let made = ip(&["link", "add", &bridge(number), "type", "bridge"]).map(|()| Self { number });
            match made.and_then(|network| network.fill().map(|()| network)) {
                Ok(network) => return Ok(network),
                Err(error) if error.to_string().contains("File exists") => failure = error,
                Err(error) => {
                    let text = format!("network namespaces and bridges cannot be made here (root, iproute2?): {error}");
                    return Err(io::Error::other(text));
                }
            }
        }
        Err(failure)
    }

    fn fill(&self) -> io::Result<()> {
        let bridge = self.bridge();
        ip(&["address", "add", &format!("10.213.{}.254/24", self.number), "dev", &bridge])?;
        ip(&["link", "set", &bridge, "up"])?;
        for node in 0..NODES {
            let (namespace, outside) = (self.namespace(node), format!("{bridge}v{node}"));
            ip(&["netns", "add", &namespace])?;
            ip(&["link", "add", &outside, "type", "veth", "peer", "name", "eth0", "netns", &namespace])?;
            ip(&["link", "set", &outside, "master", &bridge, "up"])?;
            ip(&["-n", &namespace, "link", "set", "lo", "up"])?;
            ip(&["-n", &namespace, "address", "add", &format!("{}/24", self.address(node)), "dev", "eth0"])?;
            ip(&["-n", &namespace, "link", "set", "eth0", "up"])?;
        }
        Ok(())
    }

    fn route(&self, change: &str, from: usize, to: usize) -> io::Result<()> {
        ip(&["-n", &self.namespace(from), "route", change, "blackhole", &self.address(to).to_string()])
    }

    fn bridge(&self) -> String {
        bridge(self.number)
    }

    fn namespace(&self, node: usize) -> String {
        format!("toolbus-{}-{node}", self.number)
    }

    fn address(&self, node: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.number, u8::try_from(node + 1).unwrap_or(u8::MAX))
    }
}

impl Drop for ClusterNetwork {
    fn drop(&mut self) {
        // The guards of nodes that ran have removed some of it.
        for node in 0..NODES {
            drop(ip(&["netns", "del", &self.namespace(node)]));
        }
        drop(ip(&["link", "del", &self.bridge()]));
    }
}

fn bridge(number: u8) -> String {
    format!("tbus{number}")
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    let Output { status, stderr, .. } = Command::new("ip").args(arguments).stdin(Stdio::null()).output()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(String::from_utf8_lossy(&stderr).into_owned())) }
}
