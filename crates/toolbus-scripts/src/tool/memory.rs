//! Files of a script that are entries of its caller's working memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{ToolCall, time_text};
use toolbus_memory::working_memory::{EntryKey, MemoryError, MemoryOwner, Namespace, NewEntry, WorkingMemory};
use toolbus_sandbox::Artifact;

use super::Settings;
use super::arguments::{INPUT_FILES, INPUT_KEYS, MAX_FILES, MAX_NAME, OUTPUT_KEYS, ScriptArguments, max_input};
use crate::text::size;

/// The category of entries that scripts leave.
const CATEGORY: &str = "script";

/// The working memory that scripts get files from, and leave files in.
#[derive(Debug, Clone)]
pub struct ScriptMemory {
    /// Keeps the entries.
    pub memory: Arc<dyn WorkingMemory>,
    /// Time that an entry is kept that a script leaves.
    pub ttl: Duration,
}

/// The entries that a call names.
#[derive(Debug)]
pub(super) struct MemoryFiles<'a> {
    memory: &'a ScriptMemory,
    owner: MemoryOwner,
    inputs: Vec<MemoryFile>,
    outputs: Vec<MemoryFile>,
    /// Most bytes of all inputs.
    max_input: u64,
}

/// An entry, and the name of its file.
#[derive(Debug)]
struct MemoryFile {
    name: String,
    key: EntryKey,
}

/// Outcome of saving files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SavedFiles {
    /// Text on the files that were saved and that were not, and why.
    pub(super) notes: Vec<String>,
    /// Whether one was not.
    pub(super) is_error: bool,
}

impl<'a> MemoryFiles<'a> {
    /// The entries that a call names; `None` if it names none.
    pub(super) fn of(
        call: &ToolCall,
        arguments: &ScriptArguments,
        settings: &'a Settings,
    ) -> Result<Option<Self>, ToolFailure> {
        let ScriptArguments { input_keys, output_keys, files, .. } = arguments;
        let Some(memory) = settings.memory.as_ref().filter(|_| !input_keys.is_empty() || !output_keys.is_empty())
        else {
            return Ok(None);
        };
        let (owner, namespace) = (MemoryOwner::required(&call.caller)?, Namespace::required(&call.caller)?);
        let inputs = named(&namespace, INPUT_KEYS, input_keys)?;
        if inputs.len() + files.len() > MAX_FILES {
            let both = format!("Arguments `{INPUT_FILES}` and `{INPUT_KEYS}` have more than {MAX_FILES} files.");
            return Err(ToolFailure::invalid(both));
        }
        if let Some(MemoryFile { name, key }) =
            inputs.iter().find(|input| files.iter().any(|(name, _)| *name == input.name))
        {
            return Err(ToolFailure::invalid(format!(
                "The entry `{key}` in `{INPUT_KEYS}` would be the file `{name}`, and so would one in `{INPUT_FILES}`. \
                 Give that one another name."
            )));
        }
        let outputs = named(&namespace, OUTPUT_KEYS, output_keys)?;
        Ok(Some(Self { memory, owner, inputs, outputs, max_input: max_input(&settings.limits) }))
    }

    /// Reads the inputs, beside files of so many bytes.
    pub(super) async fn read(&self, mut bytes: u64) -> Result<Vec<(String, Bytes)>, ToolFailure> {
        let mut files = Vec::with_capacity(self.inputs.len());
        for MemoryFile { name, key } in &self.inputs {
            let found = self.memory.memory.get(self.owner.clone(), key.clone()).await;
            // Nothing has run yet, whatever the tool may do.
            let found = found.map_err(|error| ToolFailure { cause: Cause::ConnectFailed, ..error.away() })?;
            let entry = found.ok_or_else(|| {
                ToolFailure::invalid(format!(
                    "There is no entry `{key}`, which `{INPUT_KEYS}` names, or it has expired. The script was not run."
                ))
            })?;
            bytes += entry.value.len() as u64;
            if bytes > self.max_input {
                let most = size(self.max_input);
                let message = format!(
                    "Files in `{INPUT_FILES}` and entries in `{INPUT_KEYS}` may have {most} together. The script was not run."
                );
                return Err(ToolFailure::invalid(message));
            }
            files.push((name.clone(), Bytes::from_owner(Arc::<[u8]>::from(entry.value))));
        }
        Ok(files)
    }

    /// Saves the outputs that there are, all or none, and takes those that were saved from among the files.
    pub(super) async fn save(&self, files: &mut Vec<Artifact>) -> SavedFiles {
        let mut saved = SavedFiles::default();
        let mut entries = Vec::with_capacity(self.outputs.len());
        for MemoryFile { name, key } in &self.outputs {
            let file = files.iter().find(|file| file.name == *name);
            match file.map(|file| std::str::from_utf8(&file.bytes)) {
                Some(Ok(text)) => {
                    let entry = NewEntry::new(key.clone(), text, self.memory.ttl);
                    entries.push(NewEntry { category: Some(CATEGORY.into()), ..entry });
                }
                Some(Err(_)) => saved.failed(format!("Not saved under `{key}`: the file `{name}` is not UTF-8.")),
                None => saved.failed(format!(
                    "Not saved under `{key}`: the script wrote no file `{name}` to TOOLBUS_OUTPUT that can be returned."
                )),
            }
        }
        if entries.is_empty() {
            return saved;
        }
        let keys: Vec<String> = entries.iter().map(|entry| format!("`{}`", entry.key)).collect();
        match self.memory.memory.save(self.owner.clone(), entries.clone()).await {
            Ok(()) => {
                let is_saved = |file: &Artifact| {
                    let output = self.outputs.iter().find(|output| output.name == file.name);
                    output.is_some_and(|output| entries.iter().any(|entry| entry.key == output.key))
                };
                files.retain(|file| !is_saved(file));
                let (keys, time) = (keys.join(", "), time_text(self.memory.ttl));
                saved.notes.push(format!("Saved in working memory for {time}, and not returned: {keys}."));
            }
            Err(error) => {
                let reason = match &error {
                    MemoryError::Store(error) => {
                        tracing::warn!(%error, "files of a script were not saved");
                        "working memory cannot be reached now".to_owned()
                    }
                    limit => limit.to_string(),
                };
                saved.failed(format!("Nothing was saved in working memory: {reason}. The files were returned."));
            }
        }
        saved
    }
}

impl SavedFiles {
    fn failed(&mut self, note: String) {
        self.is_error = true;
        self.notes.push(note);
    }
}

/// The entries under these keys, each once, with the names of their files.
fn named(namespace: &Namespace, argument: &str, keys: &[String]) -> Result<Vec<MemoryFile>, ToolFailure> {
    let mut files: Vec<MemoryFile> = Vec::with_capacity(keys.len());
    for text in keys {
        let key = namespace.key(text).map_err(|error| error.failure(argument, text))?;
        let name = file_name(&key);
        match files.iter().find(|file| file.name == name) {
            None => files.push(MemoryFile { name, key }),
            Some(other) if other.key == key => {}
            Some(other) => {
                return Err(ToolFailure::invalid(format!(
                    "The entries `{}` and `{key}` in `{argument}` would both be the file `{name}`. Name one of them in \
                     another call, or save it under another key.",
                    other.key
                )));
            }
        }
    }
    Ok(files)
}

/// The last segment of a key. What is neither a letter, a digit, `-`, `_` nor a `.` within it becomes `_`.
fn file_name(key: &EntryKey) -> String {
    let segment = key.as_str().rsplit('/').next().unwrap_or_default();
    let mut name = String::with_capacity(segment.len());
    for c in segment.chars() {
        let is_plain = c.is_alphanumeric() || matches!(c, '-' | '_') || (c == '.' && !name.is_empty());
        let c = if is_plain { c } else { '_' };
        if name.len() + c.len_utf8() > MAX_NAME {
            break;
        }
        name.push(c);
    }
    name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_is_named_as_the_last_part_of_its_key() {
        for (key, name) in [
            ("session/a/plan", "plan"),
            ("a/report.csv", "report.csv"),
            ("session/a/tool-fs_read-0123abcd-chunk2", "tool-fs_read-0123abcd-chunk2"),
            ("a/..", "_."),
            ("a/.bashrc", "_bashrc"),
            ("a/b\\c d:e", "b_c_d_e"),
            ("a/日本", "日本"),
        ] {
            assert_eq!(file_name(&EntryKey::parse(key).unwrap()), name, "{key}");
        }
        let long = format!("a/{}", "ä".repeat(200));
        assert_eq!(file_name(&EntryKey::parse(&long).unwrap()).len(), MAX_NAME);
    }

    proptest! {
        #[test]
        fn every_key_has_a_name_that_is_one_of_a_file(key in "\\PC{1,60}") {
            let Ok(key) = Namespace::of(None).unwrap().key(&key) else { return Ok(()) };
            prop_assert!(crate::tool::arguments::is_name(&file_name(&key)), "{key}");
        }
    }
}
