//! How messages reach a server.

pub(crate) mod http;
pub(crate) mod sse;
pub(crate) mod stdio;
