//! Work that is heavy for the daemon, and connections that never end: health probes get their responses at once, another
//! agent's calls are as fast as ever, and memory stays bounded.

mod harmful_http;
mod local;
mod neighbour;
mod outside;

/// Identities for everyone, and the tools that are attacked. A call ends soon, so that an attack does.
const RULES: &str = r#"
[identity]
trust_headers = true
[agents.ana]
[agents.bruno]
[tools]
echo = true
[memory]
[results]
[pipelines]
[invoke]
default_timeout = "10s"
max_timeout = "10s"
"#;

const MIB: usize = 1024 * 1024;
