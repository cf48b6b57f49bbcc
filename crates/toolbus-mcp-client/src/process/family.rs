//! Processes that belong together, found in `/proc`.

use std::collections::HashSet;
use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Most rounds of signals to a session that still has processes.
const ROUNDS: usize = 50;

/// One process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Relative {
    pid: i32,
    parent: i32,
    session: i32,
    is_dead: bool,
}

/// The first child of a process; `None` if it has none or `/proc` does not list it.
pub(crate) fn child_of(parent: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    children.split_ascii_whitespace().next()?.parse().ok()
}

/// Kills every process that descends from this one.
pub(super) fn kill_descendants(ancestor: Pid) {
    for pid in descendants(ancestor.as_raw_nonzero().get(), &all()) {
        kill(pid);
    }
}

/// Kills every process of a session, until it has none. Returns whether that succeeded.
pub(crate) fn end_session(leader: i32) -> bool {
    (0..ROUNDS).any(|_| {
        let mut is_over = true;
        for relative in all().iter().filter(|relative| relative.session == leader && !relative.is_dead) {
            is_over = false;
            kill(relative.pid);
        }
        is_over
    })
}

fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // Fails if the process has ended or runs as another user; neither can be helped.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Every process that can be seen.
fn all() -> Vec<Relative> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .filter_map(|entry| parse(&String::from_utf8_lossy(&fs::read(entry.path().join("stat")).ok()?)))
        .collect()
}

/// Reads `pid (name) state parent group session …`. The name may contain anything, so the last parenthesis counts.
fn parse(stat: &str) -> Option<Relative> {
    let (pid, rest) = stat.split_once(' ')?;
    let mut fields = rest.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Relative { pid: pid.parse().ok()?, parent, session, is_dead: matches!(state, "Z" | "X") })
}

fn descendants(ancestor: i32, relatives: &[Relative]) -> HashSet<i32> {
    let mut found = HashSet::new();
    loop {
        let before = found.len();
        for relative in relatives {
            if relative.parent == ancestor || found.contains(&relative.parent) {
                found.insert(relative.pid);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn relative(pid: i32, parent: i32) -> Relative {
        Relative { pid, parent, session: 1, is_dead: false }
    }

    #[test]
    fn a_process_with_any_name_is_read() {
        let odd = "42 (a) Z 1 (b)) S 7 42 40 0 -1 4194304 1 0";
        assert_eq!(parse(odd), Some(Relative { pid: 42, parent: 7, session: 40, is_dead: false }));
        assert_eq!(parse("43 (x) Z 7 42 40 0").map(|relative| relative.is_dead), Some(true));
        assert_eq!(parse("43 (x) S 7"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn descendants_are_found_through_all_generations_and_in_any_order() {
        let relatives = [relative(5, 4), relative(4, 3), relative(3, 2), relative(9, 8), relative(2, 1)];
        assert_eq!(descendants(2, &relatives), HashSet::from([3, 4, 5]));
        assert_eq!(descendants(5, &relatives), HashSet::new());
    }

    #[test]
    fn this_process_sees_itself() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(all().iter().any(|relative| relative.pid == own && !relative.is_dead));
    }
}
