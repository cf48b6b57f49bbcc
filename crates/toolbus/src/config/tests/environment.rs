use serde_json::json;

use super::*;

fn after(files: Value, variables: &[(&str, &str)]) -> (Tree, Vec<String>) {
    let mut tree = Tree::default();
    tree.set(&[], files, Origin::Default);
    let variables = variables.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let problems = environment(&mut tree, &schema(), ENVIRONMENT_PREFIX, &variables);
    (tree, problems.iter().map(ToString::to_string).collect())
}

#[test]
fn the_environment_gives_values_of_the_type_that_the_key_takes() {
    let (tree, problems) = after(
        json!({}),
        &[
            ("TOOLBUS__BUS__URL", "amqp://broker"),
            ("TOOLBUS__BUS__REPLY_TOPICS", r#"["a.#"]"#),
            ("TOOLBUS__INVOKE__MAX_IN_FLIGHT", "7"),
            ("TOOLBUS__TOOLS__ECHO", "true"),
            ("TOOLBUS__BUS__NAME", "7"),
            ("PATH", "/bin"),
        ],
    );
    assert!(problems.is_empty(), "{problems:?}");
    let expected = json!({
        "bus": {"url": "amqp://broker", "reply_topics": ["a.#"], "name": "7"},
        "invoke": {"max_in_flight": 7},
        "tools": {"echo": true},
    });
    assert_eq!(tree.root(), &expected);
}

#[test]
fn the_environment_finds_entries_of_the_files_whatever_their_case() {
    let files = json!({
        "tools": {"limits": {"Web_Search": {"timeout": "1s"}}},
        "rest": {"endpoints": [{"url": "http://a"}]},
    });
    let (tree, problems) = after(
        files,
        &[("TOOLBUS__TOOLS__LIMITS__WEB_SEARCH__TIMEOUT", "2s"), ("TOOLBUS__REST__ENDPOINTS__0__URL", "http://b")],
    );
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(tree.root()["tools"]["limits"], json!({"Web_Search": {"timeout": "2s"}}));
    assert_eq!(tree.root()["rest"]["endpoints"], json!([{"url": "http://b"}]));
}

#[test]
fn the_environment_creates_no_entries() {
    let files = json!({"tools": {"limits": {"web_search": {}}}});
    let (tree, problems) = after(
        files.clone(),
        &[
            ("TOOLBUS__BUS__ULR", "x"),
            ("TOOLBUS__REST__ENDPOINTS__0__URL", "x"),
            ("TOOLBUS__TOOLS__LIMITS__WEB_SAERCH__TIMEOUT", "2s"),
        ],
    );
    assert_eq!(tree.root(), &files);
    insta::assert_snapshot!(problems.join("\n"), @"
    environment TOOLBUS__BUS__ULR: `bus.ulr`: unknown key in `bus`; did you mean `url`? expected one of `compat_queues`, `consumer_timeout`, `dead_letter_exchange`, `exchange`, `host`, `name`, `password`, `port`, `queue_prefix`, `queue_type`, `reply_topics`, `tls`, `url`, `user`, `vhost`
    environment TOOLBUS__REST__ENDPOINTS__0__URL: `rest.endpoints.0.url`: unknown key in `rest.endpoints`, which has no entries; the environment changes entries and adds none: new ones belong in a file or --set
    environment TOOLBUS__TOOLS__LIMITS__WEB_SAERCH__TIMEOUT: `tools.limits.web_saerch.timeout`: unknown key in `tools.limits`; did you mean `web_search`? expected `web_search`; the environment changes entries and adds none: new ones belong in a file or --set
    ");
}

#[test]
fn entries_that_differ_only_in_case_are_distinguished() {
    let files = json!({"tools": {"limits": {"a": {}, "A": {}}}});
    let (tree, problems) = after(files, &[("TOOLBUS__TOOLS__LIMITS__A__TIMEOUT", "2s")]);
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(tree.root()["tools"]["limits"], json!({"a": {}, "A": {"timeout": "2s"}}));
}

#[test]
fn the_command_line_may_create_entries() {
    let mut tree = Tree::default();
    let overrides = [Override::new(r#"tools.limits."web_*".timeout"#, "5s"), Override::new("a b", "x")];
    let problems = command_line(&mut tree, &schema(), &overrides, EXAMPLE);
    assert_eq!(tree.root(), &json!({"tools": {"limits": {"web_*": {"timeout": "5s"}}}}));
    insta::assert_snapshot!(problems[0], @"command line --set a b: not a key; expected section.key=value, such as invoke.drain_timeout=10s");
}
