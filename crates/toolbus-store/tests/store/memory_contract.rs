//! Behaviour of every working memory. A new one joins in [`memories`].

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use toolbus_core::Clock;
use toolbus_memory::usage::MemoryUsage;
use toolbus_memory::working_memory::{
    ENTRY_OVERHEAD, EntryKey, KeyPrefix, MAX_TTL, MemoryError, MemoryLimits, MemoryOwner, Namespace, NewEntry,
    SearchQuery, WorkingMemory,
};
use toolbus_store::{RedisMemory, SqliteMemory, VolatileMemory};
use toolbus_testing::redis::RedisServer;

use crate::redis::store_of;

pub(crate) const ROOMY: MemoryLimits = MemoryLimits {
    max_value: 1024 * 1024,
    max_entries_per_namespace: 1000,
    max_entries: 10_000,
    max_size: 64 * 1024 * 1024,
    max_total_size: 256 * 1024 * 1024,
};
const MINUTE: Duration = Duration::from_secs(60);

/// A memory, how its time passes, and where it keeps its entries.
struct Subject {
    memory: Arc<dyn WorkingMemory>,
    clock: Clock,
    _folder: Option<TempDir>,
    _server: Option<RedisServer>,
}

/// An empty memory of each kind.
async fn memories(limits: MemoryLimits) -> Vec<Subject> {
    let clock = Clock::manual();
    let folder = tempfile::tempdir().unwrap();
    let sqlite = SqliteMemory::open(&folder.path().join("store.db-memory"), limits, clock).unwrap();
    let server = RedisServer::start().await;
    let redis = RedisMemory::new(Arc::new(store_of(&server.url())), limits, clock);
    let subject = |memory, folder, server| Subject { memory, clock, _folder: folder, _server: server };
    vec![
        subject(Arc::new(VolatileMemory::new(limits, clock)) as Arc<dyn WorkingMemory>, None, None),
        subject(Arc::new(sqlite), Some(folder), None),
        subject(Arc::new(redis), None, Some(server)),
    ]
}

pub(crate) fn owner(name: &str) -> MemoryOwner {
    MemoryOwner { key: name.into(), share: name.into() }
}

pub(crate) fn key(text: &str) -> EntryKey {
    EntryKey::parse(text).unwrap()
}

pub(crate) fn entry(text: &str, value: &str) -> NewEntry {
    NewEntry::new(key(text), value, MINUTE)
}

fn prefix(text: &str) -> KeyPrefix {
    Namespace::of(None).unwrap().prefix(Some(&format!("/{text}"))).unwrap()
}

pub(crate) fn query(text: &str) -> SearchQuery {
    SearchQuery { text: text.to_owned(), prefix: prefix(""), category: None, tags: Vec::new(), max: 100 }
}

impl Subject {
    async fn save(&self, name: &str, entries: Vec<NewEntry>) -> Result<(), MemoryError> {
        self.memory.save(owner(name), entries).await
    }

    async fn get(&self, name: &str, text: &str) -> Option<String> {
        self.memory.get(owner(name), key(text)).await.unwrap().map(|entry| entry.value.to_string())
    }

    async fn list(&self, name: &str, start: &str) -> Vec<String> {
        let found = self.memory.list(owner(name), prefix(start)).await.unwrap();
        found.into_iter().map(|info| info.key.to_string()).collect()
    }

    async fn search(&self, name: &str, query: SearchQuery) -> Vec<String> {
        let hits = self.memory.search(owner(name), query).await.unwrap();
        hits.into_iter().map(|hit| hit.info.key.to_string()).collect()
    }
}

#[tokio::test]
async fn an_entry_is_found_until_it_is_replaced_or_deleted() {
    for subject in memories(ROOMY).await {
        assert_eq!(subject.get("ana", "a/b").await, None);
        let value = "with a NUL \0, '; DROP TABLE and ü";
        subject.save("ana", vec![entry("a/b", value)]).await.unwrap();
        assert_eq!(subject.get("ana", "a/b").await.as_deref(), Some(value));
        subject.save("ana", vec![entry("A/B", "")]).await.unwrap();
        assert_eq!(subject.get("ana", "a/b").await.as_deref(), Some(""));
        assert_eq!(subject.memory.delete(owner("ana"), key("a/b")).await, Ok(true));
        assert_eq!(subject.get("ana", "a/b").await, None);
        assert_eq!(subject.memory.delete(owner("ana"), key("a/b")).await, Ok(false));
        subject.save("ana", Vec::new()).await.unwrap();
    }
}

#[tokio::test]
async fn an_entry_has_its_category_tags_length_and_times() {
    for subject in memories(ROOMY).await {
        let saved_at = subject.clock.since_epoch();
        let tags = vec![Arc::from("one"), Arc::from("[\"two\"]")];
        let new = NewEntry { category: Some("web".into()), tags, ..entry("a/b", "zwölf") };
        subject.save("ana", vec![new.clone()]).await.unwrap();
        subject.clock.advance(Duration::from_secs(1));
        let info = new.info(saved_at);
        assert_eq!((info.characters, info.expires_at), (5, saved_at + MINUTE));
        let found = subject.memory.get(owner("ana"), key("a/b")).await.unwrap().unwrap();
        assert_eq!((&found.info, &*found.value), (&info, "zwölf"));
        assert_eq!(subject.memory.list(owner("ana"), prefix("")).await.unwrap(), vec![info.clone()]);
        let hit = subject.memory.search(owner("ana"), query("zwölf")).await.unwrap().remove(0);
        assert_eq!((hit.info, &*hit.start), (info, "zwölf"));
    }
}

#[tokio::test]
async fn no_owner_sees_replaces_or_deletes_entries_of_another() {
    for subject in memories(ROOMY).await {
        for (name, other) in [("ana", "ben"), ("a", "a/b"), ("x", "x\0"), ("x:", "x"), ("unknown:0::x", "unknown:0::y")]
        {
            subject.save(name, vec![entry("session/1/key", "secret")]).await.unwrap();
            assert_eq!(subject.get(other, "session/1/key").await, None, "{name} {other}");
            assert_eq!(subject.list(other, "").await, [""; 0]);
            assert_eq!(subject.search(other, query("secret")).await, [""; 0]);
            assert_eq!(subject.memory.delete(owner(other), key("session/1/key")).await, Ok(false));
            subject.save(other, vec![entry("session/1/key", "mine")]).await.unwrap();
            assert_eq!(subject.get(name, "session/1/key").await.as_deref(), Some("secret"));
            assert_eq!(subject.search(name, query("mine")).await, [""; 0]);
            for name in [name, other] {
                assert_eq!(subject.memory.delete(owner(name), key("session/1/key")).await, Ok(true));
            }
        }
    }
}

#[tokio::test]
async fn an_entry_ends_at_its_second_and_not_before() {
    for subject in memories(ROOMY).await {
        subject.save("ana", vec![entry("a/minute", "text")]).await.unwrap();
        subject.save("ana", vec![NewEntry::new(key("a/day"), "text", MAX_TTL * 2)]).await.unwrap();
        let both = ["a/day", "a/minute"];
        assert_eq!(subject.search("ana", query("text")).await.len(), 2);
        subject.clock.advance(MINUTE - Duration::from_millis(1));
        assert_eq!(subject.get("ana", "a/minute").await.as_deref(), Some("text"));
        assert_eq!(subject.list("ana", "a/").await, both);
        assert_eq!(subject.search("ana", query("text minute")).await, ["a/minute", "a/day"]);
        subject.clock.advance(Duration::from_millis(1));
        assert_eq!(subject.get("ana", "a/minute").await, None);
        assert_eq!(subject.list("ana", "a/").await, ["a/day"]);
        assert_eq!(subject.search("ana", query("text")).await, ["a/day"]);
        assert_eq!(subject.memory.delete(owner("ana"), key("a/minute")).await, Ok(false));
        subject.clock.advance(MAX_TTL - MINUTE);
        assert_eq!(subject.get("ana", "a/day").await, None, "no entry is kept for longer than a day");
    }
}

#[tokio::test]
async fn a_replaced_entry_has_the_time_of_the_new_one() {
    for subject in memories(ROOMY).await {
        subject.save("ana", vec![entry("a/b", "old words")]).await.unwrap();
        assert_eq!(subject.search("ana", query("old")).await, ["a/b"]);
        subject.clock.advance(MINUTE / 2);
        subject.save("ana", vec![entry("a/b", "new words")]).await.unwrap();
        subject.clock.advance(MINUTE / 2);
        assert_eq!(subject.get("ana", "a/b").await.as_deref(), Some("new words"));
        assert_eq!(subject.search("ana", query("old")).await, [""; 0]);
        assert_eq!(subject.search("ana", query("words")).await, ["a/b"]);
        subject.clock.advance(MINUTE / 2);
        assert_eq!(subject.search("ana", query("words")).await, [""; 0]);
    }
}

#[tokio::test]
async fn a_list_has_the_keys_that_begin_so_in_their_order() {
    for subject in memories(ROOMY).await {
        let keys = ["session/1/b", "session/1/a", "session/10/a", "patrol/x", "session/1/%_\\*?[", "session/2/ü"];
        subject.save("ana", keys.map(|key| entry(key, "")).to_vec()).await.unwrap();
        assert_eq!(subject.list("ana", "session/1/").await, ["session/1/%_\\*?[", "session/1/a", "session/1/b"]);
        assert_eq!(subject.list("ana", "session/1").await.len(), 4);
        assert_eq!(subject.list("ana", "session/1/%").await, ["session/1/%_\\*?["]);
        assert_eq!(subject.list("ana", "session/_").await, [""; 0]);
        assert_eq!(subject.list("ana", "").await.len(), 6);
    }
}

#[tokio::test]
async fn a_batch_that_does_not_fit_saves_nothing() {
    let limits = MemoryLimits { max_value: 10, max_entries_per_namespace: 3, max_entries: 5, ..ROOMY };
    for subject in memories(limits).await {
        subject.save("ana", vec![entry("a/x/1", "1"), entry("a/x/2", "2")]).await.unwrap();
        let error = subject.save("ana", vec![entry("a/x/1", "new"), entry("a/x/3", "3"), entry("a/x/4", "4")]).await;
        assert_eq!(error, Err(MemoryError::Namespace { namespace: "a/x".into(), max: 3 }));
        let error = subject.save("ana", vec![entry("b/x/1", "1"), entry("a/x/1", "12345678901")]).await;
        assert_eq!(error, Err(MemoryError::Value { key: key("a/x/1"), bytes: 11, max: 10 }));
        let many = (0..4).map(|number| entry(&format!("b/{number}/x"), "x")).collect();
        assert_eq!(subject.save("ana", many).await, Err(MemoryError::Entries(5)));
        assert_eq!(subject.list("ana", "").await, ["a/x/1", "a/x/2"]);
        assert_eq!(subject.get("ana", "a/x/1").await.as_deref(), Some("1"));
        assert_eq!(subject.search("ana", query("new")).await, [""; 0]);
    }
}

#[tokio::test]
async fn entries_of_a_full_namespace_are_replaced_and_there_is_room_after_deletion_and_expiry() {
    let limits = MemoryLimits { max_entries_per_namespace: 2, ..ROOMY };
    for subject in memories(limits).await {
        let is_full = Err(MemoryError::Namespace { namespace: "a/x".into(), max: 2 });
        subject.save("ana", vec![entry("a/x/1", "1"), entry("a/x/2", "2")]).await.unwrap();
        assert_eq!(subject.save("ana", vec![entry("a/x/3", "3")]).await, is_full);
        subject
            .save("ana", vec![entry("a/x/1", "new"), entry("a/y/1", "other"), entry("a/x/1", "last")])
            .await
            .unwrap();
        assert_eq!(subject.get("ana", "a/x/1").await.as_deref(), Some("last"));
        subject.save("ben", vec![entry("a/x/1", "another owner")]).await.unwrap();
        assert_eq!(subject.memory.delete(owner("ana"), key("a/x/2")).await, Ok(true));
        subject.save("ana", vec![entry("a/x/3", "3")]).await.unwrap();
        assert_eq!(subject.save("ana", vec![entry("a/x/4", "4")]).await, is_full);
        subject.clock.advance(MINUTE);
        subject.save("ana", vec![entry("a/x/4", "4"), entry("a/x/5", "5")]).await.unwrap();
    }
}

#[tokio::test]
async fn the_bytes_of_a_share_and_of_all_are_limited() {
    let size = ENTRY_OVERHEAD + "a/1".len() as u64 + 10;
    let limits = MemoryLimits { max_size: 2 * size, max_total_size: 3 * size, ..ROOMY };
    for subject in memories(limits).await {
        let ten = "0123456789";
        subject.save("ana", vec![entry("a/1", ten), entry("a/2", ten)]).await.unwrap();
        assert_eq!(subject.save("ana", vec![entry("a/3", "")]).await, Err(MemoryError::Size(2 * size)));
        assert_eq!(subject.save("ana", vec![entry("a/1", "0123456789+")]).await, Err(MemoryError::Size(2 * size)));
        subject.save("ana", vec![entry("a/1", "shorter")]).await.unwrap();
        subject.save("ana", vec![entry("a/1", ten)]).await.unwrap();
        subject.save("ben", vec![entry("a/1", ten)]).await.unwrap();
        assert_eq!(subject.save("eve", vec![entry("a/1", "")]).await, Err(MemoryError::Total(3 * size)));
        assert_eq!(subject.memory.delete(owner("ana"), key("a/1")).await, Ok(true));
        subject.save("eve", vec![entry("a/1", ten)]).await.unwrap();
    }
}

#[tokio::test]
async fn owners_of_one_share_are_limited_together_and_see_nothing_of_each_other() {
    let limits = MemoryLimits { max_entries: 2, ..ROOMY };
    for subject in memories(limits).await {
        let of = |name: &str| MemoryOwner { key: name.into(), share: "unknown:".into() };
        for name in ["one", "two"] {
            subject.memory.save(of(name), vec![entry("a/b", name)]).await.unwrap();
        }
        assert_eq!(subject.memory.save(of("three"), vec![entry("a/b", "")]).await, Err(MemoryError::Entries(2)));
        assert_eq!(subject.get("one", "a/b").await.as_deref(), Some("one"));
        // An agent whose section is gone keeps what it has.
        subject.save("one", vec![entry("a/b", "of its own share")]).await.unwrap();
        subject.memory.save(of("three"), vec![entry("a/b", "")]).await.unwrap();
        subject.clock.advance(MINUTE);
        subject.memory.save(of("two"), vec![entry("a/1", ""), entry("a/2", "")]).await.unwrap();
    }
}

#[tokio::test]
async fn the_usage_has_what_shares_and_namespaces_hold_until_it_expires() {
    let used = |usage: MemoryUsage| {
        let shares: Vec<_> = usage.shares.iter().map(|one| (one.share.to_string(), one.entries, one.bytes)).collect();
        let namespaces = usage.namespaces.iter().map(|one| format!("{} {} {}", one.owner, one.namespace, one.entries));
        (usage.bytes, shares, namespaces.collect::<Vec<_>>(), usage.is_whole)
    };
    for subject in memories(ROOMY).await {
        let of_eve = MemoryOwner { key: "unknown:0::eve:x".into(), share: "unknown:".into() };
        subject.memory.save(of_eve, vec![entry("agent/k", "1234")]).await.unwrap();
        let size = |texts: u64| texts + ENTRY_OVERHEAD;
        let (two, one) = (size(13) + size(14), size(11));
        subject.save("ana", vec![entry("session/1/key", ""), entry("session/1/key2", "")]).await.unwrap();
        let shares = [("ana".to_owned(), 2, two), ("unknown:".to_owned(), 1, one)].to_vec();
        let namespaces = ["ana session/1 2".to_owned(), "unknown:0::eve:x agent 1".to_owned()].to_vec();
        assert_eq!(used(subject.memory.usage().await.unwrap()), (two + one, shares, namespaces, true));
        subject.clock.advance(MINUTE);
        assert_eq!(used(subject.memory.usage().await.unwrap()), (0, Vec::new(), Vec::new(), true));
    }
}

#[tokio::test]
async fn a_search_ranks_and_filters() {
    for subject in memories(ROOMY).await {
        let new = |key: &str, category: Option<&str>, tags: &[&str], value: &str| NewEntry {
            category: category.map(Arc::from),
            tags: tags.iter().map(|tag| Arc::from(*tag)).collect(),
            ..entry(key, value)
        };
        subject
            .save(
                "ana",
                vec![
                    new("s/1/weather", Some("web/page"), &["Oslo"], "Rain and more rain."),
                    new("s/1/note", Some("note"), &["oslo", "trip"], "There may be rain in autumn."),
                    new("s/2/note", None, &[], "No rain here, rain there, rain everywhere: rain."),
                    new("s/1/other", None, &[], "天気"),
                ],
            )
            .await
            .unwrap();
        assert_eq!(subject.search("ana", query("rain")).await, ["s/2/note", "s/1/weather", "s/1/note"]);
        assert_eq!(subject.search("ana", SearchQuery { max: 1, ..query("rain") }).await, ["s/2/note"]);
        assert_eq!(subject.search("ana", query("weather")).await, ["s/1/weather"], "by its key");
        assert_eq!(subject.search("ana", query("trip")).await, ["s/1/note"], "by a tag");
        assert_eq!(subject.search("ana", query("page")).await, ["s/1/weather"], "by its category");
        assert_eq!(subject.search("ana", query("天気")).await, ["s/1/other"]);
        let within = SearchQuery { prefix: prefix("s/1/"), ..query("rain") };
        assert_eq!(subject.search("ana", within).await, ["s/1/weather", "s/1/note"]);
        let of_web = SearchQuery { category: Some("WEB".to_owned()), ..query("rain") };
        assert_eq!(subject.search("ana", of_web).await, ["s/1/weather"]);
        let tags =
            |tags: &[&str]| SearchQuery { tags: tags.iter().map(|tag| (*tag).to_owned()).collect(), ..query("rain") };
        assert_eq!(subject.search("ana", tags(&["OSLO"])).await, ["s/1/weather", "s/1/note"]);
        assert_eq!(subject.search("ana", tags(&["oslo", "trip"])).await, ["s/1/note"]);
    }
}

#[tokio::test]
async fn a_search_sees_entries_saved_and_deleted_since_the_last_one() {
    for subject in memories(ROOMY).await {
        for number in 0..20 {
            subject.save("ana", vec![entry(&format!("a/{number:02}"), "text")]).await.unwrap();
            assert_eq!(subject.search("ana", query("text")).await.len(), number + 1);
        }
        for number in 0..20 {
            subject.memory.delete(owner("ana"), key(&format!("a/{number:02}"))).await.unwrap();
            subject.save("ben", vec![entry(&format!("a/{number:02}"), "text")]).await.unwrap();
            assert_eq!(subject.search("ana", query("text")).await.len(), 19 - number);
        }
        assert_eq!(subject.search("ben", query("text")).await.len(), 20);
    }
}

#[tokio::test]
async fn many_at_once_lose_nothing() {
    for subject in memories(ROOMY).await {
        let mut writers = tokio::task::JoinSet::new();
        for number in 0..200 {
            let memory = Arc::clone(&subject.memory);
            writers.spawn(async move {
                memory.save(owner("ana"), vec![entry(&format!("a/{number:03}"), "word")]).await?;
                memory.search(owner("ana"), query("word")).await
            });
        }
        while let Some(written) = writers.join_next().await {
            assert!(!written.unwrap().unwrap().is_empty());
        }
        assert_eq!(subject.list("ana", "").await.len(), 200);
        let all = SearchQuery { max: 1000, ..query("word") };
        assert_eq!(subject.search("ana", all).await.len(), 200);
    }
}
