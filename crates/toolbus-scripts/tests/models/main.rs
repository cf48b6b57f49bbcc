//! Scripts as models write them, and the result of each: ordinary ones work, and the others return the reason.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod archives;
mod commands;
mod data;
mod databases;
mod files;
mod fixture;
mod languages;
mod mistakes;
mod network;
mod packages;
mod processes;
mod programs;
mod progress;
mod sessions;
mod threads;
mod time;
