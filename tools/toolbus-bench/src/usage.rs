use std::time::Duration;

/// Resources that a process has used so far, from Linux's `/proc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    /// CPU time, user and system, of all its threads.
    pub(crate) cpu: Duration,
    /// CPU time of the children that have ended, with theirs.
    pub(crate) ended_children: Duration,
    /// Resident memory now, in bytes.
    pub(crate) resident: u64,
    /// The most resident memory that it ever had, in bytes.
    pub(crate) peak: u64,
}

/// Reason why a process could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    /// There is none of that number, or it is not ours to read.
    #[error("process {0} cannot be read: {1}")]
    Read(u32, std::io::Error),
    /// `/proc` has something unexpected.
    #[error("process {0} is described in a way that is not understood")]
    Format(u32),
}

/// Clock ticks a second: fixed at 100 for user space on every Linux architecture that Rust supports.
const TICK: Duration = Duration::from_millis(10);

impl Usage {
    /// Reads a process.
    ///
    /// # Errors
    ///
    /// If there is no such process, or no `/proc`.
    pub(crate) fn read(process: u32) -> Result<Self, UsageError> {
        let file = |name: &str| {
            std::fs::read_to_string(format!("/proc/{process}/{name}")).map_err(|error| UsageError::Read(process, error))
        };
        let (stat, status) = (file("stat")?, file("status")?);
        Self::parse(&stat, &status).ok_or(UsageError::Format(process))
    }

    fn parse(stat: &str, status: &str) -> Option<Self> {
        // The second field is the program's name, which may hold spaces and brackets.
        let (_, fields) = stat.rsplit_once(')')?;
        let time = |first: usize| {
            let ticks = fields.split_whitespace().skip(first).take(2).map(|field| field.parse().unwrap_or(0_u32));
            TICK * ticks.sum::<u32>()
        };
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
        };
        Some(Self { cpu: time(11), ended_children: time(13), resident: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_a_strange_name_is_read() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194304 1 0 0 0 130 20 7 8 20 0 9 0 1 2 3";
        let usage = Usage::parse(stat, "Name:\ta\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n").unwrap();
        let (cpu, ended_children) = (Duration::from_millis(1500), Duration::from_millis(150));
        assert_eq!(usage, Usage { cpu, ended_children, resident: 1 << 20, peak: 2 << 20 });
    }

    #[test]
    fn this_process_can_be_read() {
        let usage = Usage::read(std::process::id()).unwrap();
        assert!(usage.resident > 0 && usage.peak >= usage.resident / 2);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(matches!(Usage::read(u32::MAX), Err(UsageError::Read(..))));
    }
}
