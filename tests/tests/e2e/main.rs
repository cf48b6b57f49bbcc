//! The real binary against real servers: RabbitMQ, an HTTP backend, a collector, clients in Rust and Python.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod audit;
mod bad_addresses;
mod bad_bodies;
mod bad_properties;
mod blocks;
mod cancelling;
mod changes;
mod commands;
mod commands_mcp;
mod control;
mod dashboard;
mod documents;
mod drain;
mod identity;
mod least_privilege;
mod lifecycle;
mod limits;
mod listing;
mod losses;
mod outbound;
mod peers;
mod plain_clients;
mod recipe;
mod refusals;
mod reload;
mod scripts;
mod secrets;
mod sidecar;
mod starting;
mod storm;
mod switches;
mod telemetry;
mod tools;
mod worked_example;
mod wrong_port;
