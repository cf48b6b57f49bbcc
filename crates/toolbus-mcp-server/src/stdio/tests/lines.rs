//! Reading of a stream as lines of bounded length.

use crate::stdio::{BoundedLines, Line};

async fn lines(input: &[u8], limit: usize) -> Vec<Line> {
    let mut lines = BoundedLines::new(input, limit);
    let mut all = Vec::new();
    while let Some(line) = lines.next().await.unwrap() {
        all.push(line);
    }
    all
}

fn whole(text: &str) -> Line {
    Line::Whole(text.into())
}

#[tokio::test]
async fn each_line_is_given_without_its_end() {
    assert_eq!(lines(b"", 9).await, []);
    assert_eq!(lines(b"a\n\nb\r\n", 9).await, [whole("a"), whole(""), whole("b\r")]);
    assert_eq!(lines(b"a\nb", 9).await, [whole("a"), whole("b")]);
}

#[tokio::test]
async fn a_line_over_the_limit_is_passed_over_and_the_next_one_is_read() {
    assert_eq!(lines(b"123\n1234\n123\n", 3).await, [whole("123"), Line::TooLong, whole("123")]);
    assert_eq!(lines(b"1234", 3).await, [Line::TooLong]);
    let mut long = vec![b'x'; 100_000];
    long.extend_from_slice(b"\nshort\n");
    assert_eq!(lines(&long, 50_000).await, [Line::TooLong, whole("short")]);
    assert_eq!(lines(&long, 100_000).await.len(), 2);
}
