//! Behaviour of every ledger. A new one joins in [`ledgers`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use toolbus_core::Clock;
use toolbus_core::ledger::{
    Begin, Begun, ENTRY_BYTES, EntryState, Fingerprint, Finished, Ledger, LedgerEntry, LedgerLimits, RequestKey,
    RunToken,
};
use toolbus_store::{MemoryLedger, RedisLedger, SqliteLedger};
use toolbus_testing::redis::RedisServer;

use crate::redis::store_of;

const HOUR: Duration = Duration::from_secs(3600);
const ROOMY: LedgerLimits = LedgerLimits { max_entries: 10_000, max_bytes: 64 * 1024 * 1024 };

/// A ledger, how its time passes, and where it keeps what it knows.
struct Subject {
    ledger: Arc<dyn Ledger>,
    clock: Clock,
    _folder: Option<TempDir>,
    redis: Option<(Arc<RedisLedger>, RedisServer)>,
}

/// An empty ledger of each kind.
async fn ledgers(limits: LedgerLimits) -> Vec<Subject> {
    let clock = Clock::manual();
    let folder = tempfile::tempdir().unwrap();
    let sqlite = SqliteLedger::open(&folder.path().join("store.db"), limits, clock).unwrap();
    let server = RedisServer::start().await;
    let redis = Arc::new(RedisLedger::new(Arc::new(store_of(&server.url())), limits));
    let subject = |ledger, folder, redis| Subject { ledger, clock, _folder: folder, redis };
    vec![
        subject(Arc::new(MemoryLedger::new(limits, clock)) as Arc<dyn Ledger>, None, None),
        subject(Arc::new(sqlite), Some(folder), None),
        subject(Arc::clone(&redis) as _, None, Some((redis, server))),
    ]
}

impl Subject {
    fn pass(&self, time: Duration) {
        self.clock.advance(time);
        if let Some((ledger, _)) = &self.redis {
            ledger.advance(time);
        }
    }

    async fn begin(&self, begin: Begin) -> Begun {
        self.ledger.begin(begin).await.unwrap()
    }

    async fn finish(&self, number: u64, run: u8, reply: &'static str) -> Finished {
        self.ledger.finish(key(number), token(run), Bytes::from_static(reply.as_bytes())).await.unwrap()
    }

    async fn state(&self, number: u64) -> Option<EntryState> {
        self.ledger.look_up(key(number)).await.unwrap().map(|entry| entry.state)
    }

    async fn is_answered(&self, number: u64) -> bool {
        matches!(self.state(number).await, Some(EntryState::Answered(_)))
    }
}

pub(crate) fn key(number: u64) -> RequestKey {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    RequestKey(bytes)
}

pub(crate) fn token(run: u8) -> RunToken {
    RunToken([run; 16])
}

pub(crate) fn begin(number: u64, run: u8) -> Begin {
    Begin {
        key: key(number),
        fingerprint: Fingerprint([9; 32]),
        run: token(run),
        instance: "one".into(),
        ttl: HOUR,
        replaces: false,
    }
}

fn answered(reply: &'static str) -> Option<EntryState> {
    Some(EntryState::Answered(Bytes::from_static(reply.as_bytes())))
}

fn started(run: u8, is_live: bool) -> EntryState {
    EntryState::Started { run: token(run), instance: "one".into(), is_live }
}

#[tokio::test]
async fn a_run_begins_once_and_ends_once() {
    for subject in ledgers(ROOMY).await {
        assert_eq!(subject.state(1).await, None);
        assert_eq!(subject.begin(begin(1, 1)).await, Begun::Begun);
        let known = LedgerEntry { fingerprint: Fingerprint([9; 32]), state: started(1, false) };
        let other = Begin { fingerprint: Fingerprint([1; 32]), ..begin(1, 2) };
        assert_eq!(subject.begin(other).await, Begun::Known(known), "unchanged");
        assert_eq!(subject.finish(1, 1, "paid").await, Finished::Stored);
        assert_eq!(subject.state(1).await, answered("paid"));
        let known = LedgerEntry { fingerprint: Fingerprint([9; 32]), state: answered("paid").unwrap() };
        assert_eq!(subject.begin(begin(1, 3)).await, Begun::Known(known));
        assert_eq!(subject.state(2).await, None, "another request");
    }
}

#[tokio::test]
async fn the_second_reply_of_a_run_returns_the_first() {
    for subject in ledgers(ROOMY).await {
        subject.begin(begin(1, 1)).await;
        assert_eq!(subject.finish(1, 1, "unknown").await, Finished::Stored);
        let first = Bytes::from_static(b"unknown");
        assert_eq!(subject.finish(1, 1, "paid").await, Finished::Superseded(first));
        assert_eq!(subject.state(1).await, answered("unknown"));
    }
}

#[tokio::test]
async fn operations_may_be_repeated() {
    for subject in ledgers(ROOMY).await {
        assert_eq!(subject.begin(begin(1, 1)).await, Begun::Begun);
        assert_eq!(subject.begin(begin(1, 1)).await, Begun::Begun, "the same run");
        assert_eq!(subject.finish(1, 1, "paid").await, Finished::Stored);
        assert_eq!(subject.finish(1, 1, "paid").await, Finished::Stored, "the same reply");
        assert_eq!(subject.ledger.usage().entries, 1);
    }
}

#[tokio::test]
async fn another_run_neither_finishes_nor_releases() {
    for subject in ledgers(ROOMY).await {
        subject.begin(begin(1, 1)).await;
        assert_eq!(subject.finish(1, 2, "paid").await, Finished::Forgotten);
        assert_eq!(subject.finish(2, 1, "paid").await, Finished::Forgotten);
        subject.ledger.release(key(1), token(2)).await.unwrap();
        assert_eq!(subject.state(1).await, Some(started(1, false)));
    }
}

#[tokio::test]
async fn a_released_run_can_be_begun_again_and_an_answered_one_cannot_be_released() {
    for subject in ledgers(ROOMY).await {
        subject.begin(begin(1, 1)).await;
        subject.ledger.release(key(1), token(1)).await.unwrap();
        assert_eq!(subject.state(1).await, None);
        assert_eq!(subject.finish(1, 1, "late").await, Finished::Forgotten);
        assert_eq!(subject.begin(begin(1, 2)).await, Begun::Begun);
        subject.finish(1, 2, "paid").await;
        subject.ledger.release(key(1), token(2)).await.unwrap();
        assert_eq!(subject.state(1).await, answered("paid"));
    }
}

#[tokio::test]
async fn a_request_that_replaces_another_takes_its_entry() {
    for subject in ledgers(ROOMY).await {
        subject.begin(begin(1, 1)).await;
        subject.finish(1, 1, "paid").await;
        assert_eq!(subject.begin(Begin { replaces: true, ..begin(1, 2) }).await, Begun::Begun);
        assert_eq!(subject.state(1).await, Some(started(2, false)));
        assert_eq!(subject.finish(1, 1, "late").await, Finished::Forgotten);
        assert_eq!(subject.ledger.usage().bytes, ENTRY_BYTES);
    }
}

#[tokio::test]
async fn a_daemon_is_alive_until_its_lease_lapses() {
    for subject in ledgers(ROOMY).await {
        subject.begin(begin(1, 1)).await;
        subject.ledger.renew("other".into(), Duration::from_secs(60)).await.unwrap();
        assert_eq!(subject.state(1).await, Some(started(1, false)), "another's lease");
        subject.ledger.renew("one".into(), Duration::from_secs(5)).await.unwrap();
        assert_eq!(subject.state(1).await, Some(started(1, true)));
        subject.pass(Duration::from_secs(3));
        subject.ledger.renew("one".into(), Duration::from_secs(5)).await.unwrap();
        subject.pass(Duration::from_secs(3));
        assert_eq!(subject.state(1).await, Some(started(1, true)));
        subject.pass(Duration::from_secs(3));
        assert_eq!(subject.state(1).await, Some(started(1, false)));
    }
}

#[tokio::test]
async fn entries_expire() {
    for subject in ledgers(ROOMY).await {
        for (number, run) in [(1, 1), (2, 2)] {
            subject.begin(begin(number, run)).await;
        }
        subject.finish(1, 1, "paid").await;
        subject.pass(HOUR - Duration::from_secs(1));
        assert!(subject.is_answered(1).await, "it counts from the begin");
        subject.pass(Duration::from_secs(2));
        assert_eq!((subject.state(1).await, subject.state(2).await), (None, None));
        assert_eq!(subject.finish(2, 2, "late").await, Finished::Forgotten);
        assert_eq!(subject.begin(begin(1, 3)).await, Begun::Begun);
        assert_eq!(subject.finish(1, 3, "anew").await, Finished::Stored);
    }
}

#[tokio::test]
async fn expired_entries_are_removed_as_others_begin() {
    for subject in ledgers(ROOMY).await {
        for number in 0..100 {
            subject.begin(begin(number, 1)).await;
            subject.finish(number, 1, "paid").await;
        }
        subject.pass(HOUR * 2);
        for number in 100..200 {
            subject.begin(begin(number, 1)).await;
        }
        assert_eq!((subject.ledger.usage().entries, subject.ledger.usage().shed), (100, 0));
    }
}

#[tokio::test]
async fn expired_entries_are_removed_though_older_ones_live_longer() {
    for subject in ledgers(LedgerLimits { max_entries: 150, ..ROOMY }).await {
        for number in 0..120 {
            let ttl = if number < 20 { HOUR * 24 } else { HOUR / 4 };
            subject.begin(Begin { ttl, ..begin(number, 1) }).await;
            subject.finish(number, 1, "paid").await;
        }
        subject.pass(HOUR);
        for number in 120..220 {
            assert_eq!(subject.begin(begin(number, 1)).await, Begun::Begun);
        }
        assert_eq!((subject.ledger.usage().entries, subject.ledger.usage().shed), (120, 0));
        assert!(subject.is_answered(0).await && subject.is_answered(19).await);
    }
}

#[tokio::test]
async fn expired_entries_make_room_for_a_reply_before_others() {
    for subject in ledgers(LedgerLimits { max_bytes: 100 * ENTRY_BYTES, ..ROOMY }).await {
        for number in 0..100 {
            let ttl = if number == 0 { HOUR * 24 } else { HOUR / 4 };
            assert_eq!(subject.begin(Begin { ttl, ..begin(number, 1) }).await, Begun::Begun);
        }
        subject.finish(0, 1, "").await;
        subject.pass(HOUR);
        assert_eq!(subject.begin(begin(100, 1)).await, Begun::Begun);
        let reply = vec![b'x'; 20 * ENTRY_BYTES as usize].into();
        assert_eq!(subject.ledger.finish(key(100), token(1), reply).await, Ok(Finished::Stored));
        assert_eq!(subject.ledger.usage().shed, 0);
        assert!(subject.is_answered(0).await && subject.is_answered(100).await);
    }
}

#[tokio::test]
async fn the_oldest_answered_entries_make_room_and_started_ones_never_do() {
    for subject in ledgers(LedgerLimits { max_entries: 4, ..ROOMY }).await {
        for number in 0..4 {
            assert_eq!(subject.begin(begin(number, 1)).await, Begun::Begun);
        }
        assert_eq!(subject.begin(begin(4, 1)).await, Begun::Full);
        assert_eq!(subject.state(4).await, None);
        for number in [2, 1] {
            subject.finish(number, 1, "paid").await;
        }
        assert_eq!(subject.begin(begin(4, 1)).await, Begun::Begun);
        assert_eq!((subject.state(1).await, subject.is_answered(2).await), (None, true), "by the order of their begin");
        assert_eq!(subject.begin(begin(5, 1)).await, Begun::Begun);
        assert_eq!(subject.begin(begin(6, 1)).await, Begun::Full);
        let usage = subject.ledger.usage();
        assert_eq!((usage.entries, usage.bytes, usage.shed), (4, 4 * ENTRY_BYTES, 2));
        for number in [0, 3, 4, 5] {
            assert_eq!(subject.state(number).await, Some(started(1, false)));
        }
    }
}

#[tokio::test]
async fn replies_are_limited_in_bytes() {
    const REPLY: &str = "0123456789";
    let max_bytes = 3 * (ENTRY_BYTES + 10);
    for subject in ledgers(LedgerLimits { max_bytes, ..ROOMY }).await {
        for number in 0..20 {
            assert_eq!(subject.begin(begin(number, 1)).await, Begun::Begun);
            assert_eq!(subject.finish(number, 1, REPLY).await, Finished::Stored);
            assert!(subject.ledger.usage().bytes <= max_bytes);
        }
        let usage = subject.ledger.usage();
        assert_eq!((usage.entries, usage.shed), (3, 17));
        assert!(subject.is_answered(19).await && subject.is_answered(17).await && !subject.is_answered(16).await);
    }
}

#[tokio::test]
async fn of_many_concurrent_begins_one_succeeds() {
    for subject in ledgers(ROOMY).await {
        let mut runs = tokio::task::JoinSet::new();
        for run in 0..100 {
            let ledger = Arc::clone(&subject.ledger);
            runs.spawn(async move { ledger.begin(begin(u64::from(run % 10), run)).await.unwrap() });
        }
        let begun = runs.join_all().await.into_iter().filter(|begun| *begun == Begun::Begun).count();
        assert_eq!(begun, 10);
    }
}
