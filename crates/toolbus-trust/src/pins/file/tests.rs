use std::os::unix::fs::{chown, symlink};

use toolbus_core::tool::ToolDescriptor;

use super::super::record::{Pin, Source};
use super::*;

fn record() -> Record {
    let descriptor = ToolDescriptor { description: "Reads.".to_owned(), ..ToolDescriptor::new("read", "rest", "rest") };
    let tools = [("read".to_owned(), Pin::new(&Definition::of(&descriptor), "1", false))].into();
    let source = Source {
        since: "1".to_owned(),
        digest: digest_of(&tools),
        held: true,
        reached: None,
        tools,
        pending: [].into(),
    };
    Record { sources: [("rest".to_owned(), source)].into(), ..Record::default() }
}

fn refusal(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pins.json");
    fs::write(&path, text).unwrap();
    let error = PinFile::new(path.clone()).read().unwrap_err().to_string();
    error.replace(&path.display().to_string(), "FILE")
}

#[test]
fn what_is_written_is_read_by_this_user_alone_and_nothing_else_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pins.json");
    let file = PinFile::new(path.clone());
    assert_eq!(file.read().unwrap(), None);
    for _ in 0..2 {
        file.write(&record(), &file.lock().unwrap()).unwrap();
        assert_eq!(file.read().unwrap(), Some(record()));
    }
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["pins.json", "pins.json.lock"]);
}

/// Owner, group and permissions.
fn rights(path: &Path) -> (u32, u32, u32) {
    let metadata = path.metadata().unwrap();
    (metadata.uid(), metadata.gid(), metadata.mode() & 0o777)
}

#[test]
fn a_file_stays_its_owners_with_its_permissions_whoever_replaces_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pins.json");
    fs::write(&path, serde_json::to_vec(&Record::default()).unwrap()).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    // Only root can; for others the permissions are all that there is to keep.
    let _ = chown(&path, Some(12_345), Some(12_346));
    let before = rights(&path);
    let file = PinFile::new(path.clone());
    file.write(&record(), &file.lock().unwrap()).unwrap();
    assert_eq!(file.read().unwrap(), Some(record()));
    assert_eq!(rights(&path), before);
    assert_eq!(rights(&beside(&path, ".lock")), before);
}

#[test]
fn a_first_file_is_its_folders_owners() {
    let folder = tempfile::tempdir().unwrap();
    let _ = chown(folder.path(), Some(12_345), Some(12_346));
    let path = folder.path().join("pins.json");
    let file = PinFile::new(path.clone());
    file.write(&record(), &file.lock().unwrap()).unwrap();
    let (user, group, _) = rights(folder.path());
    assert_eq!(rights(&path), (user, group, 0o600));
    assert_eq!(rights(&beside(&path, ".lock")), (user, group, 0o600));
}

#[test]
fn what_a_crash_left_half_written_is_in_nobodys_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pins.json");
    fs::write(beside(&path, ".new"), "half of a much longer file that was being written".repeat(100)).unwrap();
    let file = PinFile::new(path);
    file.write(&record(), &file.lock().unwrap()).unwrap();
    assert_eq!(file.read().unwrap(), Some(record()));
}

#[test]
fn a_file_that_is_broken_is_refused_and_named() {
    insta::assert_snapshot!(refusal(""), @"the pin file `FILE` is broken: EOF while parsing a value at line 1 column 0; put back a copy of it, or, to pin everything as it is now, move it away");
    insta::assert_snapshot!(refusal("{}"), @"the pin file `FILE` is broken: missing field `version` at line 1 column 2; put back a copy of it, or, to pin everything as it is now, move it away");
    insta::assert_snapshot!(refusal(r#"{"version": 2, "sources": {}}"#), @"the pin file `FILE` is of version 2, and this program reads version 1 alone; use the program that wrote it, or move it away");
    let written = serde_json::to_string(&record()).unwrap();
    for (wrong, what) in [
        (written.replace("Reads.", "Reads all."), "the fingerprint of tool \"read\" of source \"rest\" is not its own"),
        (written.replace(r#""read":{"#, r#""reed":{"#), "the fingerprint of source \"rest\" is not its own"),
        (written.replace("since", "sense"), "unknown field `sense`"),
        (written[..written.len() / 2].to_owned(), "EOF while parsing"),
    ] {
        let error = refusal(&wrong);
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn a_file_that_was_laid_out_in_another_way_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pins.json");
    let value: serde_json::Value = serde_json::from_str(&serde_json::to_string(&record()).unwrap()).unwrap();
    fs::write(&path, format!("{value:#}")).unwrap();
    assert_eq!(PinFile::new(path).read().unwrap(), Some(record()));
}

#[test]
fn what_is_no_file_of_ours_is_neither_read_nor_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    symlink("elsewhere", &link).unwrap();
    let error = |path: &Path| PinFile::new(path.to_owned()).read().unwrap_err().to_string();
    assert!(error(&link).ends_with("is a symbolic link; name the file itself"));
    assert!(error(folder.path()).ends_with("is no regular file"));
    let nowhere = PinFile::new(folder.path().join("none/pins.json"));
    assert_eq!(nowhere.read().unwrap(), None);
    let refused = nowhere.lock().err().unwrap().to_string();
    assert!(
        refused.ends_with("cannot be written: its folder does not exist; create it, or set pins.file"),
        "{refused}"
    );
}

#[test]
fn a_file_that_cannot_be_written_is_told_with_the_key_that_names_another() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    for place in ["file/pins.json", "nothing/pins.json"] {
        let told = PinFile::new(folder.path().join(place)).lock().err().unwrap().to_string();
        assert!(told.contains("cannot be written") && told.contains("set pins.file"), "{told}");
    }
}

#[test]
fn one_process_at_a_time_has_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = PinFile::new(folder.path().join("pins.json"));
    let held = file.lock().unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| file.lock().map(drop));
        assert!(!other.is_finished());
        drop(held);
        other.join().unwrap().unwrap();
    });
}
