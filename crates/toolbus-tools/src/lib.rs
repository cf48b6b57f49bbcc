//! The tools that Toolbus runs itself.
//!
//! * [`rest`]: HTTP endpoints from the configuration, each a tool.
//! * [`time`]: the time in any time zone.
//! * [`echo`]: returns its argument.
//!
//! Every module gives [`Tool`](toolbus_core::tool::Tool)s to register; [`rest`] has the section of the configuration that
//! declares its endpoints.

mod arguments;
pub mod echo;
mod nearest;
pub mod rest;
#[cfg(test)]
mod testing;
pub mod time;

pub use toolbus_core::secret::Secret;
