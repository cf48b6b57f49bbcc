//! `[script]`: the tool that runs Python scripts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::{ByteSize, Cpu, HumanDuration, LargeSize, Secret};
use toolbus_core::toolsets::SessionLimits;
use toolbus_sandbox::{Level, Limits};

use crate::requirement::AllowedPackages;
use crate::tool;

/// The longest that a script may run where the configuration says nothing.
const LONGEST: HumanDuration = HumanDuration::from_secs(300);

/// The tool that runs Python scripts: there when this section is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScriptConfig {
    /// Runner of scripts.
    pub runner: RunnerKind,
    /// Time of a script that asks for none.
    pub timeout: HumanDuration,
    /// The longest that a script may ask for; absent: 300s, as far as `invoke.max_timeout` lets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_timeout: Option<HumanDuration>,
    /// Memory of a script, with all processes that it starts.
    pub memory: LargeSize,
    /// Share of a core, on average: a script may use its time multiplied by this as CPU time.
    pub cpu: Cpu,
    /// Most of its standard output, and of its standard error, that is read.
    pub max_output: ByteSize,
    /// Bytes in its work folder.
    pub disk: LargeSize,
    /// Files and folders in its work folder.
    #[schemars(range(min = 16, max = 1_000_000))]
    pub files: u64,
    /// Largest file that it may write.
    pub file_size: LargeSize,
    /// Files that one process may have open.
    #[schemars(range(min = 32, max = 65_536))]
    pub open_files: u64,
    /// Processes and threads, besides its first.
    #[schemars(range(min = 1, max = 4096))]
    pub processes: u64,
    /// Most of the files it leaves for its caller, together.
    pub artifacts: ByteSize,
    /// Scripts that run at a time; absent: one for each core.
    #[schemars(range(min = 1, max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<usize>,
    /// Scripts of one agent that wait for their turn.
    #[schemars(range(max = 65_535))]
    pub max_waiting: usize,
    /// The interpreter; a name is looked up in `PATH`.
    #[schemars(length(min = 1, max = 4096))]
    pub python: String,
    /// Packages that scripts may ask for.
    pub packages: PackagesConfig,
    /// Further languages by name, such as `javascript` or `bash`: each has a tool `execute_{name}_script`.
    #[schemars(extend("maxProperties" = 16))]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub languages: BTreeMap<String, LanguageConfig>,
    /// Sandbox of scripts.
    pub sandbox: SandboxConfig,
    /// Interpreters that are started before there is a script for them.
    pub pool: PoolConfig,
    /// Interpreters that keep variables and files for a session.
    pub sessions: ScriptSessionsConfig,
    /// Of the runner "local".
    pub local: LocalConfig,
    /// Of the runner "kubernetes".
    pub kubernetes: KubernetesConfig,
}

/// Runner of scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum RunnerKind {
    /// Processes of this machine that are kept in.
    #[default]
    Sandbox,
    /// Processes of this machine that nothing keeps in: for development.
    Local,
    /// Pods of a Kubernetes cluster.
    Kubernetes,
}

impl Default for ScriptConfig {
    fn default() -> Self {
        Self {
            runner: RunnerKind::default(),
            timeout: HumanDuration::from_secs(30),
            max_timeout: None,
            memory: LargeSize::from_mib(256),
            cpu: Cpu::HALF,
            max_output: ByteSize::from_mib(1),
            disk: LargeSize::from_mib(64),
            files: 4096,
            file_size: LargeSize::from_mib(64),
            open_files: 256,
            processes: 64,
            artifacts: ByteSize::from_mib(4),
            max_in_flight: None,
            max_waiting: 64,
            python: "python3".to_owned(),
            packages: PackagesConfig::default(),
            languages: BTreeMap::new(),
            sandbox: SandboxConfig::default(),
            pool: PoolConfig::default(),
            sessions: ScriptSessionsConfig::default(),
            local: LocalConfig::default(),
            kubernetes: KubernetesConfig::default(),
        }
    }
}

impl ScriptConfig {
    /// The longest that a script may run where no call runs longer than `longest_call`.
    #[must_use]
    pub fn longest(&self, longest_call: HumanDuration) -> Duration {
        self.max_timeout.unwrap_or(LONGEST).min(longest_call).get()
    }

    /// Scripts that run at a time.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.max_in_flight.unwrap_or_else(|| available_parallelism().map_or(1, usize::from))
    }

    /// The most that a script may use.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            memory: self.memory.bytes(),
            disk: self.disk.bytes(),
            files: self.files,
            file_size: self.file_size.bytes(),
            open_files: self.open_files,
            processes: self.processes,
            output: self.max_output.bytes(),
            artifacts: self.artifacts.bytes(),
        }
    }

    /// Settings of the tool where no call runs longer than `longest_call`, without working memory.
    #[must_use]
    pub fn settings(&self, longest_call: HumanDuration) -> tool::Settings {
        tool::Settings {
            timeout: self.timeout.min(longest_call).get(),
            max_timeout: self.longest(longest_call),
            cpu_millis: self.cpu.millis(),
            limits: self.limits(),
            packages: self.packages.allowed(),
            package_timeout: self.packages.timeout.get(),
            sessions: Some(self.sessions.limits()),
            memory: None,
            language: None,
        }
    }

    /// Names of the tools that run scripts, that for Python first.
    pub fn tool_names(&self) -> impl Iterator<Item = String> {
        let languages = self.languages.keys().map(String::as_str);
        std::iter::once(tool::PYTHON).chain(languages).map(tool::name_of)
    }

    /// The longest that a script may ask for, whatever calls may.
    #[must_use]
    pub fn longest_asked(&self) -> HumanDuration {
        self.max_timeout.unwrap_or(LONGEST)
    }
}

/// Packages that scripts may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PackagesConfig {
    /// Names, each with or without versions, such as `numpy` or `requests>=2.31`; `*` is any. None: scripts have no packages
    /// but those of the interpreter.
    #[schemars(length(max = 1024), extend("items" = {"type": "string", "format": "toolbus-package"}))]
    pub allow: Vec<String>,
    /// Longest time that installing may take.
    pub timeout: HumanDuration,
    /// Most that the packages of one script may take on the disk.
    pub max_size: LargeSize,
    /// Folder that keeps what was installed; relative to the working directory.
    #[schemars(length(min = 1))]
    pub cache: PathBuf,
    /// Most that this folder keeps: what was not used for longest goes first.
    pub max_cache: LargeSize,
    /// Time for which the packages that were found for names without a version are used before they are looked for
    /// again.
    pub ttl: HumanDuration,
    /// Index that packages come from, which may have a login in it, or a folder of wheels (`file:///srv/wheels`); absent:
    /// PyPI. How pip is configured on this machine does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_url: Option<Secret>,
}

impl PackagesConfig {
    /// The packages that scripts may ask for. Mistakes in the list are found when the configuration is loaded.
    pub(crate) fn allowed(&self) -> AllowedPackages {
        AllowedPackages::parse(&self.allow).unwrap_or_default()
    }
}

impl Default for PackagesConfig {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            timeout: HumanDuration::from_secs(120),
            max_size: LargeSize::from_mib(512),
            cache: "toolbus-cache".into(),
            max_cache: LargeSize::from_gib(4),
            ttl: HumanDuration::from_secs(24 * 3600),
            index_url: None,
        }
    }
}

/// A language other than Python. Its scripts are kept in as others are, and have no packages, pool or sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LanguageConfig {
    /// The program and its arguments; the file of the script follows them. A name is looked up in `PATH`.
    #[schemars(length(min = 1, max = 64), extend("items" = {"type": "string", "minLength": 1}))]
    pub command: Vec<String>,
    /// Name of that file: some programs want an ending.
    #[serde(default = "script_file")]
    #[schemars(length(min = 1, max = 64))]
    pub file: String,
    /// Files and folders that its scripts may read, beside what is installed below `/usr`, `/bin` and `/lib`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub read: Vec<PathBuf>,
}

fn script_file() -> String {
    "script".to_owned()
}

/// Sandbox of scripts, and of commands with `sandbox = true`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// The least that must keep them in: the daemon does not start where this system allows less.
    pub require: Level,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self { require: Level::NoNamespaces }
    }
}

/// Interpreters that are started before there is a script for them. Each runs one script and ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// Start mode of interpreters.
    pub mode: PoolMode,
    /// So many are always ready.
    #[schemars(range(max = 256))]
    pub min: usize,
    /// So many at most are ready after scripts were run, beside those that are forked; 0: none.
    #[schemars(range(max = 256))]
    pub max: usize,
    /// Modules that they have imported already.
    #[schemars(length(max = 64), extend("items" = {"type": "string", "format": "toolbus-module"}))]
    pub imports: Vec<String>,
}

/// Start mode of interpreters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum PoolMode {
    /// Of an agent whose scripts an interpreter was forked for, at level "full": it is forked again. Others: as "spawn".
    #[default]
    Fork,
    /// An interpreter is started for the script, or waits for one.
    Spawn,
}

impl PoolMode {
    /// Name of the mode in configuration and status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::Spawn => "spawn",
        }
    }
}

impl PoolConfig {
    /// No interpreters: every script starts its own.
    pub const NONE: Self = Self { mode: PoolMode::Spawn, min: 0, max: 0, imports: Vec::new() };
}

impl Default for PoolConfig {
    fn default() -> Self {
        let imports = ["json", "re", "math", "datetime"].map(str::to_owned).into();
        Self { mode: PoolMode::default(), min: 0, max: 4, imports }
    }
}

/// Interpreters that keep variables and files for a caller's session. Each may hold `script.memory` and `script.disk`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScriptSessionsConfig {
    /// Sessions at a time, of which one agent may have half; 0: none.
    #[schemars(range(max = 1024))]
    pub max_sessions: usize,
    /// Time without a script after which a session ends.
    pub idle_timeout: HumanDuration,
    /// Longest life of a session.
    pub max_lifetime: HumanDuration,
}

impl ScriptSessionsConfig {
    const fn limits(self) -> SessionLimits {
        SessionLimits {
            idle_timeout: self.idle_timeout.get(),
            max_lifetime: Some(self.max_lifetime.get()),
            max_sessions: self.max_sessions,
        }
    }
}

impl Default for ScriptSessionsConfig {
    fn default() -> Self {
        Self {
            max_sessions: 8,
            idle_timeout: HumanDuration::from_secs(600),
            max_lifetime: HumanDuration::from_secs(3600),
        }
    }
}

/// Of the runner "local".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LocalConfig {
    /// Whether the operator understands that scripts can then do all that the daemon can.
    pub i_understand: bool,
}

/// Of the runner "kubernetes".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KubernetesConfig {
    /// Namespace of the pods, which has nothing else in it.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Image of the pods that are made, with Python and all packages that scripts import.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
    /// Warm pool of agent-sandbox (`SandboxWarmPool`) that has the pods; absent: one is made for each script.
    #[schemars(length(min = 1, max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_pool: Option<String>,
    /// File that says how to reach the cluster; absent: the service account of the daemon's pod.
    #[schemars(length(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<PathBuf>,
}

impl Default for KubernetesConfig {
    fn default() -> Self {
        Self {
            namespace: "rockbot-scripts".to_owned(),
            image: "python:3.12-slim".to_owned(),
            warm_pool: None,
            kubeconfig: None,
        }
    }
}
