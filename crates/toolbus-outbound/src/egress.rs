//! Requests to hosts that a caller, a page or a specification supplies.
//!
//! [`EgressRules`] decides which URLs and addresses may be reached, [`Egress`] sends a request to one of them. A name is
//! checked before it is resolved, its addresses after, and the connection goes to an address that was checked.

mod address;
mod client;
mod hosts;
mod rules;
#[cfg(test)]
mod tests;

pub use client::{Egress, EgressError, HostLookup, next_hop};
pub use hosts::{HostLists, HostRule, HostRuleError};
pub use rules::{EgressConfig, EgressRules, EgressTarget, ProxyMode, Refusal};
