//! The characters of a body.

use std::borrow::Cow;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, WINDOWS_1252, X_USER_DEFINED};

/// Bytes in which HTML names its charset, as browsers look for it.
const PRESCAN: usize = 1024;
/// Bytes from which an unnamed charset is guessed.
const GUESSED: usize = 64 * 1024;

/// Decodes a body by its byte order mark, its header, the charset that HTML declares, or the looks of its bytes. What
/// does not fit becomes U+FFFD.
pub(super) fn decode<'a>(body: &'a [u8], content_type: &str, is_html: bool) -> Cow<'a, str> {
    let named = || of_header(content_type).or_else(|| of_html(body).filter(|_| is_html));
    let encoding = match Encoding::for_bom(body) {
        Some((encoding, _)) => encoding,
        None => named().unwrap_or_else(|| guess(body)),
    };
    encoding.decode(body).0
}

fn of_header(content_type: &str) -> Option<&'static Encoding> {
    content_type.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim().trim_matches(['"', '\'']);
        Encoding::for_label(value.as_bytes()).filter(|_| name.trim().eq_ignore_ascii_case("charset"))
    })
}

/// The charset that a `meta` element, or an XML declaration, names in the first bytes.
fn of_html(body: &[u8]) -> Option<&'static Encoding> {
    let start = body.get(..PRESCAN.min(body.len()))?.to_ascii_lowercase();
    let mut rest = start.as_slice();
    while let Some(at) = find(rest, b"charset").or_else(|| find(rest, b"encoding")) {
        let after = rest.get(at + b"encoding".len() - 1..).unwrap_or_default();
        let after = after.strip_prefix(b"g").unwrap_or(after).trim_ascii_start();
        if let Some(value) = after.strip_prefix(b"=") {
            let value = value.trim_ascii_start();
            let value = value.strip_prefix(b"\"").or_else(|| value.strip_prefix(b"'")).unwrap_or(value);
            let end = value.iter().position(|byte| matches!(byte, b'"' | b'\'' | b';' | b'>' | b'/' | b' ' | b'?'));
            let label = value.get(..end.unwrap_or(value.len())).unwrap_or_default();
            // A page that could be read as far as this is not in UTF-16, whatever it declares.
            return Encoding::for_label(label).map(|encoding| match encoding {
                encoding if !encoding.is_ascii_compatible() => UTF_8,
                encoding if encoding == X_USER_DEFINED => WINDOWS_1252,
                encoding => encoding,
            });
        }
        rest = after;
    }
    None
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn guess(body: &[u8]) -> &'static Encoding {
    let start = body.get(..GUESSED.min(body.len())).unwrap_or_default();
    let is_utf8 = |error: std::str::Utf8Error| error.error_len().is_none() && start.len() < body.len();
    // ISO-2022-JP is ASCII with escape sequences.
    if !start.contains(&0x1b) && std::str::from_utf8(start).map_or_else(is_utf8, |_| true) {
        return UTF_8;
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Allow);
    detector.feed(start, start.len() == body.len());
    detector.guess(None, Utf8Detection::Allow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charset_is_that_of_the_mark_the_header_the_page_or_its_bytes_in_this_order() {
        let table: [(&[u8], &str, bool, &str); 12] = [
            (b"\xef\xbb\xbfgr\xc3\xbcn", "text/html; charset=iso-8859-1", true, "grün"),
            (b"\xff\xfeg\0r\0", "", false, "gr"),
            (b"gr\xfcn", "text/plain; charset=ISO-8859-1", false, "grün"),
            (b"gr\xfcn", "text/plain;format=flowed; Charset=\"latin1\"", false, "grün"),
            (b"<meta charset=latin1>gr\xfcn", "text/html; charset=utf-8", true, "<meta charset=latin1>gr\u{fffd}n"),
            (b"<meta charset=latin1>gr\xfcn", "text/html", true, "<meta charset=latin1>grün"),
            (
                b"<META http-equiv=content-type content='text/html; CHARSET = Windows-1252'>gr\xfcn",
                "",
                true,
                "<META http-equiv=content-type content='text/html; CHARSET = Windows-1252'>grün",
            ),
            (b"<?xml encoding=\"koi8-r\"?>\xcd", "", true, "<?xml encoding=\"koi8-r\"?>м"),
            (b"<meta charset=utf-16>gr\xc3\xbcn", "", true, "<meta charset=utf-16>grün"),
            ("grün".as_bytes(), "text/plain", false, "grün"),
            ("grün".as_bytes(), "text/plain; charset=nonsense", false, "grün"),
            (
                b"Un \xe9t\xe9 \xe0 la campagne, c'est d\xe9j\xe0 l'\xe9t\xe9",
                "",
                false,
                "Un été à la campagne, c'est déjà l'été",
            ),
        ];
        for (bytes, content_type, is_html, text) in table {
            assert_eq!(decode(bytes, content_type, is_html), text, "{content_type}");
        }
    }

    #[test]
    fn japanese_without_a_named_charset_is_recognised() {
        let text = "日本語のページです。文字コードは書かれていませんが、読めなければなりません。";
        for encoding in [encoding_rs::SHIFT_JIS, encoding_rs::EUC_JP, encoding_rs::ISO_2022_JP, UTF_8] {
            assert_eq!(decode(&encoding.encode(text).0, "text/html", true), text, "{}", encoding.name());
        }
    }
}
