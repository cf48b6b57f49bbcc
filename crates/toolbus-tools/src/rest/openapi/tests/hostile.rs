//! Hostile specifications.

use proptest::prelude::*;

use super::*;

/// A bearer token for the operations, and operations with these paths that need it.
fn with_token(paths: &[&str]) -> (String, Value) {
    let get = |path: &str| json!({"get": {"operationId": format!("get {path}"), "security": [{"token": []}]}});
    let paths = paths.iter().map(|path| ((*path).to_owned(), get(path))).collect();
    let schemes = json!({"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}});
    (document(Value::Object(paths), schemes), json!({"token": {"token": "a-token-of-tests"}}))
}

#[test]
fn a_path_without_a_slash_at_its_beginning_chooses_no_other_host() {
    let paths = ["/ok", ".evil.example/a", ":81/a", "-x/a", "a", "x-extension", "@evil.example/"];
    let (text, auth) = with_token(&paths);
    for fields in [json!({}), json!({"server": "https://h.example"}), json!({"server": "https://h/v1/", "auth": auth})]
    {
        let described = read(&text, fields).unwrap();
        let note = described.notes.last().unwrap();
        assert!(note.starts_with("5 operations are no tools: "), "{note}");
        assert!(note.contains(".evil.example/a: its path does not begin with `/`"), "{note}");
        assert!(only(described).url.ends_with("/ok"));
    }
}

#[test]
fn an_address_below_a_server_has_its_origin_and_its_path() {
    let servers = ["https://h", "https://h/v1", "https://h/v1?key=", "https://h:443/%7Ba%7D", "http://[::1]:8080"];
    for server in servers {
        assert!(is_below(&format!("{server}/a/{{b}}?c={{d}}"), server), "{server}");
        for more in [".evil.example/a", ":81/a", "-x/a", "@evil.example/a"] {
            let is_in_query = server.contains('?');
            assert_eq!(is_below(&format!("{server}{more}"), server), is_in_query, "{server}{more}");
        }
    }
    for url in ["http://h/v1/a", "https://h:8443/v1/a", "https://h/v2/a", "https://h/a", "no address"] {
        assert!(!is_below(url, "https://h/v1"), "{url}");
    }
}

/// `count` operations with the same parameters and the same body.
fn sharing(count: usize, parameters: Value, body: Value, components: Value) -> String {
    let body = json!({"content": {"application/json": {"schema": body}}});
    let components = json!({"schemas": components, "requestBodies": {"b": body}});
    let item = json!({"parameters": parameters, "post": {"requestBody": {"$ref": "#/components/requestBodies/b"}}});
    let paths = (0..count).map(|n| (format!("/p{n}"), json!({"$ref": "#/item"}))).collect();
    let mut document: Value = serde_json::from_str(&document(Value::Object(paths), components)).unwrap();
    document["item"] = item;
    document.to_string().replace("3.1.0", "3.0.3")
}

#[test]
fn references_to_things_of_one_name_are_named_in_a_bounded_time() {
    let components: serde_json::Map<String, Value> = (0..2000).map(|n| (n.to_string(), json!({"a": {}}))).collect();
    let references: Vec<Value> = (0..2000).map(|n| json!({"$ref": format!("#/components/schemas/{n}/a")})).collect();
    let text = sharing(20, json!([]), json!({"allOf": references}), Value::Object(components));
    let started = Clock::SYSTEM.now();
    let described = read(&text, json!({})).unwrap();
    assert!(Clock::SYSTEM.since(started) < Duration::from_secs(180));
    let definitions = schema(&described.endpoints[0])["$defs"].as_object().unwrap().clone();
    assert_eq!(definitions.len(), 2000);
    assert!(["a", "a_2", "a_2000"].iter().all(|name| definitions.contains_key(*name)));
}

#[test]
fn an_operation_with_very_many_parameters_is_no_tool() {
    let parameters = |count: usize| {
        Value::Array(
            (1..=count).map(|n| json!({"name": "!".repeat(n % 500) + &n.to_string(), "in": "query"})).collect(),
        )
    };
    let text = sharing(20, parameters(20_000), json!({"type": "array"}), json!({}));
    let error = read(&text, json!({})).unwrap_err().to_string();
    assert!(error.contains("it has 20000 parameters; at most 256 can be arguments"), "{error}");
    let described = read(&sharing(1, parameters(256), json!({"type": "array"}), json!({})), json!({})).unwrap();
    assert_eq!(schema(&only(described))["properties"].as_object().unwrap().len(), 257);
}

#[test]
fn every_part_of_a_tool_schema_counts_for_its_size() {
    let many = |count: usize, text: &dyn Fn(usize) -> Value| Value::Array((0..count).map(text).collect());
    let parameter = |n: usize| json!({"name": format!("{n}{}", "n".repeat(1000)), "in": "query"});
    let text = "d".repeat(1000);
    let described = |n: usize| json!({"name": n.to_string(), "in": "query", "description": text});
    let read_only: serde_json::Map<String, Value> =
        (0..20_000).map(|n| (n.to_string(), json!({"readOnly": true}))).collect();
    let extensions: serde_json::Map<String, Value> = (0..20_000).map(|n| (format!("x-{n}"), json!(n))).collect();
    let table = [
        (many(200, &parameter), json!({})),
        (many(200, &described), json!({})),
        (json!([]), json!({"allOf": many(20_000, &|_| json!({"$ref": "#/components/schemas/a"}))})),
        (json!([]), json!({"allOf": [{"required": many(20_000, &|n| json!(n.to_string()))}]})),
        (json!([]), json!({"allOf": [{"properties": read_only}]})),
        (json!([]), json!({"allOf": [extensions]})),
        (json!([]), json!({"allOf": many(600, &|n| json!({"pattern": format!("(?={n})")}))})),
    ];
    for (parameters, body) in table {
        let error = read(&sharing(1, parameters, body, json!({"a": {}})), json!({})).unwrap_err().to_string();
        assert!(error.contains("its schemas take more than 128 KiB"), "{error}");
    }
    let long = format!("#/components/schemas/{}", "a".repeat(1024));
    let error = read(&sharing(1, json!([]), json!({"allOf": [{"$ref": long}]}), json!({})), json!({})).unwrap_err();
    assert!(error.to_string().contains("is longer than 1024 bytes"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_endpoint_is_at_its_server_whatever_its_path_is(
        path in prop_oneof!["[{}/?#@:&=%.\\\\a-c \t\n]{0,16}", any::<String>(), "[.:@/\\\\-]{0,2}evil\\.example(:81)?/a"],
        base in prop::sample::select(vec!["", "/v1", "/v1/"]),
    ) {
        let (text, auth) = with_token(&[&path]);
        let server = format!("https://h.example{base}");
        for endpoint in read(&text, json!({"server": server, "auth": auth})).into_iter().flat_map(|read| read.endpoints) {
            let url = Url::parse(&endpoint.url).unwrap();
            prop_assert_eq!(url.origin(), Url::parse(&server).unwrap().origin());
            let start = format!("{}/", base.trim_end_matches('/'));
            prop_assert!(url.path().starts_with(&start), "{}", url);
        }
    }
}
