//! Texts as the rules know them: in lower case, with letters as what they look like, one sentence in a line.

use std::borrow::Cow;

use crate::schema::TextRole;
use crate::text::seen;

/// Letters with space between them that make a word.
const MIN_SPACED: usize = 6;

/// One text, as the rules know it.
pub(super) fn of(text: &str) -> String {
    let mut normal = String::new();
    push(text, TextRole::Prose, &mut normal);
    normal
}

/// Adds a text, and the end of a line.
pub(super) fn push(text: &str, role: TextRole, into: &mut String) {
    let text = if role == TextRole::Name { Cow::Borrowed(text) } else { joined(text) };
    let start = into.len();
    into.reserve(text.len() + 1);
    let (mut gap, mut breaks, mut before) = (false, 0, ' ');
    let mut add = |c: char| {
        let is_gap = c.is_whitespace() || role == TextRole::Name && matches!(c, '_' | '-' | '.' | '/' | '$');
        if is_gap {
            gap = true;
            breaks += usize::from(c == '\n');
            return;
        }
        // Marks of emphasis are between words, or within.
        if matches!(c, '*' | '`' | '\\') {
            return;
        }
        let is_hump = role == TextRole::Name && before.is_ascii_lowercase() && c.is_ascii_uppercase();
        if (gap || is_hump) && into.len() > start {
            into.push(if breaks > 1 || ends_sentence(before) { '\n' } else { ' ' });
        }
        (gap, breaks, before) = (ends_without_space(c), 0, c);
        fold(c, into);
    };
    if text.is_ascii() {
        text.chars().filter(|c| !c.is_control() || c.is_whitespace()).for_each(&mut add);
    } else {
        seen(&text).for_each(&mut add);
        unmix(into, start);
    }
    into.push('\n');
}

const fn ends_sentence(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | ';') || ends_without_space(c)
}

const fn ends_without_space(c: char) -> bool {
    matches!(c, '。' | '！' | '？' | '；')
}

/// Adds a character in lower case; of letters and digits in another form, the plain one.
fn fold(c: char, into: &mut String) {
    let code = u32::from(c);
    let letter = |offset: u32| char::from(b'a'.saturating_add((offset % 26) as u8));
    match c {
        '\0'..='\u{7f}' => into.push(c.to_ascii_lowercase()),
        '‘' | '’' | 'ʼ' | '＇' => into.push('\''),
        '“' | '”' | '„' | '«' | '»' => into.push('"'),
        '‐' | '‑' | '–' | '—' => into.push('-'),
        // Wide, mathematical, circled and squared forms.
        '\u{ff01}'..='\u{ff5e}' => into.extend(char::from_u32(code - 0xfee0).map(|c| c.to_ascii_lowercase())),
        '\u{1d400}'..='\u{1d6a3}' => into.push(letter(code - 0x1d400)),
        '\u{24b6}'..='\u{24e9}' => into.push(letter(code - 0x24b6)),
        '\u{1f130}'..='\u{1f149}' => into.push(letter(code - 0x1f130)),
        '\u{1f150}'..='\u{1f169}' => into.push(letter(code - 0x1f150)),
        '\u{1f170}'..='\u{1f189}' => into.push(letter(code - 0x1f170)),
        _ => into.extend(c.to_lowercase()),
    }
}

/// Replaces letters that look like Latin ones in words that have Latin ones as well. Words of one script stay.
fn unmix(text: &mut String, start: usize) {
    let part = text.split_off(start.min(text.len()));
    for word in part.split_inclusive(|c: char| !c.is_alphabetic()) {
        let is_mixed = word.bytes().any(|byte| byte.is_ascii_lowercase()) && !word.is_ascii();
        if is_mixed {
            text.extend(word.chars().map(looks_like));
        } else {
            text.push_str(word);
        }
    }
}

const fn looks_like(c: char) -> char {
    match c {
        'а' | 'α' | 'ɑ' => 'a',
        'в' | 'β' => 'b',
        'с' | 'ϲ' => 'c',
        'ԁ' => 'd',
        'е' | 'ε' | 'ё' => 'e',
        'ɡ' => 'g',
        'һ' | 'н' => 'h',
        'і' | 'ι' | 'ı' | 'ї' => 'i',
        'ј' => 'j',
        'к' | 'κ' => 'k',
        'ӏ' | 'ⅼ' => 'l',
        'м' => 'm',
        'η' | 'п' => 'n',
        'о' | 'ο' | 'σ' => 'o',
        'р' | 'ρ' => 'p',
        'ԛ' => 'q',
        'г' => 'r',
        'ѕ' => 's',
        'т' | 'τ' => 't',
        'υ' | 'ц' => 'u',
        'ν' | 'ѵ' => 'v',
        'ԝ' | 'ω' => 'w',
        'х' | 'χ' => 'x',
        'у' | 'γ' => 'y',
        other => other,
    }
}

/// The text with letters that have a space between each put together; two spaces are between words.
fn joined(text: &str) -> Cow<'_, str> {
    let is_letter = |word: &str| word.len() == 1 && word.bytes().all(|byte| byte.is_ascii_alphabetic());
    let (mut run, mut longest) = (0, 0);
    let mut words = text.split(' ').map(|word| (is_letter(word), word.is_empty()));
    words.by_ref().for_each(|(is_letter, is_empty)| {
        run = if is_letter || is_empty && run > 0 { run + usize::from(is_letter) } else { 0 };
        longest = longest.max(run);
    });
    if longest < MIN_SPACED {
        return Cow::Borrowed(text);
    }
    let (mut joined, mut after_letter) = (String::with_capacity(text.len()), false);
    for word in text.split(' ') {
        let is_letter = is_letter(word);
        if !(joined.is_empty() || after_letter && is_letter) {
            joined.push(' ');
        }
        joined.push_str(word);
        after_letter = is_letter;
    }
    Cow::Owned(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> String {
        let mut normal = String::new();
        push(text, TextRole::Name, &mut normal);
        normal
    }

    #[test]
    fn a_text_is_normalised_to_its_look() {
        for (text, normal) in [
            // Case, space and emphasis make no difference.
            ("Do  **NOT**\n\ttell `the` User’s", "do not tell the user's\n"),
            // Each sentence is a line.
            ("One. Two!\nThree; a.b\n\nfour。five", "one.\ntwo!\nthree;\na.b\nfour。\nfive\n"),
            // Letters are what they look like where scripts mix.
            ("Ignоrе аll", "ignore all\n"),
            ("Показывает погоду", "показывает погоду\n"),
            ("Ｉｇｎｏｒｅ 𝐢𝐠𝐧𝐨𝐫𝐞 ⓘⓖⓝⓞⓡⓔ", "ignore ignore ignore\n"),
            // Invisible characters are removed.
            ("Ig\u{200b}no\u{ad}re\u{0}", "ignore\n"),
            ("a\u{0}b", "ab\n"),
            // Letters with space between them are words.
            ("Then I G N O R E  A L L of it", "then ignore all of it\n"),
            ("A vs. B c d", "a vs.\nb c d\n"),
        ] {
            assert_eq!(of(text), normal, "{text:?}");
        }
    }

    #[test]
    fn names_are_words() {
        assert_eq!(name("contents_of.sshKey-file"), "contents of ssh key file\n");
    }
}
