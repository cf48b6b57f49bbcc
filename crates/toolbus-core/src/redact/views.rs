//! Texts as they were before an encoding that may write any character, each in several ways: so many forms of a secret
//! that the text is decoded instead.

use std::ops::Range;

use memchr::{memchr, memchr_iter, memchr2};

use super::candidates::is_digit;

/// Digits of Base64 that a line has at least before it is taken for one that was broken.
const MIN_LINE: usize = 16;
/// Longest entity of HTML, in bytes.
const MAX_ENTITY: usize = 12;
/// Ends of lines, as they are and as JSON escapes them.
const LINE_ENDS: [&[u8]; 3] = [b"\n", b"\\n", b"\\r\\n"];

/// Encoding that a text may be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// Strings of JSON, whichever characters a library escapes. One level of them: JSON may be a string of other JSON.
    Json,
    /// Percent-encoding, whichever characters a library encodes.
    Percent,
    /// Entities of HTML and XML.
    Html,
    /// Base64 in lines.
    Lines,
}

/// An encoded part of a text, and what stood there before.
struct EncodedPart {
    range: Range<usize>,
    plain: [u8; 4],
    length: usize,
}

impl View {
    pub(super) const ALL: [Self; 4] = [Self::Json, Self::Percent, Self::Html, Self::Lines];

    /// The text without the encoding; none where it has nothing of the kind.
    pub(super) fn decoded(self, text: &[u8]) -> Option<Vec<u8>> {
        if self == Self::Json && !has_unusual_escapes(text) {
            return None;
        }
        let mut token = self.next(text, 0)?;
        let (mut decoded, mut done) = (Vec::with_capacity(text.len()), 0);
        loop {
            decoded.extend_from_slice(text.get(done..token.range.start)?);
            decoded.extend_from_slice(token.plain.get(..token.length)?);
            done = token.range.end;
            match self.next(text, done) {
                Some(next) => token = next,
                None => break,
            }
        }
        decoded.extend_from_slice(text.get(done..)?);
        Some(decoded)
    }

    /// Returns the views of the decoded text, and how deep JSON within JSON is looked into there; `None` if not at all.
    /// JSON may hold JSON and any other encoding, each of which may hold one more string of JSON.
    pub(super) fn within(self, views: &[Self], nested: usize) -> Option<(&[Self], usize)> {
        match self {
            Self::Json => nested.checked_sub(1).map(|nested| (views, nested)),
            Self::Percent | Self::Html | Self::Lines => Some((&[Self::Json], 1)),
        }
    }

    /// The ranges of the text itself that these of the decoded text come from, in order.
    pub(super) fn origins(self, text: &[u8], ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
        let mut walk = Walk { view: self, text, origin: 0, decoded: 0, token: self.next(text, 0) };
        let origin = |range: Range<usize>| {
            let start = walk.origin(range.start).start;
            start..walk.origin(range.end.saturating_sub(1)).end
        };
        ranges.into_iter().map(origin).collect()
    }

    /// The first encoded part at `from` or later.
    fn next(self, text: &[u8], mut from: usize) -> Option<EncodedPart> {
        loop {
            let rest = text.get(from..)?;
            let found = match self {
                Self::Json => memchr(b'\\', rest),
                Self::Percent => memchr(b'%', rest),
                Self::Html => memchr(b'&', rest),
                Self::Lines => memchr2(b'\n', b'\\', rest),
            }?;
            let start = from + found;
            let token = match self {
                Self::Json => escape(text, start),
                Self::Percent => percent(text, start),
                Self::Html => entity(text, start),
                Self::Lines => line_end(text, start),
            };
            if token.is_some() {
                return token;
            }
            from = start + 1;
        }
    }
}

/// A way through a text and what was decoded from it.
struct Walk<'a> {
    view: View,
    text: &'a [u8],
    origin: usize,
    decoded: usize,
    token: Option<EncodedPart>,
}

impl Walk<'_> {
    /// Where the byte `at` of the decoded text comes from; `at` never decreases.
    fn origin(&mut self, at: usize) -> Range<usize> {
        loop {
            let as_it_is = self.token.as_ref().map_or(self.text.len(), |token| token.range.start) - self.origin;
            if at < self.decoded + as_it_is {
                let origin = self.origin + (at - self.decoded);
                return origin..origin + 1;
            }
            let Some(token) = &self.token else { return self.text.len()..self.text.len() };
            if at < self.decoded + as_it_is + token.length {
                return token.range.clone();
            }
            self.decoded += as_it_is + token.length;
            self.origin = token.range.end;
            self.token = self.view.next(self.text, self.origin);
        }
    }
}

/// Whether strings of JSON within the text may have been written in another way than the [forms](super::forms) have.
fn has_unusual_escapes(text: &[u8]) -> bool {
    memchr_iter(b'\\', text).any(|at| matches!(text.get(at + 1), Some(b'/' | b'u' | b'\\')))
}

/// `\/`, `\"`, `\u002f`.
fn escape(text: &[u8], start: usize) -> Option<EncodedPart> {
    let (character, length) = match text.get(start + 1)? {
        b'b' => ('\u{8}', 2),
        b'f' => ('\u{c}', 2),
        b'n' => ('\n', 2),
        b'r' => ('\r', 2),
        b't' => ('\t', 2),
        byte @ (b'"' | b'\\' | b'/') => (char::from(*byte), 2),
        b'u' => {
            let units = [utf16_unit(text, start), utf16_unit(text, start + 6)];
            let mut characters = char::decode_utf16(units.into_iter().map_while(|unit| unit));
            let character = characters.next()?.ok()?;
            (character, 6 * character.len_utf16())
        }
        _ => return None,
    };
    let mut plain = [0; 4];
    let written = character.encode_utf8(&mut plain).len();
    Some(EncodedPart { range: start..start + length, plain, length: written })
}

/// The unit that an escape by number stands for.
fn utf16_unit(text: &[u8], start: usize) -> Option<u16> {
    let digits = text.get(start..start + 6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | u16::try_from(char::from(*digit).to_digit(16)?).ok()?))
}

/// `%2F`.
fn percent(text: &[u8], start: usize) -> Option<EncodedPart> {
    let digit = |at: usize| char::from(*text.get(start + at)?).to_digit(16);
    let byte = u8::try_from(digit(1)? * 16 + digit(2)?).ok()?;
    Some(EncodedPart { range: start..start + 3, plain: [byte, 0, 0, 0], length: 1 })
}

/// `&amp;`, `&#39;`, `&#x2F;`.
fn entity(text: &[u8], start: usize) -> Option<EncodedPart> {
    let name = text.get(start + 1..)?;
    let length = name.iter().take(MAX_ENTITY).position(|byte| *byte == b';')?;
    let character = named(std::str::from_utf8(name.get(..length)?).ok()?)?;
    let mut plain = [0; 4];
    let written = character.encode_utf8(&mut plain).len();
    Some(EncodedPart { range: start..start + length + 2, plain, length: written })
}

/// The character of an entity: those that have to be escaped have names, and any has a number.
fn named(name: &str) -> Option<char> {
    let Some(number) = name.strip_prefix('#') else {
        return match name {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => None,
        };
    };
    let number = match number.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => number.parse(),
    };
    char::from_u32(number.ok()?)
}

/// The end of a line of Base64, with what the next one is indented by.
fn line_end(text: &[u8], start: usize) -> Option<EncodedPart> {
    let (before, rest) = text.split_at_checked(start)?;
    let before = before.strip_suffix(b"\r").unwrap_or(before);
    let is_line = before.len() >= MIN_LINE && before.iter().rev().take(MIN_LINE).all(is_digit);
    let end = LINE_ENDS.into_iter().find(|end| rest.starts_with(end)).filter(|_| is_line)?.len();
    let indent = rest.iter().skip(end).take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let range = before.len()..start + end + indent;
    is_digit(text.get(range.end)?).then_some(EncodedPart { range, plain: [0; 4], length: 0 })
}
