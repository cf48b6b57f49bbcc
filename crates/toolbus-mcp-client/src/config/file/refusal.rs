//! Servers that are there and cannot be used as they are written: left out, or kept as they were.

use std::collections::BTreeMap;

use toolbus_core::text::shown;
use toolbus_trust::pins::Level;

use super::ServersFile;
use crate::spec::{ServerName, ServerSpec};

/// A server that cannot be used as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerRefusal {
    pub(super) name: ServerName,
    pub(super) location: String,
    pub(super) mistake: String,
    /// Whether the entry disables the server.
    pub(super) is_disabled: bool,
}

impl ServersFile {
    /// Everything that is wrong.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let refused = self.refused.iter().filter(|refusal| !refusal.is_disabled).map(|refusal| {
            let ServerRefusal { name, location, mistake, .. } = refusal;
            let outcome = if self.is_used(name) { "goes on as it was" } else { "is left out" };
            format!("{location}: `{}` {outcome}: {mistake}", shown(name.as_str()))
        });
        self.problems.iter().cloned().chain(refused).collect()
    }

    /// Servers with their earlier configuration, each with the mistake in the present one.
    #[must_use]
    pub fn outdated(&self) -> BTreeMap<ServerName, String> {
        let kept = self.refused.iter().filter(|refusal| !refusal.is_disabled && self.is_used(&refusal.name));
        kept.map(|refusal| (refusal.name.clone(), format!("{}: {}", refusal.location, refusal.mistake))).collect()
    }

    /// Keeps all servers of the earlier reading.
    pub fn keep_all(&mut self, before: &Self) {
        self.entries.clone_from(&before.entries);
        self.refused.clone_from(&before.refused);
        self.pins.clone_from(&before.pins);
    }

    /// Keeps those of `known` whose present entries are unusable, also by a `mistake` that only the rest of the
    /// configuration shows; with their `pins`, so that a mistake lifts no restriction.
    pub fn keep(
        &mut self,
        known: &[ServerSpec],
        pins: &BTreeMap<ServerName, Level>,
        mistake: impl Fn(&ServerSpec) -> Option<String>,
    ) {
        for before in known {
            let refusal = self.refused.iter().find(|refusal| refusal.name == before.name && !refusal.is_disabled);
            if let Some(refusal) = refusal {
                self.entries.push((before.clone(), refusal.location.clone()));
                keep_pin(&mut self.pins, &before.name, pins);
                continue;
            }
            let Some((spec, location)) = self.entries.iter_mut().find(|(spec, _)| spec.name == before.name) else {
                continue;
            };
            if let Some(mistake) = mistake(spec).filter(|_| !spec.is_disabled) {
                let (name, location) = (spec.name.clone(), location.clone());
                self.refused.push(ServerRefusal { name, location, mistake, is_disabled: false });
                spec.clone_from(before);
                keep_pin(&mut self.pins, &before.name, pins);
            }
        }
    }

    fn is_used(&self, name: &ServerName) -> bool {
        self.entries.iter().any(|(spec, _)| spec.name == *name)
    }
}

/// Keeps the earlier pin level of a server.
fn keep_pin(pins: &mut BTreeMap<ServerName, Level>, name: &ServerName, before: &BTreeMap<ServerName, Level>) {
    match before.get(name) {
        Some(pin) => drop(pins.insert(name.clone(), *pin)),
        None => drop(pins.remove(name)),
    }
}
