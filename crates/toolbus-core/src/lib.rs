//! What Toolbus does with a call, without knowing where calls come from or what tools are made of.
//!
//! The path of one call is [`Dispatcher::handle`]: read that first. The traits that the edges implement are
//! [`bus::Bus`], [`tool::Executor`] and [`telemetry::Telemetry`].

mod answer;
mod arguments;
pub mod audit;
mod bulkhead;
pub mod bus;
pub mod caller;
mod cancel;
mod deadline;
mod decode;
mod dispatcher;
pub mod failure;
pub mod log;
pub mod pattern;
mod permit;
pub mod registry;
mod replay;
mod reply;
mod running;
mod service;
pub mod store;
mod suggest;
pub mod telemetry;
pub mod tool;
pub mod toolsets;

pub use arguments::{SchemaError, check_schema};
pub use cancel::CancelService;
pub use deadline::Budgets;
pub use dispatcher::{Dispatcher, Settings};
pub use reply::ReplyRules;
pub use service::{Drained, Service};
