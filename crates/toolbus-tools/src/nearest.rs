//! Suggestions for a name that does not exist.

/// Least likeness that is worth a suggestion; 1 is equal.
const LEAST: f64 = 0.5;

/// Longest name that is compared, in characters: the comparison takes the square of that.
const LONGEST: usize = 64;

/// The names most like `wanted`, best first, at most `most`.
///
/// Case and separators do not count, and the last part of `A/B` is compared too: `berlin` is near `Europe/Berlin`.
pub(crate) fn nearest(wanted: &str, names: impl IntoIterator<Item = String>, most: usize) -> Vec<String> {
    let wanted = folded(wanted);
    let mut scored: Vec<(f64, String)> = names
        .into_iter()
        .map(|name| (likeness(&wanted, &folded(&name)), name))
        .filter(|(score, _)| *score >= LEAST)
        .collect();
    scored.sort_by(|(a, left), (b, right)| b.total_cmp(a).then_with(|| left.cmp(right)));
    scored.into_iter().take(most).map(|(_, name)| name).collect()
}

fn folded(name: &str) -> String {
    name.chars().take(LONGEST).map(|c| if matches!(c, ' ' | '-') { '_' } else { c.to_ascii_lowercase() }).collect()
}

fn likeness(wanted: &str, name: &str) -> f64 {
    let whole = strsim::normalized_damerau_levenshtein(wanted, name);
    name.rsplit_once('/').map_or(whole, |(_, last)| {
        // Slightly less than the whole name, so that an equal whole name comes first.
        whole.max(0.99 * strsim::normalized_damerau_levenshtein(wanted, last))
    })
}

#[cfg(test)]
mod tests {
    use super::nearest;

    fn among(wanted: &str, names: &[&str]) -> Vec<String> {
        nearest(wanted, names.iter().map(|name| (*name).to_owned()), 2)
    }

    #[test]
    fn the_nearest_names_come_best_first_by_their_last_part_too_and_none_for_a_name_like_no_other() {
        let table: [(&str, &[&str], &[&str]); 3] = [
            ("citty", &["cities", "city", "zip"], &["city", "cities"]),
            ("new york", &["America/New_York", "Asia/Tokyo"], &["America/New_York"]),
            ("qqqqqq", &["city", "zip"], &[]),
        ];
        for (wanted, names, expected) in table {
            assert_eq!(among(wanted, names), expected, "{wanted}");
        }
    }
}
