//! How much a message would take in memory, before it is read.

/// Most values in one message. A value of two bytes, such as those of `[0,0]`, takes a hundred times as much once it is
/// read.
pub(crate) const MAX_VALUES: usize = 500_000;
/// Shortest text that can have too many, in bytes.
const MIN_LENGTH: usize = MAX_VALUES;

/// Whether a JSON text has at most [`MAX_VALUES`] values, names of members included. A text that is no JSON is counted
/// all the same.
pub(crate) fn are_few(json: &[u8]) -> bool {
    json.len() < MIN_LENGTH || count(json) <= MAX_VALUES
}

/// Every value but the first comes after a comma, a colon or an opening bracket outside strings.
fn count(json: &[u8]) -> usize {
    let (mut values, mut is_string, mut is_escaped) = (1, false, false);
    for byte in json {
        if is_string {
            is_string = is_escaped || *byte != b'"';
            is_escaped = !is_escaped && *byte == b'\\';
        } else if *byte == b'"' {
            is_string = true;
        } else {
            values += usize::from(matches!(byte, b',' | b':' | b'[' | b'{'));
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_strings_alone() {
        assert_eq!(count(b"0"), 1);
        assert_eq!(count(b"[0, 1, 2]"), 4);
        assert_eq!(count(br#"{"a": "x,y:[{", "b": "\"\\", "c": "\\\","}"#), 7);
    }

    #[test]
    fn a_long_text_is_one_value_and_a_long_array_is_too_many() {
        assert!(are_few(format!("\"{}\"", ",".repeat(2 * MAX_VALUES)).as_bytes()));
        assert!(!are_few(format!("[{}0]", "0,".repeat(MAX_VALUES)).as_bytes()));
        assert!(are_few(format!("[{}0]", "0,".repeat(MAX_VALUES - 2)).as_bytes()));
    }
}
