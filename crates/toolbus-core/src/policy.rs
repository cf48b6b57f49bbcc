//! The policy as written, and what it comes to with the present tools.
//!
//! [`PolicyHandle`] holds the present [`Catalogue`]: an immutable meeting of rules and tools, replaced whole when
//! either changes. What one caller has of it is its [`EffectiveTools`] set: the same object lists, enforces and
//! explains.

mod agent_rules;
mod bits;
mod catalogue;
mod comparison;
mod effective;
mod explain;
mod handle;
mod index;
mod profile;
mod rules;
mod summary;
mod switches;
#[cfg(test)]
mod tests;

pub use crate::quarantine::{Claim, DefinitionCheck, Quarantine};
pub use catalogue::{Catalogue, Forced};
pub use comparison::{AccessChange, CountedTools, access_changes};
pub use effective::{AllowedTool, EffectiveTools, EmptyReason, ToolSetId};
pub(crate) use explain::listed;
pub use explain::{Because, Explanation};
pub use handle::PolicyHandle;
pub(crate) use profile::is_same_name;
pub use profile::{EVERY_SOURCE, Profile, ProfileRole};
pub use rules::{AgentPolicy, Allowed, BindingPolicy, Capacity, Policy, UnknownCallers};
pub use summary::PolicySummary;
pub use switches::{Switch, SwitchError};
