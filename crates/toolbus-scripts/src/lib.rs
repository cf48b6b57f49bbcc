//! Python scripts and configured commands as tools.
//!
//! [`tool`] is `execute_python_script`: it reads the arguments, waits for its turn in the [`queue`], has a
//! [`runner::Runner`] run the script, and words the result. [`commands`] makes tools of configured programs. The sections of
//! the configuration are [`config::ScriptConfig`] and [`commands::CommandConfig`].

pub mod commands;
pub mod config;
mod environment;
pub mod interpreter;
pub mod packages;
mod progress;
pub mod queue;
pub mod requirement;
pub mod runner;
mod system;
#[cfg(test)]
mod testing;
mod text;
pub mod tool;
mod unconfined;

pub use environment::{KEY_VARIABLE, ProgramError};
