//! How messages reach a server.

mod fast_path;
pub(crate) mod http;
pub(crate) mod stdio;
pub(crate) mod values;

use std::sync::{Arc, OnceLock};

/// What a server is told of a request that is given up.
pub(crate) const GIVEN_UP: &str = "nobody waits for the answer any more";

/// Why a transport has ended, for whoever wonders that it has. Its parts and its owner share it; the first reason counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct TransportFailure(Arc<OnceLock<String>>);

impl TransportFailure {
    /// Says why the transport ends: part of a sentence that an operator reads, such as "the server ended with exit code
    /// 3". What the server wrote must be bounded and escaped in it.
    pub(crate) fn set(&self, reason: impl Into<String>) {
        // A later reason follows from the first.
        let _ = self.0.set(reason.into());
    }

    /// Why the transport has ended, if it has.
    pub(crate) fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::TransportFailure;

    #[test]
    fn the_first_reason_counts_for_everyone_who_shares_it() {
        let failure = TransportFailure::default();
        let shared = failure.clone();
        assert_eq!(shared.get(), None);
        failure.set("the server ended with exit code 3");
        failure.set("the connection was closed");
        assert_eq!(shared.get(), Some("the server ended with exit code 3"));
    }
}
