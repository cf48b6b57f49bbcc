//! Users that nobody else is, for a daemon that may choose.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};

/// Users that systemd hands out in the same way (`DynamicUser=`), so that no person has them.
const FIRST: u32 = 61_184;
const LAST: u32 = 65_519;

/// Hands out users in turn: one is used again only after thousands of others.
#[derive(Debug)]
pub(super) struct UserPool(AtomicU32);

impl UserPool {
    /// Those of a process that may become another user. Absent: it may not.
    pub(super) fn of_this_process() -> Option<Self> {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
        let may = capabilities(None).is_ok_and(|own| own.effective.contains(needed));
        let has_all = || ["uid_map", "gid_map"].iter().all(|map| has_all(map));
        // Daemons of one machine do not all begin with the same user.
        (geteuid().is_root() && may && has_all()).then(|| Self(AtomicU32::new(std::process::id())))
    }

    pub(super) fn next(&self) -> u32 {
        FIRST + self.0.fetch_add(1, Ordering::Relaxed) % (LAST - FIRST + 1)
    }
}

/// Whether the namespace of this process has all of them: a root that was made by `unshare -r` has itself alone.
fn has_all(map: &str) -> bool {
    fs::read_to_string(format!("/proc/self/{map}")).is_ok_and(|map| map.lines().any(covers))
}

/// Whether one line of a map, which is the first id inside, the first outside and how many, has all of them.
fn covers(line: &str) -> bool {
    let mut numbers = line.split_whitespace().map(str::parse::<u64>);
    match (numbers.next(), numbers.nth(1)) {
        (Some(Ok(first)), Some(Ok(count))) => first <= u64::from(FIRST) && first + count > u64::from(LAST),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_that_the_namespace_does_not_have_are_not_handed_out() {
        assert!(covers("         0          0 4294967295"));
        assert!(covers("         0     100000      65536"), "as in a container that is not root outside");
        assert!(!covers("         0       1000          1"));
        assert!(!covers("         0     100000      65519"), "the last is missing");
        assert!(!covers("     61185     200000      65536"), "the first is missing");
        assert!(!covers(""));
    }

    #[test]
    fn no_user_is_handed_out_twice_in_a_row_and_none_is_a_persons() {
        let users = UserPool(AtomicU32::new(u32::MAX - 2));
        let handed: Vec<u32> = (0..6).map(|_| users.next()).collect();
        assert!(handed.iter().all(|user| (FIRST..=LAST).contains(user)), "{handed:?}");
        assert!(handed.windows(2).all(|pair| pair[0] != pair[1]), "{handed:?}");
    }
}
