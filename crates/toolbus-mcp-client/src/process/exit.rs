//! Exit of a server's process.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use tokio::sync::watch;

/// Exit codes from here on stand for signals, as in a shell.
const SIGNALS: i32 = 128;

/// Exit of a server's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The server ended by itself, with this exit code.
    Code(i32),
    /// This signal ended the server.
    Signal(i32),
    /// The supervisor was killed by this signal, and the server with it.
    Unsupervised(i32),
    /// The exit status is unknown.
    Unknown,
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match (status.signal(), status.code()) {
            (Some(signal), _) => Self::Unsupervised(signal),
            (None, Some(code)) if (SIGNALS + 1..=SIGNALS + 64).contains(&code) => Self::Signal(code - SIGNALS),
            (None, Some(code)) => Self::Code(code),
            (None, None) => Self::Unknown,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "the server ended with exit code {code}"),
            Self::Signal(signal) => write!(f, "the server was ended by signal {signal}"),
            Self::Unsupervised(signal) => write!(f, "the server's supervisor was ended by signal {signal}"),
            Self::Unknown => f.write_str("the server ended"),
        }
    }
}

/// A watch on the exit of a server.
#[derive(Debug, Clone)]
pub(crate) struct Exited(watch::Receiver<Option<Exit>>);

impl Exited {
    pub(crate) const fn new(exit: watch::Receiver<Option<Exit>>) -> Self {
        Self(exit)
    }

    /// Waits for the end of the process, and returns its exit.
    pub(crate) async fn wait(&self) -> Exit {
        let mut exit = self.0.clone();
        let exit = exit.wait_for(Option::is_some).await;
        exit.ok().and_then(|exit| *exit).unwrap_or(Exit::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_is_described_in_words() {
        let text = |raw| Exit::from(ExitStatus::from_raw(raw)).to_string();
        assert_eq!(text(3 << 8), "the server ended with exit code 3");
        assert_eq!(text(137 << 8), "the server was ended by signal 9");
        assert_eq!(text(15), "the server's supervisor was ended by signal 15");
    }

    #[tokio::test]
    async fn a_dropped_sender_counts_as_an_unknown_exit() {
        let (sender, receiver) = watch::channel(None);
        let exited = Exited::new(receiver);
        drop(sender);
        assert_eq!(exited.wait().await, Exit::Unknown);
    }
}
