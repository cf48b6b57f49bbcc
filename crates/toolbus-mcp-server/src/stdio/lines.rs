use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// Lines of bounded length.
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    limit: usize,
}

/// What came until the end of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// The line, without its end.
    Whole(Vec<u8>),
    /// A line of more bytes than the limit, which nobody kept.
    TooLong,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R, limit: usize) -> Self {
        Self { reader: BufReader::new(reader), limit }
    }

    /// The next line; none at the end of the input. What stands before that is a line, too.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        let mut line = Some(Vec::new());
        loop {
            let read = self.reader.fill_buf().await?;
            if read.is_empty() {
                return Ok(match line {
                    Some(line) if line.is_empty() => None,
                    line => Some(line.map_or(Line::TooLong, Line::Whole)),
                });
            }
            let mut parts = read.splitn(2, |byte| *byte == b'\n');
            let part = parts.next().unwrap_or_default();
            let is_end = parts.next().is_some();
            if let Some(kept) = &mut line {
                if kept.len() + part.len() > self.limit {
                    line = None;
                } else {
                    kept.extend_from_slice(part);
                }
            }
            let used = part.len() + usize::from(is_end);
            self.reader.consume(used);
            if is_end {
                return Ok(Some(line.map_or(Line::TooLong, Line::Whole)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8], limit: usize) -> Vec<Line> {
        let mut lines = Lines::new(input, limit);
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
}
