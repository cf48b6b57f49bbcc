//! Credentials that texts must not show.

pub use toolbus_config::Secret;
