//! The page of attacks and these tests name the same ones.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Names of the tests in a file: the functions that an attribute of a test stands before.
fn tests(file: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(file).unwrap();
    let (mut is_test, mut names) = (false, BTreeSet::new());
    for line in text.lines().map(str::trim) {
        is_test |= line.starts_with("#[tokio::test") || line == "#[test]";
        let declared = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if let (true, Some((name, _))) = (is_test, declared.and_then(|rest| rest.split_once('('))) {
            names.insert(name.to_owned());
            is_test = false;
        }
    }
    names
}

fn tests_below(folder: &str) -> BTreeSet<String> {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut files);
    files.iter().filter(|file| !file.ends_with("page.rs")).flat_map(|file| tests(file)).collect()
}

/// Tests that the tables name: in a last column `Test`, and in every column of the overview.
fn named(page: &str) -> BTreeSet<String> {
    let (mut is_overview, mut names) = (false, BTreeSet::new());
    // The first cell that counts, in the table that is read.
    let mut from = None;
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            is_overview = heading == "In short";
        }
        let Some(row) = line.strip_prefix('|').and_then(|row| row.strip_suffix('|')) else {
            from = None;
            continue;
        };
        let cells: Vec<&str> = row.split('|').collect();
        let first = *from.get_or_insert(match cells.last() {
            _ if is_overview => 0,
            Some(last) if last.trim() == "Test" => cells.len() - 1,
            _ => cells.len(),
        });
        let quoted = cells.into_iter().skip(first).flat_map(|cell| cell.split('`').skip(1).step_by(2));
        names.extend(quoted.map(str::to_owned));
    }
    names
}

#[test]
fn every_attack_is_on_the_page_and_every_test_on_the_page_exists() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sandbox.md")).unwrap();
    let named = named(&page);
    let attacks: BTreeSet<_> = ["attacks", "exhaustion", "lifetime"]
        .into_iter()
        .flat_map(|target| tests_below(&format!("tests/{target}")))
        .collect();
    assert!(attacks.len() >= 50, "{attacks:#?}");
    let missing: Vec<_> = attacks.difference(&named).collect();
    assert!(missing.is_empty(), "docs/sandbox.md has no row for {missing:#?}");
    let others =
        ["src", "tests", "../toolbus-scripts/src", "../toolbus-scripts/tests", "../../tests/tests/e2e/scripts"];
    let existing: BTreeSet<_> = attacks.into_iter().chain(others.into_iter().flat_map(tests_below)).collect();
    let unknown: Vec<_> = named.difference(&existing).collect();
    assert!(unknown.is_empty(), "docs/sandbox.md names tests that do not exist: {unknown:#?}");
}
