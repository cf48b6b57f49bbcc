//! Working memory of agents, and the chunks that large results are kept in.
//!
//! * [`tools`]: what agents call.
//! * [`chunk`]: the parts of a long text.
//! * [`results`]: results in parts, and their section of the configuration.
//! * [`config`]: the section of working memory.
//! * [`rank`]: the order of texts for a query.
//! * [`usage`]: how much is kept, for operators.
//!
//! Stores of the entries implement [`WorkingMemory`](working_memory::WorkingMemory).

pub mod chunk;
pub mod config;
mod outline;
pub mod rank;
pub mod results;
mod texts;
pub mod tools;
pub mod usage;
pub mod working_memory;

pub use self::config::MemoryConfig;
pub use self::results::ResultsConfig;
pub use self::tools::{MemoryTools, NAMES};
