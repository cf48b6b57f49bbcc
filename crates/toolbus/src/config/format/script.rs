//! The forms of what is said of scripts.

use toolbus_scripts::requirement::AllowedPackages;

use super::{require, shortened};

/// Longest name of a module, in bytes.
const MAX_MODULE: usize = 128;

/// A module of Python, by its full name.
pub(super) fn module(text: &str) -> Result<(), String> {
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let what = format!("{:?} is no module; expected a name such as \"json\" or \"os.path\"", shortened(text));
    require(text.len() <= MAX_MODULE && text.split('.').all(is_word), &what)
}

/// A package with or without versions, or any.
pub(super) fn package(text: &str) -> Result<(), String> {
    let mistake = AllowedPackages::parse(&[text]).err().and_then(|mistakes| mistakes.into_iter().next());
    mistake.map_or(Ok(()), |(_, mistake)| Err(mistake.to_string()))
}
