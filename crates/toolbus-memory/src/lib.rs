//! Working memory of agents, and the chunks that large results are kept in.
//!
//! * [`tools`]: what agents call.
//! * [`chunk`]: the parts of a long text.
//! * [`config`]: the section of the configuration.
//!
//! What keeps the entries implements [`WorkingMemory`](toolbus_core::working_memory::WorkingMemory).

pub mod chunk;
pub mod config;
mod outline;
mod texts;
pub mod tools;

pub use self::config::MemoryConfig;
pub use self::tools::{MemoryTools, NAMES};
