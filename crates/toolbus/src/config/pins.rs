//! `[pins]`: whether tools may change their definitions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::pattern::Pattern;
use toolbus_core::tool::Naming;
use toolbus_mcp_client::spec::{StdioSpec, TransportSpec};
use toolbus_store::StoreUrl;
use toolbus_trust::pins::{Digest, Level, Levels, NamedSource};

use super::secrets::open_arguments;
use super::state::{self, STATE_DIRECTORY};
use super::{Config, Sources};

/// Value that means no file.
const NONE: &str = "none";
/// End of the file's name, which replaces the store's ending.
const ENDING: &str = "pins.json";
/// Name of the file where the store has none.
const NAME: &str = "toolbus.pins.json";

/// Whether tools may change what they say of themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PinsConfig {
    /// File in which is kept what was seen; absent: beside the store's file, or else in `$STATE_DIRECTORY`, or else nowhere.
    /// "none": nowhere.
    #[schemars(length(min = 1))]
    pub file: Option<PathBuf>,
    /// Pin levels, by pattern of sources: `rest`, `command`, `mcp:*`. The `pin` of an MCP server comes first, then the
    /// pattern that fixes most characters.
    #[schemars(extend("maxProperties" = 1024, "propertyNames" = {"format": "toolbus-pattern"}))]
    pub sources: BTreeMap<Pattern, Level>,
}

impl Config {
    /// The file in which pins are kept, if there is one: the one that is named, or one with the state of the daemon. Never
    /// one beside the configuration, which may be in a checkout or on a read-only mount.
    #[must_use]
    pub fn pin_file(&self, sources: &Sources) -> Option<PathBuf> {
        let of_service = || Some(state::of_service(&sources.environment)?.join(NAME));
        match (&self.pins.file, &self.store.url) {
            (Some(file), _) if file == Path::new(NONE) => None,
            (Some(file), _) => Some(file.clone()),
            (None, Some(StoreUrl::Sqlite(store))) => Some(store.with_extension(ENDING)),
            (None, Some(_)) => of_service(),
            (None, None) => {
                // Where earlier versions kept them.
                let earlier = of_service().filter(|file| file.exists());
                let beside_state = || Some(self.store.state_file.as_deref()?.with_extension(ENDING));
                earlier.or_else(beside_state)
            }
        }
    }

    /// Returns the pin levels by source. Every MCP server is named.
    #[must_use]
    pub fn pin_levels(&self) -> Levels {
        let patterns = self.pins.sources.iter().map(|(pattern, level)| (pattern.clone(), *level));
        let servers = self.mcp_servers();
        let named = servers.specs.iter().map(|spec| {
            let set = self.set_of_server(&spec.name).map(|(name, set)| set.prefix(name).into());
            NamedSource {
                source: spec.name.source().to_string(),
                naming: Naming { set, ..spec.naming.clone() },
                reached: Some(reached(&spec.transport)),
            }
        });
        Levels::new(servers.pins, patterns).naming(named)
    }

    /// Returns what is missing for pins to outlast a restart, if anything.
    pub(crate) fn unkept_pins(&self, sources: &Sources) -> Option<String> {
        if self.pins.file.is_some() || !self.pin_levels().hold_anything() {
            return None;
        }
        let path = self.pin_file(sources);
        // Where earlier versions kept them. To begin anew would trust whatever there is now.
        let left = sources.files.first().map(|file| file.with_extension(ENDING)).filter(|file| file.is_file());
        match (path, left) {
            (Some(path), Some(left)) if path != left && !path.exists() => Some(format!(
                "is missing, and `{}`, beside the configuration, has pins of an earlier version; move it to `{}`, or name it",
                left.display(),
                path.display()
            )),
            (Some(_), _) => None,
            (None, Some(left)) => Some(format!(
                "is missing, and `{}`, beside the configuration, has pins of an earlier version; move it to where the \
                 daemon may write, and name it",
                left.display()
            )),
            (None, None) => Some(format!(
                "is missing, and the daemon keeps no state beside which pins could be; expected the path of a file that it \
                 may write, a store.url such as \"sqlite:/var/lib/toolbus/toolbus.db\", the variable {STATE_DIRECTORY}, or \
                 \"none\" to forget pins with the process"
            )),
        }
    }
}

/// Fingerprint of how a server is reached: by which command line, or under which address. Secrets are not part of it.
fn reached(transport: &TransportSpec) -> Digest {
    match transport {
        TransportSpec::Stdio(StdioSpec { command, args, .. }) => {
            Digest::of(["stdio", command].into_iter().chain(open_arguments(args)))
        }
        TransportSpec::Http(endpoint) => {
            let mut url = endpoint.url.clone();
            url.set_query(None);
            Digest::of(["http", url.as_str()])
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::config::StoreConfig;

    #[test]
    fn the_file_is_with_the_state_of_the_daemon_unless_another_is_named_or_none() {
        let file = |file: Option<&str>, store: &str, state: &str| {
            let pins = PinsConfig { file: file.map(PathBuf::from), ..PinsConfig::default() };
            let config = Config {
                pins,
                store: StoreConfig { url: Some(store.parse().unwrap()), ..StoreConfig::default() },
                ..Config::default()
            };
            let environment = [(STATE_DIRECTORY.to_owned(), state.to_owned())].into();
            let sources =
                Sources { files: vec!["/etc/toolbus/toolbus.toml".into()], environment, ..Sources::default() };
            config.pin_file(&sources)
        };
        let store = "sqlite:/var/lib/toolbus/daemon.db";
        assert_eq!(file(None, store, "/state"), Some("/var/lib/toolbus/daemon.pins.json".into()));
        assert_eq!(file(None, "memory:", "/state:/other"), Some("/state/toolbus.pins.json".into()));
        assert_eq!(file(None, "memory:", ""), None);
        assert_eq!(file(Some("p.json"), store, "/state"), Some("p.json".into()));
        assert_eq!(file(Some("none"), store, "/state"), None);
    }

    #[test]
    fn pins_of_an_earlier_version_are_not_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("toolbus.pins.json"), "{}").unwrap();
        std::fs::write(path("toolbus.toml"), "[pins]\nsources = { rest = true }\n").unwrap();
        let sources = |state: &str| Sources {
            files: vec![path("toolbus.toml")],
            environment: [(STATE_DIRECTORY.to_owned(), state.to_owned())].into(),
            ..Sources::default()
        };
        let refused = |state: &str| Config::load(&sources(state)).err().map(|problems| problems.to_string());
        let here = folder.path().display().to_string();
        let state = path("state").display().to_string();
        insta::assert_snapshot!(refused(&state).unwrap().replace(&here, ""), @"configuration: `pins.file`: is missing, and `/toolbus.pins.json`, beside the configuration, has pins of an earlier version; move it to `/state/toolbus.toolbus/toolbus.pins.json`, or name it");
        insta::assert_snapshot!(refused("").unwrap().replace(&here, ""), @"configuration: `pins.file`: is missing, and `/toolbus.pins.json`, beside the configuration, has pins of an earlier version; move it to where the daemon may write, and name it");
        assert_eq!(refused(&here), None, "it is the file itself");
        std::fs::create_dir(path("state")).unwrap();
        std::fs::rename(path("toolbus.pins.json"), path("state/toolbus.pins.json")).unwrap();
        assert_eq!(refused(&state), None);
    }
}
