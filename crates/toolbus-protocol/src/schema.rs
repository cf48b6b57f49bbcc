//! Descriptions of the messages for other languages: in JSON Schema, and in AsyncAPI.
//!
//! Both documents are in `docs/wire` of the repository; the specification is `docs/wire.md`.

mod asyncapi;
mod envelope;
mod messages;
mod operations;

pub use asyncapi::asyncapi;
pub use messages::messages;
