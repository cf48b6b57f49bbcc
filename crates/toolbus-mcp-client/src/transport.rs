//! Transports that carry messages to a server.

mod fast_path;
pub(crate) mod http;
pub(crate) mod stdio;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;
use toolbus_core::results::ResultBudget;
use toolbus_core::{Clock, Turns};

/// The reason in `notifications/cancelled`.
pub(crate) const GIVEN_UP: &str = "the caller no longer waits for the response";

/// Reason why a transport has ended. Its parts and its owner share it; the first reason counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct TransportFailure(Arc<OnceLock<String>>);

impl TransportFailure {
    /// Sets the reason for the end: part of a sentence that an operator reads, such as "the server ended with exit code
    /// 3". What the server wrote must be bounded and escaped in it.
    pub(crate) fn set(&self, reason: impl Into<String>) {
        // A later reason follows from the first.
        let _ = self.0.set(reason.into());
    }

    /// Reason why the transport has ended, if it has.
    pub(crate) fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// Largest message of a server without room for larger ones, in bytes.
pub(crate) const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// Longest wait of a message for its turn: longer than any call waits for it.
const PATIENCE: Duration = Duration::from_secs(60 * 60);

/// Room for large messages of a server, and turns to read them.
#[derive(Debug, Clone, Default)]
pub(crate) struct LargeMessages {
    /// Room for messages that are larger than [`MAX_MESSAGE`].
    pub(crate) results: Option<ResultBudget>,
    pub(crate) turns: Turns,
    /// The name of the server, which has turns of its own.
    pub(crate) server: Arc<str>,
}

impl LargeMessages {
    /// Bytes of the largest message.
    pub(crate) fn max(&self) -> usize {
        self.results.as_ref().map_or(MAX_MESSAGE, |results| results.max_size().max(MAX_MESSAGE))
    }

    /// Reads a message of so many bytes: a large one in a turn. `None` if reading it failed.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        bytes: usize,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let latest = Clock::SYSTEM.now() + PATIENCE;
        self.turns.finish(Arc::clone(&self.server), bytes, latest, read).await.ok()
    }
}

/// Most values in one message. A value of two bytes, such as those of `[0,0]`, takes a hundred times as much once it is
/// read.
pub(crate) const MAX_VALUES: usize = 500_000;
/// Shortest text that can have too many, in bytes.
const MIN_LENGTH: usize = MAX_VALUES;

/// Whether a JSON text has at most [`MAX_VALUES`] values, names of fields included. A text that is no JSON is counted
/// all the same.
pub(crate) fn has_few_values(json: &[u8]) -> bool {
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

/// A message as it is written, with its end.
fn line(message: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::{TransportFailure, *};

    #[test]
    fn the_first_reason_counts_for_every_clone() {
        let failure = TransportFailure::default();
        let shared = failure.clone();
        assert_eq!(shared.get(), None);
        failure.set("the server ended with exit code 3");
        failure.set("the connection was closed");
        assert_eq!(shared.get(), Some("the server ended with exit code 3"));
    }

    #[test]
    fn values_are_counted_outside_of_strings_alone() {
        assert_eq!(count(b"0"), 1);
        assert_eq!(count(b"[0, 1, 2]"), 4);
        assert_eq!(count(br#"{"a": "x,y:[{", "b": "\"\\", "c": "\\\","}"#), 7);
    }

    #[test]
    fn a_long_text_is_one_value_and_a_long_array_is_too_many() {
        assert!(has_few_values(format!("\"{}\"", ",".repeat(2 * MAX_VALUES)).as_bytes()));
        assert!(!has_few_values(format!("[{}0]", "0,".repeat(MAX_VALUES)).as_bytes()));
        assert!(has_few_values(format!("[{}0]", "0,".repeat(MAX_VALUES - 2)).as_bytes()));
    }
}
