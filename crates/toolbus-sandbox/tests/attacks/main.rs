//! Scripts that attack what is around them, against the sandbox at each of its levels. `docs/sandbox.md` lists every one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod code;
mod files;
mod fixture;
mod forks;
mod kernel;
mod machine;
mod neighbours;
mod page;
mod paths;
mod processes;
mod short;
mod sockets;
mod unprivileged;
