//! Permissions of a program, its job, and its level of isolation.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Description of a program and of what it may do: fixed before it starts.
///
/// The work folder of the program has `home`, empty, its current directory and `HOME`; beside that are `tmp` (its
/// `TMPDIR`), `out`, whose files come back, and `job` with the files of its job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The program: an absolute path.
    pub program: PathBuf,
    /// Arguments of the program, without its name.
    pub args: Vec<String>,
    /// Whole environment of the program, but for `HOME` and `TMPDIR`, which are in the work folder.
    pub env: BTreeMap<String, String>,
    /// Bytes that the program reads from its standard input before its job, if it waits for one or forks.
    #[serde(skip)]
    pub stdin: Bytes,
    /// Paths that the program may read and execute: absolute paths of files and folders. Missing ones are ignored.
    pub read: Vec<PathBuf>,
    /// Paths that the program may also change.
    pub write: Vec<PathBuf>,
    /// Whether the program may use the network of the daemon.
    pub network: bool,
    /// Whether the program may change modes, owners and times of files, where it has a file system of its own; modes
    /// and times, where it has a user of its own.
    pub metadata: bool,
    /// Whether the program writes a byte to file descriptor 4 when it is ready for its job, and reads one from file
    /// descriptor 3 when the job is there. Otherwise the program is started when its job is there.
    pub waits: bool,
    /// Whether the program runs no job, and forks a copy of itself for each: a template ([`crate::Template`]). It
    /// reports that it is ready as a program that waits; on file descriptor 3 is a socket with requests.
    pub forks: bool,
    /// Programs with the same owner run as the same user, where the daemon may change users: they can change what they left
    /// in `write`. Absent: each runs as another.
    pub owner: Option<String>,
    /// Limits of what it may use.
    pub limits: Limits,
}

impl Plan {
    /// Whether a sandbox that was made for this plan serves another one that differs in the program only.
    pub(crate) fn fits(&self, other: &Self) -> bool {
        let Self { program: _, args: _, env: _, stdin: _, read, write, network, metadata, waits, forks, owner, limits } =
            self;
        let ways = (other.network, other.metadata, other.waits, other.forks);
        (read, write, owner, limits) == (&other.read, &other.write, &other.owner, &other.limits)
            && (*network, *metadata, *waits, *forks) == ways
    }
}

#[cfg(test)]
impl Plan {
    /// A program that does nothing, and may use next to nothing.
    pub(crate) fn least() -> Self {
        Self {
            program: "/bin/true".into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            stdin: Bytes::new(),
            read: Vec::new(),
            write: Vec::new(),
            network: false,
            metadata: false,
            waits: false,
            forks: false,
            owner: None,
            limits: Limits {
                memory: 1,
                disk: 1,
                files: 1,
                file_size: 1,
                open_files: 1,
                processes: 1,
                output: 1,
                artifacts: 1,
            },
        }
    }
}

/// Limits of what one run may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Resident memory of all its processes together, in bytes.
    pub memory: u64,
    /// Bytes in its work folder.
    pub disk: u64,
    /// Files and folders in its work folder.
    pub files: u64,
    /// Bytes of one file.
    pub file_size: u64,
    /// File descriptors of one process.
    pub open_files: u64,
    /// Processes and threads, besides its first.
    pub processes: u64,
    /// Bytes of each of its standard output and standard error.
    pub output: u64,
    /// Bytes of all files that come back together.
    pub artifacts: u64,
}

/// One job of a program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Job {
    /// Files that are put into `job`, by name (one part, no `/`).
    pub files: Vec<(String, Bytes)>,
    /// Files that are put into its current folder, by name (one part, no `/`).
    pub inputs: Vec<(String, Bytes)>,
    /// Bytes that the program reads from its standard input.
    pub stdin: Bytes,
    /// Longest wall-clock time.
    pub time: Duration,
    /// Longest CPU time.
    pub cpu: Duration,
    /// Whether the program stays for further jobs. One whose plan waits then writes a byte to file descriptor 4 when it is
    /// done, its exit code, and is stopped until the next job is there.
    pub stays: bool,
}

/// Strength of a program's isolation; stronger is greater.
///
/// The strongest is declared first, as the schema of a configuration lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Level {
    /// [`Self::NoNamespaces`], and namespaces of its own: files, processes and network of others do not exist for it.
    #[schemars(description = "Landlock, a filter of system calls, limits and namespaces.")]
    Full = 2,
    /// Landlock, the seccomp filter and resource limits. One process with threads; it sees that other files exist.
    #[schemars(description = "The same without namespaces.")]
    NoNamespaces = 1,
    /// Resource limits, and the seccomp filter where the kernel has it. The program can read the files that the daemon can.
    #[schemars(description = "Limits alone.")]
    LimitsOnly = 0,
}

impl Level {
    /// Every level, the weakest first.
    pub const ALL: [Self; 3] = [Self::LimitsOnly, Self::NoNamespaces, Self::Full];

    /// Returns the name of the level in configuration, status and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LimitsOnly => "limits-only",
            Self::NoNamespaces => "no-namespaces",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One part of a confinement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layer {
    /// Files, processes and network of its own.
    Namespaces,
    /// Rules for files and network.
    Landlock,
    /// A filter of system calls.
    Seccomp,
}

impl Layer {
    /// All layers, in the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::Namespaces, Self::Landlock, Self::Seccomp];

    /// Returns the name of the layer in logs and status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
        }
    }
}

/// The layers of a confinement, each of which works without the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layers {
    /// [`Layer::Namespaces`].
    pub namespaces: bool,
    /// [`Layer::Landlock`].
    pub landlock: bool,
    /// [`Layer::Seccomp`].
    pub seccomp: bool,
}

impl Layers {
    /// The layers that a level promises.
    #[must_use]
    pub const fn of(level: Level) -> Self {
        let (namespaces, filters) = (matches!(level, Level::Full), !matches!(level, Level::LimitsOnly));
        Self { namespaces, landlock: filters, seccomp: filters }
    }

    /// The strongest level whose layers are all here.
    #[must_use]
    pub const fn level(self) -> Level {
        match self {
            Self { landlock: true, seccomp: true, namespaces: true } => Level::Full,
            Self { landlock: true, seccomp: true, namespaces: false } => Level::NoNamespaces,
            _ => Level::LimitsOnly,
        }
    }

    /// Whether a layer is among them.
    #[must_use]
    pub const fn has(self, layer: Layer) -> bool {
        match layer {
            Layer::Namespaces => self.namespaces,
            Layer::Landlock => self.landlock,
            Layer::Seccomp => self.seccomp,
        }
    }

    /// These and one more.
    #[must_use]
    pub const fn with(mut self, layer: Layer) -> Self {
        match layer {
            Layer::Namespaces => self.namespaces = true,
            Layer::Landlock => self.landlock = true,
            Layer::Seccomp => self.seccomp = true,
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_reached_by_all_of_its_layers() {
        for level in Level::ALL {
            assert_eq!(Layers::of(level).level(), level);
        }
        let without_seccomp = Layers { seccomp: false, ..Layers::of(Level::Full) };
        assert_eq!(without_seccomp.level(), Level::LimitsOnly);
        assert_eq!(without_seccomp.with(Layer::Seccomp), Layers::of(Level::Full));
        assert_eq!(Layer::ALL.map(|layer| without_seccomp.has(layer)), [true, true, false]);
    }
}
