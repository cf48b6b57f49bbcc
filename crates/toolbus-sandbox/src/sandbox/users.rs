//! User ids for programs, where the daemon may change the user.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};

use crate::wire::USERS_OF_FORKS;

/// The range that systemd uses for `DynamicUser=`, so that no person has them.
const FIRST: u32 = 61_184;
const LAST: u32 = 65_519;
/// The last ids of the range, which belong to owners.
const OF_OWNERS: u32 = 2048;
/// The ids before those, which belong to templates and their forks.
const OF_TEMPLATES: u32 = 1024;
/// A template and its forks.
const OF_TEMPLATE: u32 = 1 + USERS_OF_FORKS;
/// Ids that programs have in turn.
const IN_TURN: u32 = LAST - FIRST + 1 - OF_OWNERS - OF_TEMPLATES;

/// Hands out user ids in turn: an id is reused after a thousand others, and never while a program has it. Owners have ids of
/// their own.
#[derive(Debug)]
pub(super) struct UserPool {
    next: AtomicU32,
    next_template: AtomicU32,
    in_use: Arc<Mutex<HashSet<u32>>>,
}

/// The id of a program's user, which no other program has meanwhile. That of a template stands for those of its forks, too.
#[derive(Debug)]
pub(super) struct UserInTurn {
    pub(super) id: u32,
    in_use: Arc<Mutex<HashSet<u32>>>,
}

impl Drop for UserInTurn {
    fn drop(&mut self) {
        self.in_use.lock().remove(&self.id);
    }
}

impl UserPool {
    /// `None` if this process may not change its user. `name` is that of the sandbox, which no other one has.
    pub(super) fn of_this_process(name: &str) -> Option<Self> {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
        let may = capabilities(None).is_ok_and(|own| own.effective.contains(needed));
        let has_all = || ["uid_map", "gid_map"].iter().all(|map| has_all(map));
        // Sandboxes of one machine, and of one daemon, begin with different users.
        (geteuid().is_root() && may && has_all()).then(|| Self::beginning_with(hash(name)))
    }

    fn beginning_with(first: u32) -> Self {
        Self { next: AtomicU32::new(first), next_template: AtomicU32::new(first), in_use: Arc::default() }
    }

    /// The first of the next [`OF_TEMPLATE`] ids that are free; `None` if other templates and their forks have all of them.
    pub(super) fn of_template(&self) -> Option<UserInTurn> {
        let mut in_use = self.in_use.lock();
        let next = || self.next_template.fetch_add(1, Ordering::Relaxed) % (OF_TEMPLATES / OF_TEMPLATE);
        let mut ids = (0..OF_TEMPLATES / OF_TEMPLATE).map(|_| FIRST + IN_TURN + next() * OF_TEMPLATE);
        let id = ids.find(|id| !in_use.contains(id))?;
        in_use.insert(id);
        Some(UserInTurn { id, in_use: Arc::clone(&self.in_use) })
    }

    /// The next id in turn that is free. If none is, which takes more programs than a machine runs, it is shared.
    pub(super) fn in_turn(&self) -> UserInTurn {
        let mut in_use = self.in_use.lock();
        let mut ids = (0..=IN_TURN).map(|_| FIRST + self.next.fetch_add(1, Ordering::Relaxed) % IN_TURN);
        let id = ids.find(|id| !in_use.contains(id)).unwrap_or(FIRST);
        in_use.insert(id);
        UserInTurn { id, in_use: Arc::clone(&self.in_use) }
    }
}

/// The id of an owner, always the same.
pub(super) fn of_owner(owner: &str) -> u32 {
    LAST - hash(owner) % OF_OWNERS
}

/// FNV-1a, the same in every version of this program: files keep their owners.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Whether the user namespace of this process maps the whole range: `unshare -r` maps root alone.
fn has_all(map: &str) -> bool {
    fs::read_to_string(format!("/proc/self/{map}")).is_ok_and(|map| map.lines().any(covers))
}

/// Whether one line of a map (first id inside, first id outside, count) covers the range.
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
    fn an_owner_has_the_same_user_always_and_shares_it_with_no_one_in_turn() {
        let users = UserPool::beginning_with(0);
        let owned = of_owner("backup");
        assert_eq!(owned, 63_760, "also in the next version");
        assert_ne!(owned, of_owner("report"));
        assert!((0..10_000).all(|_| users.in_turn().id <= LAST - OF_OWNERS - OF_TEMPLATES));
        assert!(owned > LAST - OF_OWNERS && owned <= LAST);
    }

    #[test]
    fn two_sandboxes_of_a_daemon_hand_out_different_users() {
        let users = |name| UserPool::of_this_process(name).map(|users| [(); 3].map(|()| users.in_turn().id));
        let [one, other] = ["/tmp/toolbus-sandbox-1-0", "/tmp/toolbus-sandbox-1-1"].map(users);
        // Without the right to change its user this process hands out none.
        assert!(
            one.zip(other).is_none_or(|(one, other)| one.iter().all(|user| !other.contains(user))),
            "{one:?} {other:?}"
        );
    }

    #[test]
    fn a_template_and_its_forks_have_users_that_no_one_else_has() {
        let users = UserPool::beginning_with(u32::MAX - 2);
        let mut kept: Vec<UserInTurn> = (0..OF_TEMPLATES / OF_TEMPLATE).filter_map(|_| users.of_template()).collect();
        let firsts: Vec<u32> = kept.iter().map(|user| user.id).collect();
        let mut all: Vec<u32> = firsts.iter().flat_map(|first| *first..first + OF_TEMPLATE).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), OF_TEMPLATES as usize, "{firsts:?}");
        assert!(
            all.iter().all(|user| *user > LAST - OF_OWNERS - OF_TEMPLATES && *user <= LAST - OF_OWNERS),
            "{firsts:?}"
        );
        assert!(users.of_template().is_none(), "each has its own as long as it is there");
        drop(kept.remove(7));
        assert_eq!(users.of_template().map(|user| user.id), Some(firsts[7]));
    }

    /// A program of another caller could change the files of one that ran for long.
    #[test]
    fn a_user_is_not_handed_out_again_while_a_program_has_it() {
        let users = UserPool::beginning_with(0);
        let kept = users.in_turn();
        assert!((0..3 * IN_TURN).all(|_| users.in_turn().id != kept.id));
        let id = kept.id;
        drop(kept);
        assert!((0..IN_TURN).any(|_| users.in_turn().id == id));
        let all: Vec<UserInTurn> = (0..IN_TURN).map(|_| users.in_turn()).collect();
        assert_eq!(all.iter().map(|user| user.id).collect::<HashSet<u32>>().len(), IN_TURN as usize);
    }

    #[test]
    fn no_user_is_handed_out_twice_in_a_row_and_none_is_a_persons() {
        let users = UserPool::beginning_with(u32::MAX - 2);
        let handed: Vec<u32> = (0..6).map(|_| users.in_turn().id).collect();
        assert!(handed.iter().all(|user| (FIRST..=LAST).contains(user)), "{handed:?}");
        assert!(handed.windows(2).all(|pair| pair[0] != pair[1]), "{handed:?}");
    }
}
