//! Which tools of a server are offered.

/// Names of tools, ASCII case ignored. Deny wins over allow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolFilter {
    allowed: Vec<String>,
    denied: Vec<String>,
}
