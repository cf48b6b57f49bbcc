//! Why a tool's definition is suspect.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// One thing about a tool's definition, or about what a server says of itself, that looks like an attempt to turn the
/// model against the user. A sign and no proof: people decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspicion {
    /// Id of the rule that was met.
    pub rule: Arc<str>,
    /// Where: `description`, `parameters.properties.path.description`.
    pub place: String,
    /// What was met, shortened, without characters that are not seen.
    pub excerpt: String,
}

/// In one line: `conceal in description: "do not tell the user"`.
impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, place, excerpt } = self;
        write!(f, "{rule} in {place}: {excerpt:?}")
    }
}
