//! Whether what a caller may use is the same at two moments.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use super::{EffectiveTools, SetData};
use crate::listing;

impl EffectiveTools {
    /// A hash of everything that the caller may use: equal in every daemon that would list the same.
    #[must_use]
    pub fn version(&self) -> Arc<str> {
        let all = || -> Arc<str> {
            let definitions: Vec<_> = self.tools().into_iter().map(|allowed| self.definition(allowed)).collect();
            listing::version(&definitions).into()
        };
        match (self.set(), &self.frozen) {
            // What a session sees is its own, and is not kept for others.
            (Some(set), None) => Arc::clone(set.version.get_or_init(all)),
            _ => all(),
        }
    }

    /// Whether both would list the same tools, as far as that can be told without listing them.
    pub(crate) fn lists_like(&self, other: &Self) -> bool {
        self.fingerprint() == other.fingerprint() && self.rules().arguments == other.rules().arguments
    }

    /// A number for all tools that are listed, outside of any session: the sum of the definitions' own, so that equal sets have
    /// equal ones, in whatever order.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let sum = |set: &SetData| {
            let entries = set.bits.iter().filter_map(|number| self.catalogue.entry(number));
            entries.filter(|entry| !entry.is_shadowed).fold(0_u64, |sum, entry| sum.wrapping_add(entry.fingerprint))
        };
        self.set().map_or(0, |set| *set.fingerprint.get_or_init(|| sum(set)))
    }

    /// As [`Self::fingerprint`], but also another number when other arguments are left out of the definitions.
    #[must_use]
    pub fn listing_fingerprint(&self) -> u64 {
        let arguments = &self.rules().arguments;
        if arguments.is_empty() {
            return self.fingerprint();
        }
        let mut hasher = DefaultHasher::new();
        self.fingerprint().hash(&mut hasher);
        for (pattern, arguments) in arguments {
            (pattern, arguments.keys().collect::<Vec<_>>()).hash(&mut hasher);
        }
        hasher.finish()
    }
}
