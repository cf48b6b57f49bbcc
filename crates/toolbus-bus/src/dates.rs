//! Dates in the error texts of libraries.

/// Digits of the seconds since 1970 that are taken for a date: those of 1973 and later.
const MIN_DATE: usize = 9;

/// An error text with dates where TLS libraries write seconds since 1970 (`not valid after 1763852400`).
#[must_use]
pub fn with_dates(text: &str) -> String {
    let mut before = "";
    let words = text.split(' ').filter(|word| !word.starts_with("(UNIX)")).map(|word| {
        let is_date = matches!(before, "time" | "after" | "before") && word.len() >= MIN_DATE;
        before = word;
        let date = is_date.then(|| word.parse().ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok()));
        date.flatten().map_or_else(|| word.to_owned(), |date| date.to_string())
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_of_certificates_are_dates_and_other_numbers_stay() {
        let raw = "certificate expired: verification time 1763852400 (UNIX), but certificate is not valid after 1763766000 \
                    (86400 seconds ago)";
        assert_eq!(
            with_dates(raw),
            "certificate expired: verification time 2025-11-22T23:00:00Z but certificate is not valid after \
             2025-11-21T23:00:00Z (86400 seconds ago)"
        );
        for other in ["after 3 tries", "closed at 1763852400", "  two  spaces", ""] {
            assert_eq!(with_dates(other), other);
        }
    }
}
