//! Any steps, in any order, give the same with each ledger as with the simplest one that could be written, also when a file
//! is closed and opened again between them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use toolbus_core::Clock;
use toolbus_core::ledger::{Begin, Begun, EntryState, Fingerprint, Finished, Ledger, LedgerEntry, LedgerLimits};
use toolbus_store::{MemoryLedger, SqliteLedger};

use crate::ledger_contract::{key, token};

const LIMITS: LedgerLimits = LedgerLimits { max_entries: 100, max_bytes: 1024 * 1024 };
const TTL: u64 = 3600;
const LEASE: u64 = 5;

/// Keys, runs and replies are numbers below 3; the daemon of a run is its number.
#[derive(Debug, Clone)]
enum Step {
    LookUp(u8),
    Begin { key: u8, run: u8, replaces: bool },
    Finish { key: u8, run: u8, reply: u8 },
    Release { key: u8, run: u8 },
    Renew(u8),
    Pass(u64),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let number = || 0..3_u8;
    prop_oneof![
        2 => number().prop_map(Step::LookUp),
        4 => (number(), number(), prop::bool::weighted(0.2))
            .prop_map(|(key, run, replaces)| Step::Begin { key, run, replaces }),
        4 => (number(), number(), number()).prop_map(|(key, run, reply)| Step::Finish { key, run, reply }),
        2 => (number(), number()).prop_map(|(key, run)| Step::Release { key, run }),
        1 => number().prop_map(Step::Renew),
        2 => prop::sample::select(vec![1, LEASE, TTL / 2]).prop_map(Step::Pass),
        1 => Just(Step::Reopen),
    ]
}

/// Result of a step.
#[derive(Debug, PartialEq)]
enum Given {
    Entry(Option<LedgerEntry>),
    Begun(Begun),
    Finished(Finished),
    Nothing,
}

#[derive(Clone)]
struct Kept {
    run: u8,
    expires: u64,
    reply: Option<u8>,
}

/// The simplest ledger.
#[derive(Default)]
struct Simple {
    now: u64,
    entries: [Option<Kept>; 3],
    leases: [u64; 3],
}

impl Simple {
    fn entry(&mut self, key: u8) -> &mut Option<Kept> {
        let now = self.now;
        let entry = &mut self.entries[usize::from(key)];
        *entry = entry.take().filter(|kept| kept.expires > now);
        entry
    }

    fn described(&mut self, key: u8) -> Option<LedgerEntry> {
        let Kept { run, reply, .. } = self.entry(key).clone()?;
        let is_live = self.leases[usize::from(run)] > self.now;
        let state = match reply {
            Some(reply) => EntryState::Answered(bytes(reply)),
            None => EntryState::Started { run: token(run), instance: instance(run), is_live },
        };
        Some(LedgerEntry { fingerprint: Fingerprint([9; 32]), state })
    }

    fn take(&mut self, step: &Step) -> Given {
        match *step {
            Step::LookUp(key) => Given::Entry(self.described(key)),
            Step::Begin { key, run, replaces } => {
                let known = self.entry(key).as_ref().map(|kept| kept.run);
                if let Some(entry) = self.described(key).filter(|_| known != Some(run) && !replaces) {
                    return Given::Begun(Begun::Known(entry));
                }
                if known != Some(run) {
                    *self.entry(key) = Some(Kept { run, expires: self.now + TTL, reply: None });
                }
                Given::Begun(Begun::Begun)
            }
            Step::Finish { key, run, reply } => {
                Given::Finished(match self.entry(key).as_mut().filter(|kept| kept.run == run) {
                    None => Finished::Forgotten,
                    Some(Kept { reply: Some(first), .. }) if *first != reply => Finished::Superseded(bytes(*first)),
                    Some(kept) => {
                        kept.reply = Some(reply);
                        Finished::Stored
                    }
                })
            }
            Step::Release { key, run } => {
                let entry = self.entry(key);
                *entry = entry.take().filter(|kept| kept.run != run || kept.reply.is_some());
                Given::Nothing
            }
            Step::Renew(run) => {
                self.leases[usize::from(run)] = self.now + LEASE;
                Given::Nothing
            }
            Step::Pass(time) => {
                self.now += time;
                Given::Nothing
            }
            Step::Reopen => Given::Nothing,
        }
    }
}

async fn take(ledger: &dyn Ledger, step: &Step) -> Given {
    match *step {
        Step::LookUp(key) => Given::Entry(ledger.look_up(self::key(key.into())).await.unwrap()),
        Step::Begin { key, run, replaces } => {
            let (fingerprint, ttl) = (Fingerprint([9; 32]), Duration::from_secs(TTL));
            let key = self::key(key.into());
            let begin = Begin { key, fingerprint, run: token(run), instance: instance(run), ttl, replaces };
            Given::Begun(ledger.begin(begin).await.unwrap())
        }
        Step::Finish { key, run, reply } => {
            Given::Finished(ledger.finish(self::key(key.into()), token(run), bytes(reply)).await.unwrap())
        }
        Step::Release { key, run } => {
            ledger.release(self::key(key.into()), token(run)).await.unwrap();
            Given::Nothing
        }
        Step::Renew(run) => {
            ledger.renew(instance(run), Duration::from_secs(LEASE)).await.unwrap();
            Given::Nothing
        }
        Step::Pass(_) | Step::Reopen => Given::Nothing,
    }
}

fn instance(run: u8) -> Arc<str> {
    format!("daemon-{run}").into()
}

fn bytes(reply: u8) -> Bytes {
    Bytes::from(vec![reply; 10])
}

fn compare(steps: &[Step], clock: Clock, mut open: impl FnMut() -> Arc<dyn Ledger>) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (mut simple, mut ledger) = (Simple::default(), open());
    for step in steps {
        match step {
            Step::Pass(time) => clock.advance(Duration::from_secs(*time)),
            Step::Reopen => {
                drop(ledger);
                ledger = open();
            }
            _ => {}
        }
        prop_assert_eq!(runtime.block_on(take(&*ledger, step)), simple.take(step), "{:?}", step);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_steps_give_the_same_in_memory(steps in vec(step(), 1..60)) {
        let clock = Clock::manual();
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::new(LIMITS, clock));
        compare(&steps, clock, || Arc::clone(&ledger))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

    #[test]
    fn any_steps_give_the_same_with_a_file_that_is_opened_again(steps in vec(step(), 1..60)) {
        let (clock, folder) = (Clock::manual(), tempfile::tempdir().unwrap());
        let open = |path: &Path| Arc::new(SqliteLedger::open(path, LIMITS, clock).unwrap()) as Arc<dyn Ledger>;
        compare(&steps, clock, || open(&folder.path().join("store.db")))?;
    }
}
