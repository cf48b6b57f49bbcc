//! Superscripts and subscripts as plain text, so that their digits do not join those beside them.

/// Position of a text that is set above or below a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    Super,
    Sub,
}

/// Superscripts that change no value: they end a word.
const ENDINGS: [&str; 6] = ["st", "nd", "rd", "th", "tm", "sm"];
/// Characters that Unicode has above and below the line, too.
const CHARACTERS: [(&str, char, char); 18] = [
    ("0", '⁰', '₀'),
    ("1", '¹', '₁'),
    ("2", '²', '₂'),
    ("3", '³', '₃'),
    ("4", '⁴', '₄'),
    ("5", '⁵', '₅'),
    ("6", '⁶', '₆'),
    ("7", '⁷', '₇'),
    ("8", '⁸', '₈'),
    ("9", '⁹', '₉'),
    ("+", '⁺', '₊'),
    ("-−–", '⁻', '₋'),
    ("=", '⁼', '₌'),
    ("(", '⁽', '₍'),
    (")", '⁾', '₎'),
    ("n", 'ⁿ', 'ₙ'),
    ("i", 'ⁱ', 'ᵢ'),
    (" ", ' ', ' '),
];

impl Script {
    /// The sign before a text that has no characters of its own.
    pub(crate) const fn sign(self) -> &'static str {
        match self {
            Self::Super => "^",
            Self::Sub => "_",
        }
    }

    /// A text in characters of its own where Unicode has them all (`²³`), and otherwise after a sign: `^x`, `_(max)`. A
    /// reference in brackets stays as it is.
    pub(crate) fn plain(self, text: &str) -> String {
        let text = text.trim();
        let is_reference = text.starts_with('[') && text.ends_with(']');
        if text.is_empty() || is_reference || ENDINGS.contains(&text.to_ascii_lowercase().as_str()) {
            return text.to_owned();
        }
        let own = |c: char| {
            let (_, above, below) = CHARACTERS.iter().find(|(plain, ..)| plain.contains(c))?;
            Some(if self == Self::Super { *above } else { *below })
        };
        let is_one = text.chars().nth(1).is_none();
        text.chars().map(own).collect::<Option<String>>().unwrap_or_else(|| match is_one {
            true => format!("{}{text}", self.sign()),
            false => format!("{}({text})", self.sign()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Script::{Sub, Super};

    #[test]
    fn scripts_have_characters_of_their_own_or_a_sign() {
        let table = [
            (Super, "23", "²³"),
            (Super, "−3", "⁻³"),
            (Sub, " 2 ", "₂"),
            (Super, "x", "^x"),
            (Sub, "max", "_(max)"),
            (Super, "2n+1", "²ⁿ⁺¹"),
            (Super, "1.5", "^(1.5)"),
            (Super, "th", "th"),
            (Super, "[4]", "[4]"),
            (Super, "", ""),
        ];
        for (script, text, expected) in table {
            assert_eq!(script.plain(text), expected, "{text}");
        }
    }
}
