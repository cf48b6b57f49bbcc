//! Supervisors and servers, from Linux's `/proc`.

use std::io;

/// The server under a supervisor.
pub(super) fn server_of(supervisor: u32) -> io::Result<u32> {
    let children = std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"))?;
    let first = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
    first.ok_or_else(|| io::Error::other("the supervisor has no server"))
}

/// The memory of a process in bytes, with its part of what it shares with others.
pub(super) fn proportional_memory(process: u32) -> io::Result<u64> {
    parse(&std::fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?)
        .ok_or_else(|| io::Error::other(format!("process {process} is described in a way that is not understood")))
}

fn parse(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Ends a process at once.
pub(crate) async fn kill(process: u32) -> io::Result<()> {
    let status = tokio::process::Command::new("kill").args(["-s", "KILL", &process.to_string()]).status().await?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("process {process} cannot be killed"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proportional_memory_is_read_from_its_line() {
        let rollup = "55d0-7ffd ---p 00000000 00:00 0 [rollup]\nRss:  4096 kB\nPss:  1024 kB\nPss_Anon:  7 kB\n";
        assert_eq!(parse(rollup), Some(1 << 20));
        assert!(proportional_memory(std::process::id()).unwrap() > 0);
    }

    #[tokio::test]
    async fn a_server_is_found_under_its_supervisor_and_killed() {
        let mut shell = tokio::process::Command::new("sh");
        let mut supervisor = shell.args(["-c", "sleep 1000 & wait"]).kill_on_drop(true).spawn().unwrap();
        let id = supervisor.id().unwrap();
        let server = toolbus_testing::patience::eventually("a child", async || server_of(id).ok()).await;
        kill(server).await.unwrap();
        supervisor.wait().await.unwrap();
        assert!(server_of(id).is_err());
    }
}
