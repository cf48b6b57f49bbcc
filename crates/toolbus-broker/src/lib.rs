#![doc = include_str!("../README.md")]

pub mod embedded;
mod embedded_broker;
pub mod rabbitmq;
