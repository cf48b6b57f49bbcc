use toolbus_core::tool::ToolDescriptor;

use super::*;

fn here(tools: &[(&str, &str)]) -> BTreeMap<String, Present> {
    let present = |(name, description): &(&str, &str)| {
        let descriptor =
            ToolDescriptor { description: (*description).to_owned(), ..ToolDescriptor::new(*name, "mcp:files", "mcp") };
        let present = Present { name: (*name).into(), definition: Definition::of(&descriptor), finding: None };
        ((*name).to_owned(), present)
    };
    tools.iter().map(present).collect()
}

fn states(source: &Source, present: &BTreeMap<String, Present>, level: Level) -> Vec<State> {
    present.iter().map(|(name, tool)| source.state(name, tool, level)).collect()
}

fn at(now: &str) -> Moment<'_> {
    Moment { now, first: now }
}

const FIRST: [(&str, &str); 2] = [("read", "Reads."), ("write", "Writes.")];

#[test]
fn what_stays_as_it_was_first_seen_is_pinned_however_often_it_is_listed() {
    let present = here(&FIRST);
    let mut source = Source::first_seen(&present, Level::Hold, at("1"));
    for now in ["2", "3"] {
        assert_eq!(source.observe(&present, Level::Hold, at(now)), Observed::default());
    }
    assert_eq!(states(&source, &present, Level::Hold), [State::Pinned; 2]);
    assert_eq!(source, Source::first_seen(&present, Level::Hold, at("1")));
}

#[test]
fn a_change_waits_and_what_is_pinned_stays() {
    let mut source = Source::first_seen(&here(&FIRST), Level::Hold, at("1"));
    let present = here(&[("read", "Reads all."), ("write", "Writes.")]);
    let observed = source.observe(&present, Level::Hold, at("2"));
    assert_eq!(observed, Observed { news: vec![("read".to_owned(), State::Changed)], is_changed: true });
    assert_eq!(states(&source, &present, Level::Hold), [State::Changed, State::Pinned]);
    assert_eq!(source.pending["read"].since, "2");
    assert!(!source.observe(&present, Level::Hold, at("3")).is_changed, "the same change is not another one");
    assert_eq!(source.pending["read"].since, "2");
    assert!(source.observe(&here(&FIRST), Level::Hold, at("4")).is_changed, "back to what is pinned");
    assert_eq!(source, Source::first_seen(&here(&FIRST), Level::Hold, at("1")));
}

#[test]
fn a_rename_is_a_tool_that_is_missing_and_one_that_is_new() {
    let mut source = Source::first_seen(&here(&FIRST), Level::Hold, at("1"));
    let present = here(&[("read", "Reads."), ("store", "Writes.")]);
    let observed = source.observe(&present, Level::Hold, at("2"));
    let told = |name: &str, state| (name.to_owned(), state);
    assert_eq!(observed.news, [told("store", State::New), told("write", State::Missing)]);
    assert_eq!(states(&source, &present, Level::Hold), [State::Pinned, State::New]);
    assert!(source.observe(&here(&FIRST[..1]), Level::Hold, at("3")).is_changed);
    assert!(source.pending.is_empty(), "what is gone waits for nobody");
}

#[test]
fn the_order_in_which_a_server_lists_is_no_change() {
    let mut source = Source::first_seen(&here(&FIRST), Level::Hold, at("1"));
    let reversed = here(&[FIRST[1], FIRST[0]]);
    assert_eq!(source.observe(&reversed, Level::Hold, at("2")), Observed::default());
}

#[test]
fn where_changes_are_told_only_the_record_follows_them() {
    let mut source = Source::first_seen(&here(&FIRST), Level::Watch, at("1"));
    let present = here(&[("read", "Reads all."), ("stat", "Looks.")]);
    let observed = source.observe(&present, Level::Watch, at("2"));
    let told = |name: &str, state| (name.to_owned(), state);
    assert_eq!(observed.news, [told("write", State::Missing), told("read", State::Changed), told("stat", State::New)]);
    assert_eq!(states(&source, &present, Level::Watch), [State::Changed, State::Recorded]);
    assert_eq!(source.tools["read"].before.as_ref().map(|seen| &*seen.since), Some("1"));
    assert_eq!(source.digest, digest_of(&source.tools));
    assert_eq!(states(&source, &present, Level::Hold), [State::Pinned; 2], "pinned from now on, it is pinned as it is");
}

#[test]
fn what_was_pinned_stays_when_changes_are_held_no_longer() {
    let mut source = Source::first_seen(&here(&FIRST), Level::Hold, at("1"));
    let present = here(&[("read", "Reads all."), ("stat", "Looks.")]);
    source.observe(&present, Level::Hold, at("2"));
    let before = source.clone();
    let observed = source.observe(&present, Level::Watch, at("3"));
    let told = |name: &str, state| (name.to_owned(), state);
    assert_eq!(observed.news, [told("read", State::Changed), told("stat", State::New), told("write", State::Missing)]);
    assert_eq!((observed.is_changed, &source), (false, &before));
    assert_eq!(states(&source, &present, Level::Watch), [State::Changed, State::New]);
    assert_eq!(states(&source, &present, Level::Hold), [State::Changed, State::New]);
}

#[test]
fn a_source_that_is_pinned_from_now_on_is_noted_as_such() {
    let mut source = Source::first_seen(&here(&FIRST), Level::Watch, at("1"));
    let now = here(&[("read", "Reads all."), ("write", "Writes.")]);
    source.observe(&now, Level::Watch, at("2"));
    assert!(source.observe(&now, Level::Hold, at("3")).is_changed);
    assert!(!source.observe(&now, Level::Hold, at("4")).is_changed);
    source.observe(&here(&FIRST), Level::Watch, at("5"));
    assert_eq!(states(&source, &now, Level::Hold), [State::Pinned; 2]);
}

#[test]
fn a_suspect_tool_is_held_only_by_the_strict_and_until_it_is_approved() {
    let mut present = here(&FIRST);
    present.get_mut("read").unwrap().finding = Some("speaks to the model".to_owned());
    let mut source = Source::first_seen(&present, Level::Hold, at("1"));
    assert_eq!(states(&source, &present, Level::Strict), [State::Suspect, State::Pinned]);
    assert_eq!(states(&source, &present, Level::Hold), [State::Pinned; 2]);
    assert_eq!(states(&source, &present, Level::Watch), [State::Recorded; 2]);
    let read = Pin::new(&present["read"].definition, "2", true);
    source.tools.insert("read".to_owned(), read);
    assert_eq!(states(&source, &present, Level::Strict), [State::Pinned; 2]);
}
