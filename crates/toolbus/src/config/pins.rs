//! `[pins]`: whether tools may change what they say of themselves.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toolbus_core::pattern::Pattern;
use toolbus_trust::pins::{Level, Levels};

use super::pattern::ToolPattern;
use super::{Config, Sources};

/// What stands for no file.
const NONE: &str = "none";
/// What the name of the file ends with.
const ENDING: &str = "pins.json";

/// Whether tools may change what they say of themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PinsConfig {
    /// File in which is kept what was seen; absent: next to the first configuration file. "none": it is forgotten.
    #[schemars(length(min = 1))]
    pub file: Option<PathBuf>,
    /// What is done about changes, by pattern of sources: `rest`, `command`, `mcp:*`. The `pin` of an MCP server comes first,
    /// then the pattern that fixes most characters.
    #[schemars(extend("maxProperties" = 1024, "propertyNames" = {"format": "toolbus-pattern"}))]
    pub sources: BTreeMap<ToolPattern, Pin>,
}

/// What is done when a tool is not what it was: nothing with `false`; it is held back with `true`; with "strict" suspect ones
/// are, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin(pub Level);

/// The forms that [`Pin`] is written in.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Flag(bool),
    Word(Word),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Strict,
}

impl Serialize for Pin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = match self.0 {
            Level::Watch => Written::Flag(false),
            Level::Hold => Written::Flag(true),
            Level::Strict => Written::Word(Word::Strict),
        };
        written.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Pin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Written::deserialize(deserializer)? {
            Written::Flag(false) => Level::Watch,
            Written::Flag(true) => Level::Hold,
            Written::Word(Word::Strict) => Level::Strict,
        }))
    }
}

impl JsonSchema for Pin {
    fn schema_name() -> Cow<'static, str> {
        "Pin".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "boolean"}, {"type": "string", "enum": ["strict"]}]})
    }
}

impl PinsConfig {
    /// The file, where there is one: the one that is named, or one next to the first file of the configuration.
    #[must_use]
    pub fn place(&self, sources: &Sources) -> Option<PathBuf> {
        match &self.file {
            Some(file) if file == Path::new(NONE) => None,
            Some(file) => Some(file.clone()),
            None => sources.files.first().map(|file| file.with_extension(ENDING)),
        }
    }
}

impl Config {
    /// What is done about changes, by source. Every MCP server is named.
    #[must_use]
    pub fn pin_levels(&self) -> Levels {
        let patterns = self.pins.sources.iter().map(|(pattern, pin)| (Pattern::clone(pattern), pin.0));
        let servers = self.mcp_servers();
        Levels::new(servers.pins, patterns).naming(servers.specs.iter().map(|spec| spec.name.source().to_string()))
    }

    /// What is missing for pins to outlast a restart, if something is.
    pub(super) fn unkept_pins(&self, sources: &Sources) -> Option<String> {
        let is_meant = self.pins.file.is_some() || self.pins.place(sources).is_some();
        (!is_meant && self.pin_levels().hold_anything()).then(|| {
            "is missing, and there is no configuration file to keep pins next to; expected the path of a file, or \"none\" \
             to forget them with the process"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pin_is_written_as_it_is_read() {
        for (written, level) in
            [(json!(false), Level::Watch), (json!(true), Level::Hold), (json!("strict"), Level::Strict)]
        {
            assert_eq!(serde_json::from_value::<Pin>(written.clone()).unwrap(), Pin(level));
            assert_eq!(serde_json::to_value(Pin(level)).unwrap(), written);
        }
        assert!(serde_json::from_value::<Pin>(json!("true")).is_err());
    }

    #[test]
    fn the_file_is_next_to_the_configuration_unless_another_is_named_or_none() {
        let sources =
            |files: &[&str]| Sources { files: files.iter().map(PathBuf::from).collect(), ..Sources::default() };
        let file = |file: Option<&str>| PinsConfig { file: file.map(PathBuf::from), ..PinsConfig::default() };
        let beside = file(None).place(&sources(&["/etc/toolbus/toolbus.toml", "more.toml"]));
        assert_eq!(beside, Some("/etc/toolbus/toolbus.pins.json".into()));
        assert_eq!(file(None).place(&sources(&[])), None);
        assert_eq!(file(Some("p.json")).place(&sources(&["a.toml"])), Some("p.json".into()));
        assert_eq!(file(Some("none")).place(&sources(&["a.toml"])), None);
    }
}
