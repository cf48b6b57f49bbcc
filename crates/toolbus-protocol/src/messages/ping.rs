use serde::Serialize;
use serde::de::{IgnoredAny, MapAccess};

use super::members::{Members, read_members};
use crate::json::ParseError;

/// Asks a daemon whether it is there, and what it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Ping {}

impl Ping {
    /// Reads a body: none, or any JSON object.
    ///
    /// # Errors
    ///
    /// When there is a body that is not a JSON object, or one that is too deep.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        if body.trim_ascii().is_empty() {
            return Ok(Self {});
        }
        read_members(body)
    }
}

impl Members for Ping {
    const NAMES: &'static [&'static str] = &[];

    fn read<'de, A: MapAccess<'de>>(&mut self, _: &str, members: &mut A) -> Result<(), A::Error> {
        members.next_value::<IgnoredAny>().map(drop)
    }
}

/// What a daemon says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pong {
    /// The daemon's name: `rb-source` of its answers.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Digest of the configuration: replicas of a fleet have the same.
    pub config_digest: String,
    /// What this process does: `invoke`, `mcp`, …
    pub roles: Vec<String>,
    /// Seconds since it began.
    pub uptime_seconds: u64,
    /// Calls that run now.
    pub in_flight: u64,
    /// Tools that are registered.
    pub tools: u64,
}
