//! Working memory of agents, and the chunks that large results are kept in.

pub mod chunk;
mod outline;
