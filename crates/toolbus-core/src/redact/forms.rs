//! The forms in which a secret is met.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::MIN_SECRET;

/// As forms of HTML and most libraries encode.
const STRICT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Characters of ASCII that JSON may have as they are, and that are escaped by number: nowhere; by Go; by Gson; for HTML by
/// others; by .NET.
const BY_NUMBER: [&str; 5] = ["", "<>&", "<>&'=", "<>&'\"", "<>&'\"+`"];

/// Digits of Base64 that libraries escape in JSON, each with how.
pub(super) const ESCAPED_DIGITS: [(char, &[&str]); 2] = [('/', &["\\/"]), ('+', &["\\u002B", "\\u002b"])];

/// Whether the digits of Base64 around a form hold bits of the secret, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Edges {
    pub(super) before: bool,
    pub(super) after: bool,
}

/// Every form of a secret, as it is and as encodings write it, each once; without those that a [view](super::views) of the
/// text has.
pub(super) fn forms(secret: &str) -> BTreeMap<String, Edges> {
    let mut forms = BTreeMap::new();
    let mut add = |form: String, edges: Edges| {
        if form.len() >= MIN_SECRET {
            forms.entry(form).or_insert(edges);
        }
    };
    let form_encoded = utf8_percent_encode(secret, STRICT).to_string().replace("%20", "+");
    for text in [secret, &form_encoded] {
        for offset in 0..3 {
            for is_url_safe in [false, true] {
                let (form, edges) = in_base64(text.as_bytes(), offset, is_url_safe);
                for (digit, escapes) in ESCAPED_DIGITS {
                    escapes.iter().for_each(|escape| add(form.replace(digit, escape), edges));
                }
                add(form, edges);
            }
        }
    }
    let whole = Edges::default();
    // As forms of HTML write it, which are percent-encoded besides.
    add(secret.replace(' ', "+"), whole);
    for escaped in in_json(secret) {
        // A text of JSON may be a string of another one.
        for text in [json_escaped(&escaped), escaped] {
            add(text.replace('/', "\\/"), whole);
            add(text, whole);
        }
    }
    add(secret.to_owned(), whole);
    forms
}

/// What stands in Base64 of anything that holds the text `offset` bytes after a multiple of three, without the characters
/// that also hold bits of what is around it.
fn in_base64(text: &[u8], offset: usize, is_url_safe: bool) -> (String, Edges) {
    let mut padded = vec![0; offset];
    padded.extend_from_slice(text);
    let encoded = if is_url_safe { URL_SAFE_NO_PAD.encode(&padded) } else { STANDARD_NO_PAD.encode(&padded) };
    // One byte is in two characters, two bytes are in three: the last of them, or the one at the beginning, is shared.
    let (first, before) = [(0, false), (2, true), (3, true)].get(offset).copied().unwrap_or_default();
    let after = !padded.len().is_multiple_of(3);
    let last = encoded.len() - usize::from(after);
    (encoded.get(first..last).unwrap_or_default().to_owned(), Edges { before, after })
}

/// As the inside of a string of JSON.
fn json_escaped(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap_or_default();
    quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default().to_owned()
}

/// The inside of a string of JSON as libraries write it: they differ in what they escape by number, and in its digits.
fn in_json(text: &str) -> BTreeSet<String> {
    // So are most, and they are many.
    if text.chars().all(|c| c.is_ascii_alphanumeric() || "-._~/".contains(c)) {
        return BTreeSet::from([text.to_owned()]);
    }
    let sets = BY_NUMBER.into_iter().filter(|set| set.is_empty() || text.contains(|c| set.contains(c)));
    let manners = [false].into_iter().chain((!text.is_ascii()).then_some(true));
    let mut written = BTreeSet::new();
    for (set, is_ascii) in sets.flat_map(|set| manners.clone().map(move |is_ascii| (set, is_ascii))) {
        for is_upper in [false, true] {
            let is_numbered = |c: char| set.contains(c) || (is_ascii && !c.is_ascii());
            written.insert(text.chars().map(|c| json_character(c, is_numbered(c), is_upper)).collect());
        }
    }
    written
}

/// A character within a string of JSON; by number if it is to be, or can be in no other way.
fn json_character(character: char, is_numbered: bool, is_upper: bool) -> String {
    let escaped = json_escaped(character.encode_utf8(&mut [0; 4]));
    if !is_numbered && !escaped.starts_with("\\u") {
        return escaped;
    }
    let mut units = [0; 2];
    let units = character.encode_utf16(&mut units).iter();
    units.map(|unit| if is_upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") }).collect()
}
