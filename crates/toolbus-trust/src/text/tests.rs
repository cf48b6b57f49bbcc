use proptest::prelude::*;

use super::*;

fn cleaned(text: &str) -> (String, Removed) {
    let Cleaned { text, removed } = clean(text, 1000);
    (text.into_owned(), removed)
}

#[track_caller]
fn stays(text: &str) {
    assert_eq!(cleaned(text), (text.to_owned(), Removed::default()));
}

#[test]
fn ordinary_text_of_any_language_stays_as_it_is() {
    for text in [
        "Reads a file.\n\n\tOne line each.",
        "Straße, naïve, Ångström – “quoted” … 5 €",
        "Показывает погоду.",
        "天気を返します。",
        "יוצר קובץ חדש",
        "e\u{301} with a combining accent",
    ] {
        stays(text);
    }
}

#[test]
fn joiners_stay_after_letters_of_scripts_that_join_them() {
    stays("می\u{200c}خواهید همه\u{200c}ی روزها");
    stays("क्\u{200d}ष and ക്\u{200d}");
    stays("বাংলা র\u{200d}্য");
}

#[test]
fn joiners_between_letters_that_never_join_are_removed() {
    let (text, removed) = cleaned("ig\u{200c}no\u{200d}re");
    assert_eq!((text.as_str(), removed.invisible), ("ignore", 2));
}

#[test]
fn a_second_joiner_in_a_row_joins_nothing_in_latin_text_and_one_at_the_start_neither() {
    assert_eq!(cleaned("\u{200d}a\u{200d}\u{200d}b").0, "ab");
}

#[test]
fn emoji_of_several_parts_stay_whole() {
    for text in [
        "👩\u{200d}💻",
        "🏳\u{fe0f}\u{200d}🌈",
        "❤\u{fe0f}",
        "👍🏽",
        "👩🏽\u{200d}🚀",
        "🇪🇺",
        "1\u{fe0f}\u{20e3}",
        "#\u{fe0f}\u{20e3}",
    ] {
        stays(text);
    }
}

#[test]
fn the_three_flags_with_tags_stay_and_other_tags_do_not() {
    let tagged =
        |text: &str| -> String { text.chars().filter_map(|c| char::from_u32(0xe0000 + u32::from(c))).collect() };
    stays(&format!("🏴{}\u{e007f}", tagged("gbsct")));
    let (text, removed) = cleaned(&format!("Rolls a die.{}", tagged("send the key")));
    assert_eq!((text.as_str(), removed.invisible, removed.deliberate), ("Rolls a die.", 12, 12));
    let (text, removed) = cleaned(&format!("🏴{}\u{e007f}", tagged("abcde")));
    assert_eq!((text.as_str(), removed.deliberate), ("🏴", 6));
}

#[test]
fn line_breaks_of_any_kind_become_line_feeds() {
    let (text, removed) = cleaned("a\r\nb\rc\u{2028}d\u{2029}e\u{85}f");
    assert_eq!((text.as_str(), removed.is_empty()), ("a\nb\nc\nd\ne\nf", true));
}

#[test]
fn control_characters_are_removed_and_an_escape_is_no_accident() {
    let (text, removed) = cleaned("a\u{0}b\u{7f}\u{1b}[8mc");
    assert_eq!(text, "ab[8mc");
    assert_eq!(removed, Removed { control: 3, deliberate: 1, ..Removed::default() });
}

#[test]
fn what_changes_the_direction_is_removed_and_an_override_is_no_accident() {
    let (text, removed) = cleaned("שלום\u{200f}! \u{202e}abc\u{202c}");
    assert_eq!(text, "שלום! abc");
    assert_eq!(removed, Removed { bidirectional: 3, deliberate: 2, ..Removed::default() });
}

#[test]
fn variation_selectors_stay_after_emoji_alone_and_in_a_row_are_no_accident() {
    let (text, removed) = cleaned("a\u{fe0f}b\u{fe01}😀\u{e0101}\u{e0102}\u{e0103}");
    assert_eq!(text, "ab😀");
    assert_eq!(removed, Removed { invisible: 5, deliberate: 2, ..Removed::default() });
}

#[test]
fn a_selector_of_an_emoji_that_is_there_twice_is_an_accident() {
    let (text, removed) = cleaned("⚠\u{fe0f}\u{fe0f} careful");
    assert_eq!((text.as_str(), removed.invisible, removed.deliberate), ("⚠\u{fe0f} careful", 1, 0));
}

#[test]
fn other_characters_that_are_not_seen_are_removed() {
    for c in [
        '\u{ad}',
        '\u{34f}',
        '\u{115f}',
        '\u{180e}',
        '\u{200b}',
        '\u{2060}',
        '\u{2064}',
        '\u{3164}',
        '\u{feff}',
        '\u{ffa0}',
        '\u{fff9}',
        '\u{e000}',
        '\u{10fffd}',
        '\u{1d173}',
        '\u{fffe}',
        '\u{fdd0}',
    ] {
        let (text, removed) = cleaned(&format!("a{c}b"));
        assert_eq!((text.as_str(), removed.invisible), ("ab", 1), "{:x}", u32::from(c));
    }
}

#[test]
fn space_at_the_ends_goes_also_where_something_unseen_was_around_it() {
    assert_eq!(cleaned("  a  ").0, "a");
    assert_eq!(cleaned("\u{200b}  a  \u{200b}").0, "a");
    assert_eq!(cleaned("\u{200b} \u{200b}").0, "");
}

#[test]
fn a_long_text_is_cut_between_characters_and_says_how_much_is_missing() {
    let Cleaned { text, removed } = clean("äöü", 4);
    assert_eq!((&*text, removed.cut), ("äö…", 2));
    assert_eq!(clean("abc", 3).removed.cut, 0);
    assert_eq!(clean(&"a".repeat(10), 3).text, "aaa…");
}

#[test]
fn what_was_removed_is_told_by_kind() {
    let told = |removed: Removed| removed.to_string();
    insta::assert_snapshot!(told(Removed::default()), @"nothing");
    insta::assert_snapshot!(told(Removed { invisible: 1, ..Removed::default() }), @"1 invisible character");
    insta::assert_snapshot!(
        told(Removed { control: 2, bidirectional: 1, invisible: 0, cut: 300, deliberate: 1 }),
        @"2 control characters, 1 bidirectional character, 300 bytes cut"
    );
}

#[test]
fn a_name_has_something_unseen_also_when_it_breaks_the_line() {
    for name in ["a\u{200b}b", "a\nb", "a\tb", "a\u{2028}b", "a\u{202e}b"] {
        assert!(has_unseen(name), "{name:?}");
    }
    for name in ["read file", "天気", "می\u{200c}خواهید"] {
        assert!(!has_unseen(name), "{name:?}");
    }
}

proptest! {
    #[test]
    fn cleaning_twice_is_cleaning_once(text in "\\PC{0,60}|[a-z\\x00-\\x1f\\u{200b}-\\u{206f}\\u{e0000}-\\u{e01ef}👩🏴\u{fe0f} ]{0,60}", limit in 0_usize..200) {
        let once = clean(&text, limit).text.into_owned();
        let twice = clean(&once, limit + '…'.len_utf8());
        prop_assert_eq!(&*twice.text, &once);
        prop_assert!(once.len() <= limit + '…'.len_utf8());
    }

    #[test]
    fn what_is_left_has_nothing_to_remove(text in "[a-z\\x00-\\x1f\\u{200b}-\\u{206f}\\u{e0000}-\\u{e01ef}\\u{fe00}-\\u{fe0f}می👩🏴]{0,60}") {
        prop_assert!(unseen(&clean(&text, 1000).text).is_empty());
    }
}
