use std::time::Duration;

use jsonschema::PatternOptions;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn checked(schema: &Value, validation: Validation) -> Result<(), SchemaProblem> {
    check(schema.as_object().unwrap(), validation)
}

fn passes(schema: Value) {
    assert_eq!(checked(&schema, Validation::Enforce), Ok(()), "{schema}");
}

fn refusal(schema: Value) -> String {
    let problem = checked(&schema, Validation::Enforce).expect_err(&schema.to_string());
    assert_eq!(checked(&schema, Validation::Warn), Err(problem.clone()));
    problem.to_string()
}

/// `levels` lists, one within another.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!([]), |inner, _| json!([inner]))
}

/// Validates as the daemon does, and returns the CPU time that it took.
fn validated(schema: &Value, instance: &Value) -> Duration {
    let validator = jsonschema::options()
        .offline()
        .with_pattern_options(PatternOptions::regex())
        .should_validate_formats(true)
        .build(schema)
        .unwrap();
    let before = cpu_time();
    if !validator.is_valid(instance) {
        validator.iter_errors(instance).take(21).for_each(drop);
    }
    cpu_time() - before
}

/// CPU time of this thread until now: unlike the clock, it stands still while other programs run.
fn cpu_time() -> Duration {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(statistics.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn ordinary_schemas_pass() {
    passes(json!({}));
    passes(json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.com/tool",
        "type": "object",
        "properties": {
            "$ref": {"type": "string", "description": "A property may be called so."},
            "id": {"type": "string", "format": "uuid", "pattern": "^[0-9a-f-]{36}$"},
            "$id": {"enum": [{"$ref": "https://example.com/", "$id": "x"}]},
            "when": {"anyOf": [{"const": "now"}, {"$ref": "#/definitions/Time%3Cutc%3E"}]},
        },
        "required": ["id"],
        "additionalProperties": false,
        "definitions": {"Time<utc>": {"type": "integer"}},
    }));
    passes(json!({"properties": {"a": {"$ref": "#/components/schemas/A"}}, "components": {"schemas": {"A": {}}}}));
    passes(json!({"properties": {"a": {"$ref": "#A"}}, "$defs": {"A": {"$anchor": "A", "type": "string"}}}));
    passes(json!({"anyOf": (0..300).map(|n| json!({"const": n})).collect::<Vec<_>>()}));
}

#[test]
fn schemas_that_contain_themselves_within_a_value_pass() {
    passes(json!({"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}));
    passes(json!({"properties": {"root": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
        "additionalProperties": false,
    }}}));
    passes(
        json!({"properties": {"any": {"$ref": "#/$defs/Json"}, "more": {"$ref": "#/$defs/Json"}}, "$defs": {"Json": {"anyOf": [
            {"type": ["string", "number", "boolean", "null"]},
            {"type": "array", "items": {"$ref": "#/$defs/Json"}},
            {"type": "object", "additionalProperties": {"$ref": "#/$defs/Json"}},
        ]}}}),
    );
    passes(
        json!({"properties": {"filter": {"$dynamicRef": "#filter"}}, "$defs": {"Filter": {"$dynamicAnchor": "filter", "oneOf": [
            {"type": "object", "properties": {"and": {"type": "array", "items": {"$dynamicRef": "#filter"}}}, "required": ["and"]},
            {"type": "object", "properties": {"not": {"$dynamicRef": "#filter"}}, "required": ["not"]},
            {"type": "object", "properties": {"field": {"type": "string"}}, "required": ["field"]},
        ]}}}),
    );
}

#[test]
fn a_schema_that_is_too_large_is_refused_even_where_nothing_is_validated() {
    let table = [
        (json!({"description": "x".repeat(64 * 1024)}), SchemaProblem::Size),
        (json!({"a": nested(63)}), SchemaProblem::Depth),
        (json!({"enum": vec![0; 10_000]}), SchemaProblem::Values),
    ];
    for (schema, problem) in table {
        for validation in [Validation::Enforce, Validation::Warn, Validation::Off] {
            assert_eq!(checked(&schema, validation), Err(problem.clone()));
        }
    }
    passes(json!({"description": "x".repeat(64 * 1024 - 18)}));
    passes(json!({"a": nested(62)}));
    passes(json!({"enum": (0..9_999).collect::<Vec<_>>()}));
}

#[test]
fn where_nothing_is_validated_only_the_size_counts() {
    for schema in [json!({"type": 1}), json!({"$ref": "file:///etc/passwd"}), json!({"allOf": [{"$ref": "#"}]})] {
        assert_eq!(checked(&schema, Validation::Off), Ok(()));
        refusal(schema);
    }
}

#[test]
fn arguments_are_objects() {
    for kind in [json!("string"), json!(["object", "null"]), json!(null)] {
        insta::allow_duplicates! { insta::assert_snapshot!(refusal(json!({"type": kind})), @r#"its schema is not one of objects: `type` must be "object""#); }
    }
}

#[test]
fn references_stay_within_the_schema() {
    insta::assert_snapshot!(refusal(json!({"$ref": "file:///etc/passwd"})), @"its schema refers to `file:///etc/passwd`, which is not within it");
    insta::assert_snapshot!(refusal(json!({"properties": {"a": {"items": {"$dynamicRef": "http://10.0.0.1/\n"}}}})), @r#"its schema refers to `http://10.0.0.1/\n`, which is not within it"#);
    insta::assert_snapshot!(refusal(json!({"$defs": {"unused": {"$ref": "other.json#/a"}}})), @"its schema refers to `other.json#/a`, which is not within it");
    insta::assert_snapshot!(refusal(json!({"$id": "https://example.com/a", "not": {"$ref": "https://example.com/a#"}})), @"its schema refers to `https://example.com/a#`, which is not within it");
    insta::assert_snapshot!(refusal(json!({"$ref": ""})), @"its schema refers to ``, which is not within it");
}

#[test]
fn references_lead_to_a_schema() {
    for reference in ["#/$defs/b", "#b", "#/$defs", "#/title", "#/%ff", "#/$defs/a/0"] {
        let problem = refusal(json!({"$ref": reference, "title": "t", "$defs": {"a": [5]}}));
        let is_location = reference == "#/$defs";
        assert_eq!(problem.ends_with("where there is no schema"), !is_location, "{reference}: {problem}");
    }
    insta::assert_snapshot!(refusal(json!({"$ref": "#/$defs/b"})), @"its schema refers to `#/$defs/b`, where there is no schema");
}

#[test]
fn parts_have_no_identity_of_their_own() {
    insta::assert_snapshot!(refusal(json!({"properties": {"a": {"$id": "b"}}})), @"its schema has a part with a `$id` of its own, which would change what references mean");
    refusal(json!({"$ref": "#/x/y", "x": {"$id": "http://a/", "y": {"$ref": "#/z"}}, "z": {}}));
    refusal(json!({"$schema": "http://json-schema.org/draft-04/schema#", "not": {"id": "http://a/"}}));
    refusal(json!({"not": {"$schema": "http://json-schema.org/draft-04/schema#"}}));
    refusal(json!({"$id": "https://json-schema.org/draft/2020-12/schema", "not": {"$ref": "#"}}));
    refusal(json!({"$schema": "https://example.com/dialect"}));
    refusal(json!({"$defs": {"a": {"$anchor": "x"}, "b": {"$dynamicAnchor": "x"}}}));
}

#[test]
fn parts_with_an_identity_of_their_own_are_reached_by_pointers_instead() {
    let schema = json!({
        "$id": "https://example.com/tools/send",
        "type": "object",
        "properties": {
            "to": {"$ref": "address"}, "cc": {"$ref": "/tools/address#/$defs/na~1me"}, "again": {"$ref": "#/x/late"},
            "self": {"$ref": "https://example.com/tools/send#"}, "id": {"type": "string"}, "$id": {"const": {"$id": "a"}},
            "place": {"$ref": "address#city"},
        },
        "$defs": {"a": {
            "$id": "address", "type": "object", "required": ["city"], "properties": {"city": {"$ref": "#city"}},
            "$defs": {"na/me": {"type": "string"}, "city": {"$anchor": "city", "type": "string", "minLength": 2}},
        }},
        "x": {"late": {"items": {"$ref": "address"}}},
    });
    let plain = without_identities(&schema).unwrap();
    passes(plain.clone());
    assert!(!plain.to_string().contains("example.com"), "{plain}");
    let own = jsonschema::options().offline().build(&schema).unwrap();
    let same = jsonschema::options().offline().build(&plain).unwrap();
    let table = [
        (json!({"to": {"city": "Oslo"}, "cc": "Ana", "again": [{"city": "Oslo"}], "id": "x", "place": "Lima"}), true),
        (json!({"to": {"city": "O"}}), false),
        (json!({"to": {}}), false),
        (json!({"cc": 1}), false),
        (json!({"again": [{"city": 1}]}), false),
        (json!({"self": {"cc": 1}}), false),
        (json!({"place": "O"}), false),
        (json!({"$id": {"$id": "b"}}), false),
    ];
    for (arguments, fits) in table {
        assert_eq!((own.is_valid(&arguments), same.is_valid(&arguments)), (fits, fits), "{arguments}");
    }
    let old = json!({"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": {"$ref": "#b"}, "c": {"$ref": "d"}},
        "definitions": {"b": {"id": "#b", "type": "null"}, "c": {"id": "d", "type": "null"}}});
    let properties = json!({"a": {"$ref": "#/definitions/b"}, "c": {"$ref": "#/definitions/c"}});
    assert_eq!(without_identities(&old).unwrap()["properties"], properties);
    for elsewhere in [
        json!({"properties": {"a": {"$id": "b", "not": {"$ref": "c"}}}}),
        json!({"properties": {"a": {"$id": "b", "not": {"$dynamicRef": "#"}}}}),
        json!({"properties": {"a": {"$id": "b"}, "c": {"$id": "b"}}}),
    ] {
        assert_eq!(without_identities(&elsewhere), None, "{elsewhere}");
    }
}

#[test]
fn a_schema_that_applies_itself_to_the_same_value_is_refused() {
    insta::assert_snapshot!(refusal(json!({"$ref": "#"})), @"its schema applies itself to the same value without end");
    for keyword in ["allOf", "anyOf", "oneOf"] {
        refusal(json!({keyword: [{"$ref": "#"}]}));
        refusal(
            json!({"$ref": "#/$defs/a", "$defs": {"a": {keyword: [{}, {"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}}),
        );
    }
    for keyword in ["not", "if", "then", "else"] {
        refusal(json!({keyword: {"$ref": "#"}}));
    }
    refusal(json!({"dependentSchemas": {"a": {"$ref": "#"}}}));
    refusal(json!({"$dynamicAnchor": "a", "not": {"$dynamicRef": "#a"}}));
    refusal(json!({"$schema": "https://json-schema.org/draft/2019-09/schema", "not": {"$recursiveRef": "#"}}));
}

#[test]
fn references_that_multiply_are_refused() {
    let laughs = |levels: usize, last: Value, step: fn(Value) -> Value| {
        let mut defs = Map::new();
        for level in 0..levels {
            let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
            defs.insert(level.to_string(), step(next));
        }
        defs.insert(levels.to_string(), last);
        json!({"properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": defs})
    };
    let double = |next: Value| json!({"allOf": [next, next]});
    insta::assert_snapshot!(refusal(laughs(30, json!({}), double)), @"its schema applies more than 1000 schemas to one value");
    passes(laughs(6, json!({}), double));
    // The same, each level within a field of the value.
    refusal(laughs(30, json!({}), |next| json!({"allOf": [{"properties": {"a": next}}, {"properties": {"a": next}}]})));
    // Looking back runs what was run again.
    let looking_back = |next: Value| json!({"anyOf": [next], "unevaluatedProperties": false});
    refusal(laughs(10, json!({"properties": {"a": {}}}), looking_back));
    passes(laughs(3, json!({"properties": {"a": {}}}), looking_back));
}

#[test]
fn schemas_that_repeat_themselves_twice_for_one_value_are_refused() {
    let again = json!({"$ref": "#"});
    insta::assert_snapshot!(refusal(json!({"properties": {"a": {"allOf": [again, again]}}})), @"its schema repeats itself more than once for one value within another; each level would double the work");
    refusal(json!({"allOf": [{"properties": {"a": again}}, {"additionalProperties": again}]}));
    refusal(json!({"properties": {"a": again}, "patternProperties": {"a": again}}));
    refusal(json!({"properties": {"a": {"items": again, "contains": again}}}));
    // Two that contain each other do the same in two steps.
    refusal(
        json!({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"properties": {"a": {"allOf": [again, again]}}}}}),
    );
    // Properties that a schema names are not additional ones.
    passes(json!({"properties": {"a": again}, "additionalProperties": again}));
    passes(json!({"properties": {"l": {"prefixItems": [again, again], "items": again}}}));
}

#[test]
fn too_many_references_or_patterns_are_refused() {
    let many = |count: usize, schema: Value| {
        let properties: Map<String, Value> = (0..count).map(|n| (n.to_string(), schema.clone())).collect();
        json!({"properties": properties, "$defs": {"a": {}}})
    };
    insta::assert_snapshot!(refusal(many(257, json!({"$ref": "#/$defs/a"}))), @"its schema has more than 256 references");
    insta::assert_snapshot!(refusal(many(65, json!({"pattern": "a"}))), @"its schema has more than 64 patterns");
    passes(many(256, json!({"$ref": "#/$defs/a"})));
    passes(many(64, json!({"pattern": "a"})));
}

#[test]
fn schemas_that_the_validator_rejects_are_refused() {
    insta::assert_snapshot!(refusal(json!({"properties": {"a": {"type": "strin"}}})), @r#"its schema is not usable: at `/properties/a/type`: "strin" is not valid under any of the schemas listed in the 'anyOf' keyword"#);
    passes(json!({"properties": {"a": {"pattern": "(?=a)b"}}}));
    refusal(json!({"properties": {"a": {"pattern": "("}}}));
    refusal(json!({"properties": {"a": {"pattern": "((a{1,100}){1,100}){1,100}"}}}));
    refusal(json!({"required": "a"}));
}

#[test]
fn accepted_schemas_validate_deep_arguments_quickly() {
    let again = json!({"$ref": "#"});
    let deep = |leaf: Value| (0..100).fold(leaf, |inner, _| json!({"a": inner}));
    for schema in [
        json!({"type": "object", "properties": {"a": again}, "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": again}, "unevaluatedProperties": false}),
        json!({"type": "object", "anyOf": [{"properties": {"a": again}}, {"required": ["b"]}], "unevaluatedProperties": false}),
        json!({"type": "object", "oneOf": [{"properties": {"a": again}, "unevaluatedProperties": false}, {"required": ["b"]}]}),
        json!({"type": "object", "anyOf": [{"type": "string"}, {"additionalProperties": again}], "not": {"required": ["b"]}}),
        json!({"type": "object", "not": {"properties": {"a": again}}}),
        json!({"type": "object", "if": {"properties": {"a": again}}, "then": {"required": ["a"]}}),
        json!({"type": "object", "unevaluatedProperties": again}),
    ] {
        passes(schema.clone());
        for leaf in [json!({}), json!(1), json!({"b": 1})] {
            let took = validated(&schema, &deep(leaf));
            assert!(took < Duration::from_millis(500), "{took:?} {schema}");
        }
    }
}

/// Generates anything that may stand where a schema is expected, also references.
fn schemas() -> impl Strategy<Value = Value> {
    let name = || prop::sample::select(vec!["a", "b", "c"]);
    let leaf = prop_oneof![
        Just(json!({})),
        Just(json!(false)),
        prop::sample::select(vec!["object", "array", "string", "integer"]).prop_map(|kind| json!({"type": kind})),
        prop::sample::select(vec!["#", "#/$defs/a", "#/$defs/b", "#/$defs/c", "#x"]).prop_map(|to| json!({"$ref": to})),
        name().prop_map(|name| json!({"required": [name]})),
        Just(json!({"pattern": "^a+$", "minLength": 1})),
    ];
    leaf.prop_recursive(5, 40, 4, move |inner| {
        let keyword = |keywords: &[&'static str]| prop::sample::select(keywords.to_vec());
        let one = keyword(&[
            "not",
            "if",
            "then",
            "else",
            "items",
            "contains",
            "additionalProperties",
            "unevaluatedProperties",
            "unevaluatedItems",
            "propertyNames",
        ]);
        let several = keyword(&["allOf", "anyOf", "oneOf", "prefixItems"]);
        let named = keyword(&["properties", "patternProperties", "dependentSchemas", "$defs"]);
        let fields = prop_oneof![
            (one, inner.clone()).prop_map(|(keyword, schema)| (keyword.to_owned(), schema)),
            (several, prop::collection::vec(inner.clone(), 1..3))
                .prop_map(|(k, schemas)| (k.to_owned(), json!(schemas))),
            (named, prop::collection::btree_map(name(), inner, 1..3))
                .prop_map(|(k, schemas)| (k.to_owned(), json!(schemas))),
        ];
        prop::collection::vec(fields, 1..4).prop_map(|fields| Value::Object(fields.into_iter().collect()))
    })
}

fn instances() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(json!(null)), Just(json!(1)), Just(json!("a")), Just(json!({})), Just(json!([]))];
    leaf.prop_recursive(20, 60, 3, |inner| {
        let name = prop::sample::select(vec!["a", "b", "c"]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(|items| json!(items)),
            prop::collection::btree_map(name, inner, 0..3).prop_map(|fields| json!(fields)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn accepted_schemas_are_validated_in_time(
        root in prop::collection::btree_map(prop::sample::select(vec!["properties", "allOf", "additionalProperties", "unevaluatedProperties"]), schemas(), 0..3),
        defs in prop::collection::vec(schemas(), 3),
        instance in instances(),
    ) {
        let mut schema = json!({"$defs": {"a": defs[0], "b": defs[1], "c": defs[2], "x": {"$anchor": "x", "items": defs[0]}}});
        for (keyword, value) in root {
            schema[keyword] = match keyword {
                "properties" => json!({"a": value, "b": {"$ref": "#/$defs/a"}}),
                "allOf" => json!([value, {"$ref": "#/$defs/b"}]),
                _ => value,
            };
        }
        if checked(&schema, Validation::Enforce).is_ok() {
            let deep = (0..60).fold(instance.clone(), |inner, level| if level % 2 == 0 { json!({"a": inner}) } else { json!([inner]) });
            for instance in [instance, deep] {
                let took = validated(&schema, &instance);
                prop_assert!(took < Duration::from_millis(500), "{:?} {} {}", took, schema, instance);
            }
        }
    }

    #[test]
    fn no_json_makes_the_check_panic(fields in prop::collection::btree_map("[$a-z]{1,6}|\\$ref|allOf|properties|items", instances(), 0..4)) {
        let schema = json!(fields);
        for validation in [Validation::Enforce, Validation::Off] {
            let _ = checked(&schema, validation);
            let _ = without_identities(&schema);
        }
    }
}
