//! Results that are kept in parts.

use std::sync::Arc;
use std::time::Duration;

use toolbus_core::Clock;
use toolbus_core::caller::Caller;
use toolbus_core::results::{LongResult, ResultSplitter as _, SplitRule};
use toolbus_memory::MemoryConfig;
use toolbus_memory::results::MemorySplitter;
use toolbus_memory::working_memory::{EntryKey, MemoryEntry, MemoryOwner, Namespace};

fn splitter(config: &MemoryConfig) -> MemorySplitter {
    let memory = toolbus_store::VolatileMemory::new(config.limits(), Clock::SYSTEM);
    MemorySplitter { memory: Arc::new(memory), ttl: Duration::from_secs(1200) }
}

fn caller(session: Option<&str>) -> Caller {
    Caller { login: Some("ana".into()), session: session.map(Into::into), ..Caller::unknown() }
}

fn result(caller: Caller, text: &str) -> LongResult {
    let (caller, tool) = (Arc::new(caller), "fs.read file".into());
    LongResult { caller, tool, run: "0123abcd".to_owned(), text: text.into(), max: 64_000, rule: None }
}

fn manual() -> String {
    let section = |number: usize| format!("# Section {number}\n\n{}\n\n", "Some words of it.\n".repeat(1500));
    (0..5).map(section).collect()
}

async fn value(splitter: &MemorySplitter, caller: &Caller, key: &str) -> Option<Arc<str>> {
    let (owner, key) = (MemoryOwner::of(caller).unwrap(), EntryKey::parse(key).unwrap());
    splitter.memory.get(owner, key).await.unwrap().map(|MemoryEntry { value, .. }| value)
}

#[tokio::test]
async fn the_table_names_parts_that_are_there_and_together_are_the_result() {
    let (splitter, caller, text) = (splitter(&MemoryConfig::default()), caller(Some("abc")), manual());
    let split = splitter.split(result(caller.clone(), &text)).await.unwrap();
    assert_eq!(
        split.text,
        "Tool result for 'fs.read file' is large (135,075 chars) and has been split into 4 chunk(s) stored in working \
         memory.\n\
         A document outline is stored at key `session/abc/tool-fs_read_file-0123abcd-index` — retrieve it with \
         get_from_working_memory to navigate the content by section heading.\n\
         Call get_from_working_memory(key) for each relevant chunk BEFORE drawing any conclusions.\n\n\
         | # | Heading | Key |\n\
         |---|---------|-----|\n\
         | 0 | Section 0 | `session/abc/tool-fs_read_file-0123abcd-chunk0` |\n\
         | 1 | Section 1 | `session/abc/tool-fs_read_file-0123abcd-chunk1` |\n\
         | 2 | Section 2 | `session/abc/tool-fs_read_file-0123abcd-chunk2` |\n\
         | 3 | Section 3; Section 4 | `session/abc/tool-fs_read_file-0123abcd-chunk3` |\n"
    );
    let mut whole = String::new();
    for part in &split.parts {
        whole.push_str(&value(&splitter, &caller, &part.key).await.unwrap());
    }
    assert_eq!(whole, text);
    let outline = value(&splitter, &caller, "session/abc/tool-fs_read_file-0123abcd-index").await.unwrap();
    assert!(
        outline
            .starts_with("## Document Outline\n\n- **Section 0** → `session/abc/tool-fs_read_file-0123abcd-chunk0`\n")
    );
}

#[tokio::test]
async fn a_session_that_is_a_path_is_the_namespace_and_without_one_it_is_the_owners() {
    let splitter = splitter(&MemoryConfig::default());
    for (session, key) in [
        (Some("patrol/mail"), "patrol/mail/tool-fs_read_file-0123abcd-chunk0"),
        (None, "agent/tool-fs_read_file-0123abcd-chunk0"),
    ] {
        let split = splitter.split(result(caller(session), &manual())).await.unwrap();
        assert_eq!(&*split.parts[0].key, key);
    }
}

#[tokio::test]
async fn a_rule_of_the_tool_gives_length_time_keys_and_the_beginning() {
    let (splitter, caller, text) = (splitter(&MemoryConfig::default()), caller(Some("abc")), manual());
    let rule = SplitRule {
        threshold: 8000,
        max: 4000,
        ttl: Duration::from_secs(60),
        stem: "web-example.com-01".to_owned(),
        category: "web",
        subject: "> A note.\n\nPage \"Manual\"".to_owned(),
    };
    let long = LongResult { max: 4000, rule: Some(Box::new(rule)), ..result(caller.clone(), &text) };
    let split = splitter.split(long).await.unwrap();
    let start = "> A note.\n\nPage \"Manual\" is large (135,075 chars) and has been split into ";
    assert!(split.text.starts_with(start), "{}", split.text);
    assert!(split.text.contains("`session/abc/web-example.com-01-index`"), "{}", split.text);
    let owner = MemoryOwner::of(&caller).unwrap();
    let all = Namespace::of(None).unwrap().prefix(Some("/")).unwrap();
    let kept = splitter.memory.list(owner, all).await.unwrap();
    assert_eq!(kept.len(), split.parts.len() + 1);
    for info in &kept {
        assert!(info.key.as_str().starts_with("session/abc/web-example.com-01-"), "{info:?}");
        assert_eq!((info.category.as_deref(), info.expires_at - info.saved_at), (Some("web"), Duration::from_secs(60)));
        assert!(info.characters <= 4000 || info.key.as_str().ends_with("-index"), "{info:?}");
    }
    let mut whole = String::new();
    for part in &split.parts {
        whole.push_str(&value(&splitter, &caller, &part.key).await.unwrap());
    }
    assert_eq!(whole, text);
}

#[tokio::test]
async fn a_table_is_not_longer_than_the_largest_unsplit_result() {
    let (splitter, caller) = (splitter(&MemoryConfig::default()), caller(Some("abc")));
    let text: String = (0..150).map(|n| format!("# {n} {}\n\n{}\n\n", "a".repeat(200), "b ".repeat(700))).collect();
    for max in [1500, 2000, 8000] {
        let split = splitter.split(LongResult { max, ..result(caller.clone(), &text) }).await.unwrap();
        assert!(split.text.chars().count() <= max, "{max}: {}", split.text);
        let rows = split.text.matches("| `session/").count();
        let left_out = format!("\n\n{} more chunks are in the outline.\n", split.parts.len() - rows);
        assert!(rows > 0 && split.text.ends_with(&left_out), "{}", split.text);
    }
}

#[tokio::test]
async fn a_result_that_memory_has_no_room_for_is_refused_and_leaves_nothing() {
    let (splitter, caller) =
        (splitter(&MemoryConfig { max_entries_per_namespace: 3, ..MemoryConfig::default() }), caller(Some("a")));
    let error = splitter.split(result(caller.clone(), &manual())).await.unwrap_err();
    assert!(error.contains("has room for 3 entries"), "{error}");
    assert_eq!(value(&splitter, &caller, "session/a/tool-fs_read_file-0123abcd-chunk0").await, None);
}

#[tokio::test]
async fn an_unidentified_caller_is_refused() {
    let splitter = splitter(&MemoryConfig::default());
    let error = splitter.split(result(Caller::unknown(), &manual())).await.unwrap_err();
    assert_eq!(error, "its caller cannot be told from others");
}
