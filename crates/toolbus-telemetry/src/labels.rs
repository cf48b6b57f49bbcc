//! Attribute sets with names in them, of which there are only so many.

use std::collections::HashMap;
use std::sync::Arc;

use opentelemetry::KeyValue;
use parking_lot::RwLock;
use toolbus_protocol::bounded;

/// Stands for every name whose combination came too late for labels of its own.
pub(crate) const OTHER_NAME: &str = "_other";
/// Stands for every value outside a closed set.
pub(crate) const OTHER: &str = "_OTHER";

/// Set of labels from closed sets.
pub(crate) trait LabelSet: Copy + Eq {
    /// Combinations of names and kinds that have labels of their own.
    const MAX_OWN: usize;

    /// The labels of this kind with these names: of a server, where there is one, and of a tool.
    fn labels(self, server: &str, tool: Option<&str>) -> Arc<[KeyValue]>;
}

/// The value of a closed set that `text` is.
pub(crate) fn among(set: &[&'static str], text: &str) -> &'static str {
    set.iter().find(|known| **known == text).copied().unwrap_or(OTHER)
}

/// The attribute sets of one metric.
#[derive(Debug)]
pub(crate) struct Labels<K> {
    own: RwLock<Own<K>>,
}

impl<K> Default for Labels<K> {
    fn default() -> Self {
        Self { own: RwLock::new(Own { by_server: HashMap::new(), count: 0 }) }
    }
}

/// By tool; data about no tool is under the empty name, which no tool has.
type ByTool<K> = HashMap<Box<str>, Vec<Labelled<K>>>;

#[derive(Debug)]
struct Own<K> {
    by_server: HashMap<Box<str>, ByTool<K>>,
    count: usize,
}

#[derive(Debug)]
struct Labelled<K> {
    kind: K,
    labels: Arc<[KeyValue]>,
}

impl<K: LabelSet> Own<K> {
    fn get(&self, server: &str, tool: Option<&str>, kind: K) -> Option<Arc<[KeyValue]>> {
        let sets = self.by_server.get(server)?.get(tool.unwrap_or_default())?;
        sets.iter().find(|labelled| labelled.kind == kind).map(|labelled| Arc::clone(&labelled.labels))
    }
}

impl<K: LabelSet> Labels<K> {
    pub(crate) fn of(&self, server: &str, tool: Option<&str>, kind: K) -> Arc<[KeyValue]> {
        let (server, tool) = (bounded(server), tool.map(bounded));
        let (found, full) = {
            let own = self.own.read();
            (own.get(server, tool, kind), own.count >= K::MAX_OWN)
        };
        match found {
            Some(labels) => labels,
            None if full => late(tool, kind),
            None => self.add(server, tool, kind),
        }
    }

    fn add(&self, server: &str, tool: Option<&str>, kind: K) -> Arc<[KeyValue]> {
        let mut own = self.own.write();
        // Another request may have been quicker.
        if let Some(labels) = own.get(server, tool, kind) {
            return labels;
        }
        if own.count >= K::MAX_OWN {
            return late(tool, kind);
        }
        let labels = kind.labels(server, tool);
        let of_tool =
            own.by_server.entry(server.into()).or_default().entry(tool.unwrap_or_default().into()).or_default();
        of_tool.push(Labelled { kind, labels: Arc::clone(&labels) });
        own.count += 1;
        labels
    }
}

fn late<K: LabelSet>(tool: Option<&str>, kind: K) -> Arc<[KeyValue]> {
    kind.labels(OTHER_NAME, tool.map(|_| OTHER_NAME))
}
