//! The outcome of a run.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The outcome of a run, all processes of which have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Ending of the run.
    pub ending: Ending,
    /// Bytes that the run wrote to its standard output.
    pub stdout: Stream,
    /// Bytes that the run wrote to its standard error.
    pub stderr: Stream,
    /// The regular files that it left in `out`, by name.
    pub artifacts: Vec<Artifact>,
    /// Files in `out` that did not come back, because they are too large, too many, or no regular files.
    pub left_out: u64,
    /// Regular files in its current folder, which do not come back: at most 21 relative paths, in order, without hidden
    /// ones and those that it was given.
    pub not_returned: Vec<String>,
    /// Resources that the run used for this job; `None` where that is not measured.
    pub usage: Option<Usage>,
    /// Time from the job to the end.
    pub elapsed: Duration,
}

impl Outcome {
    /// Bytes of everything that came back.
    #[must_use]
    pub fn size(&self) -> usize {
        let files: usize = self.artifacts.iter().map(|file| file.bytes.len()).sum();
        self.stdout.bytes.len() + self.stderr.bytes.len() + files
    }

    /// That of a program that has ended so after this time, and of which nothing came back.
    pub(crate) fn without_output(ending: Ending, elapsed: Duration) -> Self {
        Self {
            ending,
            stdout: Stream::default(),
            stderr: Stream::default(),
            artifacts: Vec::new(),
            left_out: 0,
            not_returned: Vec::new(),
            usage: None,
            elapsed,
        }
    }
}

/// Ending of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// By itself, with this exit code.
    Exited(i32),
    /// By this signal, which the sandbox did not send.
    Signalled(i32),
    /// End by the sandbox because the program used too much.
    Stopped(Stop),
}

/// Resource that a program used too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// Wall-clock time.
    Time,
    /// CPU time.
    Cpu,
    /// Resident memory.
    Memory,
    /// Processes and threads.
    Processes,
    /// Bytes or files in the work folder.
    Disk,
    /// Bytes on standard output or standard error.
    Output,
}

impl Stop {
    /// All values.
    pub const ALL: [Self; 6] = [Self::Time, Self::Cpu, Self::Memory, Self::Processes, Self::Disk, Self::Output];

    /// Returns the name of the resource in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Processes => "processes",
            Self::Disk => "disk",
            Self::Output => "output",
        }
    }
}

/// Reason why the files of a job could not be put into the work folder. The program has not begun with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Unplaced {
    /// An earlier job has made a folder of this name.
    #[error("a file cannot replace a folder of the work folder")]
    IsFolder(String),
    /// They do not fit, with what earlier jobs have left.
    #[error("the files of the job do not fit into the work folder")]
    NoRoom,
}

/// The captured part of one stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stream {
    /// Beginning of the stream, at most [`crate::Limits::output`] bytes.
    pub bytes: Bytes,
    /// Whether there was more.
    pub is_cut: bool,
}

/// A file that came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Name of the file: one part of a path, valid UTF-8.
    pub name: String,
    /// Content of the file.
    pub bytes: Bytes,
}

/// Resources that a run used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of all its processes, in microseconds.
    pub cpu_us: u64,
    /// Peak of the resident memory of all its processes together, or of one, in bytes.
    pub peak_memory: u64,
}
