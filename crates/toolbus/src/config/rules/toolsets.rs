//! What tool sets must be to each other and to endpoints.

use std::collections::{BTreeMap, BTreeSet};

use toolbus_config::{Part, expected};

use super::Checker;
use super::agents::Sections;

impl Checker<'_> {
    /// Tells of prefixes that are given twice, and of endpoints that are not there or in two sets.
    pub(super) fn toolsets(&mut self, sections: &Sections) {
        let endpoints: BTreeSet<String> = self.endpoint_tools().map(|(name, _)| name.to_owned()).collect();
        let names: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        let mut prefixes: BTreeMap<&str, &str> = BTreeMap::new();
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        for (set, config) in &sections.toolsets {
            let here = ["toolsets", set].map(str::to_owned);
            if let Some(other) = prefixes.insert(config.prefix(set), set) {
                let what = format!("the prefix `{}` is also that of the tool set `{other}`", config.prefix(set));
                self.tell_at(vec![super::below(&here, &["prefix"]), here.to_vec()], Part::Value, what);
            }
            for (index, endpoint) in config.endpoints.iter().enumerate() {
                let at = super::below(&here, &["endpoints", &index.to_string()]);
                let what = match owners.insert(endpoint, set) {
                    Some(owner) if owner == set => format!("the endpoint `{endpoint}` is given twice"),
                    Some(owner) => format!("the endpoint `{endpoint}` belongs to the tool set `{owner}` already"),
                    None if endpoints.contains(endpoint) => continue,
                    // One without a usable name may be meant.
                    None if self.is_wrong_in("rest") => continue,
                    None if names.is_empty() => format!("there is no endpoint `{endpoint}`; there is none at all"),
                    None => format!("there is no endpoint `{endpoint}`; {}", expected(endpoint, &names)),
                };
                self.tell_at(vec![at], Part::Value, what);
            }
        }
    }
}
