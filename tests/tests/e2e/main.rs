//! The real binary against real servers: RabbitMQ, an HTTP backend, a collector, clients in Rust and Python.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cancelling;
mod peers;
mod plain_clients;
