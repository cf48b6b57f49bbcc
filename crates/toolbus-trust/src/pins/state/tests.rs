use serde_json::json;
use toolbus_core::pattern::Pattern;
use toolbus_core::tool::{Naming, Suspicion};

use super::super::differences::{Mismatch, approve, offer_digest};
use super::super::level::NamedSource;
use super::*;

fn tool(source: &str, name: &str, description: &str) -> Arc<ToolDescriptor> {
    let description = description.to_owned();
    Arc::new(ToolDescriptor { description, ..ToolDescriptor::new(name, source, "mcp") })
}

fn holding(sources: &[&str]) -> Levels {
    Levels::new(sources.iter().map(|source| ((*source).to_owned(), Level::Hold)), [])
}

fn held(pins: &mut PinState, tools: &[Arc<ToolDescriptor>]) -> Vec<String> {
    let (held, _) = pins.review(tools, "now");
    tools.iter().filter(|tool| held.reason(tool).is_some()).map(|tool| tool.name.to_string()).collect()
}

#[test]
fn only_changed_tools_are_held_and_only_where_configured() {
    let mut pins = PinState::of(PinRecord::default(), holding(&["mcp:a"]));
    let first = [tool("mcp:a", "read", "1"), tool("mcp:a", "write", "1"), tool("mcp:b", "look", "1")];
    assert_eq!(held(&mut pins, &first), [""; 0]);
    let next = [tool("mcp:a", "read", "2"), tool("mcp:a", "write", "1"), tool("mcp:b", "look", "2")];
    let (is_held, changes) = pins.review(&next, "now");
    insta::assert_snapshot!(is_held.reason(&next[0]).unwrap(), @"its definition changed since it was pinned; see `toolbus pins diff read`");
    assert_eq!(is_held.len(), 1);
    assert_eq!(next.each_ref().map(|tool| pins.admits(tool)), [false, true, true]);
    assert!(pins.admits(&tool("mcp:never seen", "read", "1")));
    let reported = |source: &str, tool: &str, is_held| PinChange {
        source: source.to_owned(),
        kind: PinChangeKind::Tool { tool: tool.to_owned(), state: ToolState::Changed, is_held },
    };
    assert_eq!(changes, [reported("mcp:a", "read", true), reported("mcp:b", "look", false)]);
    assert_eq!(pins.changes, [("mcp:a".to_owned(), 1), ("mcp:b".to_owned(), 1)].into());
}

fn reserved(pins: &PinState) -> Vec<(String, String)> {
    let mut names: Vec<_> =
        pins.reserved().into_iter().map(|(name, source)| (name.to_string(), source.to_string())).collect();
    names.sort();
    names
}

fn pair(name: &str, source: &str) -> (String, String) {
    (name.to_owned(), source.to_owned())
}

#[test]
fn the_names_of_pinned_tools_are_their_sources_also_while_that_is_away() {
    let mut pins = PinState::of(PinRecord::default(), holding(&["mcp:a"]));
    let [read, look] = [tool("mcp:a", "read", "1"), tool("mcp:b", "look", "1")];
    let unseen = Claim { is_pinned: true, since: None };
    assert_eq!(pins.claim(&read), unseen, "it is pinned as soon as it is seen");
    held(&mut pins, &[read.clone(), look.clone()]);
    let since = Some("now".to_owned());
    assert_eq!(pins.claim(&read), Claim { is_pinned: true, since: since.clone() });
    assert_eq!(pins.claim(&look), Claim { is_pinned: false, since });
    assert_eq!(pins.claim(&tool("mcp:a", "new", "1")), Claim::default(), "no operator has approved it");
    assert_eq!(reserved(&pins), [pair("read", "mcp:a")]);
    let next = PinState::of(pins.record.clone(), holding(&["mcp:a"]));
    assert_eq!(reserved(&next), [pair("read", "mcp:a")]);
    pins.levels = Levels::default();
    assert_eq!(reserved(&pins), [], "it is pinned no more");
}

#[test]
fn a_reserved_name_is_the_published_one_and_the_source_that_had_it_first_has_it() {
    let mut pins = PinState::of(PinRecord::default(), holding(&["mcp:a", "mcp:b"]));
    pins.review(&[tool("mcp:b", "read", "1")], "2026-01-01T00:00:00Z");
    let both = [tool("mcp:a", "read", "1"), tool("mcp:b", "read", "1"), tool("mcp:a", "list", "1")];
    pins.review(&both, "2026-01-02T00:00:00Z");
    assert_eq!(reserved(&pins), [pair("list", "mcp:a"), pair("read", "mcp:b")]);
    let changed = [tool("mcp:b", "read", "2")];
    pins.review(&changed, "2026-01-03T00:00:00Z");
    let offered = pins.offered("mcp:b", None, offer_digest(&pins.find("mcp:b", None).unwrap())).unwrap();
    approve(&mut pins.record, &offered, "2026-01-03T00:00:00Z");
    assert_eq!(reserved(&pins)[1], pair("read", "mcp:b"), "an approval makes it no newcomer");
    assert_eq!(pins.claim(&changed[0]).since.as_deref(), Some("2026-01-01T00:00:00Z"));
    let naming = Naming { prefix: Some("b".into()), ..Naming::default() };
    pins.levels =
        holding(&["mcp:a", "mcp:b"]).naming([NamedSource { source: "mcp:b".to_owned(), naming, reached: None }]);
    assert_eq!(reserved(&pins), [pair("b_read", "mcp:b"), pair("list", "mcp:a"), pair("read", "mcp:a")]);
}

fn reached(source: &str, how: &str) -> Levels {
    let reached = Some(Digest::of([how]));
    let named = NamedSource { source: source.to_owned(), naming: Naming::default(), reached };
    holding(&[source]).naming([named])
}

#[test]
fn a_server_that_is_renamed_and_changed_at_once_is_held_to_what_it_was_pinned_as() {
    for (how, tools) in [
        ("the same command", [tool("mcp:b", "entirely", "2"), tool("mcp:b", "other", "2")]),
        ("another command", [tool("mcp:b", "read", "2"), tool("mcp:b", "write", "1")]),
    ] {
        let mut before = PinState::of(PinRecord::default(), reached("mcp:a", "the same command"));
        held(&mut before, &[tool("mcp:a", "read", "1"), tool("mcp:a", "write", "1")]);
        let mut after = PinState::of(before.record, reached("mcp:b", how));
        let (is_held, changes) = after.review(&tools, "later");
        assert_eq!(
            changes[0],
            PinChange { source: "mcp:b".to_owned(), kind: PinChangeKind::Renamed("mcp:a".to_owned()) },
            "{how}"
        );
        let changed: Vec<&str> =
            tools.iter().filter(|tool| is_held.reason(tool).is_some()).map(|tool| &*tool.name).collect();
        let expected: &[&str] = if how == "the same command" { &["entirely", "other"] } else { &["read"] };
        assert_eq!(changed, expected, "{how}");
        let offered = after.offered("mcp:b", None, offer_digest(&after.find("mcp:b", None).unwrap())).unwrap();
        approve(&mut after.record, &offered, "later");
        assert_eq!(held(&mut after, &tools), [""; 0], "{how}");
    }
}

#[test]
fn a_server_that_is_renamed_while_its_tools_are_still_there_is_held_as_well() {
    let mut pins = PinState::of(PinRecord::default(), holding(&["mcp:a"]));
    let old = tool("mcp:a", "read", "1");
    held(&mut pins, std::slice::from_ref(&old));
    pins.set_levels(holding(&["mcp:b"]));
    assert_eq!(held(&mut pins, &[old, tool("mcp:b", "read", "2")]), ["read"]);
}

#[test]
fn a_server_that_is_renamed_alone_stays_pinned_and_one_that_is_another_is_first_seen() {
    let mut before = PinState::of(PinRecord::default(), reached("mcp:a", "a"));
    held(&mut before, &[tool("mcp:a", "read", "1"), tool("mcp:a", "write", "1"), tool("mcp:a", "list", "1")]);
    let mut after = PinState::of(before.record.clone(), reached("mcp:b", "a"));
    let same = ["read", "write", "list"].map(|name| tool("mcp:b", name, "1"));
    assert_eq!(held(&mut after, &same), [""; 0]);
    assert_eq!(held(&mut after, &[tool("mcp:b", "read", "2")]), ["read"]);
    let mut another = PinState::of(before.record.clone(), reached("mcp:c", "c"));
    let other = ["read", "look", "search"].map(|name| tool("mcp:c", name, "2"));
    let (is_held, changes) = another.review(&other, "later");
    assert_eq!(is_held.len(), 0, "one name in three is a coincidence");
    assert_eq!(changes[0].kind, PinChangeKind::FirstSeen(3));
    let mut both = PinState::of(before.record, holding(&["mcp:a", "mcp:b"]));
    assert_eq!(held(&mut both, &[tool("mcp:b", "read", "2")]), [""; 0], "the other is still configured");
}

#[test]
fn sources_of_one_start_are_of_one_age_whichever_is_faster_and_later_ones_are_younger() {
    let mut pins = PinState::of(PinRecord::default(), Levels::default());
    pins.starting = Some("2026-01-01T00:00:00Z".to_owned());
    let [a, b, c] = ["mcp:a", "mcp:b", "mcp:c"].map(|source| tool(source, "read", "1"));
    let started = Some("2026-01-01T00:00:00Z".to_owned());
    pins.review(std::slice::from_ref(&b), "2026-01-01T00:00:01Z");
    assert_eq!([&a, &b].map(|tool| pins.claim(tool).since), [started.clone(), started.clone()]);
    pins.review(&[a.clone(), b.clone()], "2026-01-01T00:00:02Z");
    pins.starting = None;
    assert_eq!(pins.claim(&c).since, None);
    pins.review(&[a.clone(), b.clone(), c.clone()], "2026-01-01T00:00:03Z");
    let mut next = PinState::of(pins.record, Levels::default());
    next.starting = Some("2026-01-02T00:00:00Z".to_owned());
    let later = Some("2026-01-01T00:00:03Z".to_owned());
    assert_eq!([&a, &b, &c].map(|tool| next.claim(tool).since), [started.clone(), started, later]);
}

#[test]
fn tools_that_known_sources_list_anew_at_a_start_are_of_one_age_whichever_is_faster() {
    let mut before = PinState::of(PinRecord::default(), Levels::default());
    before.review(&[tool("mcp:a", "read", "1"), tool("mcp:b", "read", "1")], "2026-01-01T00:00:00Z");
    let mut pins = PinState::of(before.record, Levels::default());
    pins.starting = Some("2026-01-02T00:00:00Z".to_owned());
    let [a, b] = ["mcp:a", "mcp:b"].map(|source| [tool(source, "read", "1"), tool(source, "find", "1")]);
    pins.review(&b, "2026-01-02T00:00:01Z");
    pins.review(&[a.clone(), b.clone()].concat(), "2026-01-02T00:00:02Z");
    pins.starting = None;
    let later = tool("mcp:b", "list", "1");
    let all = [a.as_slice(), &b, std::slice::from_ref(&later)].concat();
    pins.review(&all, "2026-01-02T00:00:03Z");
    let next = PinState::of(pins.record, Levels::default());
    let since = |tool: &ToolDescriptor| next.claim(tool).since;
    for (number, first) in ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"].into_iter().enumerate() {
        assert_eq!([since(&a[number]).as_deref(), since(&b[number]).as_deref()], [Some(first); 2]);
    }
    assert_eq!(since(&later).as_deref(), Some("2026-01-02T00:00:03Z"), "it is new after the start");
}

#[test]
fn a_recorded_change_keeps_the_first_time_of_a_tool() {
    let mut pins = PinState::of(PinRecord::default(), Levels::default());
    for (text, now) in [("1", "2026-01-01T00:00:00Z"), ("2", "2026-01-02T00:00:00Z"), ("3", "2026-01-03T00:00:00Z")] {
        pins.review(&[tool("mcp:a", "read", text)], now);
    }
    assert_eq!(pins.claim(&tool("mcp:a", "read", "3")).since.as_deref(), Some("2026-01-01T00:00:00Z"));
}

#[test]
fn a_strict_source_has_its_suspects_held_from_the_first_sight_until_they_are_approved() {
    let mut suspect = ToolDescriptor::new("read", "mcp:a", "mcp");
    let found =
        Suspicion { rule: "conceal".into(), place: "description".to_owned(), excerpt: "say nothing".to_owned() };
    suspect.suspicions = [found].into();
    let tools = [Arc::new(suspect), tool("mcp:a", "write", "1")];
    let mut pins = PinState::of(PinRecord::default(), Levels::new([("mcp:a".to_owned(), Level::Strict)], []));
    let (is_held, changes) = pins.review(&tools, "now");
    insta::assert_snapshot!(is_held.reason(&tools[0]).unwrap(), @r#"it is suspect: conceal in description: "say nothing"; see `toolbus pins diff read`"#);
    assert_eq!((is_held.len(), changes.len()), (1, 2));
    assert_eq!(held(&mut pins, &tools), ["read"]);
    let shown = offer_digest(&pins.find("read", None).unwrap());
    let offered = pins.offered("read", None, shown).unwrap();
    approve(&mut pins.record, &offered, "later");
    assert_eq!(held(&mut pins, &tools), [""; 0]);
    pins.levels = holding(&["mcp:a"]);
    assert_eq!(held(&mut pins, &tools), [""; 0]);
}

#[test]
fn a_server_that_flaps_between_two_definitions_is_reported_once() {
    let mut pins = PinState::of(PinRecord::default(), holding(&["mcp:a"]));
    let (one, two) = ([tool("mcp:a", "read", "1")], [tool("mcp:a", "read", "2")]);
    held(&mut pins, &one);
    for round in 0..3 {
        let (is_held, changes) = pins.review(&two, "now");
        assert_eq!((is_held.len(), changes.len()), (1, usize::from(round == 0)));
        assert_eq!(held(&mut pins, &one), [""; 0]);
        // Gone for a while, as when its server is removed.
        assert_eq!(held(&mut pins, &[]), [""; 0]);
    }
    assert_eq!(pins.changes["mcp:a"], 1);
}

#[test]
fn recorded_changes_are_held_from_the_start_and_not_reported_again() {
    let mut before = PinState::of(PinRecord::default(), holding(&["mcp:a"]));
    held(&mut before, &[tool("mcp:a", "read", "1")]);
    let next = [tool("mcp:a", "read", "2"), tool("mcp:a", "new", "1")];
    held(&mut before, &next);
    let mut pins = PinState::of(before.record, holding(&["mcp:a"]));
    let (is_held, changes) = pins.review(&next, "later");
    assert_eq!((is_held.len(), changes), (2, Vec::new()));
    assert!(!pins.is_unsaved);
}

#[test]
fn an_approval_applies_to_the_shown_definitions() {
    let mut pins = PinState::of(PinRecord::default(), holding(&["mcp:a", "mcp:b"]));
    held(&mut pins, &[tool("mcp:a", "read", "1"), tool("mcp:a", "old", "1"), tool("mcp:b", "read", "1")]);
    let next = [tool("mcp:a", "read", "2"), tool("mcp:a", "new", "1"), tool("mcp:b", "read", "2")];
    held(&mut pins, &next);
    let shown = |pins: &PinState, name: &str, source| offer_digest(&pins.find(name, source).unwrap());
    let both = shown(&pins, "read", None);
    assert_eq!(
        pins.offered("read", None, both),
        Err(Mismatch::Ambiguous("read".to_owned(), "mcp:a, mcp:b".to_owned()))
    );
    let one = shown(&pins, "read", Some("mcp:b"));
    held(&mut pins, &[next[0].clone(), next[1].clone(), tool("mcp:b", "read", "3")]);
    assert_eq!(pins.offered("read", Some("mcp:b"), one), Err(Mismatch::Again("read".to_owned())));
    let whole = shown(&pins, "mcp:a", None);
    assert_eq!(shown(&pins, "a", None), whole, "a server is meant by its own name, too");
    let offered = pins.offered("a", None, whole).unwrap();
    let states: Vec<_> = offered.iter().map(|difference| (&*difference.entry.tool, difference.entry.state)).collect();
    assert_eq!(states, [("new", ToolState::New), ("old", ToolState::Missing), ("read", ToolState::Changed)]);
    approve(&mut pins.record, &offered, "later");
    assert_eq!(held(&mut pins, &next), ["read"], "that of the other source");
    assert_eq!(pins.offered("a", None, whole), Err(Mismatch::Nothing("a".to_owned())));
    assert_eq!(pins.find("old", None), Err(Mismatch::Unknown("old".to_owned())), "it is forgotten");
    assert!(pins.record.sources["mcp:a"].tools["new"].approved.is_some());
}

#[test]
fn a_name_means_a_source_before_a_tool() {
    let mut pins = PinState::of(PinRecord::default(), holding(&["rest", "mcp:a"]));
    held(&mut pins, &[tool("rest", "get", "1"), tool("mcp:a", "read", "1")]);
    held(&mut pins, &[tool("rest", "get", "2"), tool("mcp:a", "read", "1"), tool("mcp:a", "rest", "1")]);
    let found = pins.find("rest", None).unwrap();
    assert_eq!(found.iter().map(|found| &*found.entry.tool).collect::<Vec<_>>(), ["get"]);
    assert_eq!(pins.find("rest", Some("mcp:a")).unwrap().len(), 1);
}

#[test]
fn a_name_that_a_server_and_a_tool_have_means_neither() {
    let mut pins = PinState::of(PinRecord::default(), holding(&["mcp:files", "mcp:evil"]));
    let read = |description| tool("mcp:files", "read", description);
    held(&mut pins, &[read("1"), tool("mcp:evil", "look", "1")]);
    held(&mut pins, &[read("2"), tool("mcp:evil", "look", "1"), tool("mcp:evil", "files", "1")]);
    insta::assert_snapshot!(pins.find("files", None).unwrap_err(), @"an MCP server and a tool of mcp:evil are called `files`: write `mcp:files` for the server, or name the tool's with --source");
    let tools = |name, source| {
        let found = pins.find(name, source).unwrap();
        found.into_iter().map(|found| (found.entry.source, found.entry.tool)).collect::<Vec<_>>()
    };
    assert_eq!(tools("mcp:files", None), [("mcp:files".to_owned(), "read".to_owned())]);
    assert_eq!(tools("files", Some("mcp:evil")), [("mcp:evil".to_owned(), "files".to_owned())]);
}

#[test]
fn changes_of_other_processes_are_merged_with_those_of_this_one() {
    let mut pins = PinState::of(PinRecord::default(), holding(&["mcp:a", "mcp:b"]));
    held(&mut pins, &[tool("mcp:a", "read", "2"), tool("mcp:b", "look", "1")]);
    let mut other = PinState::of(PinRecord::default(), holding(&["mcp:a"]));
    held(&mut other, &[tool("mcp:a", "read", "1")]);
    pins.merge(other.record.clone(), "later");
    assert!(pins.needs_review);
    assert!(pins.lacks_any(&other.record));
    let now = [tool("mcp:a", "read", "2"), tool("mcp:b", "look", "2")];
    assert_eq!(held(&mut pins, &now), ["read", "look"]);
    assert!(!pins.needs_review);
    pins.merge(pins.record.clone(), "later");
    assert!(!pins.needs_review, "a merge without changes needs no review");
}

#[test]
fn a_source_that_is_seen_while_nothing_can_be_written_is_not_first_seen_twice() {
    let mut pins = PinState::of(PinRecord::default(), holding(&["mcp:a"]));
    held(&mut pins, &[tool("mcp:a", "read", "1")]);
    let next = [tool("mcp:a", "read", "2")];
    assert_eq!(held(&mut pins, &next), ["read"]);
    pins.merge(PinRecord::default(), "later");
    assert_eq!(held(&mut pins, &next), ["read"]);
}

#[test]
fn an_oversized_record_drops_unpinned_sources_and_earlier_definitions() {
    let mut pins = PinState::of(PinRecord::default(), holding(&["mcp:a"]));
    held(&mut pins, &[tool("mcp:a", "read", "1"), tool("mcp:b", "look", "1"), tool("mcp:c", "see", "1")]);
    held(&mut pins, &[tool("mcp:c", "see", "2")]);
    let trimmed = pins.trimmed(&pins.record);
    assert_eq!(trimmed.sources.keys().collect::<Vec<_>>(), ["mcp:a", "mcp:c"]);
    assert_eq!(trimmed.sources["mcp:c"].tools["see"].before, None);
    assert!(pins.record.sources["mcp:c"].tools["see"].before.is_some());
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
    let mut pins = PinState::of(PinRecord::default(), holding(&["mcp:a"]));
    held(&mut pins, &[in_set("fs")]);
    assert_eq!(held(&mut pins, &[in_set("files")]), [""; 0]);
    for name in ["read", "files.read"] {
        assert_eq!(pins.find(name, None).unwrap()[0].entry.name, "files.read");
    }
}

#[test]
fn sources_that_come_and_go_do_not_fill_the_record_not_even_held_ones() {
    let pattern = |text: &str| (Pattern::parse(text).unwrap(), Level::Hold);
    let levels = Levels::new([("mcp:kept".to_owned(), Level::Record)], [pattern("mcp:*"), pattern("mcp:meant")]);
    let mut pins = PinState::of(PinRecord::default(), levels);
    held(&mut pins, &[tool("mcp:kept", "read", "1"), tool("mcp:meant", "read", "1")]);
    let others: Vec<_> = (0..=1_001).map(|number| tool(&format!("mcp:{number}"), "read", "1")).collect();
    for part in [&others[..1], &others[1..1_001], &others[1_001..]] {
        held(&mut pins, part);
    }
    let has = |source: &str| pins.record.sources.contains_key(source);
    assert!(has("mcp:kept") && has("mcp:meant") && has("mcp:1") && has("mcp:1001") && !has("mcp:0"));
    assert_eq!(pins.record.sources.len(), 1_003);
    assert!(pins.is_unsaved && !pins.last_seen.contains_key("mcp:0"));
}

#[test]
fn large_absent_sources_are_forgotten_before_small_ones() {
    let mut pins = PinState::of(PinRecord::default(), Levels::new([], [(Pattern::parse("*").unwrap(), Level::Hold)]));
    held(&mut pins, &[tool("mcp:small", "read", "1")]);
    let large = "x".repeat(3 << 20);
    for name in ["mcp:a", "mcp:b", "mcp:c", "mcp:d"] {
        held(&mut pins, &[tool(name, "read", &large)]);
    }
    assert_eq!(pins.record.sources.keys().collect::<Vec<_>>(), ["mcp:b", "mcp:c", "mcp:d", "mcp:small"]);
}

#[test]
fn a_source_of_another_process_is_forgotten_when_that_drops_it() {
    let mut other = PinState::of(PinRecord::default(), holding(&[]));
    held(&mut other, &[tool("mcp:b", "look", "1")]);
    let mut pins = PinState::of(other.record, holding(&["mcp:a"]));
    held(&mut pins, &[tool("mcp:c", "see", "1")]);
    assert!(pins.lacks_any(&PinRecord::default()));
    pins.merge(PinRecord::default(), "later");
    assert_eq!(pins.record.sources.keys().collect::<Vec<_>>(), ["mcp:c"]);
}

#[test]
fn a_source_that_changes_with_each_listing_silences_no_other() {
    let mut pins = PinState::of(PinRecord::default(), holding(&["mcp:a"]));
    held(&mut pins, &[tool("mcp:a", "read", "0"), tool("mcp:b", "look", "0")]);
    for number in 1..=MAX_REPORTED + 1 {
        let digest = Some(Digest::of([number.to_string().as_str()]));
        pins.report("mcp:a".to_owned(), "read".to_owned(), ToolState::Changed, digest, Level::Hold);
    }
    assert!(pins.reported["mcp:a"].len() <= MAX_REPORTED);
    let (_, changes) = pins.review(&[tool("mcp:a", "read", "1"), tool("mcp:b", "look", "1")], "now");
    assert_eq!(changes.len(), 2);
}

#[test]
fn sources_that_do_not_fit_are_dropped_and_smaller_ones_stay() {
    let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
    let sources = || names.iter().zip([3, 9, 4, 2, 1]);
    assert_eq!(beyond(sources(), 5, 9), ["b", "e"]);
    assert_eq!(beyond(sources(), 2, 100), ["c", "d", "e"]);
    assert_eq!(beyond(sources(), 5, 100), [""; 0]);
}
