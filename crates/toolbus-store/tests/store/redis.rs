use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use toolbus_core::Clock;
use toolbus_core::ledger::{Begin, Begun, EntryState, Ledger, LedgerLimits};
use toolbus_core::store::Store;
use toolbus_store::{Redis, RedisLedger, RedisSettings, RedisTls};
use toolbus_testing::patience::eventually;
use toolbus_testing::proxy::Proxy;
use toolbus_testing::redis::{PASSWORD, RedisServer, url_at};

use crate::ledger_contract::{begin, key, token};

/// Longer than any operation may take.
const LONGEST: Duration = Duration::from_secs(20);

/// The store of a deployment on this server.
fn store_at(url: &str, prefix: &str, tls: Option<RedisTls>) -> Redis {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let settings = RedisSettings { url: url.parse().unwrap(), tls, prefix: prefix.to_owned() };
    Redis::new(&settings, Clock::SYSTEM).unwrap()
}

pub(crate) fn store_of(url: &str) -> Redis {
    store_at(url, "test", None)
}

/// Reason why the store cannot be read. The password is never in the reason.
async fn failure(store: &Redis) -> String {
    let error = timeout(LONGEST, store.get("a", "key")).await.unwrap().unwrap_err().to_string();
    assert!(!error.contains(PASSWORD), "{error}");
    error
}

#[tokio::test]
async fn deployments_on_one_server_are_isolated() {
    let server = RedisServer::start().await;
    let [one, other] = ["one", "other"].map(|prefix| store_at(&server.url(), prefix, None));
    one.put("a", "key", b"of one".to_vec()).await.unwrap();
    assert_eq!(other.get("a", "key").await, Ok(None));
    assert_eq!(other.list("a").await, Ok(Vec::new()));
    one.announce("id", b"one", LONGEST).await.unwrap();
    assert_eq!(other.announce("id", b"other", LONGEST).await.unwrap().1, [b"other".to_vec()]);
    assert!(!other.versions(&["a"]).await.unwrap().have_lost(&other.versions(&["a"]).await.unwrap()));
}

#[tokio::test]
async fn a_killed_server_is_an_error_and_keeps_its_values_when_restarted() {
    let server = RedisServer::start().await;
    let store = store_of(&server.url());
    store.put("a", "key", b"kept".to_vec()).await.unwrap();
    server.kill();
    let refusal = failure(&store).await;
    let address = format!("the store failed: it could not be reached at {}: ", server.address());
    assert!(refusal.starts_with(&address) && refusal.contains("refused"), "{refusal}");
    server.restart().await;
    let found = eventually("the server to be used again", async || store.get("a", "key").await.ok()).await;
    assert_eq!(found, Some(b"kept".to_vec()));
}

#[tokio::test]
async fn an_operation_survives_the_loss_of_an_idle_connection() {
    let server = RedisServer::start().await;
    let store = store_of(&server.url());
    for number in 0..20 {
        store.put("a", "key", vec![number]).await.unwrap();
        server.command("CLIENT KILL TYPE normal SKIPME yes").await;
        assert_eq!(store.get("a", "key").await, Ok(Some(vec![number])));
    }
}

#[tokio::test]
async fn an_operation_ends_in_time_where_the_network_swallows_it() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let store = store_of(&url_at(proxy.address()));
    store.put("a", "key", b"kept".to_vec()).await.unwrap();
    proxy.freeze();
    let first = failure(&store).await;
    assert_eq!(first, format!("the store failed: at {}: no response within 2 s", proxy.address()));
    let second = failure(&store).await;
    assert!(second.contains(&format!("it could not be reached at {}: ", proxy.address())), "{second}");
    proxy.restore();
    let found = eventually("the server to be used again", async || store.get("a", "key").await.ok()).await;
    assert_eq!(found, Some(b"kept".to_vec()));
}

#[tokio::test]
async fn the_error_for_a_wrong_password_does_not_contain_it() {
    let server = RedisServer::start().await;
    let refusal = failure(&store_of(&server.url().replace(PASSWORD, "not-the-password"))).await;
    assert!(
        refusal.contains(&server.address().to_string())
            && refusal.ends_with("it refuses the login; check user and password"),
        "{refusal}"
    );
    assert!(!refusal.contains("not-the-password"), "{refusal}");
}

#[tokio::test]
async fn a_server_behind_tls_is_used_if_its_authority_is_known() {
    let server = RedisServer::start().await;
    let ca = Some(std::fs::read(server.authority()).unwrap());
    let tls = RedisTls { ca, identity: None };
    let store = store_at(&server.tls_url(), "test", Some(tls));
    store.put("a", "key", b"encrypted".to_vec()).await.unwrap();
    assert_eq!(store.get("a", "key").await, Ok(Some(b"encrypted".to_vec())));
    let refusal = failure(&store_at(&server.tls_url(), "test", None)).await;
    assert!(refusal.contains("certificate"), "{refusal}");
}

#[test]
fn a_certificate_that_cannot_be_read_is_refused() {
    let tls =
        RedisTls { ca: Some(b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n".to_vec()), identity: None };
    let settings = RedisSettings { url: "rediss://localhost".parse().unwrap(), tls: Some(tls), prefix: "x".to_owned() };
    assert!(Redis::new(&settings, Clock::SYSTEM).is_err());
}

#[tokio::test]
async fn each_change_of_a_namespace_is_seen_by_other_processes() {
    let server = RedisServer::start().await;
    let (one, other) = (store_of(&server.url()), store_of(&server.url()));
    let watched = ["a", "b"];
    let mut before = other.versions(&watched).await.unwrap();
    one.get("a", "key").await.unwrap();
    one.put("c", "key", Vec::new()).await.unwrap();
    one.delete("a", "key").await.unwrap();
    assert_eq!(one.replace("a", "key", Some(b"x"), Vec::new()).await, Ok(false));
    assert_eq!(other.versions(&watched).await.unwrap(), before);
    for step in 0..4 {
        match step {
            0 => one.put("a", "key", Vec::new()).await.unwrap(),
            1 => assert!(one.delete("a", "key").await.unwrap()),
            2 => assert!(one.replace("b", "key", None, Vec::new()).await.unwrap()),
            _ => one.put("b", "key", Vec::new()).await.unwrap(),
        }
        let now = other.versions(&watched).await.unwrap();
        assert_ne!(now, before, "step {step}");
        assert!(!now.have_lost(&before), "step {step}");
        before = now;
    }
}

#[tokio::test]
async fn data_that_were_lost_or_went_back_are_noticed() {
    let server = RedisServer::start().await;
    let store = store_of(&server.url());
    store.put("a", "key", Vec::new()).await.unwrap();
    store.put("a", "key", Vec::new()).await.unwrap();
    let before = store.versions(&["a"]).await.unwrap();
    server.command("HSET toolbus:{test}:versions of:a 1").await;
    assert!(store.versions(&["a"]).await.unwrap().have_lost(&before));
    server.command("FLUSHALL").await;
    for _ in 0..3 {
        store.put("a", "key", Vec::new()).await.unwrap();
    }
    assert!(store.versions(&["a"]).await.unwrap().have_lost(&before));
}

#[tokio::test]
async fn an_announcement_lasts_until_it_is_withdrawn_or_expires() {
    let server = RedisServer::start().await;
    let store = store_of(&server.url());
    let brief = Duration::from_millis(300);
    store.announce("one", b"first", LONGEST).await.unwrap();
    store.announce("two", b"second", LONGEST).await.unwrap();
    let sent_at = Clock::SYSTEM.since_epoch();
    let (time, mut all) = store.announce("three", b"third", brief).await.unwrap();
    assert!(sent_at.as_millis() <= time.as_millis() && time <= Clock::SYSTEM.since_epoch(), "{time:?}");
    all.sort();
    assert_eq!(all, [b"first".to_vec(), b"second".to_vec(), b"third".to_vec()]);
    store.leave("two").await.unwrap();
    let left = vec![b"again".to_vec()];
    eventually("the third one to be forgotten", async || {
        let (_, found) = store.announce("one", b"again", LONGEST).await.unwrap();
        (found == left).then_some(())
    })
    .await;
}

#[tokio::test]
async fn more_operations_than_may_be_in_flight_wait_for_their_turn() {
    let server = RedisServer::start().await;
    let store = Arc::new(store_of(&server.url()));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..1000_u32 {
        let store = Arc::clone(&store);
        tasks.spawn(async move { store.put("a", &number.to_string(), Vec::new()).await });
    }
    assert!(tasks.join_all().await.iter().all(Result::is_ok));
    assert_eq!(store.list("a").await.unwrap().len(), 1000);
}

fn lasting(ttl: Duration, number: u64, run: u8) -> Begin {
    Begin { ttl, ..begin(number, run) }
}

/// The ledger of one of two replicas.
fn ledger_of(server: &RedisServer) -> RedisLedger {
    let limits = LedgerLimits { max_entries: 1000, max_bytes: 1024 * 1024 };
    RedisLedger::new(Arc::new(store_of(&server.url())), limits)
}

#[tokio::test]
async fn of_two_replicas_that_begin_a_request_one_runs_it_and_the_other_sees_its_reply() {
    let server = RedisServer::start().await;
    let (one, other) = (ledger_of(&server), ledger_of(&server));
    let mut begun = 0;
    for number in 0..100 {
        let both = (one.begin(lasting(LONGEST, number, 1)), other.begin(lasting(LONGEST, number, 2)));
        let (first, second) = tokio::join!(both.0, both.1);
        begun += [first, second].into_iter().filter(|result| *result == Ok(Begun::Begun)).count();
    }
    assert_eq!(begun, 100);
    one.begin(lasting(LONGEST, 200, 1)).await.unwrap();
    one.finish(key(200), token(1), Bytes::from_static(b"paid")).await.unwrap();
    let found = other.look_up(key(200)).await.unwrap().unwrap();
    assert_eq!(found.state, EntryState::Answered(Bytes::from_static(b"paid")));
    assert_eq!(other.usage().entries, 101, "the counts are those of both");
}

#[tokio::test]
async fn entries_survive_a_killed_server_and_are_removed_by_it_after_their_time() {
    let server = RedisServer::start().await;
    let ledger = ledger_of(&server);
    ledger.begin(lasting(LONGEST * 100, 1, 1)).await.unwrap();
    server.restart().await;
    let known =
        eventually("the server to be used again", async || ledger.begin(lasting(LONGEST, 1, 2)).await.ok()).await;
    assert!(matches!(known, Begun::Known(_)), "{known:?}");
    ledger.begin(lasting(Duration::from_millis(100), 2, 1)).await.unwrap();
    eventually("the entry to be removed", async || {
        let found = ledger.look_up(key(2)).await.unwrap();
        (found.is_none() && server.command("KEYS toolbus:{test}:ledger:entry:*").await == "*1").then_some(())
    })
    .await;
}
