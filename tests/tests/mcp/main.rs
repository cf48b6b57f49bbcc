//! MCP servers behind the real binary: those that others wrote, and hostile ones.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod own_names;
mod peer;
mod peers;
mod peers_setups;
mod pins;
mod policy;
mod policy_names;
mod policy_registering;
mod real;
mod real_changes;
mod real_commands;
mod real_content;
mod real_http;
mod real_losses;
mod real_rules;
mod real_running;
mod reload;
mod reload_mistakes;
mod small;
mod toolsets;
