//! All servers, and their tools in the registry.
