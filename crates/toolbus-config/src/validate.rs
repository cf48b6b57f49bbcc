//! Compares the merged tree with the schema, and reports every difference.

use jsonschema::error::{TypeKind, ValidationError, ValidationErrorKind as Kind};
use serde_json::Value;

use crate::format::ConfigFormat;
use crate::problem::{Part, Problem, expected_key, nearest};
use crate::schema::{SchemaNode, quoted};
use crate::tree::{KeyPath, Tree, from_pointer};

/// A difference between a value and the schema.
#[derive(Debug)]
pub struct SchemaDifference {
    /// Path of the value.
    pub path: KeyPath,
    /// Whether its key or its value is wrong.
    pub part: Part,
    /// The mistake, and the expected form.
    pub what: String,
}

/// Reason why the schema itself cannot be used: a mistake in this program.
#[derive(Debug, thiserror::Error)]
#[error("the schema of the configuration is wrong: {0}")]
pub struct InvalidSchema(String);

/// Checks a text; an error names the mistake and the expected form, and holds no credential.
pub type Check = fn(&str) -> Result<(), String>;

/// The `format`s that a schema names, each with its check.
pub type Formats = [(&'static str, Check)];

/// Every difference.
///
/// # Errors
///
/// If `schema` is no JSON Schema.
pub fn differences(tree: &Tree, schema: &Value, formats: &Formats) -> Result<Vec<SchemaDifference>, InvalidSchema> {
    let mut options = jsonschema::options().should_validate_formats(true);
    for (name, check) in formats.iter().copied() {
        options = options.with_format(name, move |text: &str| check(text).is_ok());
    }
    let validator = options.build(schema).map_err(|error| InvalidSchema(error.to_string()))?;
    let mut comparison = Comparison { tree, schema, formats, found: Vec::new() };
    for error in validator.iter_errors(tree.root()) {
        comparison.explain(&error);
    }
    Ok(comparison.found)
}

/// Sorts differences by layer and line, and gives each its location.
#[must_use]
pub fn in_order(tree: &Tree, mut differences: Vec<SchemaDifference>) -> Vec<Problem> {
    differences.sort_by(|a, b| tree.origin(&a.path).cmp(tree.origin(&b.path)));
    let problem = |difference: SchemaDifference| Problem {
        location: tree.origin(&difference.path).location(difference.part),
        key: tree.written(&difference.path),
        what: difference.what,
    };
    differences.into_iter().map(problem).collect()
}

/// The comparison of a tree with its schema.
struct Comparison<'a> {
    tree: &'a Tree,
    schema: &'a Value,
    formats: &'a Formats,
    found: Vec<SchemaDifference>,
}

impl<'a> Comparison<'a> {
    fn explain(&mut self, error: &ValidationError<'_>) {
        let path = from_pointer(error.instance_path().as_str());
        let value = error.instance();
        let keyword = error.schema_path().as_str();
        let node = SchemaNode::at(self.schema, keyword.rsplit_once('/').map_or("", |(parent, _)| parent));
        let secret = self.node(&path).is_some_and(SchemaNode::is_secret);
        match error.kind() {
            Kind::AnyOf { context } | Kind::OneOfNotValid { context } => {
                self.explain_choice(context, value, &path);
            }
            Kind::AdditionalProperties { unexpected } => {
                for key in unexpected {
                    let keys = node.map(SchemaNode::keys).unwrap_or_default();
                    let mut below = path.clone();
                    below.push(key.clone());
                    self.tell(below, Part::Key, format!("unknown key; {}", expected_key(key, &keys)));
                }
            }
            Kind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                let expectation =
                    node.and_then(|node| node.child(name)).map(SchemaNode::expectation).unwrap_or_default();
                self.tell(path, Part::Value, format!("`{name}` is missing; expected {expectation}"));
            }
            Kind::Type { kind } => {
                let wanted = node.map(SchemaNode::expectation).filter(|words| !words.is_empty());
                let wanted = wanted.unwrap_or_else(|| match kind {
                    TypeKind::Single(kind) => kind.to_string(),
                    TypeKind::Multiple(_) => "another type".to_owned(),
                });
                let what = format!("found {}; expected {wanted}", self.article(&path, value));
                self.tell(path, Part::Value, what);
            }
            Kind::Enum { .. } | Kind::Constant { .. } => {
                let constants = node.map(SchemaNode::constants).unwrap_or_default();
                self.constant(path, value, &constants, &quoted(&constants), secret);
            }
            Kind::Format { .. } => self.tell(path, Part::Value, format_refusal(error, self.formats)),
            Kind::Minimum { limit } => {
                self.tell(path, Part::Value, format!("{value} is too small; expected at least {limit}"))
            }
            Kind::Maximum { limit } => {
                self.tell(path, Part::Value, format!("{value} is too large; expected at most {limit}"))
            }
            Kind::MinLength { .. } => self.tell(path, Part::Value, "empty; expected a text".to_owned()),
            Kind::MaxLength { limit } => {
                self.tell(path, Part::Value, format!("too long; expected at most {limit} characters"))
            }
            Kind::MinItems { limit } => self.tell(path, Part::Value, format!("expected at least {limit} element")),
            Kind::MaxItems { limit } => {
                self.tell(path, Part::Value, format!("too many; expected at most {limit} elements"))
            }
            Kind::MaxProperties { limit } => {
                self.tell(path, Part::Value, format!("too many; expected at most {limit} keys"))
            }
            Kind::MinProperties { limit } => self.tell(path, Part::Value, format!("expected at least {limit} entry")),
            Kind::PropertyNames { error } => {
                let name = error.instance().as_str().unwrap_or_default().to_owned();
                let below = path.into_iter().chain([name]).collect();
                self.tell(below, Part::Key, format_refusal(error, self.formats));
            }
            Kind::UniqueItems => self.tell(path, Part::Value, "an element is given twice".to_owned()),
            other => self.tell(path, Part::Value, format!("does not fit the schema (`{}`)", other.keyword())),
        }
    }

    /// Reports a value that fits none of several forms, as if only the form existed that it is nearest to.
    fn explain_choice(&mut self, branches: &[Vec<ValidationError<'static>>], value: &Value, path: &KeyPath) {
        let here = |error: &ValidationError<'_>| from_pointer(error.instance_path().as_str()) == *path;
        let is_other_form = |error: &&ValidationError<'_>| match error.kind() {
            Kind::Type { .. } => here(error),
            Kind::Constant { .. } | Kind::Enum { .. } => true,
            _ => false,
        };
        // A constant in a table, or else a required key, determines its form.
        let missing = |errors: &[ValidationError<'_>]| {
            errors.iter().any(|e| matches!(e.kind(), Kind::Required { .. }) && here(e))
        };
        let candidates: Vec<_> = branches.iter().filter(|errors| !errors.iter().any(|e| is_other_form(&e))).collect();
        let complete: Vec<_> = candidates.iter().filter(|errors| !missing(errors)).collect();
        let nearest = match (complete.as_slice(), candidates.as_slice()) {
            ([_, _, ..], _) if value.is_object() => None,
            ([first, ..], _) => Some(*first),
            ([], [only]) => Some(only),
            _ => None,
        };
        if let Some(errors) = nearest {
            errors.iter().for_each(|error| self.explain(error));
            return;
        }
        let Some(node) = self.node(path) else { return };
        let below = |key: &str| path.iter().cloned().chain([key.to_owned()]).collect();
        let keys = node.keys();
        match (value, node.tag()) {
            (Value::Object(entries), Some((key, tags))) => match entries.get(key) {
                Some(tag) => self.constant(below(key), tag, &tags, &quoted(&tags), false),
                None => self.tell(path.clone(), Part::Value, format!("`{key}` is missing; expected {}", quoted(&tags))),
            },
            (Value::Object(entries), None)
                if !keys.is_empty() && entries.keys().any(|key| !keys.contains(&key.as_str())) =>
            {
                for key in entries.keys().filter(|key| !keys.contains(&key.as_str())) {
                    self.tell(below(key), Part::Key, format!("unknown key; {}", expected_key(key, &keys)));
                }
            }
            (Value::Object(entries), None) if complete.len() > 1 => {
                let given: Vec<String> = entries.keys().map(|key| format!("`{key}`")).collect();
                let what = format!("{} do not go together; expected one of them", given.join(" and "));
                self.tell(path.clone(), Part::Value, what);
            }
            (Value::String(_), _) if !node.constants().is_empty() => {
                self.constant(path.clone(), value, &node.constants(), &node.expectation(), node.is_secret());
            }
            _ => {
                let what = format!("found {}; expected {}", self.article(path, value), node.expectation());
                self.tell(path.clone(), Part::Value, what);
            }
        }
    }

    /// Reports a value that is not one of `constants`, without showing a secret. `wanted` lists the valid ones.
    fn constant(&mut self, path: KeyPath, value: &Value, constants: &[&str], wanted: &str, secret: bool) {
        let what = match value.as_str().filter(|_| !secret) {
            Some(text) => {
                let hint = nearest(text, constants.iter().copied());
                let hint = hint.map(|name| format!("did you mean {name:?}? ")).unwrap_or_default();
                let shown: String = text.chars().take(60).collect();
                format!("{shown:?} is not known; {hint}expected {wanted}")
            }
            None => format!("found {}; expected {wanted}", self.article(&path, value)),
        };
        self.tell(path, Part::Value, what);
    }

    /// Returns the kind of a value, without its content.
    fn article(&self, path: &[String], value: &Value) -> &'static str {
        match value {
            // TOML has no null of its own.
            Value::Null if self.tree.origin(path).format() == ConfigFormat::Toml => "a date or an impossible number",
            Value::Null => "null or an impossible number",
            Value::Bool(_) => "a boolean",
            Value::Number(number) if number.is_f64() => "a number with a fraction",
            Value::Number(_) => "a number",
            Value::String(_) => "a text",
            Value::Array(_) => "a list",
            Value::Object(_) => "a table",
        }
    }

    /// The part of the schema that describes the value at a path.
    fn node(&self, path: &[String]) -> Option<SchemaNode<'a>> {
        path.iter().try_fold(SchemaNode::root(self.schema), |node, key| node.child(key))
    }

    fn tell(&mut self, path: KeyPath, part: Part, what: String) {
        self.found.push(SchemaDifference { path, part, what });
    }
}

/// The words of the format's own check, which repeats no credential.
fn format_refusal(error: &ValidationError<'_>, formats: &Formats) -> String {
    match error.kind() {
        Kind::Format { format } => formats
            .iter()
            .find(|(name, _)| name == format)
            .and_then(|(_, check)| check(error.instance().as_str()?).err()),
        _ => None,
    }
    .unwrap_or_else(|| "not of the form that belongs here".to_owned())
}
