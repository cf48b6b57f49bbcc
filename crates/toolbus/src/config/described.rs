//! REST tools of other files: of OpenAPI specifications, and of the file of RockBot's agents.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;
use toolbus_config::{KeyPath, Tree, key_path, read_text};
use toolbus_outbound::egress::{EgressConfig, EgressRules, HostLists};
use toolbus_tools::rest::openapi::{self, OpenApiError};
use toolbus_tools::rest::{DescribedEndpoints, OpenApiConfig, RestClient, endpoints_of_seeds};
use toolbus_trust::{schema, text};

/// The key of the file of RockBot's agents.
const ENDPOINTS_FILE: &str = "rest.endpoints_file";
/// Longest description of a tool that is kept, in bytes.
const MAX_DESCRIPTION: usize = 16 * 1024;

/// The endpoints that files have, and the mistakes in these.
#[derive(Default)]
pub(crate) struct DescribedRest {
    /// By the key that names their source.
    pub(crate) by_key: BTreeMap<String, DescribedEndpoints>,
    /// The keys of a mistake, of which the first given one counts; and the mistake.
    pub(crate) problems: Vec<(Vec<KeyPath>, String)>,
    /// Whether there may be more, because a specification is at an address.
    pub(crate) is_open: bool,
}

/// The key of a specification.
pub(crate) fn key_of(name: &str) -> String {
    format!("rest.openapi.{name}")
}

impl DescribedRest {
    /// Reads the files of the specifications whose sections have no mistake. Nothing is fetched.
    pub(crate) fn read(tree: &Tree, wrong: &[KeyPath], environment: &BTreeMap<String, String>) -> Self {
        let mut read = Self::default();
        let file = part::<String>(tree, wrong, &key_path(&["rest", "endpoints_file"]));
        let names = tree.get(&key_path(&["rest", "openapi"])).and_then(Value::as_object);
        let names: Vec<&String> = names.into_iter().flatten().map(|(name, _)| name).collect();
        if file.is_none() && names.is_empty() {
            return read;
        }
        let egress = part::<EgressConfig>(tree, wrong, &key_path(&["egress"])).unwrap_or_default();
        let rules = EgressRules::new(egress, BTreeMap::new(), HostLists::default());
        let client = match RestClient::new(rules.clone()) {
            Ok(client) => client,
            Err(error) => {
                read.problems.push((vec![key_path(&["rest"])], format!("no HTTP client can be made: {error}")));
                return read;
            }
        };
        if let Some(file) = file {
            read.seeds(&file, environment, &client);
        }
        for name in names {
            let here = key_path(&["rest", "openapi", name]);
            let Some(config) = part::<OpenApiConfig>(tree, wrong, &here) else { continue };
            read.specification(name, &here, &config, &rules, &client);
        }
        read
    }

    fn seeds(&mut self, file: &str, environment: &BTreeMap<String, String>, client: &RestClient) {
        let read = read_text(Path::new(file)).map_err(|what| vec![format!("{file}: {what}")]);
        match read.and_then(|text| endpoints_of_seeds(file, &text, environment, client)) {
            Ok(endpoints) => {
                self.by_key.insert(ENDPOINTS_FILE.to_owned(), DescribedEndpoints { endpoints, notes: Vec::new() });
            }
            Err(problems) => {
                let at = || vec![key_path(&["rest", "endpoints_file"])];
                self.problems.extend(problems.into_iter().map(|what| (at(), what)));
            }
        }
    }

    fn specification(
        &mut self,
        name: &str,
        here: &KeyPath,
        config: &OpenApiConfig,
        rules: &EgressRules,
        client: &RestClient,
    ) {
        let below = |key: &str| [here.clone(), vec![key.to_owned()]].concat();
        let file = match (&config.file, &config.url) {
            (Some(file), None) => file,
            (None, Some(_)) => return self.is_open = true,
            (Some(_), Some(_)) => {
                let what = "`file` is there, too; expected one of them";
                return self.problems.push((vec![below("url")], what.to_owned()));
            }
            (None, None) => {
                let what = "the specification is missing; expected `file` or `url`";
                return self.problems.push((vec![here.clone()], what.to_owned()));
            }
        };
        let shown = file.display().to_string();
        let text = read_text(file).map_err(|what| (None, what));
        let read = text.and_then(|text| {
            specification(&shown, &text, config, rules, client).map_err(|error| (error.key, error.to_string()))
        });
        match read {
            Ok(described) => drop(self.by_key.insert(key_of(name), described)),
            Err((key, what)) => {
                let at = [key, Some("file")].into_iter().flatten().map(below).collect();
                // A mistake of syntax has its position already.
                let what = if what.starts_with(&shown) { what } else { format!("{shown}: {what}") };
                self.problems.push((at, what));
            }
        }
    }
}

/// Reads the endpoints of a specification; the texts for models are those that people see.
///
/// # Errors
///
/// If the specification cannot be used.
pub(crate) fn specification(
    name: &str,
    text: &str,
    config: &OpenApiConfig,
    rules: &EgressRules,
    client: &RestClient,
) -> Result<DescribedEndpoints, OpenApiError> {
    let mut described = openapi::read(name, text, config, rules, client)?;
    let mut unseen = 0;
    for endpoint in &mut described.endpoints {
        let cleaned = text::clean(&endpoint.description, MAX_DESCRIPTION);
        unseen += cleaned.removed.characters();
        endpoint.description = cleaned.text.into_owned();
        if let Some(mut parameters) = endpoint.parameters.as_deref().and_then(|text| serde_json::from_str(text).ok()) {
            unseen += schema::clean(&mut parameters).characters();
            endpoint.parameters = Some(parameters.to_string());
        }
    }
    if unseen > 0 {
        described.notes.push(format!("characters that people do not see were removed from its texts: {unseen}"));
    }
    Ok(described)
}

/// A part of the tree, unless it is missing or has a mistake.
fn part<T: DeserializeOwned>(tree: &Tree, wrong: &[KeyPath], path: &KeyPath) -> Option<T> {
    let is_wrong = wrong.iter().any(|wrong| wrong.starts_with(path) || path.starts_with(wrong));
    T::deserialize(tree.get(path)?).ok().filter(|_| !is_wrong)
}
