//! What becomes of a call, step by step, with a bus and tools in memory.

mod bad_input;
mod cancelling;
mod replaying;
mod replying;
mod running;
mod world;
