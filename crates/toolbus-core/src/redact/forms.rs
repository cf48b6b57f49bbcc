//! The forms in which a secret is met.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::MIN_SECRET;

/// As forms of HTML and most libraries encode.
const STRICT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Whether the digits of Base64 around a form hold bits of the secret, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Edges {
    pub(super) before: bool,
    pub(super) after: bool,
}

/// Every form of a secret, as it is and as encodings write it, each once; without those that a [view](super::views) of
/// the text has.
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
    // As forms of HTML write it, which are percent-encoded besides.
    add(secret.replace(' ', "+"), whole);
    add(json_escaped(secret), whole);
    add(secret.to_owned(), whole);
    forms
}

/// Base64 of a text that begins `offset` bytes after a multiple of three, without the characters that also hold bits of
/// its surroundings.
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

/// As the inside of a string of JSON, with nothing escaped that need not be.
fn json_escaped(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap_or_default();
    quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default().to_owned()
}
