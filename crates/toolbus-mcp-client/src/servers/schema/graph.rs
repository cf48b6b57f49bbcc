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
    /// Whether the schema depends on what the schemas that it applies have evaluated.
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
        reader.index_of(document);
        // References may lead to schemas that stand where no keyword leads.
        while let Some((index, schema)) = reader.pending.pop() {
            reader.read(index, schema)?;
        }
        reader.finished()
    }

    /// Number of schemas.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the schemas that a schema applies, each with the step to its value.
    pub(super) fn edges(&self, index: usize) -> &[(SchemaStep<'a>, usize)] {
        self.nodes.get(index).map_or(&[], |node| node.edges.as_slice())
    }

    /// Whether a schema depends on what those that it applies have evaluated, so that they are run again.
    pub(super) fn looks_back(&self, index: usize) -> bool {
        self.nodes.get(index).is_some_and(|node| node.looks_back)
    }

    /// The schemas that a schema applies to the same value.
    pub(super) fn same(&self, index: usize) -> impl Iterator<Item = usize> {
        self.edges(index).iter().filter(|(step, _)| *step == SchemaStep::Same).map(|(_, target)| *target)
    }
}

struct SchemaReader<'a> {
    document: &'a Value,
    graph: Graph<'a>,
    /// Schemas by where they are in memory: equal ones at different addresses are different.
    indexes: HashMap<*const Value, usize>,
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
            indexes: HashMap::new(),
            pending: Vec::new(),
            anchors: HashMap::new(),
            named: Vec::new(),
            references: 0,
            patterns: 0,
        }
    }

    fn index_of(&mut self, schema: &'a Value) -> usize {
        let next = self.graph.len();
        let index = *self.indexes.entry(std::ptr::from_ref(schema)).or_insert(next);
        if index == next {
            self.graph.nodes.push(SchemaPart::default());
            self.pending.push((index, schema));
        }
        index
    }

    fn read(&mut self, index: usize, schema: &'a Value) -> Result<(), SchemaProblem> {
        let Value::Object(keywords) = schema else { return Ok(()) };
        check_identity(self.document, keywords)?;
        note_anchors(keywords, index, &mut self.anchors)?;
        self.patterns += patterns(keywords);
        if self.patterns > MAX_PATTERNS {
            return Err(SchemaProblem::Patterns);
        }
        let mut edges = Vec::new();
        for (step, subschema) in subschemas(keywords) {
            edges.push((step, self.index_of(subschema)));
        }
        for reference in references(self.document, keywords)? {
            self.references += 1;
            match reference {
                Reference::Schema(target) => edges.push((SchemaStep::Same, self.index_of(target))),
                Reference::Named(name) => self.named.push((index, name)),
            }
        }
        if self.references > MAX_REFERENCES {
            return Err(SchemaProblem::References);
        }
        if let Some(node) = self.graph.nodes.get_mut(index) {
            *node = SchemaPart { edges, looks_back: looks_back(keywords) };
        }
        Ok(())
    }

    fn finished(mut self) -> Result<Graph<'a>, SchemaProblem> {
        for (index, name) in self.named {
            let target = *self.anchors.get(name).ok_or_else(|| SchemaProblem::Nowhere(format!("#{}", shown(name))))?;
            if let Some(node) = self.graph.nodes.get_mut(index) {
                node.edges.push((SchemaStep::Same, target));
            }
        }
        Ok(self.graph)
    }
}
