//! Replies of the daemon, held against the schemas in `docs/wire`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::message::Message;

/// Longest body that is checked, in bytes: tests with longer ones measure time.
const MAX_BODY: usize = 1024 * 1024;

static VALIDATORS: LazyLock<BTreeMap<String, Validator>> = LazyLock::new(|| {
    let schemas = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/wire/messages.schema.json"));
    let schemas: Value = serde_json::from_str(schemas).expect("JSON");
    let names = schemas["$defs"].as_object().expect("definitions").keys();
    let validator = |name: &String| {
        let mut schema = schemas.clone();
        schema["$ref"] = json!(format!("#/$defs/{name}"));
        jsonschema::draft202012::new(&schema).expect("a schema")
    };
    names.map(|name| (name.clone(), validator(name))).collect()
});

/// Checks a reply whose type is described. Requests come back, too, as dead letters, and may have any body.
///
/// # Panics
///
/// When it is not as described.
pub(crate) fn check(reply: &Message) {
    let name = reply.kind().rsplit('.').next().unwrap_or_default();
    let Some(validator) = VALIDATORS.get(name) else { return };
    if reply.data.len() <= MAX_BODY && !name.ends_with("Request") {
        let body = reply.body();
        let faults: Vec<String> =
            validator.iter_errors(&body).map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
        assert!(faults.is_empty(), "a {name} is not as docs/wire describes it: {faults:?}");
    }
}
