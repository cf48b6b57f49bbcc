//! What each character of a text is, in its place.
//!
//! Invisible are the characters with the property `Default_Ignorable_Code_Point` of Unicode 17
//! (`DerivedCoreProperties.txt`), those for private use, of which nobody knows how they look, the interlinear
//! annotations, and code points that are no characters.

use std::iter::Peekable;
use std::str::CharIndices;

/// A character, in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Stays, perhaps as another.
    Kept(char),
    /// A control character.
    Control {
        /// Whether it is there on purpose.
        deliberate: bool,
    },
    /// Changes the direction of text.
    Bidirectional {
        /// Whether it is there on purpose.
        deliberate: bool,
    },
    /// Is not seen.
    Invisible {
        /// Whether it is there on purpose.
        deliberate: bool,
    },
}

/// Goes through a text, and knows what was before.
pub(super) struct Walk<'a> {
    text: &'a str,
    rest: Peekable<CharIndices<'a>>,
    /// The last character that was kept.
    last: Option<char>,
    /// Whether the last character was a variation selector.
    after_selector: bool,
    /// Where a flag's tags end, while they go on.
    flag_until: usize,
}

/// The flags that are written with tags: England, Scotland and Wales.
const FLAGS: [&str; 3] = ["gbeng", "gbsct", "gbwls"];
const BLACK_FLAG: char = '\u{1f3f4}';
const CANCEL_TAG: char = '\u{e007f}';
const JOINER: char = '\u{200d}';

impl<'a> Walk<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, rest: text.char_indices().peekable(), last: None, after_selector: false, flag_until: 0 }
    }

    /// The next character, with the place where it begins.
    pub(super) fn next(&mut self) -> Option<(usize, Kind)> {
        let (at, c) = self.rest.next()?;
        // Two characters that are one line break.
        if c == '\r' && self.rest.next_if(|(_, next)| *next == '\n').is_some() {
            self.last = Some('\n');
            return Some((at, Kind::Kept('\n')));
        }
        let kind = self.kind(at, c);
        self.after_selector = is_selector(c);
        if let Kind::Kept(c) = kind {
            self.last = Some(c);
            if c == BLACK_FLAG {
                self.flag_until = self.end_of_flag(at + c.len_utf8());
            }
        }
        Some((at, kind))
    }

    fn kind(&mut self, at: usize, c: char) -> Kind {
        match c {
            ' '..='~' | '\n' | '\t' => Kind::Kept(c),
            // Line breaks, as others write them.
            '\r' | '\u{85}' | '\u{2028}' | '\u{2029}' => Kind::Kept('\n'),
            // An escape, and the one character that stands for an escape with a bracket.
            _ if c.is_control() => Kind::Control { deliberate: matches!(c, '\u{1b}' | '\u{9b}' | '\u{8}') },
            // Marks that right-to-left text is written with.
            '\u{61c}' | '\u{200e}' | '\u{200f}' => Kind::Bidirectional { deliberate: false },
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => Kind::Bidirectional { deliberate: true },
            '\u{200c}' | JOINER if self.joins(c) => Kind::Kept(c),
            '\u{fe0e}' | '\u{fe0f}' if self.last.is_some_and(is_emoji) && !self.after_selector => Kind::Kept(c),
            // Programs double the selector of emoji by mistake.
            '\u{fe0e}' | '\u{fe0f}' => Kind::Invisible { deliberate: false },
            _ if is_selector(c) => Kind::Invisible { deliberate: self.after_selector },
            '\u{e0000}'..='\u{e007f}' if at < self.flag_until => Kind::Kept(c),
            '\u{e0000}'..='\u{e007f}' => Kind::Invisible { deliberate: true },
            _ if is_invisible(c) => Kind::Invisible { deliberate: false },
            _ => Kind::Kept(c),
        }
    }

    /// Whether a joiner has something to join: after a letter of a script that joins letters, or, of the two, the one
    /// that joins emoji, between two of them.
    fn joins(&mut self, joiner: char) -> bool {
        let Some(last) = self.last else { return false };
        let next = self.rest.peek().map(|(_, next)| *next);
        let is_in_emoji =
            || (is_emoji(last) || matches!(last, '\u{fe0f}') || is_skin_tone(last)) && next.is_some_and(is_emoji);
        is_joining_script(last) || joiner == JOINER && is_in_emoji()
    }

    fn end_of_flag(&self, start: usize) -> usize {
        let rest = self.text.get(start..).unwrap_or_default();
        let tags: String = rest.chars().take(5).filter_map(untagged).collect();
        let is_flag = FLAGS.contains(&tags.as_str()) && rest.chars().nth(5) == Some(CANCEL_TAG);
        if is_flag { start + 6 * CANCEL_TAG.len_utf8() } else { 0 }
    }
}

/// Whether a character means something between others only.
pub(super) const fn joins_two(c: char) -> bool {
    matches!(c, '\u{200c}' | JOINER | '\u{e0000}'..=CANCEL_TAG)
}

fn untagged(c: char) -> Option<char> {
    char::from_u32(u32::from(c).checked_sub(0xe0000)?).filter(char::is_ascii)
}

const fn is_selector(c: char) -> bool {
    matches!(c, '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}' | '\u{180b}'..='\u{180d}' | '\u{180f}')
}

/// Scripts whose letters change their form with their neighbours: Arabic and its like, those of South and South-East Asia,
/// Mongolian.
const fn is_joining_script(c: char) -> bool {
    matches!(c,
        '\u{620}'..='\u{6ff}' | '\u{710}'..='\u{74f}' | '\u{750}'..='\u{77f}' | '\u{840}'..='\u{8ff}'
        | '\u{900}'..='\u{df4}' | '\u{f00}'..='\u{109f}' | '\u{1780}'..='\u{17b3}' | '\u{17b6}'..='\u{17ff}'
        | '\u{1820}'..='\u{18aa}' | '\u{a840}'..='\u{a877}' | '\u{fb50}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}')
}

/// Characters that begin an emoji, or may be shown as one.
const fn is_emoji(c: char) -> bool {
    matches!(c,
        '#' | '*' | '0'..='9' | '©' | '®' | '\u{203c}' | '\u{2049}' | '\u{2122}' | '\u{2139}' | '\u{2194}'..='\u{21aa}'
        | '\u{231a}'..='\u{23fa}' | '\u{24c2}' | '\u{25aa}'..='\u{27bf}' | '\u{2934}'..='\u{2935}'
        | '\u{2b05}'..='\u{2b55}' | '\u{3030}' | '\u{303d}' | '\u{3297}' | '\u{3299}' | '\u{1f000}'..='\u{1f3fa}'
        | '\u{1f400}'..='\u{1faff}')
        || is_skin_tone(c)
}

const fn is_skin_tone(c: char) -> bool {
    matches!(c, '\u{1f3fb}'..='\u{1f3ff}')
}

/// Characters that are not seen, or that change the order in which others are, wherever they stand. Control characters are
/// not among them.
pub(crate) const fn is_invisible(c: char) -> bool {
    let is_no_character = (c as u32) & 0xfffe == 0xfffe || matches!(c, '\u{fdd0}'..='\u{fdef}');
    is_no_character
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e000}'..='\u{f8ff}' | '\u{e0000}'..='\u{e0fff}'
            | '\u{f0000}'..='\u{10ffff}')
}
