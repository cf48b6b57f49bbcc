//! Names of arguments that providers of models refuse, and those that models use instead.
//!
//! A changed name ends with a hash, as the changed name of a tool does, so that it differs from any other.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value};
use toolbus_protocol::{is_alias, llm_name};

/// Longest name of an argument that every provider accepts, in bytes.
const MAX_NAME: usize = 64;

/// Whether every provider accepts an argument of this name: `^[a-zA-Z0-9_.-]{1,64}$`, as Anthropic requires.
pub(crate) fn is_accepted(name: &str) -> bool {
    let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'-');
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(fits)
}

/// The name by which every provider accepts an argument.
pub(crate) fn shown_name(name: &str) -> Cow<'_, str> {
    if is_accepted(name) { Cow::Borrowed(name) } else { llm_name(name) }
}

/// Gives arguments that a model named by [`shown_name`] the names that the tool has `declared`.
///
/// An argument stays as it is if the tool declares it so, or has been given the other as well.
pub(crate) fn restore<'a>(arguments: &mut Map<String, Value>, declared: impl FnOnce() -> HashSet<&'a str>) {
    if !arguments.keys().any(|name| is_alias(name)) {
        return;
    }
    let declared = declared();
    for name in declared.iter().filter(|name| !is_accepted(name)) {
        let shown = shown_name(name);
        if !declared.contains(&*shown)
            && !arguments.contains_key(*name)
            && let Some(value) = arguments.remove(&*shown)
        {
            arguments.insert((*name).to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_is_accepted_by_every_provider_or_not() {
        for (name, expected) in [("a", true), ("projects.any", true), ("x-y_Z9", true), ("", false), ("ids[]", false)] {
            assert_eq!(is_accepted(name), expected, "{name}");
        }
        assert!(is_accepted(&"x".repeat(64)) && !is_accepted(&"x".repeat(65)));
    }

    #[test]
    fn arguments_get_their_own_names_back() {
        let long = "x".repeat(65);
        let declared = ["To", "page[size]", "会社ID", "会社", "", &long];
        let shown: Map<String, Value> =
            declared.iter().map(|name| (shown_name(name).into_owned(), json!(name))).collect();
        assert_eq!(shown.len(), declared.len());
        assert!(shown.keys().all(|name| is_accepted(name)), "{shown:?}");
        let mut arguments = shown;
        restore(&mut arguments, || HashSet::from(declared));
        assert!(
            arguments.iter().all(|(name, value)| value == name) && arguments.len() == declared.len(),
            "{arguments:?}"
        );
    }

    #[test]
    fn an_argument_that_the_tool_declares_or_that_is_given_twice_keeps_its_name() {
        let alias = shown_name("ids[]").into_owned();
        let given = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), json!(1))).collect::<Map<_, _>>();
        for (names, declared) in [
            ([&*alias].as_slice(), HashSet::from(["ids[]", &*alias])),
            (&[&*alias, "ids[]"], HashSet::from(["ids[]"])),
            (&[&*alias], HashSet::from(["other[]"])),
        ] {
            let mut arguments = given(names);
            restore(&mut arguments, || declared);
            assert_eq!(arguments, given(names));
        }
    }
}
