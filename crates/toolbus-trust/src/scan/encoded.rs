//! Text within texts: base64, hexadecimal, per cent, ROT13.

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::haystack::{TextSource, display};

/// Shortest run that is decoded, in characters.
const MIN_RUN: usize = 24;
/// Most runs of one tool that are.
const MAX_RUNS: usize = 32;
/// Longest part of a run that is, in characters.
const MAX_RUN: usize = 8 * 1024;

/// Decoded content of a text.
pub(super) struct DecodedText {
    pub(super) place: String,
    pub(super) text: String,
}

/// Everything that can be decoded to text with words in it.
pub(super) fn decoded(texts: &impl TextSource) -> impl Iterator<Item = DecodedText> {
    let mut all = Vec::new();
    texts.each(&mut |place, _, text| {
        if all.len() >= MAX_RUNS || text.len() < MIN_RUN {
            return;
        }
        let found = runs(text).into_iter().flat_map(|run| [base64(run), hexadecimal(run)]).flatten();
        let found = found.chain(per_cent(text)).chain(rot13(text)).filter(|text| has_words(text));
        all.extend(found.map(|text| DecodedText { place: display(place), text }));
    });
    all.truncate(MAX_RUNS);
    all.into_iter()
}

/// Long runs of letters, digits and what else base64 is written with.
fn runs(text: &str) -> Vec<&str> {
    let is_of_run = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_');
    let (mut runs, mut start) = (Vec::new(), 0);
    let ends = text.bytes().enumerate().filter(|(_, byte)| !is_of_run(*byte)).map(|(at, _)| at);
    for end in ends.chain([text.len()]) {
        if end - start >= MIN_RUN && runs.len() < MAX_RUNS {
            runs.extend(text.get(start..end.min(start + MAX_RUN)));
        }
        start = end + 1;
    }
    runs
}

fn base64(run: &str) -> Option<String> {
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    // The rest of a run that is no whole number of bytes is ignored.
    let run = run.get(..run.len() - usize::from(run.len() % 4 == 1))?;
    let alphabet = if run.contains(['-', '_']) { URL_SAFE } else { STANDARD };
    String::from_utf8(GeneralPurpose::new(&alphabet, config).decode(run).ok()?).ok()
}

fn hexadecimal(run: &str) -> Option<String> {
    let digits = run.bytes().map(|byte| char::from(byte).to_digit(16));
    text_of(&digits.collect::<Option<Vec<u32>>>()?)
}

fn text_of(digits: &[u32]) -> Option<String> {
    let bytes = digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | *digit));
    String::from_utf8(bytes.filter_map(|byte| u8::try_from(byte).ok()).collect()).ok()
}

/// Decodes text with so many per cent signs that it is not for a URL.
fn per_cent(text: &str) -> Option<String> {
    text.bytes().filter(|byte| *byte == b'%').nth(MIN_RUN / 3 - 1)?;
    let digits: Vec<u32> = text
        .split('%')
        .skip(1)
        .take(MAX_RUN)
        .filter_map(|part| part.get(..2).map(|pair| pair.chars().filter_map(|c| c.to_digit(16)).collect::<Vec<_>>()))
        .filter(|pair| pair.len() == 2)
        .flatten()
        .collect();
    text_of(&digits)
}

fn rot13(text: &str) -> Option<String> {
    let is_named = text.split_ascii_whitespace().any(|word| {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric());
        word.eq_ignore_ascii_case("rot13") || word.eq_ignore_ascii_case("rot-13")
    });
    let turned = |c: char| match c {
        'a'..='m' | 'A'..='M' => char::from(c as u8 + 13),
        'n'..='z' | 'N'..='Z' => char::from(c as u8 - 13),
        _ => c,
    };
    is_named.then(|| text.chars().take(MAX_RUN).map(turned).collect())
}

fn has_words(text: &str) -> bool {
    text.contains(' ') && text.chars().filter(|c| c.is_control() && !c.is_whitespace()).count() * 10 < text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let texts: &[(&str, &str)] = &[("description", text)];
        decoded(&texts).map(|decoded| decoded.text).collect()
    }

    #[test]
    fn encoded_text_is_decoded() {
        assert_eq!(found("See SGVsbG8sIHdvcmxkIGFuZCBhbGwh."), ["Hello, world and all!"]);
        assert_eq!(found("See SGVsbG8_IHdvcmxkIGFuZCBhbGwh"), ["Hello? world and all!"]);
        assert_eq!(found("See 48656c6c6f2c20776f726c6421"), ["Hello, world!"]);
        assert_eq!(found("%48%65%6c%6c%6f%20%79%6f%75"), ["Hello you"]);
        assert_eq!(found("In ROT13: Uryyb, jbeyq nyy"), ["Va EBG13: Hello, world all"]);
    }

    #[test]
    fn runs_that_are_no_encoded_text_are_ignored() {
        for text in [
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "/usr/local/share/ca-certificates/extra",
            "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
            "a rate of 10% to 20%",
            "äöüäöüäöüäöüäöüäöüäöüäöüäöü",
        ] {
            assert!(found(text).is_empty(), "{text}");
        }
    }
}
