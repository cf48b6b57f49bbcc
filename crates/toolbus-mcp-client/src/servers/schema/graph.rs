//! A schema as a graph: which schemas apply to the same value, and which to parts of it.

use std::collections::HashMap;

use serde_json::Value;
use toolbus_core::text::shown;

use super::keywords::{
    Reference, SchemaStep, check_identity, looks_back, note_anchors, patterns, references, subschemas,
};
use super::{MAX_PATTERNS, MAX_REFERENCES, SchemaProblem};

/// Every schema within a document, the document itself first.
#[derive(Debug, Default)]
pub(super) struct Graph<'a> {
    nodes: Vec<SchemaPart<'a>>,
}

/// One schema.
#[derive(Debug, Default)]
struct SchemaPart<'a> {
    /// The schemas that it applies, and to what.
    edges: Vec<(SchemaStep<'a>, usize)>,
    /// Whether the schema asks what the schemas that it applies have evaluated.
    looks_back: bool,
}

impl<'a> Graph<'a> {
    /// Reads a document.
    ///
    /// # Errors
    ///
    /// If a reference leads out of the document or to no schema, or there are too many.
    pub(super) fn read(document: &'a Value) -> Result<Self, SchemaProblem> {
        let mut reader = SchemaReader::new(document);
        reader.place(document);
        // References may lead to schemas that stand where no keyword leads.
        while let Some((place, schema)) = reader.pending.pop() {
            reader.read(place, schema)?;
        }
        reader.finished()
    }

    /// Number of schemas.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the schemas that a schema applies, each with the step to its value.
    pub(super) fn edges(&self, place: usize) -> &[(SchemaStep<'a>, usize)] {
        self.nodes.get(place).map_or(&[], |node| node.edges.as_slice())
    }

    /// Whether a schema asks what those that it applies have looked at, so that they are run again.
    pub(super) fn looks_back(&self, place: usize) -> bool {
        self.nodes.get(place).is_some_and(|node| node.looks_back)
    }

    /// The schemas that a schema applies to the same value.
    pub(super) fn same(&self, place: usize) -> impl Iterator<Item = usize> {
        self.edges(place).iter().filter(|(step, _)| *step == SchemaStep::Same).map(|(_, target)| *target)
    }
}

struct SchemaReader<'a> {
    document: &'a Value,
    graph: Graph<'a>,
    /// Schemas by where they are in memory: equal ones at different places are different.
    places: HashMap<*const Value, usize>,
    pending: Vec<(usize, &'a Value)>,
    anchors: HashMap<&'a str, usize>,
    named: Vec<(usize, &'a str)>,
    references: usize,
    patterns: usize,
}

impl<'a> SchemaReader<'a> {
    fn new(document: &'a Value) -> Self {
        Self {
            document,
            graph: Graph::default(),
            places: HashMap::new(),
            pending: Vec::new(),
            anchors: HashMap::new(),
            named: Vec::new(),
            references: 0,
            patterns: 0,
        }
    }

    fn place(&mut self, schema: &'a Value) -> usize {
        let next = self.graph.len();
        let place = *self.places.entry(std::ptr::from_ref(schema)).or_insert(next);
        if place == next {
            self.graph.nodes.push(SchemaPart::default());
            self.pending.push((place, schema));
        }
        place
    }

    fn read(&mut self, place: usize, schema: &'a Value) -> Result<(), SchemaProblem> {
        let Value::Object(members) = schema else { return Ok(()) };
        check_identity(self.document, members)?;
        note_anchors(members, place, &mut self.anchors)?;
        self.patterns += patterns(members);
        if self.patterns > MAX_PATTERNS {
            return Err(SchemaProblem::Patterns);
        }
        let mut edges = Vec::new();
        for (step, subschema) in subschemas(members) {
            edges.push((step, self.place(subschema)));
        }
        for reference in references(self.document, members)? {
            self.references += 1;
            match reference {
                Reference::Place(target) => edges.push((SchemaStep::Same, self.place(target))),
                Reference::Named(name) => self.named.push((place, name)),
            }
        }
        if self.references > MAX_REFERENCES {
            return Err(SchemaProblem::References);
        }
        if let Some(node) = self.graph.nodes.get_mut(place) {
            *node = SchemaPart { edges, looks_back: looks_back(members) };
        }
        Ok(())
    }

    fn finished(mut self) -> Result<Graph<'a>, SchemaProblem> {
        for (place, name) in self.named {
            let target = *self.anchors.get(name).ok_or_else(|| SchemaProblem::Nowhere(format!("#{}", shown(name))))?;
            if let Some(node) = self.graph.nodes.get_mut(place) {
                node.edges.push((SchemaStep::Same, target));
            }
        }
        Ok(self.graph)
    }
}
