use serde_json::json;
use toolbus_core::pattern::Pattern;
use toolbus_core::tool::Suspicion;

use super::super::differences::{Mismatch, approve, offer};
use super::*;

fn tool(source: &str, name: &str, description: &str) -> Arc<ToolDescriptor> {
    let description = description.to_owned();
    Arc::new(ToolDescriptor { description, ..ToolDescriptor::new(name, source, "mcp") })
}

fn holding(sources: &[&str]) -> Levels {
    Levels::new(sources.iter().map(|source| ((*source).to_owned(), Level::Hold)), [])
}

fn held(book: &mut Book, tools: &[Arc<ToolDescriptor>]) -> Vec<String> {
    let (held, _) = book.review(tools, "now");
    tools.iter().filter(|tool| held.reason(tool).is_some()).map(|tool| tool.name.to_string()).collect()
}

#[test]
fn only_what_changed_is_held_and_only_where_that_is_asked_for() {
    let mut book = Book::of(Record::default(), holding(&["mcp:a"]));
    let first = [tool("mcp:a", "read", "1"), tool("mcp:a", "write", "1"), tool("mcp:b", "look", "1")];
    assert_eq!(held(&mut book, &first), [""; 0]);
    let next = [tool("mcp:a", "read", "2"), tool("mcp:a", "write", "1"), tool("mcp:b", "look", "2")];
    let (is_held, news) = book.review(&next, "now");
    insta::assert_snapshot!(is_held.reason(&next[0]).unwrap(), @"its definition changed since it was pinned; see `toolbus pins diff read`");
    assert_eq!(is_held.len(), 1);
    assert_eq!(next.each_ref().map(|tool| book.admits(tool)), [false, true, true]);
    assert!(book.admits(&tool("mcp:never seen", "read", "1")));
    let told = |source: &str, tool: &str, is_held| News {
        source: source.to_owned(),
        kind: NewsKind::Tool { tool: tool.to_owned(), state: State::Changed, is_held },
    };
    assert_eq!(news, [told("mcp:a", "read", true), told("mcp:b", "look", false)]);
    assert_eq!(book.changes, [("mcp:a".to_owned(), 1), ("mcp:b".to_owned(), 1)].into());
}

#[test]
fn a_strict_source_has_its_suspects_held_from_the_first_sight_until_they_are_approved() {
    let mut suspect = ToolDescriptor::new("read", "mcp:a", "mcp");
    let found =
        Suspicion { rule: "conceal".into(), place: "description".to_owned(), excerpt: "say nothing".to_owned() };
    suspect.suspicions = [found].into();
    let tools = [Arc::new(suspect), tool("mcp:a", "write", "1")];
    let mut book = Book::of(Record::default(), Levels::new([("mcp:a".to_owned(), Level::Strict)], []));
    let (is_held, news) = book.review(&tools, "now");
    insta::assert_snapshot!(is_held.reason(&tools[0]).unwrap(), @r#"it is suspect: conceal in description: "say nothing"; see `toolbus pins diff read`"#);
    assert_eq!((is_held.len(), news.len()), (1, 2));
    assert_eq!(held(&mut book, &tools), ["read"]);
    let shown = offer(&book.find("read", None).unwrap());
    let offered = book.offered("read", None, shown).unwrap();
    approve(&mut book.record, &offered, "later");
    assert_eq!(held(&mut book, &tools), [""; 0]);
    book.levels = holding(&["mcp:a"]);
    assert_eq!(held(&mut book, &tools), [""; 0]);
}

#[test]
fn a_server_that_flaps_between_two_definitions_is_told_of_once() {
    let mut book = Book::of(Record::default(), holding(&["mcp:a"]));
    let (one, two) = ([tool("mcp:a", "read", "1")], [tool("mcp:a", "read", "2")]);
    held(&mut book, &one);
    for round in 0..3 {
        let (is_held, news) = book.review(&two, "now");
        assert_eq!((is_held.len(), news.len()), (1, usize::from(round == 0)));
        assert_eq!(held(&mut book, &one), [""; 0]);
        // Gone for a while, as when its server is removed.
        assert_eq!(held(&mut book, &[]), [""; 0]);
    }
    assert_eq!(book.changes["mcp:a"], 1);
}

#[test]
fn what_waited_when_the_record_was_written_is_held_from_the_start_and_not_told_again() {
    let mut before = Book::of(Record::default(), holding(&["mcp:a"]));
    held(&mut before, &[tool("mcp:a", "read", "1")]);
    let next = [tool("mcp:a", "read", "2"), tool("mcp:a", "new", "1")];
    held(&mut before, &next);
    let mut book = Book::of(before.record, holding(&["mcp:a"]));
    let (is_held, news) = book.review(&next, "later");
    assert_eq!((is_held.len(), news), (2, Vec::new()));
    assert!(!book.is_unsaved);
}

#[test]
fn an_approval_is_of_what_was_shown() {
    let mut book = Book::of(Record::default(), holding(&["mcp:a", "mcp:b"]));
    held(&mut book, &[tool("mcp:a", "read", "1"), tool("mcp:a", "old", "1"), tool("mcp:b", "read", "1")]);
    let next = [tool("mcp:a", "read", "2"), tool("mcp:a", "new", "1"), tool("mcp:b", "read", "2")];
    held(&mut book, &next);
    let shown = |book: &Book, name: &str, source| offer(&book.find(name, source).unwrap());
    let both = shown(&book, "read", None);
    assert_eq!(
        book.offered("read", None, both),
        Err(Mismatch::Ambiguous("read".to_owned(), "mcp:a, mcp:b".to_owned()))
    );
    let one = shown(&book, "read", Some("mcp:b"));
    held(&mut book, &[next[0].clone(), next[1].clone(), tool("mcp:b", "read", "3")]);
    assert_eq!(book.offered("read", Some("mcp:b"), one), Err(Mismatch::Again("read".to_owned())));
    let whole = shown(&book, "mcp:a", None);
    assert_eq!(shown(&book, "a", None), whole, "a server is meant by its own name, too");
    let offered = book.offered("a", None, whole).unwrap();
    let states: Vec<_> = offered.iter().map(|difference| (&*difference.entry.tool, difference.entry.state)).collect();
    assert_eq!(states, [("new", State::New), ("old", State::Missing), ("read", State::Changed)]);
    approve(&mut book.record, &offered, "later");
    assert_eq!(held(&mut book, &next), ["read"], "that of the other source");
    assert_eq!(book.offered("a", None, whole), Err(Mismatch::Nothing("a".to_owned())));
    assert_eq!(book.find("old", None), Err(Mismatch::Unknown("old".to_owned())), "it is forgotten");
    assert!(book.record.sources["mcp:a"].tools["new"].approved.is_some());
}

#[test]
fn a_source_is_meant_before_a_tool_that_took_its_name() {
    let mut book = Book::of(Record::default(), holding(&["rest", "mcp:a"]));
    held(&mut book, &[tool("rest", "get", "1"), tool("mcp:a", "read", "1")]);
    held(&mut book, &[tool("rest", "get", "2"), tool("mcp:a", "read", "1"), tool("mcp:a", "rest", "1")]);
    let found = book.find("rest", None).unwrap();
    assert_eq!(found.iter().map(|found| &*found.entry.tool).collect::<Vec<_>>(), ["get"]);
    assert_eq!(book.find("rest", Some("mcp:a")).unwrap().len(), 1);
}

#[test]
fn a_name_that_a_server_and_a_tool_have_means_neither() {
    let mut book = Book::of(Record::default(), holding(&["mcp:files", "mcp:evil"]));
    let read = |description| tool("mcp:files", "read", description);
    held(&mut book, &[read("1"), tool("mcp:evil", "look", "1")]);
    held(&mut book, &[read("2"), tool("mcp:evil", "look", "1"), tool("mcp:evil", "files", "1")]);
    insta::assert_snapshot!(book.find("files", None).unwrap_err(), @"an MCP server and a tool of mcp:evil are called `files`: write `mcp:files` for the server, or name the tool's with --source");
    let tools = |name, source| {
        let found = book.find(name, source).unwrap();
        found.into_iter().map(|found| (found.entry.source, found.entry.tool)).collect::<Vec<_>>()
    };
    assert_eq!(tools("mcp:files", None), [("mcp:files".to_owned(), "read".to_owned())]);
    assert_eq!(tools("files", Some("mcp:evil")), [("mcp:evil".to_owned(), "files".to_owned())]);
}

#[test]
fn what_others_wrote_counts_and_what_only_this_process_saw_stays() {
    let mut book = Book::of(Record::default(), holding(&["mcp:a", "mcp:b"]));
    held(&mut book, &[tool("mcp:a", "read", "2"), tool("mcp:b", "look", "1")]);
    let mut other = Book::of(Record::default(), holding(&["mcp:a"]));
    held(&mut other, &[tool("mcp:a", "read", "1")]);
    book.merge(other.record.clone(), "later");
    assert!(book.needs_review);
    assert!(book.lacks_any(&other.record));
    let now = [tool("mcp:a", "read", "2"), tool("mcp:b", "look", "2")];
    assert_eq!(held(&mut book, &now), ["read", "look"]);
    assert!(!book.needs_review);
    book.merge(book.record.clone(), "later");
    assert!(!book.needs_review, "what changes nothing needs nothing");
}

#[test]
fn a_source_that_is_seen_while_nothing_can_be_written_is_not_first_seen_twice() {
    let mut book = Book::of(Record::default(), holding(&["mcp:a"]));
    held(&mut book, &[tool("mcp:a", "read", "1")]);
    let next = [tool("mcp:a", "read", "2")];
    assert_eq!(held(&mut book, &next), ["read"]);
    book.merge(Record::default(), "later");
    assert_eq!(held(&mut book, &next), ["read"]);
}

#[test]
fn a_record_that_is_too_large_loses_what_nobody_misses() {
    let mut book = Book::of(Record::default(), holding(&["mcp:a"]));
    held(&mut book, &[tool("mcp:a", "read", "1"), tool("mcp:b", "look", "1"), tool("mcp:c", "see", "1")]);
    held(&mut book, &[tool("mcp:c", "see", "2")]);
    let trimmed = book.trimmed(&book.record);
    assert_eq!(trimmed.sources.keys().collect::<Vec<_>>(), ["mcp:a", "mcp:c"]);
    assert_eq!(trimmed.sources["mcp:c"].tools["see"].before, None);
    assert!(book.record.sources["mcp:c"].tools["see"].before.is_some());
}

#[test]
fn a_tool_of_a_set_keeps_its_pin_under_another_prefix() {
    let in_set = |prefix: &str| {
        let mut tool = ToolDescriptor::new(format!("{prefix}.read"), "mcp:a", "mcp");
        let (set, name) = ("s".into(), "read".into());
        tool.toolset = Some(toolbus_core::tool::Membership { set, name, needs_session: true });
        tool.parameters = Some(json!({"type": "object"}).into());
        Arc::new(tool)
    };
    let mut book = Book::of(Record::default(), holding(&["mcp:a"]));
    held(&mut book, &[in_set("fs")]);
    assert_eq!(held(&mut book, &[in_set("files")]), [""; 0]);
    for name in ["read", "files.read"] {
        assert_eq!(book.find(name, None).unwrap()[0].entry.name, "files.read");
    }
}

#[test]
fn sources_that_come_and_go_do_not_fill_the_record_not_even_held_ones() {
    let pattern = |text: &str| (Pattern::parse(text).unwrap(), Level::Hold);
    let levels = Levels::new([("mcp:kept".to_owned(), Level::Watch)], [pattern("mcp:*"), pattern("mcp:meant")]);
    let mut book = Book::of(Record::default(), levels);
    held(&mut book, &[tool("mcp:kept", "read", "1"), tool("mcp:meant", "read", "1")]);
    let others: Vec<_> = (0..=1_001).map(|number| tool(&format!("mcp:{number}"), "read", "1")).collect();
    for part in [&others[..1], &others[1..1_001], &others[1_001..]] {
        held(&mut book, part);
    }
    let has = |source: &str| book.record.sources.contains_key(source);
    assert!(has("mcp:kept") && has("mcp:meant") && has("mcp:1") && has("mcp:1001") && !has("mcp:0"));
    assert_eq!(book.record.sources.len(), 1_003);
    assert!(book.is_unsaved && !book.last_seen.contains_key("mcp:0"));
}

#[test]
fn large_sources_that_are_gone_are_forgotten_before_what_small_ones_have() {
    let mut book = Book::of(Record::default(), Levels::new([], [(Pattern::parse("*").unwrap(), Level::Hold)]));
    held(&mut book, &[tool("mcp:small", "read", "1")]);
    let large = "x".repeat(3 << 20);
    for name in ["mcp:a", "mcp:b", "mcp:c", "mcp:d"] {
        held(&mut book, &[tool(name, "read", &large)]);
    }
    assert_eq!(book.record.sources.keys().collect::<Vec<_>>(), ["mcp:b", "mcp:c", "mcp:d", "mcp:small"]);
}

#[test]
fn what_was_merely_read_is_forgotten_when_it_is_written_no_more() {
    let mut other = Book::of(Record::default(), holding(&[]));
    held(&mut other, &[tool("mcp:b", "look", "1")]);
    let mut book = Book::of(other.record, holding(&["mcp:a"]));
    held(&mut book, &[tool("mcp:c", "see", "1")]);
    assert!(book.lacks_any(&Record::default()));
    book.merge(Record::default(), "later");
    assert_eq!(book.record.sources.keys().collect::<Vec<_>>(), ["mcp:c"]);
}

#[test]
fn a_source_that_never_says_the_same_twice_silences_no_other() {
    let mut book = Book::of(Record::default(), holding(&["mcp:a"]));
    held(&mut book, &[tool("mcp:a", "read", "0"), tool("mcp:b", "look", "0")]);
    for number in 1..=MAX_TOLD + 1 {
        let digest = Some(Digest::of([number.to_string().as_str()]));
        book.tell("mcp:a".to_owned(), "read".to_owned(), State::Changed, digest, Level::Hold);
    }
    assert!(book.told["mcp:a"].len() <= MAX_TOLD);
    let (_, news) = book.review(&[tool("mcp:a", "read", "1"), tool("mcp:b", "look", "1")], "now");
    assert_eq!(news.len(), 2);
}
