use serde_json::Value;
use toolbus_config::SchemaNode;

use super::*;

#[test]
fn the_schema_forbids_unknown_keys_and_knows_no_null() {
    let schema = schema();
    let text = schema.to_string();
    assert!(!text.contains("null"), "{text}");
    fn tables_are_closed(schema: &Value, at: &str) {
        if schema.get("properties").is_some() {
            assert_eq!(schema.get("additionalProperties"), Some(&Value::Bool(false)), "{at}");
        }
        let fields = schema.as_object().into_iter().flatten();
        fields.for_each(|(key, field)| tables_are_closed(field, &format!("{at}/{key}")));
        let elements = schema.as_array().into_iter().flatten();
        elements.enumerate().for_each(|(i, element)| tables_are_closed(element, &format!("{at}/{i}")));
    }
    tables_are_closed(&schema, "");
}

#[test]
fn parts_are_found_through_references_choices_and_maps() {
    let schema = schema();
    let at = |path: &[&str]| path.iter().try_fold(SchemaNode::root(&schema), |node, key| node.child(key));
    assert!(at(&["tools", "limits", "web_*", "timeout"]).unwrap().takes("string"));
    assert!(at(&["rest", "endpoints", "0", "auth", "token"]).unwrap().is_secret());
    assert!(at(&["rest", "endpoints", "0", "headers", "x"]).unwrap().is_secret());
    assert!(at(&["bus", "url"]).unwrap().takes("array"));
    assert!(at(&["bus", "nothing"]).is_none());
    assert_eq!(at(&["bus", "tls"]).unwrap().keys(), ["ca", "cert", "key"]);
    assert_eq!(at(&["telemetry", "protocol"]).unwrap().constants(), ["grpc", "http/protobuf"]);
}
