//! Whether one name can match two patterns.

use crate::pattern::Pattern;

/// Whether there is a name that both patterns match. Costs the product of both lengths.
pub(super) fn can_both_match(one: &Pattern, other: &Pattern) -> bool {
    let columns: Vec<char> = other.as_str().chars().rev().collect();
    // From the ends: entry `k` of a row says whether the rest of `one` and the last `k` characters of `other` have a name in
    // common. At first nothing is left of `one`, and only stars match nothing.
    let stars = columns.iter().take_while(|c| **c == '*').count();
    let mut row: Vec<bool> = (0..=columns.len()).map(|left| left <= stars).collect();
    for a in one.as_str().chars().rev() {
        let mut latest = a == '*' && row.first().is_some_and(|with_nothing| *with_nothing);
        let mut longer = Vec::with_capacity(row.len());
        longer.push(latest);
        for (b, (without_both, without_a)) in columns.iter().zip(row.iter().zip(row.iter().skip(1))) {
            latest = match (a, *b) {
                // A star ends here, or takes what the other pattern has next.
                ('*', _) | (_, '*') => *without_a || latest,
                ('?', _) | (_, '?') => *without_both,
                (a, b) => a == b && *without_both,
            };
            longer.push(latest);
        }
        row = longer;
    }
    row.last().is_some_and(|all| *all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn overlap(one: &str, other: &str) -> bool {
        can_both_match(&Pattern::parse(one).unwrap(), &Pattern::parse(other).unwrap())
    }

    #[test]
    fn patterns_overlap_when_a_name_matches_both() {
        let table = [
            ("send", "send", true),
            ("send", "read", false),
            ("send_*", "*_message", true),
            ("send_*", "read_*", false),
            ("a*c", "a?c", true),
            ("a*c", "ab", false),
            ("a*b*", "ac*", true),
            ("*a", "*b", false),
            ("a?", "?b", true),
            ("a?", "?bc", false),
            ("*", "?", true),
            ("**", "*", true),
            ("é*", "?x", true),
        ];
        for (one, other, expected) in table {
            assert_eq!((overlap(one, other), overlap(other, one)), (expected, expected), "{one} {other}");
        }
    }

    /// Every name of at most `length` letters.
    fn names(length: usize) -> Vec<String> {
        let longer = |names: &[String]| names.iter().flat_map(|n| ["a", "b"].map(|c| format!("{n}{c}"))).collect();
        let mut all = vec![vec![String::new()]];
        for _ in 0..length {
            all.push(longer(all.last().unwrap()));
        }
        all.concat()
    }

    proptest! {
        /// Two patterns of four characters that overlap at all have a name of eight letters in common.
        #[test]
        fn overlap_agrees_with_a_search_for_the_name(one in "[ab*?]{1,4}", other in "[ab*?]{1,4}") {
            let [first, second] = [&one, &other].map(|text| Pattern::parse(text).unwrap());
            let found = names(8).iter().any(|name| first.matches(name) && second.matches(name));
            prop_assert_eq!(overlap(&one, &other), found);
        }
    }
}
