//! A process and what it has started, from Linux's `/proc`.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;

use crate::usage::Usage;

/// The processes below this one, in the order in which they are found from the top.
pub(super) fn below(process: u32) -> Vec<u32> {
    let mut found = children(process);
    let mut next = 0;
    while let Some(process) = found.get(next).copied() {
        found.extend(children(process));
        next += 1;
    }
    found
}

/// The processes below this one that run `program`: those that are to start it have its name in their arguments, too,
/// and are above it.
pub(super) fn running(process: u32, program: &str) -> Vec<u32> {
    let names = |process: u32| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == std::ffi::OsStr::new(program).as_bytes())
    };
    let named: Vec<u32> = below(process).into_iter().filter(|process| names(*process)).collect();
    let is_lowest = |process: &u32| !below(*process).iter().any(|below| named.contains(below));
    named.iter().copied().filter(is_lowest).collect()
}

/// Resident memory of a process and of those below it, without `others`, in bytes.
pub(super) fn resident(process: u32, others: &[u32]) -> u64 {
    let counted = std::iter::once(process).chain(below(process)).filter(|process| !others.contains(process));
    counted.filter_map(|process| Usage::read(process).ok()).map(|usage| usage.resident).sum()
}

/// None where the process has ended.
fn children(process: u32) -> Vec<u32> {
    let of_threads = || -> io::Result<Vec<u32>> {
        let mut children = Vec::new();
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let listed = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
            children.extend(listed.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
        Ok(children)
    };
    of_threads().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use toolbus_testing::patience;

    use super::*;

    #[tokio::test]
    async fn the_lowest_process_with_a_program_among_its_arguments_runs_it() {
        let script = "sh -c 'sleep 1001 & sleep 1002 & wait' sleep & wait";
        let mut shell = tokio::process::Command::new("sh");
        let mut top = shell.args(["-c", script]).kill_on_drop(true).spawn().unwrap();
        let id = top.id().unwrap();
        let sleeping =
            patience::eventually("two programs", async || Some(running(id, "sleep")).filter(|found| found.len() == 2));
        let sleeping = sleeping.await;
        let all = below(id);
        assert_eq!((all.len(), running(id, "no such program").len()), (3, 0));
        assert!(resident(id, &[]) > resident(id, &sleeping) && resident(id, &sleeping) > resident(id, &all));
        for process in all.into_iter().rev() {
            // One that waits for others may have ended with the last of them.
            drop(crate::mcp::processes::kill(process).await);
        }
        top.wait().await.unwrap();
        assert!(below(id).is_empty());
    }
}
