//! MCP servers behind the real binary. Those that others wrote are in `interop`, hostile ones in `chaos`.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod breakers;
mod bridged;
mod openrouter;
mod own_names;
mod peer;
mod peers;
mod peers_setups;
mod pins;
mod policy;
mod policy_names;
mod policy_registering;
mod reload;
mod reload_mistakes;
mod replicas;
mod small;
mod toolsets;
