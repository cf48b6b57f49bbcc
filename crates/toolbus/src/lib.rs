//! The binary's parts: configuration, command line and commands.

pub mod config;
