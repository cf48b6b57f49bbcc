//! What a server says of itself.

use rmcp::model::ServerPeerInfo;

use super::text::shown;

/// Longest name, title or version of a server, in characters.
const MAX_LABEL: usize = 128;
/// Longest description or instructions of a server, in characters.
const MAX_PROSE: usize = 16_000;

/// What a server says of itself. The texts are bounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct About {
    /// Version of the protocol that was agreed on.
    pub(crate) protocol_version: String,
    /// Its name.
    pub(crate) name: Option<String>,
    /// Its name, for people.
    pub(crate) title: Option<String>,
    /// Its version.
    pub(crate) version: Option<String>,
    /// What it is.
    pub(crate) description: Option<String>,
    /// How it is to be used.
    pub(crate) instructions: Option<String>,
}

impl About {
    pub(super) fn of(info: &ServerPeerInfo) -> Self {
        let label = |text: &String| shown(text, MAX_LABEL);
        let prose = |text: &String| shown(text, MAX_PROSE);
        let server = info.server_info.as_ref();
        Self {
            protocol_version: info.protocol_version.to_string(),
            name: server.map(|server| label(&server.name)),
            title: server.and_then(|server| server.title.as_ref()).map(label),
            version: server.map(|server| label(&server.version)),
            description: server.and_then(|server| server.description.as_ref()).map(prose),
            instructions: info.instructions.as_ref().map(prose),
        }
    }
}
