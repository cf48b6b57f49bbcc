//! Scripts that use up, flood, outlive and confuse, in the real sandbox. `docs/sandbox.md` lists every test here.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, helpers outside test functions included"
)]

mod artifacts;
mod descriptors;
mod disk;
mod ends;
mod fixture;
mod input;
mod library;
mod memory;
mod output;
mod processes;
mod source;
mod time;
mod unprivileged;
