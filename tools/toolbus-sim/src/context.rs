//! Context that all parts of one schedule share: its clock, its choices, its faults, and its trace.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use toolbus_core::Clock;

use crate::chance::Chance;

/// Fault that can happen: first those that a single message or operation meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A message is routed, and its publisher gets no confirm.
    ConfirmLost,
    /// A message is lost before the broker has it; its publisher gets no confirm.
    MessageLost,
    /// A message is routed twice.
    Duplicate,
    /// A mandatory message is returned, as if no queue took it.
    Returned,
    /// The broker nacks a publish.
    Nacked,
    /// A message overtakes those that wait before it.
    Reordered,
    /// An operation of the ledger fails; it may have been done.
    LedgerFailed,
    /// A message or a settlement takes up to two seconds.
    Delayed,
    /// A connection is lost: what was not acknowledged is delivered again.
    ConnectionLost,
    /// The broker does nothing for a while.
    BrokerFrozen,
    /// The broker loses all connections and every message that is not persistent.
    BrokerRestarted,
    /// A daemon ends without a word, and starts again.
    DaemonCrashed,
    /// A daemon drains, and starts again.
    DaemonDrained,
    /// A caller repeats a request that was taken.
    RequestRepeated,
    /// A caller cancels a call.
    CallCancelled,
}

impl Fault {
    /// Every one.
    pub const ALL: [Self; 15] = [
        Self::ConfirmLost,
        Self::MessageLost,
        Self::Duplicate,
        Self::Returned,
        Self::Nacked,
        Self::Reordered,
        Self::LedgerFailed,
        Self::Delayed,
        Self::ConnectionLost,
        Self::BrokerFrozen,
        Self::BrokerRestarted,
        Self::DaemonCrashed,
        Self::DaemonDrained,
        Self::RequestRepeated,
        Self::CallCancelled,
    ];

    /// Returns the name of the fault in the trace and in the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ConfirmLost => "confirm lost",
            Self::MessageLost => "message lost",
            Self::Duplicate => "message duplicated",
            Self::Returned => "message returned",
            Self::Nacked => "message nacked",
            Self::Reordered => "message reordered",
            Self::LedgerFailed => "ledger failed",
            Self::Delayed => "message delayed",
            Self::ConnectionLost => "connection lost",
            Self::BrokerFrozen => "broker frozen",
            Self::BrokerRestarted => "broker restarted",
            Self::DaemonCrashed => "daemon crashed",
            Self::DaemonDrained => "daemon drained",
            Self::RequestRepeated => "request repeated",
            Self::CallCancelled => "call cancelled",
        }
    }
}

/// Number of times that each fault happened.
pub type Faults = BTreeMap<Fault, u64>;

/// Context that all parts of a schedule share.
pub(crate) struct ScheduleContext {
    pub(crate) clock: Clock,
    pub(crate) chance: Chance,
    start: Instant,
    /// Frequency of each fault of messages, in a hundred messages.
    odds: BTreeMap<Fault, u64>,
    /// Whether nothing goes wrong any more.
    healed: AtomicBool,
    trace: Mutex<(String, Faults)>,
}

impl ScheduleContext {
    /// To be called within a paused runtime. Most faults of single messages are left out of each schedule, so that some
    /// schedules have many of one kind.
    pub(crate) fn new(seed: u64) -> Self {
        let (clock, chance) = (Clock::paused(), Chance::seeded(seed));
        let odds = Fault::ALL.into_iter().take_while(|fault| *fault <= Fault::Delayed).filter(|_| chance.percent(40));
        let odds = odds.map(|fault| (fault, chance.number(2..=30))).collect();
        Self { clock, chance, start: clock.now(), odds, healed: AtomicBool::new(false), trace: Mutex::default() }
    }

    /// Time since the schedule began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.since(self.start)
    }

    /// Writes a line of the trace.
    pub(crate) fn note(&self, actor: impl Display, what: impl Display) {
        let _ = writeln!(self.trace.lock().0, "{:>10.3}  {actor:<12}  {what}", self.elapsed().as_secs_f64());
    }

    /// Whether a fault meets the message that is described.
    pub(crate) fn strikes(&self, fault: Fault, actor: &str, message: impl Display) -> bool {
        let often = self.odds.get(&fault).copied().unwrap_or_default();
        let strikes = !self.healed.load(Ordering::Relaxed) && self.chance.percent(often);
        if strikes {
            self.count(fault, actor, message);
        }
        strikes
    }

    /// Counts a fault, and notes it.
    pub(crate) fn count(&self, fault: Fault, actor: &str, of: impl Display) {
        self.note(actor, format_args!("!! {}: {of}", fault.as_str()));
        *self.trace.lock().1.entry(fault).or_default() += 1;
    }

    /// Ends the faults of messages.
    pub(crate) fn heal(&self) {
        self.healed.store(true, Ordering::Relaxed);
        self.note("-", "nothing goes wrong any more");
    }

    /// Whether a fault has happened.
    pub(crate) fn has_met(&self, fault: Fault) -> bool {
        self.trace.lock().1.contains_key(&fault)
    }

    /// The trace, and the faults that happened.
    pub(crate) fn end(&self) -> (String, Faults) {
        std::mem::take(&mut self.trace.lock())
    }
}

/// A value that is waited for. Those that wait go on in the order in which they began, which `watch` leaves to chance.
#[derive(Debug)]
pub(crate) struct Observed<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Copy> Observed<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Notify::new() }
    }

    pub(crate) fn get(&self) -> T {
        *self.value.lock()
    }

    pub(crate) fn set(&self, value: T) {
        *self.value.lock() = value;
        self.changed.notify_waiters();
    }

    /// The value, as soon as it is as wanted.
    pub(crate) async fn wait_for(&self, is_wanted: impl Fn(T) -> bool) -> T {
        loop {
            let changed = self.changed.notified();
            let value = self.get();
            if is_wanted(value) {
                return value;
            }
            changed.await;
        }
    }
}
