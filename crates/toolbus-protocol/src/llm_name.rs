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
/// that another one's becomes: real names are resolved first.
#[must_use]
pub fn llm_name(name: &str) -> Cow<'_, str> {
    if (1..=MAX_LLM_NAME).contains(&name.len()) && name.chars().all(is_accepted) {
        return Cow::Borrowed(name);
    }
    let mut changed = readable(name);
    changed.push('_');
    for byte in Sha256::digest(name).into_iter().take(HASH_BYTES) {
        // Writing to a string cannot fail.
        let _ = write!(changed, "{byte:02x}");
    }
    Cow::Owned(changed)
}

/// The part of a changed name before the hash.
fn readable(name: &str) -> String {
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
    changed
}

/// The name of a tool as Gemini accepts it, too: as [`llm_name`], and begins with a letter or `_`.
#[must_use]
pub fn gemini_name(name: &str) -> Cow<'_, str> {
    let known = llm_name(name);
    if known.starts_with(is_first) {
        return known;
    }
    // The space makes sure that a hash follows: the name with `_` alone could be another tool's own.
    Cow::Owned(llm_name(&format!("_{name} ")).into_owned())
}

/// Whether a name has the form that [`llm_name`] gives to names that it changes.
#[must_use]
pub fn is_alias(name: &str) -> bool {
    stem(name).is_some()
}

/// Whether models use `alias` for the tool `name`, whose own name they do not accept.
#[must_use]
pub fn is_alias_of(alias: &str, name: &str) -> bool {
    is_alias(alias) && (*llm_name(name) == *alias || *gemini_name(name) == *alias)
}

/// Returns the readable part of `alias` after `beginning`; `None` if no name that begins so has this alias.
#[must_use]
pub fn rest_of_alias<'a>(alias: &'a str, beginning: &str) -> Option<&'a str> {
    let stem = stem(alias)?;
    let for_gemini = || (!beginning.starts_with(is_first)).then(|| readable(&format!("_{beginning}")));
    stem.strip_prefix(&*readable(beginning)).or_else(|| stem.strip_prefix(&*for_gemini()?))
}

/// An alias without its hash; `None` for a name that is no alias.
fn stem(name: &str) -> Option<&str> {
    let (stem, hash) = name.rsplit_once('_')?;
    let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let is_hash = hash.len() == 2 * HASH_BYTES && hash.chars().all(is_digit);
    (is_hash && name.len() <= MAX_LLM_NAME && stem.chars().all(is_accepted)).then_some(stem)
}

const fn is_first(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
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

    use super::{MAX_LLM_NAME, gemini_name, is_accepted, is_alias, is_alias_of, llm_name, rest_of_alias};

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
    fn names_that_differ_only_in_replaced_or_cut_characters_stay_distinct() {
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
    fn an_alias_is_distinguished_from_other_names_and_contains_its_prefix() {
        let long = "n".repeat(64);
        let table = [
            ("fs.", "read_file", Some("read_file")),
            ("fs.", "größe", Some("gr_e")),
            ("my set.", "a", Some("a")),
            ("3d.", "view", Some("view")),
            (&*long, ".x", Some("")),
        ];
        for (beginning, rest, expected) in table {
            let name = format!("{beginning}{rest}");
            let alias = llm_name(&name);
            assert!(is_alias(&alias) && is_alias_of(&alias, &name) && !is_alias_of(&alias, &format!("{name}x")));
            assert_eq!(rest_of_alias(&alias, beginning), expected, "{name}");
            assert_eq!(rest_of_alias(&alias, "git."), None, "{name}");
            assert!(rest_of_alias(&gemini_name(&name), beginning).is_some(), "{name}");
            assert!(is_alias_of(&gemini_name(&name), &name), "{name}");
        }
        for name in ["read_file", "fs.read_file", "fs_read_2055DFB06562", "fs_read_2055dfb0656", "2055dfb06562", ""] {
            assert!(!is_alias(name), "{name}");
            assert!(!is_alias_of(name, name), "{name}");
        }
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
