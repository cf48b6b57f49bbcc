//! What a segment of a path must not become.

use percent_encoding::percent_decode_str;

/// Rounds of decoding that are looked through: a proxy and a server may decode once each.
const ROUNDS: usize = 4;

/// Whether a path segment is, or may be decoded to, something with a step to this or the parent folder in it.
///
/// Servers and the proxies before them decode at different times, so `%2e%2e`, `a%2F..%2Fb`, `..%5Cb` and the same
/// encoded again count as well.
pub(super) fn has_dot_segment(segment: &str) -> bool {
    let mut text = segment.to_owned();
    for _ in 0..ROUNDS {
        if text.split(['/', '\\']).any(|part| part == "." || part == "..") {
            return true;
        }
        let decoded = percent_decode_str(&text).decode_utf8_lossy().into_owned();
        if decoded == text {
            return false;
        }
        text = decoded;
    }
    // Encoded more often than anything honest: what it becomes is not followed any further.
    true
}

#[cfg(test)]
mod tests {
    use super::has_dot_segment;

    #[test]
    fn every_spelling_of_a_dot_segment_is_found() {
        let table =
            [".", "..", "%2e", "%2E%2e", ".%2e", "%252e%252E", "a%2F..%2Fb", "..%5Cb", "a/../b", "%25252e%25252e"];
        for segment in table {
            assert!(has_dot_segment(segment), "{segment}");
        }
    }

    #[test]
    fn a_segment_that_is_encoded_too_often_to_look_through_is_refused() {
        for depth in 4..50 {
            let segment = format!("%{}2e%{}2e", "25".repeat(depth), "25".repeat(depth));
            assert!(has_dot_segment(&segment), "{segment}");
        }
    }

    #[test]
    fn dots_that_are_part_of_a_name_are_kept() {
        for segment in ["", "...", "a.b", "..a", ".hidden", "a%2Fb", "100%", "%zz", "v1.2"] {
            assert!(!has_dot_segment(segment), "{segment}");
        }
    }
}
