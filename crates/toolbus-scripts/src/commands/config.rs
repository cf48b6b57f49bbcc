//! `[[commands]]`: programs of this machine as tools.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::{ByteSize, HumanDuration, LargeSize, Secret};
use toolbus_core::tool::Effect;
use toolbus_sandbox::Limits;

/// Files and folders in the work folder of a command.
const FILES: u64 = 4096;
/// Files that one process of a command may have open.
const OPEN_FILES: u64 = 256;

/// A program as a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandConfig {
    /// Name of the tool.
    #[schemars(extend("format" = "toolbus-name"))]
    pub name: String,
    /// Description of the tool, for a model.
    #[schemars(length(min = 1, max = 65_536))]
    pub description: String,
    /// The program, which is looked up in `PATH`, and its arguments, with those of the call in braces: `["git", "log", "-n",
    /// "{count}"]`. Each element is one argument, whatever is in it; there is no shell.
    #[schemars(length(min = 1, max = 256))]
    pub command: Vec<String>,
    /// JSON Schema of the arguments, as JSON text; absent: any object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<String>,
    /// Standard input of the command.
    #[serde(default)]
    pub stdin: Stdin,
    /// Standard output of the command.
    #[serde(default)]
    pub output: Output,
    /// Exit codes with which it has succeeded: `[0, 1]` for a program that says with 1 that it found nothing, as `grep` does.
    #[serde(default = "default_success_codes")]
    #[schemars(length(min = 1, max = 256))]
    pub success_codes: Vec<u8>,
    /// Whether the command runs in the sandbox, as scripts do.
    #[serde(default = "yes")]
    pub sandbox: bool,
    /// Longest run of one call.
    #[serde(default = "default_timeout")]
    pub timeout: HumanDuration,
    /// Effect of repeating a call; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// Working directory of the command; absent: an empty one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub cwd: Option<PathBuf>,
    /// Variables of its environment; a value may be a secret. It has none of the daemon's but those that every program needs.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 1024))]
    pub env: BTreeMap<String, Secret>,
    /// In the sandbox: files and folders that it may read, besides those of the system's programs.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub read: Vec<PathBuf>,
    /// In the sandbox: files and folders that it may change.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub write: Vec<PathBuf>,
    /// In the sandbox: whether it may use the network.
    #[serde(default)]
    pub network: bool,
    /// Arguments whose values may begin with `-`, so that the program may take them for options.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub allow_dash: Vec<String>,
    /// Most of its output that is read.
    #[serde(default = "default_max_output")]
    pub max_output: ByteSize,
    /// In the sandbox: its memory, with all processes that it starts.
    #[serde(default = "default_memory")]
    pub memory: LargeSize,
    /// In the sandbox: bytes in its work folder.
    #[serde(default = "default_disk")]
    pub disk: LargeSize,
    /// In the sandbox: processes and threads.
    #[serde(default = "default_processes")]
    #[schemars(range(min = 1, max = 4096))]
    pub processes: u64,
}

const fn yes() -> bool {
    true
}

fn default_success_codes() -> Vec<u8> {
    vec![0]
}

const fn default_timeout() -> HumanDuration {
    HumanDuration::from_secs(10)
}

const fn default_max_output() -> ByteSize {
    ByteSize::from_mib(1)
}

const fn default_memory() -> LargeSize {
    LargeSize::from_mib(512)
}

const fn default_disk() -> LargeSize {
    LargeSize::from_mib(64)
}

const fn default_processes() -> u64 {
    64
}

impl CommandConfig {
    /// A command with the defaults of the configuration, without arguments.
    #[must_use]
    pub fn new(name: impl Into<String>, command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            command: command.into_iter().map(Into::into).collect(),
            parameters: None,
            stdin: Stdin::default(),
            output: Output::default(),
            success_codes: default_success_codes(),
            sandbox: yes(),
            timeout: default_timeout(),
            effect: None,
            cwd: None,
            env: BTreeMap::new(),
            read: Vec::new(),
            write: Vec::new(),
            network: false,
            allow_dash: Vec::new(),
            max_output: default_max_output(),
            memory: default_memory(),
            disk: default_disk(),
            processes: default_processes(),
        }
    }

    /// The most that it may use. Outside of the sandbox, only the limit of its output holds.
    pub(super) const fn limits(&self) -> Limits {
        Limits {
            memory: self.memory.bytes(),
            disk: self.disk.bytes(),
            files: FILES,
            file_size: self.disk.bytes(),
            open_files: OPEN_FILES,
            processes: self.processes,
            output: self.max_output.bytes(),
            artifacts: 0,
        }
    }
}

/// Standard input of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Stdin {
    /// Nothing.
    #[default]
    None,
    /// The arguments of the call, as a JSON object.
    Arguments,
}

/// Standard output of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Output {
    /// Text.
    #[default]
    Text,
    /// One JSON value.
    Json,
}
