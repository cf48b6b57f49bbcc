//! Handling of a call, without knowing where calls come from or what tools are made of.
//!
//! The path of one call is [`Dispatcher::handle`]: read that first. The traits that the edges implement are
//! [`bus::Bus`], [`tool::Executor`] and [`telemetry::Telemetry`].

mod argument_names;
pub mod audit;
mod bulkhead;
pub mod caller;
mod control;
mod deadline;
mod dispatcher;
mod ecma_pattern;
pub mod events;
pub mod failure;
mod gates;
mod idempotency;
pub mod listing;
mod load;
mod notify;
mod parameters;
pub mod pattern;
mod pending_tools;
pub mod policy;
pub mod progress;
mod quarantine;
pub mod redact;
pub mod registry;
mod reply;
mod reply_address;
mod request;
pub mod results;
mod running;
pub mod secret;
mod service;
pub mod store;
pub mod suggest;
pub mod telemetry;
pub mod text;
pub mod throttle;
pub mod tool;
pub mod toolsets;
pub mod turns;

pub use control::{
    About, ControlError, ControlHandler, ControlReply, ControlRequest, ControlService, HintSource, MAX_CONTROL_BODY,
};
pub use deadline::Budgets;
pub use dispatcher::{Dispatcher, DispatcherSettings, InnerCall, InnerOrigin, Invoker};
pub use gates::arguments::{SchemaError, check_schema};
pub use gates::{ExplainedStep, Gates, StepName};
pub use gates::{breaker, rate, recipients};
pub use idempotency::ledger;
pub use notify::{ChangeNotifier, NotificationSource, NotifyHandle, ToolNames};
pub use parameters::{Parameters, ParametersError};
pub use pending_tools::{AllArrived, PendingTools};
pub use reply_address::ReplyRules;
pub use request::{Lookup, ToolRef};
pub use service::{Drained, Service};
pub use toolbus_bus as bus;
pub use toolbus_bus::{Clock, lifecycle, milliseconds};
pub use turns::{Turn, Turns};
