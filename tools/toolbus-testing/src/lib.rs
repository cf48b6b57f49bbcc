//! Shared parts of tests: real servers (a private RabbitMQ node, a cluster of three, a Redis server, a TCP proxy that
//! breaks on demand, an OTLP receiver), an API server of Kubernetes that runs pods as processes, a store that fails,
//! patience, and inputs for parsers.

pub mod cluster;
pub mod faulty_store;
mod guard;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod log;
pub mod mutation;
pub mod other_user;
pub mod otlp;
pub mod patience;
pub mod proxy;
pub mod rabbit;
pub mod redis;
pub mod tls;
