//! The real binary against real servers: RabbitMQ, an HTTP backend, a collector, clients in Rust and Python.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod bad_addresses;
mod bad_bodies;
mod bad_properties;
mod cancelling;
mod commands;
mod drain;
mod identity;
mod least_privilege;
mod losses;
mod metrics;
mod peers;
mod plain_clients;
mod recipe;
mod starting;
mod telemetry;
mod tools;
