//! Server-sent events, read as the HTML standard has it: what is unknown or malformed is ignored. The crate
//! `sse-stream` ends a stream for that, and has no limit.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use memchr::memchr2;
use reqwest::Response;
use sse_stream::Sse;
use toolbus_core::results::ReservedRoom;

use super::error::{HttpError, HttpErrorKind};
use crate::transport::{LargeMessages, MAX_MESSAGE};

/// Longest id of an event, in bytes; longer ones are ignored.
const MAX_ID: usize = 1024;
/// Range of reconnection times that a server may request, in milliseconds.
const RETRY_MS: std::ops::RangeInclusive<u64> = 500..=60_000;
/// Room for a line that is kept for the next, in bytes.
const KEPT_LINE: usize = 64 * 1024;

/// The events of a response, each of at most [`MAX_MESSAGE`] bytes, or of as many as `large` allows. An error is the last
/// item.
pub(crate) fn events(
    origin: &str,
    response: Response,
    large: LargeMessages,
) -> BoxStream<'static, Result<Sse, HttpError>> {
    let reader = EventReader {
        origin: origin.to_owned(),
        response: Some(response),
        large,
        reserved: None,
        parser: Parser::default(),
        ready: VecDeque::new(),
    };
    stream::unfold(reader, async |mut reader| Some((reader.next().await?, reader))).boxed()
}

struct EventReader {
    origin: String,
    /// Absent after an error.
    response: Option<Response>,
    large: LargeMessages,
    /// That of the event that is being read.
    reserved: Option<ReservedRoom>,
    parser: Parser,
    ready: VecDeque<Sse>,
}

impl EventReader {
    async fn next(&mut self) -> Option<Result<Sse, HttpError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.parser.held() <= MAX_MESSAGE {
                self.reserved = None;
                self.parser.raised = None;
            }
            let read = self.response.as_mut()?.chunk().await;
            let problem = match read {
                Ok(Some(chunk)) => {
                    if self.parser.held() + chunk.len() > MAX_MESSAGE
                        && self.reserved.is_none()
                        && let Some(results) = &self.large.results
                    {
                        self.reserved = Some(results.reserve().await);
                        self.parser.raised = Some(self.large.max());
                        self.parser.line.reserve_exact(self.large.max() - self.parser.held());
                    }
                    match self.parse(chunk).await {
                        Ok(()) => continue,
                        Err(TooLarge) => {
                            let (origin, most) = (&self.origin, self.parser.limit());
                            let text = format!("the MCP server at {origin} sent an event of more than {most} bytes");
                            HttpError::new(HttpErrorKind::TooLarge, text)
                        }
                    }
                }
                Ok(None) => return None,
                Err(error) => HttpError::no_response(&self.origin, &error),
            };
            self.response = None;
            self.ready.clear();
            return Some(Err(problem));
        }
    }

    /// Takes in a part of the response. The end of a long line, which is then checked and copied, takes a turn.
    async fn parse(&mut self, chunk: Bytes) -> Result<(), TooLarge> {
        if memchr2(b'\n', b'\r', &chunk).is_none() {
            return self.parser.read(&chunk, &mut self.ready);
        }
        let size = self.parser.line.len();
        let (mut parser, mut ready) = (std::mem::take(&mut self.parser), std::mem::take(&mut self.ready));
        let read = move || {
            let read = parser.read(&chunk, &mut ready);
            (parser, ready, read)
        };
        // Without a turn within the longest wait there is, the event is given up.
        let (parser, ready, read) = self.large.read(size, read).await.ok_or(TooLarge)?;
        (self.parser, self.ready) = (parser, ready);
        read
    }
}

/// An event over the limit.
#[derive(Debug, PartialEq, Eq)]
struct TooLarge;

#[derive(Default)]
struct Parser {
    line: Vec<u8>,
    event: Sse,
    /// The limit of an event that is larger than others; absent: [`MAX_MESSAGE`].
    raised: Option<usize>,
    is_after_cr: bool,
    is_after_first_line: bool,
}

impl Parser {
    fn read(&mut self, chunk: &[u8], ready: &mut VecDeque<Sse>) -> Result<(), TooLarge> {
        let mut rest = chunk;
        if !rest.is_empty() && std::mem::take(&mut self.is_after_cr) {
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            let (line, tail) = rest.split_at(end);
            self.extend_line(line)?;
            self.end_line(ready);
            self.is_after_cr = tail == b"\r";
            rest = match tail {
                [b'\r', b'\n', rest @ ..] | [_, rest @ ..] => rest,
                [] => tail,
            };
        }
        self.extend_line(rest)
    }

    fn extend_line(&mut self, part: &[u8]) -> Result<(), TooLarge> {
        if self.held() + part.len() > self.limit() {
            return Err(TooLarge);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    /// Bytes of the event that has not ended.
    fn held(&self) -> usize {
        let Sse { event, data, id, .. } = &self.event;
        let fields: usize = [event, data, id].into_iter().flatten().map(String::len).sum();
        fields + self.line.len()
    }

    fn limit(&self) -> usize {
        self.raised.unwrap_or(MAX_MESSAGE)
    }

    fn end_line(&mut self, ready: &mut VecDeque<Sse>) {
        let mut line = std::mem::take(&mut self.line);
        let is_first = !std::mem::replace(&mut self.is_after_first_line, true);
        let text = String::from_utf8_lossy(&line);
        let text = if is_first { text.trim_start_matches('\u{feff}') } else { &text };
        if !text.is_empty() {
            self.take_field(text);
        } else if self.event != Sse::default() {
            ready.push_back(std::mem::take(&mut self.event));
        }
        if line.capacity() <= KEPT_LINE {
            line.clear();
            self.line = line;
        }
    }

    fn take_field(&mut self, line: &str) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut self.event.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                none => *none = Some(value.to_owned()),
            },
            "event" => self.event.event = Some(value.to_owned()),
            "id" if value.len() <= MAX_ID && !value.contains('\0') => self.event.id = Some(value.to_owned()),
            "retry" => {
                let retry = value.parse::<u64>().ok();
                self.event.retry = retry.map(|retry| retry.clamp(*RETRY_MS.start(), *RETRY_MS.end()));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use toolbus_testing::mutation::check_inputs;

    use super::*;

    fn parsed(chunks: &[&[u8]]) -> Vec<Sse> {
        let (mut parser, mut ready) = (Parser::default(), VecDeque::new());
        for chunk in chunks {
            parser.read(chunk, &mut ready).unwrap();
        }
        ready.into()
    }

    #[test]
    fn an_event_is_the_same_for_any_chunks_and_line_ends() {
        let expected = [Sse::default().event("message").id("7").data("{\"a\":1}\n{\"b\":2}"), Sse::default().data("ü")];
        for end in ["\n", "\r", "\r\n"] {
            let text = "\u{feff}event: message\nid:7\ndata: {\"a\":1}\ndata:{\"b\":2}\n\n: note\ndata: ü\n\n";
            let text = text.replace('\n', end);
            assert_eq!(parsed(&[text.as_bytes()]), expected, "{end:?}");
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(parsed(&bytes), expected, "{end:?}");
        }
    }

    #[test]
    fn unknown_and_malformed_lines_are_ignored() {
        let text = b"nonsense\nfield: x\nretry: soon\nid: a\0b\n\n\xff\xfe\n\ndata\ndata: x\n\ndata: not ended";
        assert_eq!(parsed(&[text]), [Sse::default().data("\nx")]);
        let long = format!("id: {}\n\n", "x".repeat(MAX_ID + 1));
        assert_eq!(parsed(&[long.as_bytes()]), []);
    }

    #[test]
    fn reconnection_times_are_bounded() {
        for (requested, granted) in [("0", 500), ("2500", 2_500), ("18446744073709551615", 60_000)] {
            assert_eq!(parsed(&[format!("retry: {requested}\n\n").as_bytes()]), [Sse::default().retry(granted)]);
        }
    }

    #[test]
    fn an_event_over_the_limit_is_refused_in_one_line_and_in_many() {
        let line = format!("data: {}\n", "x".repeat(1024 * 1024 - 1));
        for text in [line.as_bytes(), &line.as_bytes()[..1024 * 1024]] {
            let (mut parser, mut ready) = (Parser::default(), VecDeque::new());
            let fed = (0..17).map(|_| parser.read(text, &mut ready)).find(Result::is_err);
            assert_eq!(fed, Some(Err(TooLarge)));
            assert!(parser.line.len() <= MAX_MESSAGE);
        }
    }

    #[test]
    fn comments_are_not_kept() {
        let (mut parser, mut ready) = (Parser::default(), VecDeque::new());
        let comments = ": ping\n\n".repeat(128 * 1024);
        for _ in 0..20 {
            parser.read(comments.as_bytes(), &mut ready).unwrap();
        }
        assert!(ready.is_empty() && parser.line.capacity() <= KEPT_LINE);
    }

    const STREAMS: &[&[u8]] = &[
        b"event: message\nid: 7\ndata: {\"a\":1}\ndata: {\"b\":2}\n\ndata: \xc3\xbc\n\n",
        b"\xef\xbb\xbf: comment\r\nretry: 10\r\ndata\r\n\r\ndata:x\r\rid: \0\n\n",
        b"event: endpoint\ndata: /messages?session=1\n\nretry: 99999999999999999999\n\n",
    ];

    #[test]
    fn any_bytes_are_the_same_events_however_they_are_cut() {
        check_inputs(STREAMS, 3_000, |bytes| {
            let read = |chunks: [&[u8]; 2]| {
                let (mut parser, mut ready) = (Parser::default(), VecDeque::new());
                let read = chunks.into_iter().try_for_each(|chunk| parser.read(chunk, &mut ready));
                (read, ready)
            };
            let offset = bytes.first().map_or(0, |first| usize::from(*first) % (bytes.len() + 1));
            let (head, tail) = bytes.split_at(offset);
            let (result, events) = read([bytes, &[]]);
            assert_eq!(read([head, tail]), (result, events.clone()), "cut at {offset}");
            let texts = |event: &Sse| {
                [&event.event, &event.data, &event.id].into_iter().flatten().map(String::len).sum::<usize>()
            };
            // A byte that is no text takes three.
            assert!(events.iter().map(texts).sum::<usize>() <= 3 * bytes.len());
        });
    }
}
