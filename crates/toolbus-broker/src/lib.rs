//! The buses of Toolbus: RabbitMQ, and one inside the process for a first run and for tests.
//!
//! Both implement [`toolbus_core::bus::Bus`] with the same meaning; where the embedded bus does less, its module says so.

pub mod embedded;
mod embedded_broker;
pub mod rabbitmq;
