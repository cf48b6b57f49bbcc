use serde_json::json;

use super::*;

fn texts(schema: &Value) -> Vec<String> {
    let mut texts = Vec::new();
    each_text(schema, &Place::root("parameters"), &mut |place, role, text| {
        texts.push(format!("{place} {role:?} {text}"));
    });
    texts
}

#[test]
fn prose_is_cleaned_at_every_depth_and_under_keywords_that_nobody_knows() {
    let mut schema = json!({
        "title": "A\u{200b}",
        "properties": {"a": {"anyOf": [{"items": {"description": "B\u{202e}", "x-hint": "C\u{1b}"}}]}},
        "$defs": {"d": {"$comment": "D\u{feff}"}},
    });
    let removed = clean(&mut schema);
    assert_eq!(
        schema,
        json!({
            "title": "A",
            "properties": {"a": {"anyOf": [{"items": {"description": "B", "x-hint": "C"}}]}},
            "$defs": {"d": {"$comment": "D"}},
        })
    );
    assert_eq!(removed, Removed { control: 1, bidirectional: 1, invisible: 2, cut: 0, deliberate: 2 });
}

#[test]
fn prose_in_a_list_is_cleaned_and_names_in_a_list_are_not() {
    let mut schema = json!({
        "x-notes": ["a\u{200b}", {"hint": "b\u{200b}"}],
        "dependencies": {"a": ["b\u{200b}"]},
        "properties": "c\u{200b}",
    });
    assert_eq!(clean(&mut schema).invisible, 2);
    assert_eq!(
        schema,
        json!({
            "x-notes": ["a", {"hint": "b"}],
            "dependencies": {"a": ["b\u{200b}"]},
            "properties": "c\u{200b}",
        })
    );
    let left: Vec<_> = texts(&schema).into_iter().filter(|text| text.contains('\u{200b}')).collect();
    assert!(left.len() == 2 && left.iter().all(|text| text.contains("Value")), "{left:?}");
}

#[test]
fn what_validates_stays_as_it_is() {
    let schema = json!({
        "type": "object",
        "required": ["a\u{200b}"],
        "properties": {
            "a\u{200b}": {"enum": [" x\u{200b}"], "default": "d\u{202e}", "examples": ["e\u{200b}"], "pattern": "^\u{200b}$"},
            "description": {"type": "string"},
            "title": {"const": " c\u{200b} "},
        },
        "patternProperties": {"^\u{200b}": {"$ref": "#/$defs/\u{200b}"}},
        "$defs": {"\u{200b}": {}},
    });
    let mut cleaned = schema.clone();
    assert!(clean(&mut cleaned).is_empty());
    assert_eq!(cleaned, schema);
}

#[test]
fn a_property_called_description_is_no_description() {
    let mut schema =
        json!({"properties": {"description": {"description": "Text\u{200b}"}, "title": {"title": "T\u{200b}"}}});
    clean(&mut schema);
    assert_eq!(schema, json!({"properties": {"description": {"description": "Text"}, "title": {"title": "T"}}}));
}

#[test]
fn long_prose_is_cut_and_a_long_title_sooner() {
    let mut schema = json!({"title": "t".repeat(300), "description": "d".repeat(9000)});
    assert_eq!(clean(&mut schema).cut, 300 - 256 + 9000 - 8192);
}

#[test]
fn prose_that_only_loses_space_at_its_ends_is_no_news() {
    let mut schema = json!({"description": " a \n"});
    assert!(clean(&mut schema).is_empty());
    assert_eq!(schema, json!({"description": "a"}));
}

#[test]
fn every_text_is_visited_with_its_place() {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"title": "T", "enum": ["x", {"k": "v"}], "default": "d"}},
        "x-note": "N",
    });
    insta::assert_debug_snapshot!(texts(&schema), @r#"
    [
        "parameters.properties.a Name a",
        "parameters.properties.a.default Value d",
        "parameters.properties.a.enum Value x",
        "parameters.properties.a.enum.k Name k",
        "parameters.properties.a.enum.k Value v",
        "parameters.properties.a.title Prose T",
        "parameters.x-note Name x-note",
        "parameters.x-note Prose N",
    ]
    "#);
}

#[test]
fn a_schema_of_any_depth_is_gone_through_as_far_as_any_that_parses() {
    let mut schema = json!({"description": "deep\u{200b}"});
    for _ in 0..300 {
        schema = json!({"not": [schema]});
    }
    assert!(clean(&mut schema).is_empty(), "what is too deep is left to others");
    assert!(texts(&schema).len() < 200);
}
