//! What of a text is secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use url::{Url, form_urlencoded};

/// Ends of words that name secrets.
const SECRET: [&str; 11] = [
    "token",
    "tokens",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "credential",
    "credentials",
    "auth",
    "authorization",
    "cookie",
];
/// Whole last words that do.
const SHORT: [&str; 3] = ["pass", "creds", "jwt"];
/// Last words that do behind another one: alone they are a directory, or a pattern.
const AMBIGUOUS: [&str; 2] = ["pwd", "pat"];
/// What a key is that opens nothing.
const HARMLESS_KEYS: [&str; 8] = ["primary", "foreign", "sort", "partition", "public", "group", "row", "hot"];

/// Last words of names of what is handed on, and is no secret.
const SETTINGS: [&str; 22] = [
    "dir",
    "directory",
    "email",
    "env",
    "environment",
    "file",
    "folder",
    "home",
    "host",
    "hostname",
    "lang",
    "level",
    "locale",
    "mode",
    "name",
    "path",
    "port",
    "region",
    "timezone",
    "tz",
    "user",
    "version",
];

/// Whether what has this name is a setting like any other: `AWS_REGION`, `HOME`.
pub(super) fn names_setting(name: &str) -> bool {
    let lower = name.to_lowercase();
    lower.rsplit(|c: char| !c.is_alphanumeric()).next().is_some_and(|last| SETTINGS.contains(&last))
}

/// Whether what has this name is secret: `GITHUB_TOKEN`, `x-api-key`, `dbPassword`, `--client-secret`.
pub(super) fn names_secret(name: &str) -> bool {
    let lower = name.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    match words.as_slice() {
        [.., last] if SECRET.iter().any(|end| last.ends_with(end)) || SHORT.contains(last) => true,
        [.., _, last] if AMBIGUOUS.contains(last) => true,
        [.., kind, "key"] => !HARMLESS_KEYS.contains(kind),
        [.., last] => {
            last.ends_with("key")
                && last.len() > "key".len()
                && !HARMLESS_KEYS.iter().any(|kind| last.starts_with(kind))
        }
        [] => false,
    }
}

/// The password of a URL, as it is written and as it is meant; without one the user, who is a token then.
pub(super) fn in_url(text: &str) -> Vec<String> {
    let Ok(url) = Url::parse(text.trim()) else { return Vec::new() };
    if !url.has_host() {
        return Vec::new();
    }
    let Some(written) = url.password().or(Some(url.username())).filter(|written| !written.is_empty()) else {
        return Vec::new();
    };
    let meant = percent_decode_str(written).decode_utf8_lossy().into_owned();
    vec![meant, written.to_owned()]
}

/// Parameters of a URL whose names say that they are secret.
pub(super) fn in_query(url: &str) -> Vec<String> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let pairs = form_urlencoded::parse(query.as_bytes());
    // `{name}` is filled in by each call.
    let is_secret = |name: &str, value: &str| names_secret(name) && !value.contains('{');
    pairs.filter(|(name, value)| is_secret(name, value)).map(|(_, value)| value.into_owned()).collect()
}

/// The value of a header: as a whole, and its credential without the scheme.
pub(super) fn header(value: &str) -> Vec<String> {
    let value = value.trim();
    let Some((scheme, credential)) = value.split_once(' ') else { return vec![value.to_owned()] };
    let credential = credential.trim();
    let mut values = vec![value.to_owned(), credential.to_owned()];
    let decoded = scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(credential).ok()).flatten();
    let pair = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    values.extend(pair.and_then(|pair| Some(pair.split_once(':')?.1.to_owned())));
    values
}

/// An argument of a program: `--token VALUE`, `--token=VALUE`, `TOKEN=VALUE`, `Authorization: Bearer VALUE`, or a URL with a
/// password.
pub(super) fn argument(before: Option<&str>, argument: &str) -> Vec<String> {
    let mut values = in_url(argument);
    values.extend(in_query(argument));
    let is_option = |text: &&str| text.starts_with('-') && !text.contains(['=', ' ']);
    if before.filter(is_option).is_some_and(names_secret) {
        values.push(argument.to_owned());
    }
    values.extend(pair(argument));
    values.extend(
        argument
            .split_once(':')
            .filter(|(name, _)| names_secret(name))
            .into_iter()
            .flat_map(|(_, value)| header(value)),
    );
    values
}

/// The value of `NAME=VALUE`, if the name says that it is secret.
pub(super) fn pair(text: &str) -> Vec<String> {
    let Some((_, value)) = text.split_once('=').filter(|(name, _)| names_secret(name)) else { return Vec::new() };
    let value = percent_decode_str(value.trim()).decode_utf8_lossy().into_owned();
    header(&value)
}
