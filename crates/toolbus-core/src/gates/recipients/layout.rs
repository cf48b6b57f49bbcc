//! The objects and lists on the way to recipients: each object names one, and has nothing that its schema does not
//! declare.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use super::declared::Declaration;
use super::path::PathStep;

/// A value on the way of some paths.
pub(super) struct Layout<'a> {
    /// The fields that the tool's schema declares here.
    declared: HashSet<&'a str>,
    fields: BTreeMap<&'a str, Layout<'a>>,
    elements: Option<Box<Layout<'a>>>,
}

/// Reason for refusing a value although all recipients in it are allowed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LayoutRefusal<'v> {
    /// An object has none of the fields that the paths read.
    NoRecipient,
    /// A field that neither the schema nor a path declares.
    Undeclared(&'v str),
}

impl<'a> Layout<'a> {
    /// Creates the layout of a value from the rest of each path that leads through it.
    pub(super) fn new(paths: &[&'a [PathStep]], declaration: Option<&Declaration<'a>>) -> Self {
        let mut fields: BTreeMap<&str, Vec<&[PathStep]>> = BTreeMap::new();
        let mut elements = Vec::new();
        for (first, rest) in paths.iter().filter_map(|path| path.split_first()) {
            match first {
                PathStep::Key(name) => fields.entry(name).or_default().push(rest),
                PathStep::EveryElement => elements.push(rest),
            }
        }
        let field = |(name, paths): (&'a str, Vec<_>)| {
            (name, Self::new(&paths, declaration.map(|declaration| declaration.field(name)).as_ref()))
        };
        let of_elements = || Self::new(&elements, declaration.map(Declaration::elements).as_ref());
        Self {
            declared: declaration.map(Declaration::names).unwrap_or_default(),
            fields: fields.into_iter().map(field).collect(),
            elements: (!elements.is_empty()).then(of_elements).map(Box::new),
        }
    }

    /// Checks a value whose recipients have the form that the paths expect.
    ///
    /// # Errors
    ///
    /// If an object on the way names no recipient, or has an undeclared field.
    pub(super) fn check<'v>(&self, value: &'v Value) -> Result<(), LayoutRefusal<'v>> {
        match (value, &self.elements) {
            (Value::Array(elements), Some(layout)) => elements.iter().try_for_each(|element| layout.check(element)),
            (Value::Object(object), _) if !self.fields.is_empty() => {
                let mut has_recipient = false;
                for (name, layout) in &self.fields {
                    if let Some(value) = object.get(*name) {
                        has_recipient = true;
                        layout.check(value)?;
                    }
                }
                if !has_recipient {
                    return Err(LayoutRefusal::NoRecipient);
                }
                let is_known = |name: &str| self.fields.contains_key(name) || self.declared.contains(name);
                let undeclared = object.keys().find(|name| !is_known(name));
                undeclared.map_or(Ok(()), |name| Err(LayoutRefusal::Undeclared(name)))
            }
            _ => Ok(()),
        }
    }
}
