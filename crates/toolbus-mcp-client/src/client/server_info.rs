//! What a server says of itself.

use rmcp::model::ServerPeerInfo;
use toolbus_core::redact::Redactor;
use toolbus_trust::text::{Removed, clean};

/// Longest name, title or version of a server, in bytes.
const MAX_LABEL: usize = 128;
/// Longest description or instructions of a server, in bytes.
const MAX_PROSE: usize = 16_000;

/// What a server says of itself. The texts are bounded, cleaned, and without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerInfo {
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
    /// What was taken out of these texts.
    pub(crate) removed: Removed,
}

impl ServerInfo {
    pub(super) fn of(info: &ServerPeerInfo, redactor: &Redactor) -> Self {
        let mut removed = Removed::default();
        let mut cleaned = |text: Option<&String>, limit: usize| {
            // Before it is cut: a part of a secret would not be known for one.
            let redacted = redactor.text(text?);
            let cleaned = clean(&redacted, limit);
            removed.add(&cleaned.removed);
            Some(cleaned.text.into_owned())
        };
        let server = info.server_info.as_ref();
        Self {
            protocol_version: info.protocol_version.to_string(),
            name: cleaned(server.map(|server| &server.name), MAX_LABEL),
            title: cleaned(server.and_then(|server| server.title.as_ref()), MAX_LABEL),
            version: cleaned(server.map(|server| &server.version), MAX_LABEL),
            description: cleaned(server.and_then(|server| server.description.as_ref()), MAX_PROSE),
            instructions: cleaned(info.instructions.as_ref(), MAX_PROSE),
            removed,
        }
    }
}
