//! What Toolbus does with a call, without knowing where calls come from or what tools are made of.
//!
//! The path of one call is [`Dispatcher::handle`]: read that first. The traits that the edges implement are [`Bus`],
//! [`Executor`] and [`Telemetry`].

pub mod bus;
pub mod failure;
pub mod registry;
pub mod telemetry;
pub mod tool;
