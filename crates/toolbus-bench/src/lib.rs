//! Measures a Toolbus daemon against a bare responder on the same broker.
//!
//! * [`Responder`] is the floor: the least that a consumer can do and still lose nothing.
//! * [`Load`] is a closed loop of callers that keeps a number of calls in flight.
//! * [`Usage`] reads what a process has used.
//! * [`Summary`] puts rounds of measurements together.
//!
//! Both sides are measured in turn within one run, because machines are noisy and only ratios are worth comparing.

mod amqp;
mod load;
mod responder;
mod summary;
mod usage;

pub use amqp::{BenchError, Site};
pub use load::{AGENT, Load, Sample, TEXT};
pub use responder::Responder;
pub use summary::{Figures, Summary};
pub use usage::{Usage, UsageError};
