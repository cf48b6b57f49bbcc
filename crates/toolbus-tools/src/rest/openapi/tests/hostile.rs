//! Specifications by authors who want more of the daemon than tools.

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
    for members in [json!({}), json!({"server": "https://h.example"}), json!({"server": "https://h/v1/", "auth": auth})] {
        let described = read(&text, members).unwrap();
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

proptest! {
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
