//! Schemas whose parts have an `$id` of their own, written so that each reference is a JSON pointer into the document.

use std::collections::{HashMap, HashSet};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Map, Value};
use url::Url;

use super::MAX_REFERENCES;
use super::keywords::subschemas;

/// Longest identity of a part, in bytes.
const MAX_IDENTITY: usize = 2048;
/// Identity of a document that declares none.
const OF_DOCUMENT: &str = "json-schema:///";
/// Characters of a JSON pointer that a URI fragment has as `%XX`.
const ESCAPED: AsciiSet =
    NON_ALPHANUMERIC.remove(b'$').remove(b'/').remove(b'~').remove(b'-').remove(b'_').remove(b'.');

/// The same schema without identities, whose references are within the document by pointer. `None` if a reference leads
/// out of the document, or depends on the schema that refers to its own; the size of `document` is bounded before.
pub(crate) fn without_identities(document: &Value) -> Option<Value> {
    let mut parts = SchemaParts::new(document);
    parts.read(document, Url::parse(OF_DOCUMENT).ok()?)?;
    // A reference may lead to a schema where no keyword leads, which has references and an identity in turn.
    let mut resolved = HashMap::new();
    while let Some((schema, base, reference)) = parts.unresolved.pop() {
        let uri = base.join(reference).ok()?;
        let target = parts.target(&uri)?;
        resolved.insert(std::ptr::from_ref(schema), pointer_to(document, target)?);
        parts.read(target, without_fragment(uri))?;
    }
    let is_plain = !parts.is_dynamic || parts.resources.len() == 1;
    is_plain.then(|| parts.rewritten(document, &resolved))
}

/// Identifiers and references of a document's schemas.
struct SchemaParts<'a> {
    /// Whether the draft is one up to 7, in which nothing beside a `$ref` has a meaning.
    ignores_siblings: bool,
    /// Keyword of identities: `id` in draft 4.
    keyword: &'static str,
    seen: HashSet<*const Value>,
    resources: HashMap<String, &'a Value>,
    /// Schemas by their URI with its fragment.
    anchors: HashMap<String, &'a Value>,
    unresolved: Vec<(&'a Value, Url, &'a str)>,
    references: usize,
    is_dynamic: bool,
}

impl<'a> SchemaParts<'a> {
    fn new(document: &Value) -> Self {
        let draft = document.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let is_fourth = draft.contains("draft-03") || draft.contains("draft-04");
        Self {
            ignores_siblings: draft.contains("draft-0"),
            keyword: if is_fourth { "id" } else { "$id" },
            seen: HashSet::new(),
            resources: HashMap::new(),
            anchors: HashMap::new(),
            unresolved: Vec::new(),
            references: 0,
            is_dynamic: false,
        }
    }

    fn read(&mut self, schema: &'a Value, base: Url) -> Option<()> {
        if !self.seen.insert(std::ptr::from_ref(schema)) {
            return Some(());
        }
        if self.resources.is_empty() {
            self.resources.insert(base.to_string(), schema);
        }
        let Value::Object(fields) = schema else { return Some(()) };
        let text = |keyword: &str| fields.get(keyword).and_then(Value::as_str);
        let reference = text("$ref").or_else(|| text("$dynamicRef")).or_else(|| text("$recursiveRef"));
        self.is_dynamic |= text("$ref").is_none() && reference.is_some();
        let mut base = base;
        if let Some(identity) = text(self.keyword).filter(|_| !self.ignores_siblings || reference.is_none()) {
            let uri = base.join(identity).ok().filter(|uri| uri.as_str().len() <= MAX_IDENTITY)?;
            match uri.fragment().is_some_and(|fragment| !fragment.is_empty()) {
                true => drop(self.anchors.insert(uri.to_string(), schema)),
                false => {
                    base = without_fragment(uri);
                    let other = self.resources.insert(base.to_string(), schema);
                    other.is_none_or(|other| std::ptr::eq(other, schema)).then_some(())?;
                }
            }
        }
        for name in ["$anchor", "$dynamicAnchor"].into_iter().filter_map(text) {
            let mut uri = base.clone();
            uri.set_fragment(Some(name));
            self.anchors.insert(uri.to_string(), schema);
        }
        if let Some(reference) = reference {
            self.unresolved.push((schema, base.clone(), reference));
            self.references += 1;
        }
        let names = self.resources.len() + self.anchors.len();
        if names > MAX_REFERENCES || self.references > MAX_REFERENCES {
            return None;
        }
        subschemas(fields).into_iter().try_for_each(|(_, part)| self.read(part, base.clone()))
    }

    /// The schema that a URI names.
    fn target(&self, uri: &Url) -> Option<&'a Value> {
        let fragment = uri.fragment().unwrap_or_default();
        let found = if fragment.is_empty() || fragment.starts_with('/') {
            let resource = self.resources.get(without_fragment(uri.clone()).as_str())?;
            resource.pointer(&percent_decode_str(fragment).decode_utf8().ok()?)
        } else {
            self.anchors.get(uri.as_str()).copied()
        };
        found.filter(|schema| schema.is_object() || schema.is_boolean())
    }

    fn rewritten(&self, value: &Value, resolved: &HashMap<*const Value, String>) -> Value {
        match value {
            Value::Array(items) => items.iter().map(|item| self.rewritten(item, resolved)).collect(),
            Value::Object(fields) => {
                let mut fields: Map<String, Value> =
                    fields.iter().map(|(name, field)| (name.clone(), self.rewritten(field, resolved))).collect();
                if self.seen.contains(&std::ptr::from_ref(value)) {
                    for keyword in ["$id", "id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef"] {
                        if fields.get(keyword).is_some_and(Value::is_string) {
                            fields.remove(keyword);
                        }
                    }
                    let reference = resolved.get(&std::ptr::from_ref(value)).map(|pointer| Value::from(&**pointer));
                    fields.extend(reference.map(|reference| ("$ref".to_owned(), reference)));
                }
                Value::Object(fields)
            }
            value => value.clone(),
        }
    }
}

fn without_fragment(mut uri: Url) -> Url {
    uri.set_fragment(None);
    uri
}

/// The pointer to a part of a value, as a URI fragment.
fn pointer_to(value: &Value, part: &Value) -> Option<String> {
    if std::ptr::eq(value, part) {
        return Some("#".to_owned());
    }
    let mut steps = Vec::new();
    path(value, part, &mut steps).then(|| {
        steps.reverse();
        format!("#/{}", utf8_percent_encode(&steps.join("/"), &ESCAPED))
    })
}

/// Finds the steps from a value to a part of it, the last one first.
fn path(value: &Value, part: &Value, steps: &mut Vec<String>) -> bool {
    let mut leads = |step: &dyn Fn() -> String, inner: &Value| {
        let found = std::ptr::eq(inner, part) || path(inner, part, steps);
        if found {
            steps.push(step());
        }
        found
    };
    match value {
        Value::Array(items) => items.iter().enumerate().any(|(index, item)| leads(&|| index.to_string(), item)),
        Value::Object(fields) => {
            fields.iter().any(|(name, field)| leads(&|| name.replace('~', "~0").replace('/', "~1"), field))
        }
        _ => false,
    }
}
