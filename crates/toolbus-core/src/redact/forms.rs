//! The forms in which a secret is met.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::MIN_SECRET;

/// As forms of HTML and most libraries encode.
const STRICT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// As `encodeURIComponent` does.
const COMPONENT: &AsciiSet = &STRICT.remove(b'!').remove(b'*').remove(b'\'').remove(b'(').remove(b')');
/// What a URL leaves as it is in a query or a path.
const LENIENT: &AsciiSet =
    &COMPONENT.remove(b'$').remove(b'&').remove(b'+').remove(b',').remove(b':').remove(b';').remove(b'=').remove(b'@');

/// Whether the digits of Base64 around a form hold bits of the secret, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Edges {
    pub(super) before: bool,
    pub(super) after: bool,
}

/// Every form of a secret, as it is and as encodings write it, each once.
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
                add(form, edges);
            }
        }
    }
    let whole = Edges::default();
    for set in [STRICT, COMPONENT, LENIENT] {
        let encoded = utf8_percent_encode(secret, set).to_string();
        add(lowered(&encoded), whole);
        add(encoded, whole);
    }
    add(lowered(&form_encoded), whole);
    add(form_encoded, whole);
    // A text of JSON may be a string of another one.
    let escaped = json_escaped(secret);
    for text in [&*escaped, &json_escaped(&escaped), &in_ascii(&escaped)] {
        add(text.replace('/', "\\/"), whole);
        add(text.to_owned(), whole);
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

/// The inside of a string of JSON as those write it who escape everything but ASCII.
fn in_ascii(escaped: &str) -> String {
    let mut text = String::with_capacity(escaped.len());
    for character in escaped.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            let mut units = [0; 2];
            text.extend(character.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    text
}

/// Percent-encoded with digits in lower case.
fn lowered(encoded: &str) -> String {
    let mut left = 0;
    let lower = |c: char| {
        left = if c == '%' { 2 } else { left };
        let is_digit = left > 0 && c != '%';
        left -= usize::from(is_digit);
        if is_digit { c.to_ascii_lowercase() } else { c }
    };
    encoded.chars().map(lower).collect()
}
