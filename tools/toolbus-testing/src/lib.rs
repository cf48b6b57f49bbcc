//! Shared parts of tests: real servers (a private RabbitMQ node, a cluster of three, a Redis server, a TCP proxy that
//! breaks on demand, an OTLP receiver), an API server of Kubernetes that runs pods as processes, a bus that
//! records, a store and a ledger that fail, patience, and inputs for parsers.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod cluster;
pub mod faulty_ledger;
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
pub mod recording_bus;
pub mod redis;
pub mod tls;

/// Locks what a test that failed may have left locked.
fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
