//! Reloads: policy, limits, endpoints, commands and MCP servers change in a running daemon; the rest waits for a restart.

use std::collections::BTreeSet;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::task::{JoinError, spawn_blocking};
use toolbus_config::read_text;
use toolbus_core::caller::AgentName;
use toolbus_core::caller::IdentitySource;
use toolbus_core::lifecycle;
use toolbus_core::policy::PolicyHandle;
use toolbus_core::registry::RegistryError;
use toolbus_core::toolsets::SessionSet;
use toolbus_mcp_client::spec::ServerName;
use tracing::Instrument as _;
use tracing::field::Empty;

use super::App;
use super::parts::hide;
use crate::config::toolsets::Kind;
use crate::config::{Config, McpConfig, PinsConfig, PolicyError, Problems, Sources, ToolsConfig};
use crate::families::{self, FamilyError, Planned};
use crate::http::ReloadReport;
use crate::http::admin::ReloadRequest;

/// Reason why a reload is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReloadError {
    /// The configuration has mistakes.
    #[error("{0}")]
    Problems(#[from] Problems),
    /// The tools of a family cannot be made.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// The rules cannot be made.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Callers would be identified in another way.
    #[error("identity.source and identity.agent change with a restart alone; put them back, or restart the daemon")]
    Identity,
    /// Callers without a section would get more than before, and `identity.unknown` is not set.
    #[error("{0}")]
    Widening(String),
    /// Two tools of one name.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Reading was cut off.
    #[error("the configuration could not be read: {0}")]
    Reading(#[from] JoinError),
}

/// A part that may have changed.
pub(super) enum Change {
    /// The configuration; by the request of an operator, which waits for the report, or by a signal.
    Configuration(Option<ReloadRequest>),
    /// A mounted file of the configuration, as the file system announces.
    Files,
    /// The file of MCP servers.
    ServersFile,
}

impl App {
    /// Takes over a change, and logs the result.
    pub(super) async fn take_over(&mut self, change: Change) {
        let request = match change {
            Change::ServersFile => {
                let source = "servers_file";
                let span = tracing::info_span!(target: lifecycle::TARGET, "reload", toolbus.reload.source = source);
                return self.reload_servers().instrument(span).await;
            }
            Change::Configuration(request) => {
                self.files_read = fingerprint(&self.sources).await;
                request
            }
            Change::Files => {
                let now = fingerprint(&self.sources).await;
                // The files were read already, such as by `toolbus reload`, or have only another date.
                if std::mem::replace(&mut self.files_read, now) == now {
                    return;
                }
                None
            }
        };
        let span = tracing::info_span!(
            target: lifecycle::TARGET,
            "reload",
            toolbus.reload.source = "configuration",
            otel.status_description = Empty
        );
        let reloading = async {
            let reloaded = lifecycle::checked(&span, self.reload().await);
            logged(reloaded, self.policy.current().len())
        };
        let report = reloading.instrument(span.clone()).await;
        if let Some(daemon) = &self.daemon {
            daemon.audit.reopen();
        }
        self.health.reloaded(report.clone());
        // Without a waiting operator, the report is in the status.
        if let Some(request) = request {
            let _ = request.send(report);
        }
    }

    /// Reads the configuration again, and applies every part that can change while running. Calls in progress keep what
    /// they began with.
    ///
    /// # Errors
    ///
    /// If the configuration is invalid; nothing has changed then, nor if the future is dropped early.
    pub(super) async fn reload(&mut self) -> Result<ReloadReport, ReloadError> {
        let (sources, running) = (self.sources.clone(), self.config.clone());
        let loaded = spawn_blocking(move || Config::load_again(&sources, &running)).await??;
        let (next, notes) = families::with_specifications(&loaded.config, Some(&self.config)).await;
        if identity(&self.config) != identity(&next) {
            return Err(ReloadError::Identity);
        }
        let agents = self.policy.agents();
        let agents: Vec<&str> = agents.iter().map(AgentName::as_str).collect();
        if let Some(widening) = next.widening(self.policy.unknown_callers(), &agents) {
            return Err(ReloadError::Widening(widening));
        }
        // First: errors of what is refused below are logged, too. Secrets that wait for a restart are in use until
        // then.
        hide(&[&self.config, &next], &self.redactor);
        let has_servers = self.given.servers.is_some();
        let (waiting, merged) = (waiting(&self.config, &next, has_servers), merged(&self.config, &next, has_servers));
        families::prepare(&self.families, &merged).await?;
        let changed = changed(&self.config, &merged);
        let before = names(&self.policy);
        let Planned { tools, sessions, commits } = families::plan(&self.families, &merged, &self.kept(&merged))?;
        let (identity, rules) = (next.identity(), next.policy()?);
        self.policy.replace(identity, rules, |registry| {
            registry.replace_all(tools)?;
            self.pins.set_levels(next.pin_levels());
            Ok::<_, RegistryError>(())
        })?;
        self.calls.sessions.replace(sessions);
        self.http_auth.replace(&next.http);
        self.calls.gates.breakers().configure(next.breaker.rules());
        commits.into_iter().for_each(|commit| commit());
        hide(&[&merged, &next], &self.redactor);
        self.put_in_force(merged);
        let now = names(&self.policy);
        let beyond = |these: &BTreeSet<String>, those: &BTreeSet<String>| these.difference(those).cloned().collect();
        Ok(ReloadReport {
            applied: true,
            changed,
            waiting: waiting.into_iter().map(str::to_owned).collect(),
            tools: self.policy.current().len(),
            added: beyond(&now, &before),
            removed: beyond(&before, &now),
            warnings: [loaded.warnings, notes].concat(),
            error: None,
        })
    }

    /// Reads the file of MCP servers again, and nothing else. A file that cannot be read changes nothing; a server with
    /// a mistake keeps its previous definition.
    pub(super) async fn reload_servers(&mut self) {
        let (environment, running) = (self.sources.environment.clone(), self.config.clone());
        let reading = spawn_blocking(move || {
            let mut next = running.clone();
            next.read_servers_file(&environment);
            next.keep_servers_of(&running);
            next
        });
        match reading.await {
            Ok(next) => self.take_servers(next),
            Err(error) => tracing::error!(%error, "the file of MCP servers could not be read"),
        }
    }

    fn put_in_force(&mut self, config: Config) {
        self.digest.send_replace(config.digest());
        self.in_force.send_replace(Arc::new(config.clone()));
        self.config = config;
    }

    /// The tool sets whose sessions go on under `next`, because their parts are the same.
    fn kept(&self, next: &Config) -> impl Fn(&str) -> Option<Arc<SessionSet>> {
        move |name: &str| is_unchanged(name, &self.config, next).then(|| self.calls.sessions.get(name)).flatten()
    }

    /// Replaces the servers by those of `next`, which differs in its file of servers alone.
    fn take_servers(&mut self, next: Config) {
        let Some(servers) = &self.given.servers else { return };
        if next.mcp.file == self.config.mcp.file {
            return;
        }
        hide(&[&next], &self.redactor);
        log_differences(&self.config, &next);
        let (placed, mut sets) = servers.plan(&next, &self.kept(&next));
        let is_of_server = |name: &str| next.toolsets.get(name).is_some_and(|set| set.kind == Kind::Mcp);
        sets.extend(self.calls.sessions.current().into_iter().filter(|set| !is_of_server(set.name())));
        let count = placed.len();
        self.calls.sessions.replace(sets);
        // Before new tools are registered, and at once for those that stay.
        self.pins.set_levels(next.pin_levels());
        self.policy.refresh();
        servers.apply(&next, placed);
        self.put_in_force(next);
        if self.config.mcp.file.is_unread() {
            tracing::warn!(servers = count, "the file of MCP servers cannot be read: its servers stay as they are");
        } else {
            tracing::info!(servers = count, "read the file of MCP servers again");
        }
    }
}

/// Reads the content of a configuration's files; `None` if one cannot be read.
pub(super) async fn fingerprint(sources: &Sources) -> Option<[u8; 32]> {
    let files = sources.files.clone();
    let reading = spawn_blocking(move || {
        let mut hash = Sha256::new();
        for file in &files {
            // The reload reports a missing file.
            let text = read_text(file).unwrap_or_default();
            hash.update(text.len().to_le_bytes());
            hash.update(text);
        }
        hash.finalize().into()
    });
    reading.await.ok()
}

/// Logs the result of a reload, with the number of tools after it.
fn logged(reloaded: Result<ReloadReport, ReloadError>, tools: usize) -> ReloadReport {
    match reloaded {
        Ok(report) => {
            for warning in &report.warnings {
                tracing::warn!(warning, "reload: a suspicious setting");
            }
            for section in &report.waiting {
                tracing::warn!(section, "reload: this section has changed, and waits for a restart");
            }
            tracing::info!(tools = report.tools, changed = report.changed.join(", "), "reload: done");
            report
        }
        Err(error) => {
            let text = error.to_string();
            tracing::error!(error = one_line(&text), "reload: refused; everything stays as it was");
            ReloadReport { error: Some(text), tools, ..ReloadReport::default() }
        }
    }
}

/// Problems as one line of the log, without the lines of the file that they quote, which are indented.
fn one_line(problems: &str) -> String {
    problems.lines().filter(|line| !line.starts_with("  ")).collect::<Vec<_>>().join("; ")
}

/// Logs problems and warnings of MCP servers that are new.
fn log_differences(running: &Config, next: &Config) {
    let (before, now) = (running.mcp_servers(), next.mcp_servers());
    for problem in now.problems.iter().filter(|problem| !before.problems.contains(problem)) {
        tracing::error!(problem, "MCP servers cannot be used as they are configured");
    }
    for warning in now.warnings.iter().filter(|warning| !before.warnings.contains(warning)) {
        tracing::warn!(warning, "a suspicious setting of an MCP server");
    }
}

/// The way in which callers are identified; the queues of the daemon and the checks of its rules depend on it.
fn identity(config: &Config) -> (IdentitySource, Option<&AgentName>) {
    (config.identity.source, config.identity.agent.as_ref())
}

/// Whether a tool set is the same in both configurations: its endpoints, with the hosts that they may reach, or its
/// server with its settings.
fn is_unchanged(name: &str, running: &Config, next: &Config) -> bool {
    let parts = |config: &Config| {
        let set = config.toolsets.get(name)?.clone();
        let endpoints = config.rest.all().filter(|endpoint| set.endpoints.contains(&endpoint.name));
        let endpoints: Vec<_> = endpoints.cloned().collect();
        let server = set.server.as_deref().and_then(|server| ServerName::parse(server).ok());
        let server = server.and_then(|name| config.mcp_servers().specs.into_iter().find(|spec| spec.name == name));
        let hosts = (set.kind == Kind::Rest).then(|| config.egress_rules());
        Some((set, endpoints, hosts, server))
    };
    parts(running) == parts(next)
}

/// The names of all tools.
fn names(policy: &PolicyHandle) -> BTreeSet<String> {
    policy.current().tools().iter().map(|tool| tool.name.to_string()).collect()
}

/// The configuration of a running daemon after a reload: the parts of the next one that it applies, and its present
/// other parts.
fn merged(running: &Config, next: &Config, has_servers: bool) -> Config {
    let mcp = McpConfig {
        servers_file: running.mcp.servers_file.clone(),
        required: running.mcp.required.clone(),
        unknown_server: running.mcp.unknown_server,
        register: running.mcp.register.clone(),
        ..next.mcp.clone()
    };
    Config {
        identity: next.identity.clone(),
        agents: next.agents.clone(),
        outbound: next.outbound.clone(),
        toolsets: next.toolsets.clone(),
        tools: ToolsConfig { required: running.tools.required.clone(), ..next.tools.clone() },
        rest: next.rest.clone(),
        web: next.web.clone(),
        guides: next.guides.clone(),
        egress: next.egress.clone(),
        commands: next.commands.clone(),
        given: next.given.clone(),
        origins: next.origins.clone(),
        http: running.http.with_live_parts_of(&next.http),
        pins: PinsConfig { file: running.pins.file.clone(), ..next.pins.clone() },
        breaker: next.breaker.clone(),
        mcp: if has_servers { mcp } else { running.mcp.clone() },
        ..running.clone()
    }
}

/// The sections in which a reload has changed something.
fn changed(running: &Config, merged: &Config) -> Vec<String> {
    let sections = [
        ("identity", running.identity != merged.identity),
        ("agents", running.agents != merged.agents),
        ("outbound", running.outbound != merged.outbound),
        ("toolsets", running.toolsets != merged.toolsets),
        ("tools", running.tools != merged.tools),
        ("rest", running.rest != merged.rest),
        ("web", running.web != merged.web),
        ("guides", running.guides != merged.guides),
        ("egress", running.egress != merged.egress),
        ("commands", running.commands != merged.commands),
        ("http", running.http != merged.http),
        ("pins", running.pins != merged.pins),
        ("breaker", running.breaker != merged.breaker),
        ("mcp", running.mcp != merged.mcp),
    ];
    sections.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()).collect()
}

/// The sections that differ in keys that wait for a restart.
fn waiting(running: &Config, next: &Config, has_servers: bool) -> Vec<&'static str> {
    let sections = [
        ("bus", running.bus != next.bus),
        ("invoke", running.invoke != next.invoke),
        ("daemon", running.daemon != next.daemon),
        ("http", running.http.with_live_parts_of(&next.http) != next.http),
        ("telemetry", running.telemetry != next.telemetry),
        ("store", (&running.store.url, &running.store.tls) != (&next.store.url, &next.store.tls)),
        ("ledger", running.ledger != next.ledger),
        ("memory", running.memory != next.memory),
        ("schedule", running.schedule != next.schedule),
        ("pipelines", running.pipelines != next.pipelines),
        ("a2a", running.a2a != next.a2a),
        ("subagents", running.subagents != next.subagents),
        ("results", running.results != next.results),
        ("audit", running.audit != next.audit),
        ("mcp", next.mcp.is_configured() && !has_servers),
        ("mcp.servers_file", running.mcp.servers_file != next.mcp.servers_file),
        ("mcp.required", running.mcp.required != next.mcp.required),
        ("mcp.unknown_server", running.mcp.unknown_server != next.mcp.unknown_server),
        ("mcp.register", running.mcp.register != next.mcp.register),
        ("script", running.script != next.script),
        ("pins.file", running.pins.file != next.pins.file),
        ("tools.required", running.tools.required != next.tools.required),
    ];
    sections.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    use tempfile::TempDir;
    use toolbus_core::caller::Caller;
    use toolbus_core::registry::Rank;
    use toolbus_core::tool::{Tool, ToolDescriptor, ToolOutput};

    use super::*;
    use crate::app::Mode;
    use crate::config::Sources;

    /// Longer than a reload takes that waits for no other.
    const LATE: Duration = Duration::from_secs(10);

    /// An app that runs `config`, which comes from these files.
    async fn app(config: &Config, files: &[&Path]) -> App {
        let mut app = App::build(config, Mode::Command { pins: None }).await.unwrap();
        app.sources = sources(files);
        app
    }

    /// A file with this text, and an app that runs it.
    async fn app_of(text: &str) -> (TempDir, PathBuf, App) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.toml");
        std::fs::write(&file, text).unwrap();
        let config = Config::load(&sources(&[&file])).unwrap().config;
        let app = app(&config, &[&file]).await;
        (folder, file, app)
    }

    fn sources(files: &[&Path]) -> Sources {
        Sources { files: files.iter().map(|file| (*file).to_owned()).collect(), ..Sources::default() }
    }

    #[tokio::test]
    async fn commands_change_while_running_and_scripts_with_a_restart() {
        let command = |name: &str| {
            format!("[[commands]]\nname = '{name}'\ndescription = 'x'\ncommand = ['true']\nsandbox = false\n")
        };
        let (_folder, file, mut app) = app_of("").await;
        let policy = app.policy.clone();
        let has = |name: &str| policy.registry().snapshot().get(name).is_some();

        std::fs::write(&file, command("one")).unwrap();
        assert_eq!(app.reload().await.unwrap().waiting, Vec::<&str>::new());
        assert!(has("one"));
        std::fs::write(&file, format!("{}[script]\n", command("two"))).unwrap();
        assert_eq!(app.reload().await.unwrap().waiting, ["script"]);
        assert!(has("two") && !has("one") && !has("execute_python_script"));
        std::fs::write(&file, command("two").replace("'true'", "'no-such-program-at-all'")).unwrap();
        app.reload().await.unwrap_err();
        assert!(has("two"), "nothing has changed");
    }

    #[tokio::test]
    async fn the_tools_that_manage_servers_have_their_limits_and_new_ones_after_a_reload() {
        let server = "[mcp.servers.x]\nurl = 'http://127.0.0.1:1/'\n[tools.limits.mcp_list_services]\ntimeout = ";
        let (_folder, file, mut app) = app_of(&format!("{server}'7s'\n")).await;
        app.consume();
        let policy = app.policy.clone();
        let timeout = || policy.registry().snapshot().get("mcp_list_services").unwrap().descriptor.timeout;
        assert_eq!(timeout(), Some(Duration::from_secs(7)));
        std::fs::write(&file, format!("{server}'8s'\n")).unwrap();
        app.reload().await.unwrap();
        assert_eq!(timeout(), Some(Duration::from_secs(8)));
    }

    #[test]
    fn sessions_of_endpoints_end_when_their_host_rules_change() {
        let with = |section: &str| -> Config {
            let text = format!(
                r#"{{"rest": {{"endpoints": [{{"name": "read", "description": "Reads", "url": "http://127.0.0.1:1/"}}]}},
                    "toolsets": {{"files": {{"kind": "rest", "scope": "session", "endpoints": ["read"]}}}}{section}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let running = with("");
        assert!(is_unchanged("files", &running, &with(r#", "agents": {"ana": {"denied_tools": ["echo"]}}"#)));
        assert!(!is_unchanged("files", &running, &with(r#", "agents": {"ana": {"denied_hosts": ["api.example"]}}"#)));
        assert!(!is_unchanged("files", &running, &with(r#", "egress": {"deny_hosts": ["api.example"]}"#)));
    }

    #[tokio::test]
    async fn a_reload_that_waits_while_the_daemon_ends_fails_at_once() {
        let mut app = app(&Config::default(), &[]).await;
        let (request, report) = tokio::sync::oneshot::channel();
        let (sender, reloads) = tokio::sync::mpsc::channel(1);
        app.reloads = reloads;
        sender.try_send(request).unwrap();
        app.drain(Duration::ZERO).await;
        report.await.unwrap_err();
        assert!(sender.is_closed());
    }

    #[tokio::test]
    async fn a_section_with_a_key_that_needs_a_restart_changes_in_the_rest() {
        let (_folder, file, mut app) = app_of("").await;
        std::fs::write(&file, "[tools]\nrequired = ['current_time']\n[tools.limits.current_time]\nmax_in_flight = 2\n")
            .unwrap();
        let report = app.reload().await.unwrap();
        assert_eq!((report.changed, report.waiting), (vec!["tools".to_owned()], vec!["tools.required".to_owned()]));
        let again = app.reload().await.unwrap();
        assert_eq!((again.changed, again.waiting), (Vec::new(), vec!["tools.required".to_owned()]));
    }

    #[test]
    fn the_problems_of_a_file_are_one_line_of_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.toml");
        let logged = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let problems = Config::load(&sources(&[&file])).unwrap_err().to_string();
            one_line(&problems).replace(&file.display().to_string(), "a.toml")
        };
        insta::assert_snapshot!(logged("[tools]\ntime = 7\n[http]\nlisten = 7\n"), @"a.toml:2:8: `tools.time`: found a number; expected true or false; a.toml:4:10: `http.listen`: found a number; expected a text");
        let syntax = logged("[tools]\necho = = true\n[bus\n");
        assert!(syntax.starts_with("a.toml:2:") && !syntax.contains(['\n', '|']), "{syntax}");
    }

    #[tokio::test]
    async fn a_layer_that_is_truncated_opens_nothing_to_callers_that_were_denied_or_restricted() {
        for lost in ["[agents.ana]\ntoolsets = []\n", "[agents.default]\nallowed_tools = ['echo']\n"] {
            let folder = tempfile::tempdir().unwrap();
            let files = ["tools.toml", "agents.toml"].map(|name| folder.path().join(name));
            let [tools, agents] = &files;
            std::fs::write(tools, "[tools]\necho = true\n[identity]\ntrust_headers = true\n").unwrap();
            std::fs::write(agents, lost).unwrap();
            let config = Config::load(&sources(&[tools, agents])).unwrap().config;
            let mut app = app(&config, &[tools, agents]).await;
            let policy = app.policy.clone();
            let by_unknown = || policy.effective(&Caller::unknown()).names().count();
            let before = by_unknown();

            std::fs::write(agents, "").unwrap();
            let error = app.reload().await.unwrap_err();
            assert!(matches!(error, ReloadError::Widening(_)), "{error}");
            assert_eq!(by_unknown(), before, "{lost}");
            std::fs::write(agents, lost).unwrap();
            app.reload().await.unwrap();
            std::fs::write(agents, "[identity]\nunknown = 'default'\n").unwrap();
            app.reload().await.unwrap();
            assert!(by_unknown() > before, "{lost}");
        }
    }

    #[tokio::test]
    async fn a_slow_file_blocks_no_thread_of_the_runtime() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("a.toml");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let config = Config::default();
        let mut app = app(&config, &[&pipe]).await;

        let (let_go, may_end) = mpsc::channel::<()>();
        let writer = std::thread::spawn(move || {
            let _ = may_end.recv_timeout(LATE);
            std::fs::write(pipe, "[invoke]\nmax_in_flight = 7\n")
        });
        let reload = app.reload();
        tokio::pin!(reload);
        tokio::select! {
            biased;
            _ = &mut reload => panic!("the only thread of the runtime waited for the file"),
            () = std::future::ready(()) => {}
        }
        let_go.send(()).unwrap();
        assert_eq!(reload.await.unwrap().waiting, ["invoke"]);
        writer.join().unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_removed_pinned_server_offers_no_changed_tool_until_it_is_gone() {
        let pinned = "[mcp.servers.x]\ncommand = 'true'\npin = true\n[pins]\nfile = 'none'\n";
        let (_folder, file, mut app) = app_of(pinned).await;
        let (policy, pins) = (app.policy.clone(), app.pins.clone());
        policy.set_definition_check(Arc::new(pins.clone()));
        let describe = |text: &str| {
            let descriptor =
                ToolDescriptor { description: text.to_owned(), ..ToolDescriptor::new("read", "mcp:x", "mcp") };
            let tool = Tool::new(descriptor, ToolOutput::default());
            policy.registry().publish(Rank::Configured, &"mcp:x".into(), vec![tool]).unwrap();
            policy.refresh();
        };
        let held = || pins.counts().iter().map(|count| count.held).sum::<usize>();
        describe("Reads.");
        describe("Reads all.");
        assert_eq!(held(), 1);
        std::fs::write(&file, "").unwrap();
        app.reload().await.unwrap();
        assert_eq!(held(), 1, "its tools are still there");
    }
}
