//! The forms of what is said of the HTTP server.

use url::Url;

use super::{require, shortened};

/// Longest name of a host, in bytes.
const MAX_HOST: usize = 253;
/// Longest origin, in bytes.
const MAX_ORIGIN: usize = 300;

/// The name of a host, alone.
pub(super) fn host_name(text: &str) -> Result<(), String> {
    let what = format!(
        "{:?} is no name of a host; expected one alone, without scheme, port and wildcard, such as \
         \"toolbus.example.com\"",
        shortened(text)
    );
    let is_label =
        |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    require(text.len() <= MAX_HOST && text.split('.').all(is_label), &what)
}

/// What a browser says of the page that sends a request.
pub(super) fn origin(text: &str) -> Result<(), String> {
    let what = format!(
        "{:?} is no origin as browsers send it; expected scheme, host and, where it is not the usual one, port, such as \
         \"https://app.example.com\"",
        shortened(text)
    );
    let (scheme, host) = text.split_once("://").ok_or_else(|| what.clone())?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_lowercase())
        && scheme.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    let is_host = !host.is_empty()
        && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '[' | ']'));
    let is_written_so = !matches!(scheme, "http" | "https")
        || Url::parse(text).is_ok_and(|url| url.origin().ascii_serialization() == text);
    require(text.len() <= MAX_ORIGIN && is_scheme && is_host && is_written_so, &what)
}
