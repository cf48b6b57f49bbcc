//! Quantities, and long texts, as callers are shown them.

/// The first `beginning` and the last `end` characters of a text, and between them how many are left out.
pub(crate) fn without_middle(text: &str, beginning: usize, end: usize) -> String {
    let count = text.chars().count();
    let most = beginning + end;
    if count <= most {
        return text.to_owned();
    }
    let first: String = text.chars().take(beginning).chain((beginning > 0).then_some('\n')).collect();
    let last: String = text.chars().skip(count - end).collect();
    format!("{first}[{} characters left out]\n{last}", count - most)
}

/// A number of bytes.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.into_iter().find(|(unit, _)| bytes >= *unit) {
        None => number(bytes, "byte"),
        Some((unit, name)) if bytes.is_multiple_of(unit) => format!("{} {name}", bytes / unit),
        #[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
    }
}

/// A number of things.
pub(crate) fn number(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_text_both_ends_are_shown_or_the_last_alone() {
        let texts = [("aébc", 2, 2), ("aébcd", 2, 2), ("aébcd", 0, 5), ("aébcd", 0, 1)];
        let shown = texts.map(|(text, beginning, end)| without_middle(text, beginning, end));
        assert_eq!(shown, ["aébc", "aé\n[1 characters left out]\ncd", "aébcd", "[4 characters left out]\nd"]);
    }

    #[test]
    fn sizes_are_whole_where_they_are_and_have_one_digit_where_not() {
        let sizes = [0, 1, 1023, 1024, 1536, 1 << 20, 256 << 20, (1 << 20) + (1 << 19), 3 << 30];
        insta::assert_snapshot!(sizes.map(size).join(", "), @"0 bytes, 1 byte, 1023 bytes, 1 KiB, 1.5 KiB, 1 MiB, 256 MiB, 1.5 MiB, 3 GiB");
    }
}
