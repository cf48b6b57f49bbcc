//! The tables within `[script]`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::LargeSize;
use toolbus_sandbox::Level;

use crate::config::{HumanDuration, Secret};

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
    /// How long the packages that were found for names without a version are used before they are looked for again.
    pub ttl: HumanDuration,
    /// Index that packages come from, which may have a login in it; absent: what pip is configured for on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_url: Option<Secret>,
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

/// How scripts, and commands with `sandbox = true`, are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// The least that must keep them in: the daemon does not start where this system allows less.
    pub require: Require,
}

/// How much keeps a program in, at least; the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Require {
    /// Landlock, a filter of system calls, limits and namespaces.
    Full,
    /// The same without namespaces.
    #[default]
    NoNamespaces,
    /// Limits alone.
    LimitsOnly,
}

impl Require {
    /// The level that it names.
    #[must_use]
    pub const fn level(self) -> Level {
        match self {
            Self::Full => Level::Full,
            Self::NoNamespaces => Level::NoNamespaces,
            Self::LimitsOnly => Level::LimitsOnly,
        }
    }
}

/// Interpreters that are started before there is a script for them. Each runs one script and ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// So many are always ready.
    #[schemars(range(max = 256))]
    pub min: usize,
    /// So many at most are ready after scripts were run; 0: none, every script starts its own.
    #[schemars(range(max = 256))]
    pub max: usize,
    /// Modules that they have imported already.
    #[schemars(length(max = 64), extend("items" = {"type": "string", "format": "toolbus-module"}))]
    pub imports: Vec<String>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        let imports = ["json", "re", "math", "datetime"].map(str::to_owned).into();
        Self { min: 0, max: 4, imports }
    }
}

/// Of the runner "local".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LocalConfig {
    /// Whether it is understood that scripts can then do all that the daemon can.
    pub i_understand: bool,
}
