//! MCP servers that mean harm, behind the real binary: the others go on, memory and time stay bounded, and operators see
//! what happened.
//!
//! A program of its own, and one test at a time, so that nothing else runs beside them: they measure.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod confined;
mod disguised;
mod endings;
mod floods;
mod listings;
mod remote;
mod results;
mod wire;
mod world;
