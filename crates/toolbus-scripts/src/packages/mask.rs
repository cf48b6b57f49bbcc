//! Removes credentials and internal paths from pip's messages.

use std::path::Path;

use crate::text::without_middle;

/// Most characters that are shown.
const MAX_SHOWN: usize = 4000;
/// Replaces what is removed.
const HIDDEN: &str = "***";
/// Shortest part of a credential that is looked for by itself: shorter ones are words of any text.
const SHORTEST: usize = 4;
/// Shortest part of a path that may be a token.
const SHORTEST_TOKEN: usize = 16;

/// Knows what must not be shown.
pub(super) struct CredentialMask(Vec<String>);

impl CredentialMask {
    /// Hides users and passwords of the URLs in these texts, and parts of their paths that may be tokens.
    pub(super) fn new(texts: &[String]) -> Self {
        let urls = || texts.iter().flat_map(|text| text.split_whitespace());
        let credentials = urls().filter_map(userinfo);
        let mut parts: Vec<String> = credentials
            .flat_map(|userinfo| [userinfo].into_iter().chain(userinfo.split(':')))
            .chain(urls().flat_map(tokens))
            .flat_map(|part| [part.to_owned(), decoded(part)])
            .filter(|part| part.len() >= SHORTEST)
            .collect();
        // The longest first, so that none is left in parts.
        parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
        Self(parts)
    }

    /// The end of a text, where pip names the cause, without credentials and without the paths of these files and
    /// folders.
    pub(super) fn hide(&self, text: &str, paths: &[&Path]) -> String {
        let mut text: String = text.split_inclusive(char::is_whitespace).map(without_userinfo).collect();
        for part in &self.0 {
            text = text.replace(part, HIDDEN);
        }
        for path in paths {
            if let (Some(path), Some(name)) = (path.to_str(), path.file_name().and_then(|name| name.to_str())) {
                text = text.replace(path, name);
            }
        }
        let text: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
        without_middle(&text, 0, MAX_SHOWN)
    }
}

/// Text between `://` and `@`.
fn userinfo(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    authority.rsplit_once('@').map(|(userinfo, _)| userinfo)
}

/// Parts of a URL's path that are as long as tokens.
fn tokens(url: &str) -> impl Iterator<Item = &str> {
    let path = url.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
    path.into_iter().flat_map(|(_, path)| path.split('/')).filter(|part| part.len() >= SHORTEST_TOKEN)
}

/// A word, in which a URL has lost what stands before its `@`.
fn without_userinfo(word: &str) -> String {
    match userinfo(word) {
        Some(userinfo) if !userinfo.is_empty() => word.replacen(&format!("{userinfo}@"), &format!("{HIDDEN}@"), 1),
        _ => word.to_owned(),
    }
}

/// A text in which `%41` stands for `A`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match (byte, code.and_then(|code| u8::from_str_radix(code, 16).ok())) {
            (b'%', Some(decoded)) => {
                bytes.push(decoded);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_hidden_wherever_they_stand() {
        let mask = CredentialMask::new(&[
            "https://reader:hunter%2F2@index.example/simple".to_owned(),
            "https://extra.example/ https://token-12345@extra.example/".to_owned(),
            "http://u:pw@proxy.example".to_owned(),
            "https://index.example/0123456789abcdef/team/simple".to_owned(),
            "/etc/ssl/cert.pem".to_owned(),
        ]);
        let text = "Looking in https://reader:hunter%2F2@index.example/simple, https://other:secret@h/x\n\
                    user reader, password hunter/2 or hunter%2F2, token-12345; u, pw\n\
                    https://index.example/0123456789abcdef/team/simple/numpy/";
        assert_eq!(
            mask.hide(text, &[]),
            "Looking in https://***@index.example/simple, https://***@h/x\n\
             user ***, password *** or ***, ***; u, pw\n\
             https://index.example/***/team/simple/numpy/"
        );
    }

    #[test]
    fn paths_of_this_machine_become_names() {
        let mask = CredentialMask::new(&[]);
        let text = "ERROR: /srv/cache/new/1-2/target/x\u{1b}[0m: no space; a@b.example";
        assert_eq!(
            mask.hide(text, &[Path::new("/srv/cache/new/1-2/target")]),
            "ERROR: target/x[0m: no space; a@b.example"
        );
    }

    #[test]
    fn of_a_long_text_the_end_is_shown() {
        let text = format!("{}end", "é".repeat(5000));
        let shown = CredentialMask::new(&[]).hide(&text, &[]);
        assert!(shown.starts_with("[1003 characters left out]\né") && shown.ends_with("éend"), "{shown}");
    }
}
