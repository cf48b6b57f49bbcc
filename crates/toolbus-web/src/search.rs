//! `web_search`: search engines, queried in order of preference.

mod engine;
mod executor;
mod provider;

#[cfg(test)]
pub(crate) use self::engine::{SearchEngine, SearchError};
pub(crate) use self::executor::{NAME, tool};
pub use self::provider::{JsonResults, SearchProvider};

/// A result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SearchResult {
    pub(crate) title: String,
    pub(crate) url: String,
    pub(crate) snippet: String,
}
