//! Pins in the admin API: quarantined tools, their changes, and their approval.

use std::collections::HashMap;

use serde_json::value::RawValue;
use toolbus_config::expected;
use toolbus_core::text::shown;
use toolbus_trust::pins::{
    ApproveError, Definition, Difference, Mismatch, PinEntry, Pins, ToolState, Unified, offer_digest, unified,
};

use super::Admin;
use super::view::{ApiError, Approval, Approved, Changed, Changes, Pinned, PinnedTools};

/// Most tools whose definitions are shown at a time.
const MAX_CHANGES: usize = 50;
/// Most bytes of definitions that are shown at a time.
const MAX_SHOWN: usize = 4 << 20;
/// Prefix of the source names of MCP servers.
const SERVERS: &str = "mcp:";

impl Admin {
    /// Every tool that is pinned or there, of one source or of all. A source has its own name, or that of its MCP server.
    ///
    /// # Errors
    ///
    /// If nothing is pinned here, or nothing is known of the source.
    pub fn pins(&self, source: Option<&str>) -> Result<PinnedTools, ApiError> {
        let pins = self.pinned()?;
        let source = self.source(source)?;
        let clashes = self.gates.policy().current().clashes();
        let owners: HashMap<(&str, &str), &str> =
            clashes.iter().map(|clash| ((&*clash.shadowed, &*clash.name), &*clash.kept)).collect();
        let with_owner = |entry: PinEntry| {
            let owner = owners.get(&(&*entry.source, &*entry.name)).map(|owner| (*owner).to_owned());
            Pinned { shadowed_by: owner, ..pinned(entry) }
        };
        let tools = pins.list(source.as_deref()).into_iter().map(with_owner).collect();
        Ok(PinnedTools { file: pins.file().map(|file| file.display().to_string()), problem: pins.problem(), tools })
    }

    /// Returns the differences of the tools of this name from their pins.
    ///
    /// # Errors
    ///
    /// If no tool has this name, or nothing is known of the source.
    pub fn pin_changes(&self, name: &str, source: Option<&str>) -> Result<Changes, ApiError> {
        let source = self.source(source)?;
        let found = self.pinned()?.find(name, source.as_deref())?;
        let (digest, is_one) = (offer_digest(&found), found.len() == 1);
        // A tool that is requested by its name is shown also if it is unchanged.
        let mut open: Vec<_> = found.into_iter().filter(|found| is_one || found.entry.state.is_open()).collect();
        let (count, mut bytes) = (open.len(), 0);
        open.truncate(MAX_CHANGES);
        open.retain(|found| {
            let sizes =
                [&found.before, &found.after].into_iter().flatten().map(|definition| definition.as_json().len());
            let size: usize = sizes.sum();
            let fits = bytes == 0 || bytes + size <= MAX_SHOWN;
            bytes += if fits { size } else { 0 };
            fits
        });
        let more = count - open.len();
        Ok(Changes { name: name.to_owned(), digest, changes: open.into_iter().map(changed).collect(), more })
    }

    /// Approves the tools that a name means, at once, if they are as they were shown.
    ///
    /// # Errors
    ///
    /// If the digest differs from the approval's, or the pin cannot be stored; then nothing changes.
    pub async fn approve_pin(&self, name: &str, approval: Approval) -> Result<Approved, ApiError> {
        let (pins, policy) = (self.pinned()?.clone(), self.gates.policy().clone());
        let (named, source) = (name.to_owned(), self.source(approval.source.as_deref())?);
        let nothing = |error: &str| ApiError::internal(format!("nothing was approved: {error}"));
        let approving = tokio::task::spawn_blocking(move || {
            let approved = pins.approve(&named, source.as_deref(), approval.digest);
            // Also where it failed: others may have written meanwhile.
            policy.refresh();
            approved
        });
        let approved = approving.await.map_err(|_| nothing("the daemon is ending"))?;
        let approved = approved.map_err(|error| match error {
            ApproveError::Mismatch(mismatch) => mismatch.into(),
            ApproveError::File(error) => nothing(&error.to_string()),
        })?;
        tracing::info!(name, tools = approved.len(), "admin: definitions were approved");
        Ok(Approved { approved: approved.into_iter().map(|difference| pinned(difference.entry)).collect() })
    }

    fn pinned(&self) -> Result<&Pins, ApiError> {
        self.pins.as_ref().ok_or_else(|| ApiError::not_found("nothing is pinned in this process"))
    }

    /// The source of a name, which may be that of an MCP server.
    fn source(&self, name: Option<&str>) -> Result<Option<String>, ApiError> {
        let Some(name) = name else { return Ok(None) };
        let sources = self.pinned()?.sources();
        let of_server = format!("{SERVERS}{name}");
        let found = [name, &of_server].into_iter().find(|name| sources.iter().any(|source| source == name));
        if let Some(found) = found {
            return Ok(Some(found.to_owned()));
        }
        let mut names: Vec<&str> = sources.iter().map(String::as_str).collect();
        // One without `mcp:` is far from all that have it.
        names.extend(
            sources.iter().filter_map(|source| source.strip_prefix(SERVERS)).filter(|_| !name.starts_with(SERVERS)),
        );
        let others = if names.is_empty() { "no source was seen yet".to_owned() } else { expected(name, &names) };
        Err(ApiError::not_found(format!("nothing is known of a source `{}`: {others}", shown(name))))
    }
}

impl Changed {
    /// The difference, line by line.
    #[must_use]
    pub fn unified(&self) -> Unified {
        // A suspect tool is unchanged since it was first seen: the whole of it is shown as new.
        let before = self.before.as_deref().filter(|_| self.is.state != ToolState::Suspect);
        unified(read(before).as_ref(), read(self.after.as_deref()).as_ref())
    }
}

fn read(definition: Option<&RawValue>) -> Option<Definition> {
    serde_json::from_str(definition?.get()).ok()
}

fn pinned(entry: PinEntry) -> Pinned {
    let PinEntry { source, tool, name, state, is_held, since, pinned, reason } = entry;
    Pinned { source, tool, name, state, held: is_held, since, pinned, reason, shadowed_by: None }
}

fn changed(difference: Difference) -> Changed {
    let shown = |definition: Definition| RawValue::from_string(definition.as_json().to_string()).ok();
    Changed {
        before: difference.before.and_then(shown),
        after: difference.after.and_then(shown),
        is: pinned(difference.entry),
    }
}

impl From<Mismatch> for ApiError {
    fn from(mismatch: Mismatch) -> Self {
        match mismatch {
            Mismatch::Unknown(_) => Self::not_found(mismatch),
            _ => Self::conflict(mismatch),
        }
    }
}
