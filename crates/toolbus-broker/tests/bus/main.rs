//! Both buses against one contract, and RabbitMQ against all that brokers and networks do to a client.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod addresses;
mod channels;
mod contract;
mod embedded;
mod fixture;
mod inspection;
mod losses;
mod permissions;
mod queues;
mod rabbitmq;
mod speed;
mod tls;
mod versions;
