use std::borrow::Cow;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// Longest name that every model provider accepts, in bytes.
const MAX_LLM_NAME: usize = 64;
/// Bytes of the hash in a name that had to be changed: two digits each.
const HASH_BYTES: usize = 6;

/// The name of a tool as model providers accept it: `^[a-zA-Z0-9_-]{1,64}$`.
///
/// A name that fits stays as it is. Of any other, each run of other characters becomes `_`, and a hash of the whole name
/// follows. The result depends on the name alone, never on which other tools there are. A tool may bear the very name
/// that another one's becomes: whoever resolves names looks for real ones first.
#[must_use]
pub fn llm_name(name: &str) -> Cow<'_, str> {
    if (1..=MAX_LLM_NAME).contains(&name.len()) && name.chars().all(is_accepted) {
        return Cow::Borrowed(name);
    }
    let mut changed = String::with_capacity(MAX_LLM_NAME);
    let mut in_run = false;
    for c in name.chars() {
        if changed.len() == MAX_LLM_NAME - 1 - 2 * HASH_BYTES {
            break;
        }
        let accepted = is_accepted(c);
        if accepted || !in_run {
            changed.push(if accepted { c } else { '_' });
        }
        in_run = !accepted;
    }
    changed.push('_');
    for byte in Sha256::digest(name).into_iter().take(HASH_BYTES) {
        // Writing to a string cannot fail.
        let _ = write!(changed, "{byte:02x}");
    }
    Cow::Owned(changed)
}

/// The name of a tool as Gemini accepts it, too: as [`llm_name`], and begins with a letter or `_`.
#[must_use]
pub fn gemini_name(name: &str) -> Cow<'_, str> {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let known = llm_name(name);
    if known.starts_with(is_first) {
        return known;
    }
    // The space makes sure that a hash follows: the name with `_` alone could be another tool's own.
    Cow::Owned(llm_name(&format!("_{name} ")).into_owned())
}

const fn is_accepted(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::{MAX_LLM_NAME, gemini_name, is_accepted, llm_name};

    fn is_valid(name: &str) -> bool {
        (1..=MAX_LLM_NAME).contains(&name.len()) && name.chars().all(is_accepted)
    }

    #[test]
    fn a_name_begins_with_a_letter_for_gemini() {
        for name in ["read", "_read", "Read-1", "fs.read"] {
            assert_eq!(gemini_name(name), llm_name(name), "{name}");
        }
        for name in ["3d", "-x", "3d.view", &"7".repeat(64)] {
            let changed = gemini_name(name);
            assert!(
                changed.starts_with('_') && changed.len() <= MAX_LLM_NAME && changed.chars().all(is_accepted),
                "{changed}"
            );
        }
        assert_ne!(gemini_name("3d"), gemini_name("_3d"));
    }

    #[test]
    fn a_name_that_fits_stays_as_it_is() {
        let longest = "x".repeat(64);
        for name in ["a", "web_search", "Get-Weather_2", "-", "__", "fs_read_0123456789ab", &longest] {
            assert_eq!(llm_name(name), name);
        }
    }

    #[test]
    fn any_other_name_becomes_readable_and_unique() {
        let long = |end: &str| format!("{}{end}", "n".repeat(254));
        let table = [
            ("fs.read_file", "fs_read_file_2055dfb06562"),
            ("fs..read  file", "fs_read_file_334715275c9b"),
            ("größe", "gr_e_d353a2671b67"),
            ("天気", "__bc79d84d3df7"),
            ("a/b:c d", "a_b_c_d_6f86e44f61a7"),
            ("", "_e3b0c44298fc"),
            (&long("a"), "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn_0597236d0a37"),
            (&long("b"), "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn_42657c8b1066"),
        ];
        for (name, expected) in table {
            assert_eq!(llm_name(name), expected, "{name}");
        }
    }

    #[test]
    fn names_that_differ_only_in_what_is_lost_stay_apart() {
        let long = "n".repeat(64);
        let names = [
            "a.b",
            "a:b",
            "a..b",
            "a b",
            "ä",
            "ö",
            "",
            ".",
            &format!("{long}x"),
            &format!("{long}y"),
            &format!("{long}."),
        ];
        let changed: HashSet<_> = names.iter().map(|name| llm_name(name)).collect();
        assert_eq!(changed.len(), names.len(), "{changed:?}");
    }

    #[test]
    fn a_name_that_looks_like_a_changed_one_is_left_alone() {
        let changed = llm_name("fs.read").into_owned();
        assert_eq!(llm_name(&changed), changed);
    }

    #[test]
    fn ten_thousand_names_give_as_many_valid_ones() {
        let mut runner = TestRunner::new(Config { cases: 10_000, ..Config::default() });
        let seen = RefCell::new(HashMap::new());
        runner
            .run(&name(), |name| {
                let changed = llm_name(&name).into_owned();
                prop_assert!(is_valid(&changed));
                prop_assert_eq!(&llm_name(&changed), &changed);
                let earlier = seen.borrow_mut().entry(changed).or_insert_with(|| name.clone()).clone();
                prop_assert_eq!(earlier, name);
                Ok(())
            })
            .unwrap();
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof!["[a-z]{1,6}[.:/ äö天]{1,3}[a-z]{1,6}", "[a-zA-Z0-9_-]{1,64}", "[a-z.]{60,80}", any::<String>()]
    }
}
