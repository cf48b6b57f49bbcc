use serde_json::json;

use super::*;

fn config(name: &str, text: &str) -> Config {
    named(&[(name, text)], &[], &[]).unwrap().config
}

fn refused(name: &str, text: &str) -> String {
    named(&[(name, text)], &[], &[]).expect_err("a problem")
}

const TOML: &str = r#"
[bus]
url = ["amqp://ana:hunter2@one", "amqp://ana:hunter2@two"]
[invoke]
max_in_flight = 7
drain_timeout = "10s"
[tools.limits."web_*"]
timeout = "5s"
[tools.limits."a.b"]
max_in_flight = 3
[agents.Ana]
allowed_tools = ["echo"]
tool_rate_limits = { echo = { rps = 0.5, burst = 2 } }
[identity]
trust_headers = true
[tools]
echo = true
[[rest.endpoints]]
name = "get_weather"
description = "Weather"
url = "https://api.example/"
auth = { type = "bearer", token = { env = "WEATHER" } }
"#;

const JSON: &str = r#"{
  "$schema": "./toolbus.schema.json",
  "bus": {"url": ["amqp://ana:hunter2@one", "amqp://ana:hunter2@two"]},
  "invoke": {"max_in_flight": 7, "drain_timeout": "10s"},
  "tools": {"echo": true, "limits": {"web_*": {"timeout": "5s"}, "a.b": {"max_in_flight": 3}}},
  "agents": {"Ana": {"allowed_tools": ["echo"], "tool_rate_limits": {"echo": {"rps": 0.5, "burst": 2}}}},
  "identity": {"trust_headers": true},
  "rest": {"endpoints": [{
    "name": "get_weather", "description": "Weather", "url": "https://api.example/",
    "auth": {"type": "bearer", "token": {"env": "WEATHER"}}
  }]}
}"#;

const YAML: &str = r#"
# A comment.
bus:
  url: &brokers
    - amqp://ana:hunter2@one
    - amqp://ana:hunter2@two
invoke:
  max_in_flight: 7
  drain_timeout: 10s
tools:
  echo: true
  limits:
    "web_*": {timeout: 5s}
    a.b:
      max_in_flight: 3
agents:
  Ana:
    allowed_tools: [echo]
    tool_rate_limits:
      echo: {rps: 0.5, burst: 2}
identity:
  trust_headers: true
rest:
  endpoints:
    - name: get_weather
      description: Weather
      url: https://api.example/
      auth:
        type: bearer
        token: {env: WEATHER}
"#;

#[test]
fn the_same_configuration_is_read_from_each_format() {
    let environment = [("WEATHER", "secret-of-weather")];
    let read = |name: &str, text: &str| named(&[(name, text)], &environment, &[]).unwrap();
    let toml = read("a.toml", TOML);
    for (name, text) in [("a.json", JSON), ("a.yaml", YAML), ("a.yml", YAML), ("a.YAML", YAML), ("a", TOML)] {
        let loaded = read(name, text);
        assert_eq!((&loaded.config, &loaded.warnings), (&toml.config, &toml.warnings), "{name}");
        assert_eq!(loaded.config.digest(), toml.config.digest(), "{name}");
        assert_eq!(loaded.config.secrets(), toml.config.secrets(), "{name}");
    }
}

#[test]
fn files_of_several_formats_are_laid_over_each_other() {
    let files = [
        ("a.yaml", "bus: {name: first, queue_prefix: first, exchange: first, reply_topics: [a, b]}"),
        ("b.toml", "[bus]\nqueue_prefix = 'second'\nexchange = 'second'\nreply_topics = ['c']"),
        ("c.json", r#"{"bus": {"exchange": "third"}, "invoke": {"max_in_flight": 3}}"#),
    ];
    let config = named(&files, &[("TOOLBUS__INVOKE__MAX_IN_FLIGHT", "4")], &[]).unwrap().config;
    let names = (&*config.bus.name, &*config.queue_prefix(), &*config.bus.exchange, config.invoke.max_in_flight);
    assert_eq!((names, config.bus.reply_topics), (("first", "second", "third", 4), vec!["c".to_owned()]));
}

#[test]
fn the_environment_changes_entries_of_every_format() {
    for (name, text) in [
        ("a.yaml", "tools:\n  limits:\n    Web_Search: {timeout: 5s}"),
        ("a.json", r#"{"tools": {"limits": {"Web_Search": {"timeout": "5s"}}}}"#),
    ] {
        let variable = [("TOOLBUS__TOOLS__LIMITS__WEB_SEARCH__TIMEOUT", "7s")];
        let config = named(&[(name, text)], &variable, &[]).unwrap().config;
        assert_eq!(config.tools.limits_of("Web_Search").timeout.unwrap().to_string(), "7s", "{name}");
    }
}

#[test]
fn a_mistake_in_yaml_is_reported_with_its_line() {
    let text =
        "bus:\n  nme: x\n  reply_topics:\n    - a..b\ninvoke:\n  max_in_flight: many\n  drain_timeout: 10 parsecs\n";
    insta::assert_snapshot!(refused("a.yaml", text), @r#"
    a.yaml:2:3: `bus.nme`: unknown key; did you mean `name`? expected one of `compat_queues`, `consumer_timeout`, `dead_letter_exchange`, `exchange`, `host`, `name`, `password`, `port`, `queue_prefix`, `queue_type`, `reply_topics`, `tls`, `url`, `user`, `vhost`
    a.yaml:4:7: `bus.reply_topics[0]`: not a topic; expected words with dots between them, where `*` stands for one word and `#` for any number
    a.yaml:6:18: `invoke.max_in_flight`: found a text; expected a whole number
    a.yaml:7:18: `invoke.drain_timeout`: unknown unit `parsecs`; expected a whole number and a unit (ms, s, m, h, d), such as "60s"
    "#);
}

#[test]
fn a_mistake_in_json_is_reported_with_its_key() {
    let text = r#"{
        "bus": {"nme": "x", "reply_topics": ["a..b"]},
        "invoke": {"max_in_flight": "many", "drain_timeout": "10 parsecs"}
    }"#;
    insta::assert_snapshot!(refused("a.json", text), @r#"
    a.json: `bus.reply_topics[0]`: not a topic; expected words with dots between them, where `*` stands for one word and `#` for any number
    a.json: `bus.nme`: unknown key; did you mean `name`? expected one of `compat_queues`, `consumer_timeout`, `dead_letter_exchange`, `exchange`, `host`, `name`, `password`, `port`, `queue_prefix`, `queue_type`, `reply_topics`, `tls`, `url`, `user`, `vhost`
    a.json: `invoke.drain_timeout`: unknown unit `parsecs`; expected a whole number and a unit (ms, s, m, h, d), such as "60s"
    a.json: `invoke.max_in_flight`: found a text; expected a whole number
    "#);
}

#[test]
fn a_contradiction_names_the_file_whose_value_counts() {
    let files = [("a.json", r#"{"invoke": {"default_timeout": "90s"}}"#), ("b.yaml", "invoke:\n  max_timeout: 80s")];
    insta::assert_snapshot!(named(&files, &[], &[]).unwrap_err(), @"b.yaml:2:16: `invoke.max_timeout`: max_timeout (80s) is shorter than default_timeout (90s); expected it to be at least as long");
}

#[test]
fn a_file_of_another_format_is_reported_where_its_syntax_fails() {
    insta::assert_snapshot!(refused("a.json", "[bus]\nname = 'x'"), @"a.json:1:1: expected an object");
    insta::assert_snapshot!(refused("b.json", "{\"bus\": {\"name\": \"x\",}}"), @"b.json:1:22: not JSON, as its extension says: trailing comma");
    insta::assert_snapshot!(refused("c.json", ""), @"c.json:1:1: not JSON, as its extension says: EOF while parsing a value");
    insta::assert_snapshot!(refused("d.json", "{} {}"), @"d.json:1:4: not JSON, as its extension says: trailing characters");
    insta::assert_snapshot!(refused("e.json", "[1]"), @"e.json:1:1: expected an object");
    insta::assert_snapshot!(refused("f.yaml", "bus:\n  name: x\n name: y"), @"f.yaml:3:6: not YAML, as its extension says: while parsing a block mapping, did not find expected key");
    insta::assert_snapshot!(refused("g.yaml", "bus: {name: \"x"), @"g.yaml:1:13: not YAML, as its extension says: while scanning a quoted scalar, found unexpected end of stream");
    insta::assert_snapshot!(refused("h.yaml", "- bus"), @"h.yaml:1:1: expected keys with values, found a list");
    insta::assert_snapshot!(refused("i.yaml", "just a text"), @"i.yaml:1:1: expected keys with values");
    insta::assert_snapshot!(refused("j.yaml", "bus: {}\n---\nbus: {}"), @"j.yaml:2:1: a second document; expected one");
    insta::assert_snapshot!(refused("k.yaml", "[bus]\nname = 'x'"), @"k.yaml:1:1: expected keys with values, found a list");
    insta::assert_snapshot!(refused("l.toml", "bus:\n  name: x"), @"l.toml:1:1: not TOML, as its extension says: this looks like YAML; name the file `….yaml`");
    insta::assert_snapshot!(refused("m", "# A comment\n\n---\nbus: {}"), @"m:3:1: not TOML, as the lack of an extension says: this looks like YAML; name the file `….yaml`");
    insta::assert_snapshot!(refused("n.toml", "{\"bus\": {\"name\": \"x\"}}"), @"n.toml:1:1: not TOML, as its extension says: this looks like JSON; name the file `….json`");
    let broken = refused("o.toml", "name = 'a: b\nbus:");
    assert!(broken.contains("invalid literal string, expected `'`"), "{broken}");
}

#[test]
fn an_extension_of_no_format_is_refused() {
    insta::assert_snapshot!(refused("a.ini", "[bus]"), @"a.ini: its extension `.ini` is that of no configuration; expected .toml, .json, .yaml or .yml, or none for TOML");
}

#[test]
fn a_key_that_is_given_twice_is_refused() {
    insta::assert_snapshot!(refused("a.json", r#"{"bus": {"name": "x", "name": "y"}, "rest": {"endpoints": [{"url": 1, "url": 2}]}, "bus": {}}"#), @"
    a.json: `bus.name`: given twice; expected it once
    a.json: `rest.endpoints[0].url`: given twice; expected it once
    a.json: `bus`: given twice; expected it once
    ");
    insta::assert_snapshot!(refused("b.yaml", "bus:\n  name: x\ntools: {}\nbus: {}"), @"b.yaml:4:1: `bus`: given twice; expected it once");
    insta::assert_snapshot!(refused("c.yaml", "tools: {limits: {true: {}, 'true': {}}}"), @"c.yaml:1:28: `tools.limits.true`: given twice; expected it once");
}

#[test]
fn a_key_of_yaml_is_a_text_or_is_written_as_one() {
    let config = config("a.yaml", "http:\n  tokens:\n    7: secret-of-seven-agents\n    true: secret-of-true-agents\n");
    assert_eq!(config.http.tokens.keys().map(|agent| agent.to_string()).collect::<Vec<_>>(), ["7", "true"]);
    insta::assert_snapshot!(refused("b.yaml", "bus: {[a]: b}"), @"b.yaml:1:7: `bus`: not a key; expected a text");
    insta::assert_snapshot!(refused("c.yaml", "bus:\n  ~: b"), @"c.yaml:2:3: `bus`: not a key; expected a text without a tag");
    insta::assert_snapshot!(refused("d.yaml", "bus:\n  {token: hunter2}: b"), @"d.yaml:2:3: `bus`: not a key; expected a text");
    insta::assert_snapshot!(refused("e.yaml", "bus: {name: &a x, *a : y}"), @"e.yaml:1:19: `bus`: a key cannot be an alias; expected a text");
}

#[test]
fn keys_keep_their_case_and_their_dots() {
    insta::assert_snapshot!(refused("a.yaml", "Bus: {}\ntools.echo: true"), @r#"
    a.yaml:1:1: `Bus`: unknown key; did you mean `bus`? expected one of `a2a`, `agents`, `audit`, `breaker`, `bus`, `commands`, `daemon`, `egress`, `guides`, `http`, `identity`, `invoke`, `ledger`, `mcp`, `memory`, `outbound`, `pins`, `pipelines`, `rest`, `results`, `schedule`, `script`, `store`, `subagents`, `telemetry`, `tools`, `toolsets`, `web`
    a.yaml:2:1: `"tools.echo"`: unknown key; expected one of `a2a`, `agents`, `audit`, `breaker`, `bus`, `commands`, `daemon`, `egress`, `guides`, `http`, `identity`, `invoke`, `ledger`, `mcp`, `memory`, `outbound`, `pins`, `pipelines`, `rest`, `results`, `schedule`, `script`, `store`, `subagents`, `telemetry`, `tools`, `toolsets`, `web`
    "#);
    insta::assert_snapshot!(refused("b.json", r#"{"Bus": {}, "tools.echo": true}"#), @r#"
    b.json: `Bus`: unknown key; did you mean `bus`? expected one of `a2a`, `agents`, `audit`, `breaker`, `bus`, `commands`, `daemon`, `egress`, `guides`, `http`, `identity`, `invoke`, `ledger`, `mcp`, `memory`, `outbound`, `pins`, `pipelines`, `rest`, `results`, `schedule`, `script`, `store`, `subagents`, `telemetry`, `tools`, `toolsets`, `web`
    b.json: `"tools.echo"`: unknown key; expected one of `a2a`, `agents`, `audit`, `breaker`, `bus`, `commands`, `daemon`, `egress`, `guides`, `http`, `identity`, `invoke`, `ledger`, `mcp`, `memory`, `outbound`, `pins`, `pipelines`, `rest`, `results`, `schedule`, `script`, `store`, `subagents`, `telemetry`, `tools`, `toolsets`, `web`
    "#);
}

#[test]
fn numbers_are_of_the_type_that_they_are_written_in() {
    insta::assert_snapshot!(refused("a.yaml", "bus:\n  name: 7\ninvoke:\n  max_in_flight: '7'\n  max_waiting: 1.5"), @"
    a.yaml:2:9: `bus.name`: found a number; expected a text
    a.yaml:4:18: `invoke.max_in_flight`: found a text; expected a whole number
    a.yaml:5:16: `invoke.max_waiting`: found a number with a fraction; expected a whole number
    ");
    insta::assert_snapshot!(refused("b.json", r#"{"bus": {"name": 7}, "invoke": {"max_in_flight": "7", "max_waiting": 1.5}}"#), @"
    b.json: `bus.name`: found a number; expected a text
    b.json: `invoke.max_in_flight`: found a text; expected a whole number
    b.json: `invoke.max_waiting`: found a number with a fraction; expected a whole number
    ");
    // A whole number with a fraction of zero is whole, as JSON Schema has it.
    assert_eq!(config("c.json", r#"{"invoke": {"max_in_flight": 7.0}}"#).invoke.max_in_flight, 7);
    assert_eq!(config("d.yaml", "invoke: {max_in_flight: 7e0}").invoke.max_in_flight, 7);
}

#[test]
fn a_number_that_is_too_large_is_reported() {
    for number in ["65536", "18446744073709551615", "18446744073709551616", "1e300", "-1"] {
        for (name, text) in [
            ("a.json", format!("{{\"invoke\": {{\"max_in_flight\": {number}}}}}")),
            ("a.yaml", format!("invoke: {{max_in_flight: {number}}}")),
        ] {
            let reported = refused(name, &text);
            assert!(reported.starts_with(name) && reported.contains(": `invoke.max_in_flight`: "), "{reported}");
        }
    }
    insta::assert_snapshot!(refused("b.json", r#"{"invoke": {"max_in_flight": 1e999}}"#), @"b.json:1:34: not JSON, as its extension says: number out of range");
    insta::assert_snapshot!(refused("c.yaml", "invoke: {max_in_flight: .inf}"), @"c.yaml:1:25: `invoke.max_in_flight`: not a finite number");
}

#[test]
fn null_is_no_value() {
    insta::assert_snapshot!(refused("a.yaml", "bus:\ninvoke:\n  max_in_flight: ~"), @"
    a.yaml:2:1: `bus`: found null or an impossible number; expected a table
    a.yaml:3:18: `invoke.max_in_flight`: found null or an impossible number; expected a whole number
    ");
    insta::assert_snapshot!(refused("b.json", r#"{"bus": null, "invoke": {"max_in_flight": null}}"#), @"
    b.json: `bus`: found null or an impossible number; expected a table
    b.json: `invoke.max_in_flight`: found null or an impossible number; expected a whole number
    ");
}

#[test]
fn an_empty_document_is_an_empty_configuration() {
    for (name, text) in [
        ("a.yaml", ""),
        ("b.yaml", "# nothing\n"),
        ("c.yaml", "---\n"),
        ("d.yaml", "~"),
        ("e.yaml", "\u{feff}"),
        ("f.yaml", "{}"),
        ("g.json", "{}"),
        ("h.json", "\u{feff}{}"),
    ] {
        assert_eq!(config(name, text), Config::default(), "{name}");
    }
}

#[test]
fn aliases_of_yaml_stand_for_what_they_name() {
    let text = "tools:\n  limits:\n    a: &short {timeout: 5s}\n    b: *short\n";
    let limits = config("a.yaml", text).tools.limits;
    assert_eq!(limits.values().map(|limits| limits.timeout.unwrap().to_string()).collect::<Vec<_>>(), ["5s", "5s"]);
    let text = "tools:\n  limits:\n    a: &short {timeot: 5s}\n    b: *short\n";
    insta::assert_snapshot!(refused("b.yaml", text), @"
    b.yaml:3:16: `tools.limits.a.timeot`: unknown key; did you mean `timeout`? expected one of `max_in_flight`, `timeout`
    b.yaml:4:5: `tools.limits.b.timeot`: unknown key; did you mean `timeout`? expected one of `max_in_flight`, `timeout`
    ");
    insta::assert_snapshot!(refused("c.yaml", "bus: *nothing"), @"c.yaml:1:6: not YAML, as its extension says: while parsing node, found unknown anchor");
    insta::assert_snapshot!(refused("d.yaml", "bus: &a {name: *a}"), @"d.yaml:1:16: `bus.name`: an alias within what it stands for");
}

#[test]
fn aliases_that_stand_for_too_much_are_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..20 {
        let below = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb += &format!("a{level}: &a{level} [{below}]\n");
    }
    insta::assert_snapshot!(refused("a.yaml", &bomb), @"a.yaml:6:10: `a5[0]`: anchors and aliases stand for more than 16 MiB");
    let deep: String = (1..200).map(|level| format!("a{level}: &a{level} [*a{}]\n", level - 1)).collect();
    insta::assert_snapshot!(refused("b.yaml", &format!("a0: &a0 x\n{deep}")), @"b.yaml:129:14: `a128[0]`: tables and lists are more than 128 deep");
}

#[test]
fn deep_nesting_is_refused() {
    let lists = "- ".repeat(100_000);
    insta::assert_snapshot!(refused("a.yaml", &format!("bus:\n {lists}x")).chars().take(200).collect::<String>().replace("[0]", ""), @"a.yaml:2:256: `bus[0");
    let lists = "[".repeat(100_000);
    let reported = refused("b.yaml", &format!("bus: {lists}"));
    assert!(reported.len() < 1000 && reported.starts_with("b.yaml:1:"), "{reported}");
    insta::assert_snapshot!(refused("c.json", &format!("{{\"bus\": {lists}")), @"c.json:1:135: not JSON, as its extension says: recursion limit exceeded");
}

#[test]
fn a_tag_of_yaml_is_refused() {
    insta::assert_snapshot!(refused("a.yaml", "bus:\n  name: !env NAME"), @"a.yaml:2:14: `bus.name`: has a tag, which means nothing here; expected the value alone");
    insta::assert_snapshot!(refused("b.yaml", "bus: !include other.yaml"), @"b.yaml:1:15: `bus`: has a tag, which means nothing here; expected the value alone");
    assert_eq!(config("c.yaml", "bus: {name: !!str 7}").bus.name, "7");
}

#[test]
fn a_file_that_is_too_large_is_refused() {
    for name in ["a.json", "a.yaml"] {
        let reported = refused(name, &" ".repeat(16 * 1024 * 1024 + 1));
        assert_eq!(reported, format!("{name}: the file is larger than 16 MiB"));
    }
}

#[test]
fn secrets_of_every_format_are_resolved_and_never_shown() {
    let endpoint = |token: &str| {
        format!(
            r#"{{"rest": {{"endpoints": [{{"name": "w", "description": "w", "url": "https://h/", "auth": {{"type": "bearer", "token": {token}}}}}]}}}}"#
        )
    };
    for name in ["a.json", "a.yaml"] {
        let text = endpoint(r#"{"env": "WEATHER"}"#);
        let loaded = named(&[(name, &text)], &[("WEATHER", "hunter2-hunter2")], &[]).unwrap();
        assert!(!format!("{:?}", loaded.config).contains("hunter2"), "{name}");
        assert!(loaded.config.secrets().iter().any(|given| given.secret.expose() == "hunter2-hunter2"), "{name}");
        for wrong in [r#"["hunter2"]"#, r#"{"hunter2": "hunter2"}"#, "7", "null"] {
            let reported = refused(name, &endpoint(wrong));
            assert!(!reported.contains("\"hunter2") && reported.contains("rest.endpoints[0].auth"), "{reported}");
        }
    }
    for text in
        ["bus:\n  url: amqp://ana:hunter2@", "bus: {url: \"amqp://ana:hunter2@x\"", "token: 'hunter2", "!hunter2 a: b"]
    {
        assert!(!refused("b.yaml", text).contains("hunter2"), "{}", refused("b.yaml", text));
    }
    for text in [r#"{"bus": {"url": "amqp://ana:hunter2@"}}"#, r#"{"token": "hunter2"#, r#""hunter2""#] {
        assert!(!refused("b.json", text).contains("hunter2"), "{}", refused("b.json", text));
    }
}

#[test]
fn every_example_of_the_schema_in_json_is_read_as_in_toml() {
    let text =
        json!({"daemon": {"socket": "none"}, "store": {"url": "memory:"}, "audit": {"file": "a.log"}}).to_string();
    let toml = "[daemon]\nsocket = 'none'\n[store]\nurl = 'memory:'\n[audit]\nfile = 'a.log'";
    assert_eq!(config("a.json", &text), config("a.toml", toml));
    // JSON is YAML, but for the format of the extension.
    assert_eq!(config("a.yaml", &text), config("a.toml", toml));
}
