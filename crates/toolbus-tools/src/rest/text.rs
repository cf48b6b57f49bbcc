//! Bytes of an answer as text.

use encoding_rs::{Encoding, UTF_8};
use reqwest::header::{CONTENT_TYPE, HeaderMap};

use super::mask::Mask;

/// Longest content type that is shown, in characters.
const MAX_SHOWN: usize = 100;

/// The type of an answer's content, as its server named it.
#[derive(Debug)]
pub(super) struct ContentType(String);

impl ContentType {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Self(value.unwrap_or_default().to_owned())
    }

    /// As a message may show it.
    pub(super) fn shown(&self, mask: &Mask) -> String {
        if self.0.is_empty() { "no type".to_owned() } else { mask.whole(&self.0).chars().take(MAX_SHOWN).collect() }
    }

    /// The named charset; UTF-8 when there is none, or one that nobody knows.
    fn encoding(&self) -> &'static Encoding {
        let charset = self.0.split(';').skip(1).find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"'))
        });
        charset.and_then(|label| Encoding::for_label(label.as_bytes())).unwrap_or(UTF_8)
    }

    /// The bytes as text; nothing when they are none.
    pub(super) fn decode(&self, bytes: &[u8]) -> Option<String> {
        let (text, _, has_errors) = self.encoding().decode(bytes);
        // No text has a NUL, but many a binary format is valid UTF-8 up to it.
        (!has_errors && !text.contains('\0')).then(|| text.into_owned())
    }

    /// The same for the beginning of a longer text, whose last character may be cut.
    pub(super) fn decode_start(&self, bytes: &[u8]) -> Option<String> {
        let whole = match std::str::from_utf8(bytes) {
            Err(error) if self.encoding() == UTF_8 && error.error_len().is_none() => error.valid_up_to(),
            _ => bytes.len(),
        };
        self.decode(bytes.get(..whole)?)
    }
}

#[cfg(test)]
mod tests {
    use super::ContentType;

    fn typed(text: &str) -> ContentType {
        ContentType(text.to_owned())
    }

    #[test]
    fn text_is_decoded_by_its_charset() {
        let table: [(&str, &[u8], &str); 7] = [
            ("", "grün".as_bytes(), "grün"),
            ("application/json", "grün".as_bytes(), "grün"),
            ("text/plain; charset=ISO-8859-1", b"gr\xfcn", "grün"),
            ("text/plain;format=flowed; Charset=\"windows-1252\"", b"gr\xfcn", "grün"),
            ("text/plain; charset=utf-16le", b"g\0r\0", "gr"),
            ("text/plain; charset=nonsense", "grün".as_bytes(), "grün"),
            ("text/plain", b"\xef\xbb\xbfx", "x"),
        ];
        for (content_type, bytes, text) in table {
            assert_eq!(typed(content_type).decode(bytes).as_deref(), Some(text), "{content_type}");
        }
    }

    #[test]
    fn what_is_not_text_is_not_decoded() {
        for bytes in [&b"gr\xfcn"[..], b"\x89PNG\r\n\x1a\n", b"PK\x03\x04\0\0"] {
            assert_eq!(typed("application/json").decode(bytes), None);
        }
    }

    #[test]
    fn the_start_of_a_text_may_end_within_a_character() {
        assert_eq!(typed("").decode_start("grü".as_bytes().get(..3).unwrap()).as_deref(), Some("gr"));
        assert_eq!(typed("").decode_start(b"g\xffr"), None);
    }
}
