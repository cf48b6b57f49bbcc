//! A bridge with small servers, in a hurry.

use std::path::Path;
use std::time::Instant;

use tempfile::TempDir;
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{ToolCall, ToolOutput};
use toolbus_protocol::Random;

use super::*;
use crate::status::PhaseName;

/// Times that a test can wait for. Those of a start are longer than a busy machine needs.
pub(super) const HASTE: Timeouts = Timeouts {
    connect: Duration::from_secs(20),
    stable: Duration::from_secs(60),
    debounce: Duration::from_millis(10),
    ping_period: Duration::from_millis(300),
    ping_time: Duration::from_millis(700),
    parked: Duration::from_secs(3),
    retry: Duration::from_secs(3600),
    arrival: Duration::from_secs(20),
    idle: Duration::from_millis(400),
    random: Random::SYSTEM,
};

/// A bridge, and the folder whose files control its servers.
pub(super) struct Fixture {
    pub(super) bridge: Servers,
    pub(super) registry: Registry,
    pub(super) folder: TempDir,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::with_timeouts(HASTE)
    }

    pub(super) fn with_timeouts(timeouts: Timeouts) -> Self {
        let (registry, launcher) = (Registry::new(), Launcher::of_tests(Duration::from_millis(200)));
        let bridge =
            Servers::with_timeouts(registry.clone(), launcher, Arc::new(Discard), Scanner::new().unwrap(), timeouts);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("server.py"), include_str!("server.py")).unwrap();
        Self { bridge, registry, folder }
    }

    /// A server with its behaviour.
    pub(super) fn server(&self, name: &str, way: &str) -> ServerSpec {
        let folder = self.folder.path();
        let script = folder.join("server.py");
        let args = ["-SE", &script.to_string_lossy(), &folder.to_string_lossy(), name, way];
        let program = testing::program("python3", &args);
        ServerSpec { transport: TransportSpec::Stdio(program), ..spec(name, ServerOrigin::Configuration) }
    }

    pub(super) fn lazy(&self, name: &str) -> ServerSpec {
        ServerSpec { is_lazy: true, ..self.server(name, "well") }
    }

    pub(super) fn apply(&self, servers: impl IntoIterator<Item = ServerSpec>) {
        let servers = servers.into_iter().map(|spec| ServerWithSet { spec, set: None });
        self.bridge.apply(servers.collect(), Arc::new(|_| {}));
    }

    /// A fixture with these servers, all ready.
    pub(super) async fn run(servers: &[(&str, &str)]) -> Self {
        let world = Self::new();
        world.apply(servers.iter().map(|(name, way)| world.server(name, way)));
        for (name, _) in servers {
            world.phase(name, PhaseName::Ready).await;
        }
        world
    }

    /// Refreshes a server, as an agent does.
    pub(super) fn refresh(&self, name: &str) {
        self.bridge.refresh(&ServerName::parse(name).unwrap());
    }

    pub(super) fn status(&self, name: &str) -> ServerStatus {
        self.bridge.status().into_iter().find(|status| status.name == name).unwrap()
    }

    /// Waits until a server does this.
    pub(super) async fn phase(&self, name: &str, phase: PhaseName) -> ServerStatus {
        eventually(&format!("{name} to be {phase:?}"), async || {
            Some(self.status(name)).filter(|status| status.phase == phase)
        })
        .await
    }

    pub(super) async fn call(&self, tool: &str) -> Result<String, ToolFailure> {
        self.call_within(tool, Duration::from_secs(60)).await
    }

    pub(super) async fn call_within(&self, tool: &str, time: Duration) -> Result<String, ToolFailure> {
        self.begin(tool, Instant::now() + time).await.map(|output| output.content.unwrap())
    }

    /// Begins a call now, even if its result is awaited later.
    pub(super) fn begin(
        &self,
        tool: &str,
        deadline: Instant,
    ) -> impl Future<Output = Result<ToolOutput, ToolFailure>> + use<> {
        let tool = self.registry.snapshot().get(tool).unwrap().clone();
        let limit = deadline.saturating_duration_since(Instant::now());
        let call = ToolCall { deadline, limit, ..testing::call(tool.descriptor.bare_name()) };
        Arc::clone(&tool.executor).execute_boxed(call)
    }

    /// Lines that a server noted: its processes (`pids`), requests (`asked`) or calls (`calls`).
    pub(super) fn noted(&self, name: &str, kind: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join(format!("{name}.{kind}"))).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Makes a file that controls servers.
    pub(super) fn touch(&self, name: &str) {
        std::fs::write(self.folder.path().join(name), "").unwrap();
    }

    pub(super) fn remove(&self, name: &str) {
        std::fs::remove_file(self.folder.path().join(name)).unwrap();
    }

    /// Ends the bridge; nothing is left of its servers.
    pub(super) async fn end(self) {
        self.bridge.shutdown().await;
        assert!(self.bridge.shared.tasks.is_empty(), "keepers are left");
        for file in std::fs::read_dir(self.folder.path()).unwrap().flatten() {
            if file.path().extension().is_some_and(|extension| extension == "pids") {
                for pid in std::fs::read_to_string(file.path()).unwrap().lines() {
                    assert!(!is_running(pid), "{} of {}", pid, file.path().display());
                }
            }
        }
    }
}

pub(super) fn is_running(pid: &str) -> bool {
    Path::new("/proc").join(pid).exists()
}

pub(super) fn kill(pid: &str) {
    let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

pub(super) fn stop(pid: &str) {
    let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
}
