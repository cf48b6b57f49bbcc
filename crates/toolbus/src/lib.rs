//! The parts of the `toolbus` binary: configuration, command line and commands.

pub mod app;
pub mod audit;
pub mod cli;
pub mod commands;
pub mod config;
mod dead_letters;
mod example;
mod families;
pub mod http;
pub mod limits;
pub mod local_daemon;
pub mod runtime;
mod service_manager;
pub mod signals;
pub mod terminal;

/// Version and commit of this build, such as `0.1.0 (1a2b3c4d5e6f)`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("TOOLBUS_COMMIT"), ")");
