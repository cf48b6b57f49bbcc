//! Telemetry of calls that a real OTLP receiver gets.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and so do its helpers"
)]

mod agents;
mod clients;
mod collector_away;
mod contract;
mod dispatched;
mod encrypted;
mod labels;
mod lifecycle;
mod logs;
mod observed;
mod pins;
mod scripts;
mod servers;
mod spans;
mod subagents;
mod support;
mod tables;
mod web;
