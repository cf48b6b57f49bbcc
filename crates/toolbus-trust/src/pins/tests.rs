use std::fs;

use tempfile::TempDir;
use toolbus_core::Clock;

use super::*;

/// A new folder, and the path of a pin file in it.
pub(super) fn pin_file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pins.json");
    (folder, path)
}

fn tool(name: &str, description: &str) -> Arc<ToolDescriptor> {
    let description = description.to_owned();
    Arc::new(ToolDescriptor { description, ..ToolDescriptor::new(name, "mcp:a", "mcp") })
}

fn pins(file: Option<&Path>) -> Pins {
    let levels = Levels::new([("mcp:a".to_owned(), Level::Hold)], []);
    Pins::open(file.map(Path::to_owned), levels, Clock::SYSTEM).unwrap()
}

fn held(pins: &Pins, tools: &[Arc<ToolDescriptor>]) -> usize {
    pins.review(tools).len()
}

fn shown(pins: &Pins, name: &str) -> Digest {
    offer_digest(&pins.find(name, None).unwrap())
}

#[tokio::test]
async fn a_first_definition_stays_pinned_over_a_restart() {
    let (_folder, file) = pin_file();
    let first = pins(Some(&file));
    assert_eq!(held(&first, &[tool("read", "1")]), 0);
    first.unsaved().await;
    assert!(!first.save().unwrap(), "known definitions need no other review");
    let second = pins(Some(&file));
    assert_eq!(held(&second, &[tool("read", "2")]), 1);
    let entry = &second.list(None)[0];
    assert_eq!((&*entry.tool, entry.state, entry.is_held), ("read", ToolState::Changed, true));
    assert_eq!(second.counts(), [Count { source: "mcp:a".to_owned(), held: 1, changes: 1 }]);
}

#[test]
fn an_unrecorded_tool_has_no_time() {
    let (_folder, file) = pin_file();
    let pins = pins(Some(&file));
    let entry = |name: &str| pins.list(None).into_iter().find(|entry| entry.tool == name).unwrap();
    held(&pins, &[tool("read", "1"), tool("write", "1")]);
    let unrecorded = entry("read");
    assert_eq!((unrecorded.state, unrecorded.since, unrecorded.pinned), (ToolState::Unrecorded, None, None));
    pins.save().unwrap();
    let pinned = entry("read");
    assert_eq!(pinned.state, ToolState::Pinned);
    assert!(pinned.since.is_some() && pinned.since == pinned.pinned);
    held(&pins, &[tool("write", "1")]);
    let missing = entry("read");
    assert_eq!((missing.state, missing.since, missing.pinned), (ToolState::Missing, None, pinned.pinned));
}

#[test]
fn an_approval_counts_for_other_processes_and_after_a_restart() {
    let (_folder, file) = pin_file();
    let (one, other) = (pins(Some(&file)), pins(Some(&file)));
    let next = [tool("read", "2")];
    for pins in [&one, &other] {
        held(pins, &[tool("read", "1")]);
        pins.save().unwrap();
        assert_eq!(held(pins, &next), 1);
    }
    let digest = shown(&one, "read");
    assert_eq!(one.approve("read", None, digest).unwrap().len(), 1);
    assert_eq!(held(&one, &next), 0);
    assert!(other.reload().unwrap());
    assert_eq!(held(&other, &next), 0);
    assert!(!other.reload().unwrap());
    assert_eq!(held(&pins(Some(&file)), &next), 0);
}

#[test]
fn an_approval_without_a_daemon_applies_to_pending_changes_of_the_file() {
    let (_folder, file) = pin_file();
    let daemon = pins(Some(&file));
    held(&daemon, &[tool("read", "1")]);
    held(&daemon, &[tool("read", "2")]);
    daemon.save().unwrap();
    drop(daemon);
    let command = pins(Some(&file));
    assert_eq!(command.list(None)[0].state, ToolState::Changed);
    let digest = shown(&command, "a");
    command.approve("a", None, digest).unwrap();
    let daemon = pins(Some(&file));
    assert_eq!((held(&daemon, &[tool("read", "2")]), held(&daemon, &[tool("read", "1")])), (0, 1));
}

#[test]
fn two_processes_that_see_different_sources_keep_both() {
    let (_folder, file) = pin_file();
    let (one, other) = (pins(Some(&file)), pins(Some(&file)));
    held(&one, &[tool("read", "1")]);
    let of_rest = Arc::new(ToolDescriptor::new("get", "rest", "rest"));
    held(&other, &[of_rest]);
    one.save().unwrap();
    other.save().unwrap();
    let sources: Vec<_> = pins(Some(&file)).list(None).into_iter().map(|entry| entry.source).collect();
    assert_eq!(sources, ["mcp:a", "rest"]);
}

#[test]
fn of_two_processes_that_see_a_source_first_the_first_to_write_decides() {
    let (_folder, file) = pin_file();
    let (one, other) = (pins(Some(&file)), pins(Some(&file)));
    held(&one, &[tool("read", "1")]);
    let different = [tool("read", "2")];
    assert_eq!(held(&other, &different), 0);
    one.save().unwrap();
    assert!(other.save().unwrap(), "its tools must be reviewed again");
    assert_eq!(held(&other, &different), 1);
}

#[test]
fn a_broken_file_is_not_replaced_and_held_tools_stay_held() {
    let (_folder, file) = pin_file();
    let pins = pins(Some(&file));
    held(&pins, &[tool("read", "1")]);
    pins.save().unwrap();
    let written = fs::read(&file).unwrap();
    fs::write(&file, "{").unwrap();
    let next = [tool("read", "2")];
    assert_eq!(held(&pins, &next), 1);
    assert!(pins.save().is_err() && pins.reload().is_err());
    let digest = shown(&pins, "read");
    assert!(matches!(pins.approve("read", None, digest), Err(ApproveError::File(_))));
    assert_eq!((held(&pins, &next), fs::read_to_string(&file).unwrap()), (1, "{".to_owned()));
    assert!(pins.problem().unwrap().contains("is broken"));
    fs::write(&file, written).unwrap();
    pins.save().unwrap();
    assert_eq!(pins.problem(), None);
    pins.approve("read", None, digest).unwrap();
    assert_eq!(held(&pins, &next), 0);
}

#[test]
fn without_a_file_pins_hold_until_the_process_ends() {
    let pins = pins(None);
    held(&pins, &[tool("read", "1")]);
    assert_eq!(held(&pins, &[tool("read", "2")]), 1);
    assert!(!pins.save().unwrap());
    let digest = shown(&pins, "read");
    pins.approve("read", None, digest).unwrap();
    assert_eq!(held(&pins, &[tool("read", "2")]), 0);
}

#[test]
fn a_raised_level_pins_present_tools_and_a_lowered_one_releases_them() {
    let pins = Pins::open(None, Levels::default(), Clock::SYSTEM).unwrap();
    held(&pins, &[tool("read", "1")]);
    assert_eq!(held(&pins, &[tool("read", "2")]), 0);
    pins.set_levels(Levels::new([("mcp:a".to_owned(), Level::Hold)], []));
    assert_eq!(held(&pins, &[tool("read", "2")]), 0);
    assert_eq!(held(&pins, &[tool("read", "3")]), 1);
    pins.set_levels(Levels::new([("mcp:a".to_owned(), Level::Record)], []));
    assert_eq!(held(&pins, &[tool("read", "3")]), 0);
}

#[test]
fn a_source_whose_level_is_removed_before_its_tools_stays_held() {
    let pins = pins(None);
    let (first, next) = ([tool("read", "1")], [tool("read", "2")]);
    held(&pins, &first);
    assert_eq!(held(&pins, &next), 1);
    pins.set_levels(Levels::default());
    assert_eq!(held(&pins, &next), 1, "named no more, and still there");
    assert!(!pins.admits(&next[0]));
    assert_eq!(held(&pins, &[]), 0);
    assert_eq!(held(&pins, &next), 0, "there again, and no level holds it");
    pins.set_levels(Levels::new([("mcp:a".to_owned(), Level::Hold)], []));
    assert_eq!((held(&pins, &next), held(&pins, &first)), (1, 0), "no operator approved it");
}

#[test]
fn a_process_without_quarantine_leaves_the_pins_of_others_unchanged() {
    let (_folder, file) = pin_file();
    let holding = pins(Some(&file));
    held(&holding, &[tool("read", "1")]);
    holding.save().unwrap();
    let watching = Pins::open(Some(file.clone()), Levels::default(), Clock::SYSTEM).unwrap();
    let next = [tool("read", "2")];
    assert_eq!(held(&watching, &next), 0);
    let entry = &watching.list(None)[0];
    assert_eq!((entry.state, entry.is_held), (ToolState::Changed, false));
    watching.save().unwrap();
    holding.reload().unwrap();
    assert_eq!(held(&holding, &next), 1);
    assert_eq!(held(&pins(Some(&file)), &next), 1);
}

#[test]
fn an_unconfigured_server_that_fills_the_file_keeps_no_other_out() {
    let (_folder, file) = pin_file();
    let pins = pins(Some(&file));
    let large = ToolDescriptor { description: "x".repeat(65 << 20), ..ToolDescriptor::new("fill", "mcp:b", "mcp") };
    held(&pins, &[tool("read", "1"), Arc::new(large)]);
    assert!(!pins.save().unwrap());
    let sources = |pins: &Pins| pins.list(None).into_iter().map(|entry| entry.source).collect::<Vec<_>>();
    assert_eq!(sources(&self::pins(Some(&file))), ["mcp:a"]);
    assert_eq!(sources(&pins), ["mcp:a", "mcp:b"]);
    let written = file.metadata().unwrap().modified().unwrap();
    pins.save().unwrap();
    assert_eq!(file.metadata().unwrap().modified().unwrap(), written, "the same is not written again and again");
}
