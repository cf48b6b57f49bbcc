//! Measures a Toolbus daemon against a bare responder on the same broker.
//!
//! * [`Responder`] is the floor: the least that a consumer can do and still lose nothing.
//! * [`Load`] is a closed loop of callers that keeps a number of calls in flight.
//! * [`closed_loop`] does the same over HTTP, of [`Page`]s and of an MCP server's tools ([`McpClient`]).
//! * [`Usage`] reads what a process has used.
//! * [`Summary`] puts rounds of measurements together.
//!
//! Both sides are measured in turn within one run, because machines are noisy and only ratios are worth comparing.

mod amqp;
mod exchange;
mod http;
mod load;
mod mcp;
mod responder;
mod summary;
mod usage;

pub use amqp::{BenchError, Site};
pub use exchange::{Exchange, ExchangeError, Outcome, closed_loop};
pub use http::{Page, Stream};
pub use load::{AGENT, Load, Sample, TEXT};
pub use mcp::{Endpoint, McpCaller, McpClient, ToolUse};
pub use responder::Responder;
pub use summary::{Figures, Summary};
pub use usage::{Usage, UsageError};
