//! Log of a server's standard error.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::time::timeout_at;
use toolbus_core::Clock;
use toolbus_core::redact::Redactor;
use toolbus_trust::text::escaped;

/// Lines that are kept.
const KEPT: usize = 50;
/// Longest line that is kept, in characters.
const MAX_KEPT: usize = 500;
/// Longest line that is logged, in bytes as it was written.
const MAX_LINE: usize = 8 * 1024;
/// Bytes after the logged part of a line that are searched for secrets which begin in that part: the length of a long
/// secret with each byte percent-encoded.
const LOOKAHEAD: usize = 12 * 1024;
/// Lines that are logged in one period.
const PER_PERIOD: u32 = 100;
/// The time to which that number applies.
const PERIOD: Duration = Duration::from_secs(1);

/// The last lines, without secrets.
#[derive(Debug, Default)]
pub(super) struct Tail {
    lines: Mutex<VecDeque<String>>,
    redactor: Redactor,
    /// Until when lines are logged for debugging alone.
    hushed: Mutex<Option<Instant>>,
    clock: Clock,
}

impl Tail {
    pub(super) fn new(redactor: Redactor, clock: Clock) -> Self {
        Self { redactor, clock, ..Self::default() }
    }

    /// Logs lines at debug level alone for this time.
    pub(super) fn hush(&self, time: Duration) {
        *self.hushed.lock() = Some(self.clock.now() + time);
    }

    fn is_hushed(&self, now: Instant) -> bool {
        self.hushed.lock().is_some_and(|until| now < until)
    }

    /// The last lines, oldest first.
    pub(super) fn lines(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }

    /// A line as it may be logged.
    fn cleaned(&self, line: &str) -> String {
        // Before anything cuts or escapes it: a part of a secret would not be known for one.
        escaped(&self.redactor.beginning(line, MAX_LINE)).into_owned()
    }

    fn push(&self, line: &str) {
        let mut lines = self.lock();
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(line.chars().take(MAX_KEPT).collect());
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.lines.lock()
    }
}

/// Reads until the end, so that the server never waits. Every line goes to the tail, and to the log unless there
/// are too many.
pub(super) async fn read(from: impl AsyncRead + Unpin, server: Arc<str>, tail: Arc<Tail>) {
    let mut lines = StderrLines { from: BufReader::new(from), line: Vec::new(), is_cut: false };
    let clock = tail.clock;
    let mut share = Share::new(clock.now());
    loop {
        let line = if share.left_out == 0 {
            lines.next().await
        } else {
            match timeout_at(share.until.into(), lines.next()).await {
                Ok(line) => line,
                Err(_) => {
                    log_left_out(&server, share.renew(clock.now()));
                    continue;
                }
            }
        };
        let Some(line) = line else { break };
        let line = tail.cleaned(&line);
        tail.push(&line);
        let now = clock.now();
        if share.until <= now {
            log_left_out(&server, share.renew(now));
        }
        if tail.is_hushed(now) {
            tracing::debug!(target: "toolbus::mcp::stderr", server = &*server, "{line}");
        } else if share.take() {
            tracing::info!(target: "toolbus::mcp::stderr", server = &*server, "{line}");
        }
    }
    log_left_out(&server, share.left_out);
}

fn log_left_out(server: &str, lines: u64) {
    if lines > 0 {
        tracing::info!(target: "toolbus::mcp::stderr", server, lines, "left out lines, because there were too many");
    }
}

/// Budget of log lines in a period.
struct Share {
    until: Instant,
    logged: u32,
    left_out: u64,
}

impl Share {
    fn new(now: Instant) -> Self {
        Self { until: now + PERIOD, logged: 0, left_out: 0 }
    }

    /// Begins the next period. Returns the number of lines left out in the last one.
    fn renew(&mut self, now: Instant) -> u64 {
        std::mem::replace(self, Self::new(now)).left_out
    }

    fn take(&mut self) -> bool {
        if self.logged < PER_PERIOD {
            self.logged += 1;
            return true;
        }
        self.left_out += 1;
        false
    }
}

/// Lines, of which only the beginning is kept.
struct StderrLines<R> {
    from: BufReader<R>,
    line: Vec<u8>,
    /// Whether what comes belongs to a line that was given out already.
    is_cut: bool,
}

impl<R: AsyncRead + Unpin> StderrLines<R> {
    /// The beginning of the next line. Cancel-safe.
    async fn next(&mut self) -> Option<String> {
        loop {
            let available = self.from.fill_buf().await.unwrap_or_default();
            if available.is_empty() {
                return (!self.line.is_empty()).then(|| self.give());
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let (text, _) = available.split_at(end.unwrap_or(available.len()));
            let used = text.len() + usize::from(end.is_some());
            let wanted = if self.is_cut { 0 } else { MAX_LINE + LOOKAHEAD - self.line.len() };
            self.line.extend(text.iter().take(wanted));
            let is_full = !self.is_cut && text.len() > wanted;
            let is_whole = end.is_some() && !self.is_cut;
            self.from.consume(used);
            self.is_cut = end.is_none() && (self.is_cut || is_full);
            if is_full || is_whole {
                return Some(self.give());
            }
        }
    }

    fn give(&mut self) -> String {
        let line = String::from_utf8_lossy(&self.line).trim_end().to_owned();
        self.line.clear();
        line
    }
}

#[cfg(test)]
mod tests {
    use toolbus_core::secret::Secret;

    use super::*;

    async fn lines(text: &[u8]) -> Vec<String> {
        let mut lines = StderrLines { from: BufReader::new(text), line: Vec::new(), is_cut: false };
        let mut all = Vec::new();
        while let Some(line) = lines.next().await {
            all.push(line);
        }
        all
    }

    /// Returns the lines that are kept of a text.
    async fn kept(text: &str, redactor: Redactor) -> Vec<String> {
        let tail = Arc::new(Tail::new(redactor, Clock::SYSTEM));
        read(text.as_bytes(), "x".into(), Arc::clone(&tail)).await;
        tail.lines()
    }

    #[tokio::test]
    async fn lines_are_read_without_their_ends_and_with_broken_text_marked() {
        assert_eq!(lines(b"one\r\n\n\xff \"quoted\"\nlast").await, ["one", "", "\u{fffd} \"quoted\"", "last"]);
    }

    #[tokio::test]
    async fn invisible_line_breaking_and_bidirectional_characters_are_escaped() {
        let table = [
            ("\u{1b}[31mred\u{1b}[0m", r"\u{1b}[31mred\u{1b}[0m"),
            ("a\tb\u{85}c\u{2028}d\u{2029}e", r"a\tb\u{85}c\u{2028}d\u{2029}e"),
            ("\u{202e}txt.exe\u{202c} \u{2066}x\u{2069}", r"\u{202e}txt.exe\u{202c} \u{2066}x\u{2069}"),
            ("hi\u{e0068}\u{e0069}\u{200b}", r"hi\u{e0068}\u{e0069}\u{200b}"),
            ("done ✔\u{fe0f} \"für\" '\\n'", "done ✔\u{fe0f} \"für\" '\\n'"),
        ];
        for (written, expected) in table {
            assert_eq!(kept(written, Redactor::default()).await, [expected]);
        }
    }

    #[tokio::test]
    async fn a_secret_where_a_line_is_cut_leaves_no_part() {
        let secret = "s3cr3t-t0ken-of-30-characters!";
        for encoded in [secret.to_owned(), secret.bytes().map(|byte| format!("%{byte:02X}")).collect()] {
            for begin in [MAX_LINE - 1, MAX_LINE - 14, MAX_LINE - secret.len(), MAX_LINE + LOOKAHEAD - 14] {
                let redactor = Redactor::default();
                redactor.configure([Secret::new(secret)]);
                let tail = Tail::new(redactor, Clock::SYSTEM);
                // What is removed before it does not bring the end of what was read into the log.
                let others = format!("{secret} ").repeat(begin / 31);
                for before in ["x".repeat(begin), others + &"x".repeat(begin % 31)] {
                    assert_eq!(before.len(), begin);
                    let read = lines(format!("{before}{encoded}{}\n", "y".repeat(100_000)).as_bytes()).await;
                    let [line] = <[String; 1]>::try_from(read).unwrap();
                    let line = tail.cleaned(&line);
                    assert!(!line.contains("s3") && !line.contains("%73"), "{begin} {line}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_line_of_the_limit_is_one_line_and_a_longer_one_is_given_once_and_cut() {
        for (length, rest) in [(MAX_LINE + LOOKAHEAD, "\nnext"), (100 * 1024, "\nnext\n")] {
            let read = lines(format!("{}{rest}", "x".repeat(length)).as_bytes()).await;
            assert_eq!(read.iter().map(String::len).collect::<Vec<_>>(), [MAX_LINE + LOOKAHEAD, 4], "{length}");
        }
    }

    #[tokio::test]
    async fn the_tail_has_the_last_lines_shortened() {
        let tail = Arc::new(Tail::default());
        let text: String = (0..60).map(|line| format!("{line} {}\n", "ü".repeat(600))).collect();
        read(text.as_bytes(), "x".into(), Arc::clone(&tail)).await;
        let lines = tail.lines();
        assert_eq!(lines.len(), KEPT);
        assert!(lines[0].starts_with("10 ü"));
        assert!(lines.iter().all(|line| line.chars().count() == MAX_KEPT));
    }

    #[tokio::test]
    async fn the_tail_has_no_secret_and_no_part_of_one() {
        let redactor = Redactor::default();
        redactor.configure([Secret::new("s3cr3t-t0ken")]);
        let tail = Arc::new(Tail::new(redactor, Clock::SYSTEM));
        let text = format!("GITHUB_TOKEN=s3cr3t-t0ken\n{}s3cr3t-t0ken\n", "x".repeat(MAX_KEPT - 5));
        read(text.as_bytes(), "x".into(), Arc::clone(&tail)).await;
        let lines = tail.lines();
        assert_eq!(lines[0], "GITHUB_TOKEN=[redacted]");
        assert!(lines[1].ends_with("x[reda"), "{}", lines[1]);
    }

    #[test]
    fn a_flood_is_logged_in_part_and_the_rest_counted() {
        let now = Clock::SYSTEM.now();
        let mut share = Share::new(now);
        assert_eq!((0..250).filter(|_| share.take()).count(), 100);
        assert_eq!(share.renew(now + PERIOD), 150);
        assert!(share.take());
    }
}
