use proptest::prelude::*;

use super::*;

fn tool(description: &str, schema: Value) -> ToolDescriptor {
    ToolDescriptor {
        description: description.to_owned(),
        parameters: Some(schema.into()),
        ..ToolDescriptor::new("read", "mcp:files", "mcp")
    }
}

fn digest(tool: &ToolDescriptor) -> Digest {
    Definition::of(tool).digest()
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// The same object with the members in the opposite order, as far as its map keeps one.
fn reversed(value: &Value) -> Value {
    match value {
        Value::Array(elements) => elements.iter().map(reversed).collect(),
        Value::Object(members) => {
            Value::Object(members.iter().rev().map(|(name, member)| (name.clone(), reversed(member))).collect())
        }
        plain => plain.clone(),
    }
}

/// Every value that differs from this one in one place.
fn changed(value: &Value) -> Vec<Value> {
    let mut all = vec![json!({"other": value}), Value::String(format!("{value}x"))];
    if let Value::Object(members) = value {
        for name in members.keys() {
            let mut without = members.clone();
            let member = without.remove(name);
            all.push(Value::Object(without.clone()));
            without.insert(format!("{name}'"), member.unwrap_or_default());
            all.push(Value::Object(without));
        }
    }
    if let Value::Array(elements) = value {
        all.push(elements.iter().skip(1).chain([&Value::Null]).cloned().collect());
    }
    all.retain(|other| other != value);
    all
}

proptest! {
    #[test]
    fn any_change_of_a_schema_changes_the_fingerprint_and_the_order_of_members_does_not(schema in json()) {
        let known = digest(&tool("Reads.", schema.clone()));
        prop_assert_eq!(digest(&tool("Reads.", reversed(&schema))), known);
        for other in changed(&schema) {
            prop_assert_ne!(digest(&tool("Reads.", other.clone())), known, "{} and {}", schema, other);
        }
    }

    #[test]
    fn what_is_written_is_what_is_read(description in any::<String>(), schema in json()) {
        let definition = Definition::of(&tool(&description, schema));
        let written = serde_json::to_string(&definition).unwrap();
        let read: Definition = serde_json::from_str(&written).unwrap();
        prop_assert_eq!(&read, &definition);
        prop_assert_eq!(read.with_digest(definition.digest()), Some(definition));
    }
}

#[test]
fn every_part_that_agents_are_told_counts_and_nothing_else() {
    let known = ToolDescriptor {
        title: Some("Read".to_owned()),
        output_schema: Some(json!({"type": "string"}).into()),
        effect: Effect::ReadOnly,
        ..tool("Reads.", json!({"type": "object"}))
    };
    let other = |change: fn(&mut ToolDescriptor)| {
        let mut other = known.clone();
        change(&mut other);
        digest(&other) != digest(&known)
    };
    let told: [fn(&mut ToolDescriptor); 9] = [
        |tool| tool.name = "Read".into(),
        |tool| tool.title = None,
        |tool| tool.title = Some(String::new()),
        |tool| tool.description.push(' '),
        |tool| tool.parameters = None,
        |tool| tool.parameters = Some(json!({"type": "Object"}).into()),
        |tool| tool.output_schema = None,
        |tool| tool.effect = Effect::Idempotent,
        |tool| tool.effect = Effect::Undeclared,
    ];
    assert_eq!(told.map(other), [true; 9]);
    let untold: [fn(&mut ToolDescriptor); 5] = [
        |tool| tool.timeout = Some(std::time::Duration::from_secs(1)),
        |tool| tool.max_in_flight = Some(1),
        |tool| tool.delegates = true,
        |tool| tool.validation = toolbus_core::tool::Validation::Off,
        // The prefix of a tool set is the operator's.
        |tool| {
            tool.name = "fs.read".into();
            tool.toolset =
                Some(toolbus_core::tool::Membership { set: "s".into(), name: "read".into(), needs_session: true });
        },
    ];
    assert_eq!(untold.map(other), [false; 5]);
}

#[test]
fn json_that_somebody_laid_out_in_another_way_is_the_same() {
    let definition = Definition::of(&tool("Reads.", json!({"b": 1, "a": [true, 0.1]})));
    let value: Value = serde_json::from_str(definition.as_json()).unwrap();
    let read: Definition = serde_json::from_str(&format!("{value:#}")).unwrap();
    assert_eq!(read.clone().with_digest(definition.digest()), Some(definition));
    assert_eq!(read.with_digest(Digest::of(["other"])), None);
}

#[test]
fn a_digest_is_read_as_it_is_written() {
    let digest = Digest::of(["a", "b"]);
    assert_eq!(digest.to_string().parse(), Ok(digest));
    assert_ne!(digest, Digest::of(["ab"]));
    let long = format!("sha256:{}", "g".repeat(64));
    for text in ["", "sha256:", "sha256:00", &long, &digest.to_string().to_uppercase(), "sha256:+0".repeat(8).as_str()]
    {
        assert_eq!(text.parse::<Digest>(), Err(NoDigest), "{text}");
    }
}
