//! Use of a ledger by two daemons for one request, as a model: every order of deliveries, crashes, lost connections,
//! late replies, lapsed leases and expiry is explored.

use std::collections::{BTreeSet, HashSet};

/// The reply of a run whose end is not known; other replies are named by their runs, from 1.
const UNKNOWN: u8 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Entry {
    Absent,
    Started { run: u8, is_live: bool },
    Answered { run: u8, reply: u8 },
}

/// Step of a daemon with the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Idle,
    LookUp,
    /// Waits for the run of another.
    Wait(u8),
    /// Replies that the end of a run is not known.
    Resolve(u8),
    Begin,
    Run(u8),
    Finish(u8),
    Publish(u8),
    Acknowledge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    entry: Entry,
    daemons: [Step; 2],
    /// Whether the broker waits for the acknowledgement of each.
    held: [bool; 2],
    /// Copies of the message in the queue.
    queued: u8,
    runs: u8,
    effects: u8,
    replies: BTreeSet<u8>,
    expired: u8,
    /// Number of times that each may still happen.
    duplicates: u8,
    crashes: u8,
    losses: u8,
    lapses: u8,
    expiries: u8,
}

/// A rule of the ledger that is left out, to see that it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// An entry does not keep a run from beginning.
    BeginOnce,
    /// A later reply replaces an earlier one.
    FinishOnce,
    /// A reply with an unknown outcome is sent and not recorded.
    RecordOfUnknown,
    /// A reply is published before it is recorded.
    RecordFirst,
}

impl World {
    fn new(expiries: u8) -> Self {
        Self {
            entry: Entry::Absent,
            daemons: [Step::Idle; 2],
            held: [false; 2],
            queued: 1,
            runs: 0,
            effects: 0,
            replies: BTreeSet::new(),
            expired: 0,
            duplicates: 1,
            crashes: 2,
            losses: 2,
            lapses: 1,
            expiries,
        }
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    /// The entry has this reply now, or had another; the one that holds.
    fn finish(&mut self, run: u8, reply: u8, without: Without) -> Option<u8> {
        match self.entry {
            Entry::Started { run: begun, .. } if begun == run => {
                self.entry = Entry::Answered { run, reply };
                Some(reply)
            }
            Entry::Answered { run: begun, reply: first } if begun == run => {
                let holds = if without == Without::FinishOnce { reply } else { first };
                self.entry = Entry::Answered { run, reply: holds };
                Some(holds)
            }
            _ => None,
        }
    }

    /// Takes the next step of a daemon.
    fn step(&mut self, daemon: usize, without: Without) {
        self.daemons[daemon] = match self.daemons[daemon] {
            Step::Idle => Step::Idle,
            Step::LookUp => match self.entry {
                Entry::Absent => Step::Begin,
                Entry::Started { run, is_live: true } => Step::Wait(run),
                Entry::Started { run, is_live: false } => Step::Resolve(run),
                Entry::Answered { reply, .. } => Step::Publish(reply),
            },
            Step::Wait(_) => Step::LookUp,
            Step::Resolve(_) if without == Without::RecordOfUnknown => Step::Publish(UNKNOWN),
            Step::Resolve(run) => self.finish(run, UNKNOWN, without).map_or(Step::LookUp, Step::Publish),
            Step::Begin if self.entry == Entry::Absent || without == Without::BeginOnce => {
                self.runs += 1;
                self.entry = Entry::Started { run: self.runs, is_live: true };
                Step::Run(self.runs)
            }
            Step::Begin => Step::LookUp,
            Step::Run(run) => {
                self.effects += 1;
                Step::Finish(run)
            }
            Step::Finish(run) if without == Without::RecordFirst => {
                self.replies.insert(run);
                let _ = self.finish(run, run, without);
                Step::Acknowledge
            }
            Step::Finish(run) => Step::Publish(self.finish(run, run, without).unwrap_or(run)),
            Step::Publish(reply) => {
                self.replies.insert(reply);
                Step::Acknowledge
            }
            Step::Acknowledge => {
                self.held[daemon] = false;
                Step::Idle
            }
        };
    }

    /// Every world that may come next.
    fn next(&self, without: Without) -> Vec<Self> {
        let mut all = Vec::new();
        for daemon in 0..2 {
            let step = self.daemons[daemon];
            if step != Step::Idle {
                all.push(self.with(|world| world.step(daemon, without)));
            }
            if let Step::Wait(run) = step {
                // Its deadline is over.
                all.push(self.with(|world| world.daemons[daemon] = Step::Resolve(run)));
            }
            if self.queued > 0 && !self.held[daemon] {
                // A daemon that has the request under way only takes the delivery over.
                let step = if step == Step::Idle { Step::LookUp } else { step };
                all.push(self.with(|world| {
                    (world.queued, world.held[daemon], world.daemons[daemon]) = (self.queued - 1, true, step);
                }));
            }
            let back = u8::from(self.held[daemon]);
            if self.crashes > 0 && step != Step::Idle {
                all.push(self.with(|world| {
                    (world.crashes, world.queued) = (self.crashes - 1, self.queued + back);
                    (world.held[daemon], world.daemons[daemon]) = (false, Step::Idle);
                }));
            }
            if self.losses > 0 && self.held[daemon] {
                all.push(self.with(|world| {
                    (world.losses, world.queued, world.held[daemon]) = (self.losses - 1, self.queued + 1, false);
                }));
            }
        }
        if self.duplicates > 0 {
            all.push(self.with(|world| (world.duplicates, world.queued) = (self.duplicates - 1, self.queued + 1)));
        }
        if let Entry::Started { run, is_live: true } = self.entry {
            // Without end for the run of a process that is gone; of one that is slow, sometimes.
            let is_gone =
                !self.daemons.iter().any(|step| matches!(step, Step::Run(of) | Step::Finish(of) if *of == run));
            if is_gone || self.lapses > 0 {
                all.push(self.with(|world| {
                    world.entry = Entry::Started { run, is_live: false };
                    world.lapses = if is_gone { self.lapses } else { self.lapses - 1 };
                }));
            }
        }
        if self.expiries > 0 && self.entry != Entry::Absent {
            all.push(self.with(|world| {
                (world.entry, world.expired, world.expiries) = (Entry::Absent, self.expired + 1, self.expiries - 1);
            }));
        }
        all
    }

    fn broken(&self) -> Option<&'static str> {
        let is_over = self.queued == 0 && self.daemons == [Step::Idle; 2];
        if self.effects > 1 + self.expired {
            Some("the tool had its effect twice")
        } else if self.replies.len() > usize::from(1 + 2 * self.expired) {
            // Beside the reply of the run that comes after it, an entry that expires costs the one that comes too late.
            Some("there are different replies")
        } else if is_over && self.replies.is_empty() {
            Some("there is no reply")
        } else {
            None
        }
    }
}

/// Explores every world from the first; how many there are, or what is broken in one of them.
fn explore(expiries: u8, without: Without) -> Result<usize, (&'static str, World)> {
    let mut known = HashSet::from([World::new(expiries)]);
    let mut left: Vec<World> = known.iter().cloned().collect();
    while let Some(world) = left.pop() {
        if let Some(broken) = world.broken() {
            return Err((broken, world));
        }
        for next in world.next(without) {
            if known.insert(next.clone()) {
                left.push(next);
            }
        }
    }
    Ok(known.len())
}

#[test]
fn no_order_of_events_runs_a_request_twice_or_replies_twice() {
    let worlds = explore(0, Without::Nothing).unwrap();
    assert!(worlds > 10_000, "{worlds} worlds");
}

#[test]
fn an_entry_that_expires_costs_one_more_run_at_most() {
    let worlds = explore(1, Without::Nothing).unwrap();
    assert!(worlds > 10_000, "{worlds} worlds");
}

#[test]
fn each_rule_is_needed() {
    let broken = |without| explore(0, without).unwrap_err().0;
    assert_eq!(broken(Without::BeginOnce), "the tool had its effect twice");
    assert_eq!(broken(Without::FinishOnce), "there are different replies");
    assert_eq!(broken(Without::RecordOfUnknown), "there are different replies");
    assert_eq!(broken(Without::RecordFirst), "there are different replies");
}
