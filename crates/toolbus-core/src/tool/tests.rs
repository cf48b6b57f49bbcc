#[test]
fn times_are_written_in_the_largest_unit_that_is_exact() {
    let texts = [1, 1500, 5_000, 90_000, 120_000, 1_200_000, 1_201_000, 3_600_000, 7_200_000, 86_400_000]
        .map(|milliseconds| super::time_text(std::time::Duration::from_millis(milliseconds)));
    insta::assert_snapshot!(texts.join(", "), @"1 ms, 1500 ms, 5 s, 90 s, 2 minutes, 20 minutes, 1201 s, 60 minutes, 2 hours, 24 hours");
    let rounded =
        [1, 61_000, 130_000, 7_201_000].map(|time| super::rounded_text(std::time::Duration::from_millis(time)));
    insta::assert_snapshot!(rounded.join(", "), @"1 s, 61 s, 3 minutes, 3 hours");
}

use super::*;

fn naming(set: Option<&str>, prefix: Option<&str>) -> Naming {
    let renamed = [("read_file".into(), "open".into())].into();
    Naming { set: set.map(Arc::from), prefix: prefix.map(Arc::from), renamed }
}

#[test]
fn a_tools_own_name_is_found_by_its_published_name() {
    let table = [
        (None, None, "list", "list"),
        (None, None, "read_file", "open"),
        (None, Some("files"), "list", "files_list"),
        (None, Some("files"), "read_file", "open"),
        (Some("fs"), None, "list", "fs.list"),
        (Some("fs"), Some("files"), "list", "fs.files_list"),
        (Some("fs"), Some("files"), "read_file", "fs.open"),
    ];
    for (set, prefix, own, published) in table {
        let naming = naming(set, prefix);
        assert_eq!(naming.published(own), published);
        assert_eq!(naming.own(published), Some(own), "{published}");
    }
}

#[test]
fn a_name_under_which_no_tool_is_published_has_no_own_name() {
    let table = [
        (None, None, "read_file"),
        (None, Some("files"), "list"),
        (None, Some("files"), "files_read_file"),
        (Some("fs"), None, "list"),
        (Some("fs"), None, "fslist"),
    ];
    for (set, prefix, published) in table {
        assert_eq!(naming(set, prefix).own(published), None, "{published}");
    }
}
