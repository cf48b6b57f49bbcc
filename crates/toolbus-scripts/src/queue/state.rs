//! Who runs and who waits, without the waiting.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::Bounds;

/// Who runs and who waits. `T` is how one who waits is told that it is its turn.
pub(super) struct State<T> {
    bounds: Bounds,
    /// Those of whom any run or wait.
    owners: HashMap<Arc<str>, Owner<T>>,
    /// Those of whom any wait, in turn.
    in_turn: VecDeque<Arc<str>>,
    running: usize,
    waiting: usize,
    numbers: u64,
}

struct Owner<T> {
    running: usize,
    waiting: VecDeque<(u64, T)>,
}

impl<T> Default for Owner<T> {
    fn default() -> Self {
        Self { running: 0, waiting: VecDeque::new() }
    }
}

impl<T> State<T> {
    pub(super) fn new(bounds: Bounds) -> Self {
        let bounds = Bounds { running: bounds.running.max(1), ..bounds };
        Self { bounds, owners: HashMap::new(), in_turn: VecDeque::new(), running: 0, waiting: 0, numbers: 0 }
    }

    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) const fn running(&self) -> usize {
        self.running
    }

    /// Takes a place to run, if one is free: nobody waits then.
    pub(super) fn begin_at_once(&mut self, owner: &Arc<str>) -> bool {
        let is_free = self.running < self.bounds.running;
        if is_free {
            self.running += 1;
            self.owners.entry(Arc::clone(owner)).or_default().running += 1;
        }
        is_free
    }

    /// Takes a place among those who wait, and returns its number; none when there is no room.
    pub(super) fn wait(&mut self, owner: &Arc<str>, told: T) -> Option<u64> {
        let waiting_of_owner = self.owners.get(owner).map_or(0, |owner| owner.waiting.len());
        if waiting_of_owner >= self.bounds.waiting_per_owner || self.waiting >= self.bounds.waiting {
            return None;
        }
        self.numbers += 1;
        self.waiting += 1;
        self.owners.entry(Arc::clone(owner)).or_default().waiting.push_back((self.numbers, told));
        if waiting_of_owner == 0 {
            self.in_turn.push_back(Arc::clone(owner));
        }
        Some(self.numbers)
    }

    /// Gives up a place among those who wait, if it is still there.
    pub(super) fn leave(&mut self, owner: &str, number: u64) {
        let Some(of_owner) = self.owners.get_mut(owner) else { return };
        let before = of_owner.waiting.len();
        of_owner.waiting.retain(|(other, _)| *other != number);
        if of_owner.waiting.len() < before {
            self.waiting -= 1;
            self.tidy(owner);
        }
    }

    /// Ends a run, and begins that of the next who waits.
    pub(super) fn next(&mut self, ended: &str) -> Option<(Arc<str>, T)> {
        self.running = self.running.saturating_sub(1);
        if let Some(owner) = self.owners.get_mut(ended) {
            owner.running = owner.running.saturating_sub(1);
        }
        let next = self.take();
        self.tidy(ended);
        next
    }

    fn take(&mut self) -> Option<(Arc<str>, T)> {
        let running = |owner: &Arc<str>| self.owners.get(owner).map_or(0, |owner| owner.running);
        // Of equals, the first.
        let (place, _) = self.in_turn.iter().enumerate().min_by_key(|(_, owner)| running(owner))?;
        let owner = self.in_turn.remove(place)?;
        let of_owner = self.owners.get_mut(&owner)?;
        let (_, told) = of_owner.waiting.pop_front()?;
        of_owner.running += 1;
        if !of_owner.waiting.is_empty() {
            self.in_turn.push_back(Arc::clone(&owner));
        }
        self.waiting -= 1;
        self.running += 1;
        Some((owner, told))
    }

    /// Forgets an owner of whom none wait, or nothing is left.
    fn tidy(&mut self, owner: &str) {
        let Some(of_owner) = self.owners.get(owner) else { return };
        if of_owner.waiting.is_empty() {
            self.in_turn.retain(|other| **other != *owner);
            if of_owner.running == 0 {
                self.owners.remove(owner);
            }
        }
    }

    /// Whether what is counted is what is there.
    #[cfg(test)]
    pub(super) fn is_consistent(&self) -> bool {
        let running: usize = self.owners.values().map(|owner| owner.running).sum();
        let waiting: usize = self.owners.values().map(|owner| owner.waiting.len()).sum();
        let in_turn = self.in_turn.iter().all(|owner| !self.owners[owner].waiting.is_empty());
        let each_once = self.in_turn.len() == self.owners.values().filter(|owner| !owner.waiting.is_empty()).count();
        let none_idle = waiting == 0 || running == self.bounds.running;
        let none_left = self.owners.values().all(|owner| owner.running > 0 || !owner.waiting.is_empty());
        (running, waiting) == (self.running, self.waiting) && in_turn && each_once && none_idle && none_left
    }
}
