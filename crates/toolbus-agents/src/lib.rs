//! Tools by which agents work with time, and find what they need.
//!
//! * [`schedule`]: tasks that agents are reminded of at times that they give.
//! * [`guides`]: how families of tools are used.
//! * [`search`]: services and tools by what they say of themselves.

pub mod guides;
pub mod schedule;
pub mod search;

pub use self::guides::{Guides, GuidesConfig};
pub use self::schedule::{ScheduleConfig, Scheduler};
