//! Audit records: written to the log, and to a file of their own.

mod file;
mod writer;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use toolbus_core::audit::{ArgumentsHash, Audit, AuditEvent, AuditRecord, Keyed, TARGET};
use toolbus_core::failure::error_type;
use toolbus_core::redact::Redactor;
use toolbus_protocol::Outcome;
use toolbus_protocol::Random;

use self::file::{FileError, LogFile};
use self::writer::Writer;
use crate::config::AuditConfig;

/// Most records of a call that are looked up.
const MAX_RECORDS: usize = 200;

/// Reason why records cannot be kept as configured.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The file cannot be used.
    #[error("[audit] the file `{file}` cannot be used: {error}")]
    File {
        /// The file, as it was named.
        file: PathBuf,
        /// Why.
        error: FileError,
    },
    /// There is no thread for the file.
    #[error("[audit] no thread can be started: {0}")]
    Thread(std::io::Error),
}

/// Records were left in memory when the time to write them was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the last audit records could not be written to their file in time")]
pub struct Unwritten;

/// The last records of calls with this id in an audit file, newest last: 200 at most, among the last 64 MiB.
///
/// # Errors
///
/// If the file cannot be read.
pub fn records_of(file: &Path, call_id: &str) -> Result<Vec<Map<String, Value>>, FileError> {
    let is_of_call = |record: &Map<String, Value>| record.get("call_id").and_then(Value::as_str) == Some(call_id);
    let mut records = VecDeque::new();
    // Other lines may be anything: operators may write to the file.
    for line in file::last_lines(file)?.split(|byte| *byte == b'\n') {
        records.extend(serde_json::from_slice(line).ok().filter(is_of_call));
        if records.len() > MAX_RECORDS {
            records.pop_front();
        }
    }
    Ok(records.into())
}

/// Writes every record to the log, with the target [`TARGET`], and to a file if there is one.
pub struct AuditLog {
    keyed: Keyed,
    writer: Option<Writer>,
}

impl AuditLog {
    /// Opens the file and takes the key, or makes one for this run. `redactor` removes secrets from the records.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or the thread that writes to it cannot be started.
    pub fn open(config: &AuditConfig, redactor: &Redactor) -> Result<Arc<Self>, AuditError> {
        let keyed = match &config.key {
            Some(key) => Keyed::new(key.expose().as_bytes()),
            None => Keyed::new(&[Random::SYSTEM.bits().to_be_bytes(), Random::SYSTEM.bits().to_be_bytes()].concat()),
        };
        let open = |file: &PathBuf| {
            let opened = LogFile::open(file).map_err(|error| AuditError::File { file: file.clone(), error })?;
            Writer::start(opened, redactor.clone()).map_err(AuditError::Thread)
        };
        Ok(Arc::new(Self { keyed, writer: config.file.as_ref().map(open).transpose()? }))
    }

    /// Checks the file of the configuration, without creating it or writing to it.
    ///
    /// # Errors
    ///
    /// If the file could not be opened.
    pub fn check(file: &Path) -> Result<(), FileError> {
        file::check(file)
    }

    /// Opens the file anew by its name, after it was renamed. Returns at once.
    pub fn reopen(&self) {
        if let Some(writer) = &self.writer {
            writer.reopen();
        }
    }

    /// Writes all that was recorded, within `patience`. Later records go to the log alone.
    ///
    /// # Errors
    ///
    /// If records are unwritten after `patience`, as on a full disk.
    pub async fn close(&self, patience: Duration) -> Result<(), Unwritten> {
        match &self.writer {
            Some(writer) => tokio::time::timeout(patience, writer.close()).await.map_err(|_| Unwritten),
            None => Ok(()),
        }
    }
}

impl Audit for AuditLog {
    fn record(&self, record: AuditRecord) {
        log(&record);
        if let Some(writer) = &self.writer {
            writer.write(record);
        }
    }

    fn hash(&self, arguments: &Map<String, Value>) -> Option<ArgumentsHash> {
        Some(self.keyed.hash(arguments))
    }
}

fn log(record: &AuditRecord) {
    let message = match record.event {
        AuditEvent::Refused => "a call was refused",
        AuditEvent::Called => "a tool was called",
        AuditEvent::RefusedEntry => "an entry was refused",
        AuditEvent::Acted => "an operator acted",
    };
    let outcome = record.outcome.map(|outcome| match outcome {
        Outcome::NotStarted => "not_started",
        Outcome::Failed => "failed",
        Outcome::Unknown => "unknown",
    });
    tracing::info!(
        target: TARGET,
        event = record.event.as_str(),
        agent = record.agent,
        claimed = record.claimed,
        login = record.login,
        verified = record.verified,
        binding = record.binding,
        profile = record.profile,
        session = record.session,
        tool = record.tool.as_deref(),
        asked = record.asked,
        source = record.source.as_deref(),
        call_id = record.call_id,
        action = record.action,
        operator = record.operator,
        remote = record.remote.map(tracing::field::display),
        left_out = record.left_out,
        status = record.status.as_str(),
        cause = record.cause.map(error_type),
        outcome,
        arguments_hash = record.arguments_hash.as_ref().map(ArgumentsHash::as_str),
        "{message}"
    );
}

#[cfg(test)]
mod tests;
