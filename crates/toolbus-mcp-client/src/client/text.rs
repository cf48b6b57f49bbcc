//! Texts of servers, as they may be repeated.

/// At most `max` characters of `text`, without control characters besides line breaks and tabs.
pub(super) fn shown(text: &str, max: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(max));
    for character in text.chars().take(max) {
        if character.is_control() && !matches!(character, '\n' | '\t') {
            shown.extend(character.escape_debug());
        } else {
            shown.push(character);
        }
    }
    if text.chars().nth(max).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_text_keeps_its_lines_and_loses_what_would_move_a_cursor() {
        assert_eq!(shown("a\tb\nc\u{1b}[2J", 100), "a\tb\nc\\u{1b}[2J");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        assert_eq!(shown("äöüß", 4), "äöüß");
        assert_eq!(shown("äöüß", 3), "äöü…");
    }
}
