//! Schemas made ready for checking, and how many are kept.

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

use jsonschema::{PatternOptions, Validator};
use lru::LruCache;
use serde_json::Value;

use super::meter::{Metered, PatternBytes};
use super::pattern_keyword::PatternKeyword;
use crate::ecma_pattern::{MAX_BACKTRACKS, backtracks, parts};
use crate::text::shortened;
use crate::tool::Schema;

/// Longest text about a schema that cannot be used, in characters.
const MAX_ERROR: usize = 200;
/// Largest compiled forms of one pattern, in bytes. Counted repetitions let a few characters grow to megabytes. The
/// smallest that takes every pattern of a schema is used, so that what a pattern may cost is known.
const PATTERN_SIZES: [usize; 6] = [1024, 4 * 1024, 16 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024];
/// However small a pattern is, it counts as this much where memory is concerned, in bytes: the engine needs some.
const LEAST_MEMORY: usize = 16 * 1024;
/// The patterns of one schema may take this much together, in bytes.
const MAX_PATTERNS: usize = 4 * 1024 * 1024;
/// For each byte of a pattern's compiled form, the states that the engine makes while it compares, at the most.
const STATES_PER_BYTE: usize = 2;
/// Comparisons of one pattern that keep states of their own.
const KEPT_STATES: usize = 2;
/// Memory of a compiled schema without its patterns, for each byte of its text.
const MEMORY_PER_BYTE: usize = 16;
/// All compiled schemas that are kept may take this much, in bytes.
const MAX_KEPT: usize = 64 * 1024 * 1024;

/// Reason why a schema cannot be used. Compiling never fetches anything: a reference to elsewhere is an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SchemaError(String);

/// A schema that arguments can be checked against.
pub(super) struct Compiled {
    pub(super) validator: Validator<Metered>,
    pub(super) patterns: PatternBytes,
    /// Memory that it takes at the most, in bytes.
    size: usize,
}

/// Checks that a tool's schema can be used: valid JSON Schema, no reference to elsewhere, and no pattern that takes too
/// much memory.
///
/// # Errors
///
/// If the schema does not compile; the error names the position in it.
pub fn check_schema(schema: &Value) -> Result<(), SchemaError> {
    Compiled::new(schema).map(drop)
}

impl Compiled {
    pub(super) fn new(schema: &Value) -> Result<Self, SchemaError> {
        let patterns = PatternCount::of(schema);
        if patterns.all == 0 {
            // Those of the metaschemas, to which a schema may refer, are few and small.
            return build(schema, LEAST_MEMORY, false).map(|validator| Self::sized(validator, schema, &patterns, 0));
        }
        let fits = |size: &usize| size.max(&LEAST_MEMORY).saturating_mul(patterns.all) <= MAX_PATTERNS;
        let mut refused =
            SchemaError(format!("has {} patterns; at most {} can be used", patterns.all, MAX_PATTERNS / LEAST_MEMORY));
        for size in PATTERN_SIZES.into_iter().filter(fits) {
            match build(schema, size, patterns.backtrack) {
                Ok(validator) => return Ok(Self::sized(validator, schema, &patterns, size)),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// `size` is the largest compiled form of its patterns, in bytes.
    fn sized(validator: Validator<Metered>, schema: &Value, patterns: &PatternCount, size: usize) -> Self {
        let text = schema.to_string().len().saturating_mul(MEMORY_PER_BYTE);
        let of_names = size.saturating_mul(patterns.of_names);
        let of_names = if patterns.names_backtrack { of_names.saturating_mul(MAX_BACKTRACKS) } else { of_names };
        Self {
            validator,
            patterns: PatternBytes { of_texts: size, of_names },
            size: text + patterns.all * size.max(LEAST_MEMORY) * (1 + STATES_PER_BYTE * KEPT_STATES),
        }
    }
}

fn build(schema: &Value, size: usize, backtracks: bool) -> Result<Validator<Metered>, SchemaError> {
    let states = size.max(LEAST_MEMORY) * STATES_PER_BYTE;
    let options = jsonschema::options_for::<Metered>().offline().should_validate_formats(true);
    let options = if backtracks {
        let names = PatternOptions::fancy_regex().backtrack_limit(MAX_BACKTRACKS);
        options
            .with_pattern_options(names.size_limit(size).dfa_size_limit(states))
            .with_keyword("pattern", move |_, value, _| Ok(Box::new(PatternKeyword::new(value, size, states)?)))
    } else {
        // Linear time: schemas come from servers and arguments from callers.
        options.with_pattern_options(PatternOptions::regex().size_limit(size).dfa_size_limit(states))
    };
    options.build(schema).map_err(|error| {
        SchemaError(shortened(&format!("at `{}`: {error}", error.instance_path()), MAX_ERROR).into_owned())
    })
}

/// Patterns in a schema, and the parts of those that backtrack; what is no schema may count, too.
#[derive(Default)]
struct PatternCount {
    all: usize,
    /// Those of `patternProperties`.
    of_names: usize,
    /// Whether any needs an engine that backtracks.
    backtrack: bool,
    /// Whether one of `patternProperties` does.
    names_backtrack: bool,
}

impl PatternCount {
    fn of(schema: &Value) -> Self {
        let mut count = Self::default();
        count.add(schema);
        count
    }

    fn add(&mut self, part: &Value) {
        match part {
            Value::Array(elements) => elements.iter().for_each(|element| self.add(element)),
            Value::Object(fields) => {
                for (name, value) in fields {
                    match (&**name, value) {
                        ("pattern", Value::String(source)) => {
                            self.all += parts(source);
                            self.backtrack |= backtracks(source);
                        }
                        ("patternProperties", Value::Object(of)) => {
                            let names = of.keys().map(|source| parts(source)).sum::<usize>();
                            self.all += names;
                            self.of_names += names;
                            self.names_backtrack |= of.keys().any(|source| backtracks(source));
                            self.backtrack |= self.names_backtrack;
                        }
                        _ => {}
                    }
                    self.add(value);
                }
            }
            _ => {}
        }
    }
}

/// Compiled schemas, the latest used ones. Equal schemas share one.
pub(super) struct Cache {
    kept: Mutex<SchemaCache>,
}

struct SchemaCache {
    schemas: LruCache<[u8; 16], Arc<Compiled>>,
    /// Memory that they take together, in bytes.
    size: usize,
}

impl Cache {
    pub(super) fn new() -> Self {
        Self { kept: Mutex::new(SchemaCache { schemas: LruCache::unbounded(), size: 0 }) }
    }

    /// The compiled form of a schema that was used before and is kept.
    pub(super) fn get(&self, schema: &Schema) -> Option<Arc<Compiled>> {
        self.lock().schemas.get(&schema.digest).cloned()
    }

    /// The compiled form of a schema.
    pub(super) fn compiled(&self, schema: &Schema) -> Result<Arc<Compiled>, SchemaError> {
        if let Some(compiled) = self.get(schema) {
            return Ok(compiled);
        }
        // Compiled outside the lock: a large schema must not hold up other tools. Twice does no harm.
        let compiled = Arc::new(Compiled::new(&schema.value)?);
        self.keep(schema, Arc::clone(&compiled));
        Ok(compiled)
    }

    fn keep(&self, schema: &Schema, compiled: Arc<Compiled>) {
        let mut kept = self.lock();
        kept.size += compiled.size;
        if let Some(replaced) = kept.schemas.put(schema.digest, compiled) {
            kept.size -= replaced.size;
        }
        // The new one stays, whatever its size: it is in use.
        while kept.size > MAX_KEPT && kept.schemas.len() > 1 {
            let Some((_, oldest)) = kept.schemas.pop_lru() else { break };
            kept.size -= oldest.size;
        }
    }

    fn lock(&self) -> MutexGuard<'_, SchemaCache> {
        // Nothing panics under the lock.
        self.kept.lock()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolbus_testing::mutation::check_inputs;

    use super::*;
    use crate::tool::Schema;

    /// Patterns of which each byte of a text makes a new state.
    fn costly(patterns: usize, tool: usize) -> Value {
        let pattern = |n: usize| json!({"pattern": format!("(?:a|b)*a(?:a|b){{{}}}x{tool}", 200 + n)});
        json!({"allOf": (0..patterns).map(pattern).collect::<Vec<_>>()})
    }

    #[test]
    fn a_schema_that_refers_elsewhere_is_refused() {
        for reference in ["http://127.0.0.1:1/schema.json", "file:///etc/passwd"] {
            assert!(check_schema(&json!({"$ref": reference})).is_err(), "{reference}");
        }
    }

    #[test]
    fn a_pattern_that_looks_around_or_refers_back_can_be_used() {
        for pattern in ["(?=a)b", "(?<!a)b", r#"^(['"]).*\1$"#] {
            assert!(check_schema(&json!({"pattern": pattern})).is_ok(), "{pattern}");
            assert!(check_schema(&json!({"patternProperties": {pattern: {}}})).is_ok(), "{pattern}");
        }
        for none in ["(?=a", "(?=(", "(?=[b-a])"] {
            assert!(check_schema(&json!({"pattern": none})).is_err(), "{none}");
        }
    }

    #[test]
    fn a_pattern_that_grows_when_compiled_is_refused() {
        assert!(check_schema(&json!({"pattern": "^(.{1,1000}){1,20}$"})).is_err());
        assert!(check_schema(&json!({"pattern": "^.{1,1000}$"})).is_ok());
    }

    #[test]
    fn many_patterns_must_be_small() {
        let large = |n: usize| json!({"pattern": format!("^.{{1,{}}}$", 900 + n)});
        let schema = |count| json!({"allOf": (0..count).map(large).collect::<Vec<_>>()});
        assert!(check_schema(&schema(2)).is_ok());
        assert!(check_schema(&schema(40)).is_err());
        let small = |n: usize| json!({"pattern": format!("^[a-z]+{n}$")});
        let schema = |count| json!({"allOf": (0..count).map(small).collect::<Vec<_>>()});
        assert!(check_schema(&schema(250)).is_ok());
        let error = check_schema(&schema(300)).unwrap_err().to_string();
        assert_eq!(error, "has 300 patterns; at most 256 can be used");
    }

    #[test]
    fn a_pattern_counts_as_the_smallest_of_six_sizes_that_takes_it() {
        let size =
            |most| Compiled::new(&json!({"pattern": format!("^a{{{most}}}$")})).map(|found| found.patterns.of_texts);
        let mut sizes: Vec<_> = (0..).map(|power| size(1 << power)).map_while(Result::ok).collect();
        sizes.dedup();
        assert_eq!(sizes, [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20]);
    }

    #[test]
    fn a_compiled_schema_counts_with_its_text_its_patterns_and_two_sets_of_their_states() {
        let schema = json!({"pattern": "^a$", "patternProperties": {"^b$": {}}});
        let size = 16 * schema.to_string().len() + 2 * 16 * 1024 * (1 + 2 + 2);
        let compiled = Compiled::new(&schema).unwrap();
        assert_eq!((compiled.size, compiled.patterns.of_names), (size, 1024));
    }

    #[test]
    fn equal_schemas_share_one_compiled_form() {
        let cache = Cache::new();
        let schema = || Schema::new(&Arc::new(json!({"type": "object"})));
        let first = cache.compiled(&schema()).unwrap();
        assert!(Arc::ptr_eq(&first, &cache.compiled(&schema()).unwrap()));
    }

    #[test]
    fn a_schema_that_two_calls_compile_at_once_counts_once() {
        let (cache, schema) = (Cache::new(), Schema::new(&Arc::new(json!({"type": "object"}))));
        let compiled = cache.compiled(&schema).unwrap();
        cache.keep(&schema, Arc::new(Compiled::new(&schema.value).unwrap()));
        assert_eq!(cache.lock().size, compiled.size);
    }

    #[test]
    fn compiled_schemas_are_kept_by_size() {
        let cache = Cache::new();
        let schemas: Vec<_> = (0..50).map(|tool| Schema::new(&Arc::new(costly(60, tool)))).collect();
        for schema in &schemas {
            cache.compiled(schema).unwrap();
        }
        let kept = cache.lock();
        assert!(kept.size <= MAX_KEPT && kept.schemas.len() < 50, "{} with {} bytes", kept.schemas.len(), kept.size);
        assert_eq!(kept.size, kept.schemas.iter().map(|(_, compiled)| compiled.size).sum::<usize>());
        assert!(kept.schemas.contains(&schemas[49].digest));
    }

    #[test]
    fn several_small_schemas_are_kept_and_the_one_in_use_whatever_its_size() {
        let cache = Cache::new();
        let schema = |text: &str| Schema::new(&Arc::new(json!({"description": text})));
        let [small, other, large] = ["a", "b", &"c".repeat(MAX_KEPT / MEMORY_PER_BYTE)].map(schema);
        let is_kept = |schema: &Schema| cache.get(schema).is_some();
        cache.compiled(&small).unwrap();
        cache.compiled(&other).unwrap();
        assert!(is_kept(&small) && is_kept(&other));
        cache.compiled(&large).unwrap();
        assert!(!is_kept(&small) && !is_kept(&other) && is_kept(&large));
    }

    const SCHEMAS: &[&[u8]] = &[
        br##"{"type":"object","properties":{"id":{"type":"string","pattern":"^[a-z]{1,9}$"}},"required":["id"]}"##,
        br##"{"$schema":"https://json-schema.org/draft/2020-12/schema","$defs":{"a":{"type":["integer","null"]}},
             "properties":{"a":{"$ref":"#/$defs/a"}}}"##,
        br##"{"anyOf":[{"type":"array","items":{"enum":[1,"a",null]}},{"not":{"const":{}}}],"if":true,"then":false}"##,
        br##"{"patternProperties":{"(a|b)*c+":{}},"additionalProperties":false,"format":"date-time"}"##,
        br##"{"definitions":{"x":{"$ref":"#"}},"allOf":[{"$ref":"#/definitions/x"}],"dependentRequired":{"a":["b"]}}"##,
    ];

    #[test]
    fn any_bytes_are_a_schema_each_time_or_a_short_error_each_time() {
        check_inputs(SCHEMAS, 1_000, |bytes| {
            let Ok(schema) = serde_json::from_slice(bytes) else { return };
            let checked = check_schema(&schema).map_err(|error| error.to_string());
            assert!(checked.as_ref().err().is_none_or(|error| error.len() <= 4096), "{checked:?}");
            // Of several references to elsewhere, it may name another one.
            assert_eq!(check_schema(&schema).is_ok(), checked.is_ok(), "{checked:?}");
        });
    }
}
