use super::*;

/// An endpoint that is in order but for these lines.
fn endpoint(lines: &str) -> String {
    format!("[[rest.endpoints]]\nname = 'get'\ndescription = 'Gets'\nurl = 'http://host/'\n{lines}")
}

#[test]
fn an_unknown_key_is_reported_with_the_nearest_one_in_every_section() {
    insta::assert_snapshot!(problems("[buss]\nname = 'x'"), @"a.toml:1:2: `buss`: unknown key; did you mean `bus`? expected one of `a2a`, `agents`, `audit`, `breaker`, `bus`, `commands`, `daemon`, `egress`, `guides`, `http`, `identity`, `invoke`, `ledger`, `mcp`, `memory`, `outbound`, `pins`, `pipelines`, `rest`, `results`, `schedule`, `script`, `store`, `subagents`, `telemetry`, `tools`, `toolsets`, `web`");
    insta::assert_snapshot!(problems("[invoke]\nmax_timout = '60s'"), @"a.toml:2:1: `invoke.max_timout`: unknown key; did you mean `max_timeout`? expected one of `default_reply_topic`, `default_timeout`, `drain_timeout`, `max_body`, `max_in_flight`, `max_timeout`, `max_waiting`, `topics`");
    insta::assert_snapshot!(problems("[kubernetes]\nagents = []"), @"a.toml:1:2: `kubernetes`: unknown key; expected one of `a2a`, `agents`, `audit`, `breaker`, `bus`, `commands`, `daemon`, `egress`, `guides`, `http`, `identity`, `invoke`, `ledger`, `mcp`, `memory`, `outbound`, `pins`, `pipelines`, `rest`, `results`, `schedule`, `script`, `store`, `subagents`, `telemetry`, `tools`, `toolsets`, `web`");
    insta::assert_snapshot!(problems("[tools.limits.'web_*']\ntimeot = '1s'"), @r#"a.toml:2:1: `tools.limits."web_*".timeot`: unknown key; did you mean `timeout`? expected one of `max_in_flight`, `timeout`"#);
    insta::assert_snapshot!(problems(&endpoint("efect = 'read-only'")), @"a.toml:5:1: `rest.endpoints[0].efect`: unknown key; did you mean `effect`? expected one of `auth`, `body`, `description`, `effect`, `headers`, `idempotency_header`, `max_response`, `method`, `name`, `parameters`, `timeout`, `url`");
}

#[test]
fn a_wrong_type_is_reported() {
    insta::assert_snapshot!(problems("[bus]\nurl = 5\nname = []\ntls = 'x'\n[tools]\necho = 'yes'"), @r#"
    a.toml:2:7: `bus.url`: found a number; expected a text, { env = "NAME" } or { file = "path" }, or a list
    a.toml:3:8: `bus.name`: found a list; expected a text
    a.toml:4:7: `bus.tls`: found a text; expected a table
    a.toml:6:8: `tools.echo`: found a text; expected true or false
    "#);
    insta::assert_snapshot!(problems("[invoke]\nmax_timeout = 60\nmax_in_flight = 1.5\ntopics = 'tool.invoke'"), @r#"
    a.toml:2:15: `invoke.max_timeout`: found a number; expected a text, such as "60s"
    a.toml:3:17: `invoke.max_in_flight`: found a number with a fraction; expected a whole number
    a.toml:4:10: `invoke.topics`: found a text; expected a list
    "#);
    insta::assert_snapshot!(problems("bus = true"), @"a.toml:1:7: `bus`: found a boolean; expected a table");
}

#[test]
fn a_date_and_a_number_out_of_range_are_reported() {
    insta::assert_snapshot!(problems("[invoke]\nmax_timeout = 1979-05-27\nmax_waiting = 99999999999999999999"), @r#"
    a.toml:2:15: `invoke.max_timeout`: found a date or an impossible number; expected a text, such as "60s"
    a.toml:3:15: `invoke.max_waiting`: found a date or an impossible number; expected a whole number
    "#);
}

#[test]
fn an_unknown_choice_is_reported_with_the_nearest() {
    insta::assert_snapshot!(problems("[bus]\nqueue_type = 'qourum'\n[telemetry]\nprotocol = 'http'\nlog = 'inof'"), @r#"
    a.toml:2:14: `bus.queue_type`: "qourum" is not known; did you mean "quorum"? expected one of "quorum", "classic"
    a.toml:4:12: `telemetry.protocol`: "http" is not known; expected one of "grpc", "http/protobuf"
    a.toml:5:7: `telemetry.log`: the log filter is not valid (`inof` is no level); use for example `info` or `info,toolbus_core=debug`; did you mean `info`?
    "#);
    insta::assert_snapshot!(problems("[daemon]\nroles = ['script']"), @r#"a.toml:2:10: `daemon.roles[0]`: "script" is not known; did you mean "scripts"? expected one of "invoke", "mcp", "scripts", "schedule""#);
}

#[test]
fn a_number_out_of_range_is_reported() {
    insta::assert_snapshot!(problems("[invoke]\nmax_in_flight = 0\nmax_waiting = -1"), @r#"
    a.toml:2:17: `invoke.max_in_flight`: 0 is too small; expected at least 1
    a.toml:3:15: `invoke.max_waiting`: -1 is too small; expected at least 0
    "#);
    insta::assert_snapshot!(problems("[invoke]\nmax_in_flight = 60000\nmax_waiting = 6000"), @"a.toml:3:15: `invoke.max_waiting`: max_in_flight + max_waiting is 66000; AMQP hands over at most 65535 messages at a time");
}

#[test]
fn a_call_that_may_outlast_the_brokers_timeout_is_reported_with_both_keys() {
    let broker = "[bus]\nurl = 'amqp://localhost'\n";
    insta::assert_snapshot!(problems(&format!("{broker}[invoke]\nmax_timeout = '30m'")), @"a.toml:4:15: `invoke.max_timeout`: max_timeout (30m) and 10 s for the answer are longer than bus.consumer_timeout (30m), after which RabbitMQ closes the channel and delivers every unfinished call again; expected a shorter max_timeout, or the broker's own `consumer_timeout` raised, and bus.consumer_timeout with it");
    insta::assert_snapshot!(problems(&format!("{broker}consumer_timeout = '2m'")), @"a.toml:3:20: `bus.consumer_timeout`: max_timeout (120s) and 10 s for the answer are longer than bus.consumer_timeout (120s), after which RabbitMQ closes the channel and delivers every unfinished call again; expected a shorter max_timeout, or the broker's own `consumer_timeout` raised, and bus.consumer_timeout with it");
    assert!(load(&[&format!("{broker}[invoke]\nmax_timeout = '1790s'")], &[], &[]).is_ok());
    assert!(load(&[&format!("{broker}consumer_timeout = '3h'\n[invoke]\nmax_timeout = '2h'")], &[], &[]).is_ok());
    assert!(load(&["[invoke]\nmax_timeout = '2h'"], &[], &[]).is_ok(), "the embedded bus has no such limit");
}

#[test]
fn an_unknown_unit_is_reported() {
    insta::assert_snapshot!(problems("[invoke]\nmax_timeout = '2mins'\nmax_body = '1MB'\ndrain_timeout = '0s'"), @r#"
    a.toml:2:15: `invoke.max_timeout`: unknown unit `mins`; did you mean `m`? expected a whole number and a unit (ms, s, m, h, d), such as "60s"
    a.toml:3:12: `invoke.max_body`: "1MB" is not a size; expected a whole number and a unit (B, KiB, MiB, GiB), such as "64KiB"
    a.toml:4:17: `invoke.drain_timeout`: "0s" is out of range; expected 1ms to 366d
    "#);
}

#[test]
fn replies_cannot_go_to_a_topic_of_requests() {
    insta::assert_snapshot!(problems("[bus]\nreply_topics = ['tool.result.#', 'tool.*']"), @"a.toml:2:16: `bus.reply_topics`: `tool.*` takes in requests (`tool.invoke`); an answer there would be read as a request");
    insta::assert_snapshot!(problems("[invoke]\ntopics = ['my.calls.#']\ndefault_reply_topic = 'my.calls.done'"), @"a.toml:3:23: `invoke.default_reply_topic`: `my.calls.done` is a topic of requests (`my.calls.#`); an answer there would be read as a request");
}

#[test]
fn an_address_to_listen_on_is_an_ip_and_a_port() {
    insta::assert_snapshot!(problems("[http]\nlisten = 'localhost:8471'"), @r#"a.toml:2:10: `http.listen`: "localhost:8471" is not an address; expected IP:PORT, such as "127.0.0.1:8471""#);
}

#[test]
fn names_on_the_broker_must_be_usable_and_ours() {
    insta::assert_snapshot!(problems("[bus]\nqueue_prefix = ''\nname = ''\nexchange = 'amq.topic'"), @r#"
    a.toml:2:16: `bus.queue_prefix`: empty; expected a name such as "toolbus"
    a.toml:3:8: `bus.name`: empty; expected a text of 1 to 255 bytes
    a.toml:4:12: `bus.exchange`: names that start with `amq.` belong to the broker; expected another name
    "#);
    insta::assert_snapshot!(problems("[bus]\nqueue_prefix = 'rockbot.x'\nexchange = 'x'\ndead_letter_exchange = 'x'"), @r#"
    a.toml:2:16: `bus.queue_prefix`: queues that start with `rockbot.` belong to others; expected a name such as "toolbus"
    a.toml:4:24: `bus.dead_letter_exchange`: the same as `bus.exchange`; dead letters would come back as requests: expected another name
    "#);
    insta::assert_snapshot!(problems("[bus]\nqueue_prefix = 'amq.x'\nreply_topics = ['a..b', 're*']"), @r#"
    a.toml:2:16: `bus.queue_prefix`: queues that start with `amq.` belong to others; expected a name such as "toolbus"
    a.toml:3:17: `bus.reply_topics[0]`: not a topic; expected words with dots between them, where `*` stands for one word and `#` for any number
    a.toml:3:25: `bus.reply_topics[1]`: not a topic; expected words with dots between them, where `*` stands for one word and `#` for any number
    "#);
    insta::assert_snapshot!(problems(&format!("[bus]\nname = '{}'", "x".repeat(256))), @"a.toml:2:8: `bus.name`: 256 bytes long; AMQP allows at most 255");
}

#[test]
fn certificates_must_be_there_and_belong_together() {
    insta::assert_snapshot!(problems("[bus.tls]\nca = '/nonexistent/ca.pem'\ncert = '/dev/null'"), @r#"
    a.toml:2:6: `bus.tls.ca`: the file cannot be read: No such file or directory (os error 2)
    a.toml:3:8: `bus.tls.cert`: needs `bus.tls.key`, the private key of this certificate
    a.toml:3:8: `bus.tls.cert`: the file holds no CERTIFICATE in PEM
    "#);
}

#[test]
fn a_store_that_this_build_lacks_is_refused() {
    insta::assert_snapshot!(problems("[store]\nurl = 'postgres://127.0.0.1/x'"), @r#"a.toml:2:7: `store.url`: no such store; expected "memory:", "sqlite:PATH", "redis://…" or "rediss://…""#);
    insta::assert_snapshot!(problems("[store]\nurl = 'redis://:hunter2@127.0.0.1:6379/x'"), @"a.toml:2:7: `store.url`: no number of a database after the host; expected for example `/0`; percent-encode `/`, `#`, `?`, `@`, `:` and `%` in user and password, such as `%2F` for `/`");
    insta::assert_snapshot!(problems("[store]\nurl = 'sqlite:'"), @r#"a.toml:2:7: `store.url`: no path of a file after `sqlite:`; expected for example "sqlite:toolbus.db" or "sqlite:/var/lib/toolbus/toolbus.db""#);
}

#[test]
fn the_key_of_audit_records_cannot_be_guessed() {
    insta::assert_snapshot!(problems("[audit]\nkey = 'short'\nfile = ''"), @"
    a.toml:2:7: `audit.key`: 5 bytes long, which can be guessed; expected at least 16 random ones
    a.toml:3:8: `audit.file`: empty; expected a text
    ");
}

#[test]
fn the_token_of_operators_cannot_be_guessed() {
    insta::assert_snapshot!(problems("[http]\nadmin_token = 'fifteen-letters'"), @"a.toml:2:15: `http.admin_token`: 15 bytes long, which can be guessed; expected at least 16 random ones");
    assert!(load(&["[http]\nadmin_token = 'sixteen--letters'"], &[], &[]).is_ok());
}

#[test]
fn an_endpoint_must_be_complete() {
    insta::assert_snapshot!(problems("[[rest.endpoints]]\nname = 'get'"), @r#"
    a.toml:1:1: `rest.endpoints[0]`: `description` is missing; expected a text
    a.toml:1:1: `rest.endpoints[0]`: `url` is missing; expected a text
    "#);
}

#[test]
fn two_tools_cannot_have_one_name() {
    insta::assert_snapshot!(problems(&(endpoint("") + "\n" + &endpoint(""))), @"a.toml:7:8: `rest.endpoints[1].name`: `get` is also the name of the endpoint at a.toml:2:8; expected a name of its own");
    insta::assert_snapshot!(problems(&endpoint("").replace("'get'", "'current_time'")), @"a.toml:2:8: `rest.endpoints[0].name`: `current_time` is also the name of a tool that the daemon brings along (see `tools`); expected a name of its own");
}

#[test]
fn parameters_must_be_a_json_schema_that_has_the_arguments_of_the_address() {
    insta::assert_snapshot!(problems(&endpoint("parameters = '{\"type\":'")), @"a.toml:5:14: `rest.endpoints[0].parameters`: `parameters` must be a JSON Schema object: EOF while parsing a value at line 1 column 8");
    insta::assert_snapshot!(problems(&endpoint("parameters = '{\"type\":\"object\",\"required\":5}'")), @r#"a.toml:5:14: `rest.endpoints[0].parameters`: `parameters` is not a usable JSON Schema: at `/required`: 5 is not of type "array""#);
    insta::assert_snapshot!(problems(&endpoint("").replace("host/", "host/{city}")), @"a.toml:4:7: `rest.endpoints[0].url`: the URL has a placeholder `{city}`, but `parameters` has no property of that name");
}

#[test]
fn an_argument_cannot_choose_the_host() {
    let reported = problems(&endpoint("").replace("http://host", "http://{host}"));
    assert!(reported.starts_with("a.toml:4:7: `rest.endpoints[0].url`: "), "{reported}");
    assert!(reported.contains("not in the host"), "{reported}");
}

#[test]
fn auth_must_be_of_a_known_kind_and_complete() {
    insta::assert_snapshot!(problems(&endpoint("auth = { type = 'bearr', token = 'x' }")), @r#"a.toml:5:17: `rest.endpoints[0].auth.type`: "bearr" is not known; did you mean "bearer"? expected one of "bearer", "api_key", "basic", "client_credentials""#);
    insta::assert_snapshot!(problems(&endpoint("auth = { token = 'x' }")), @r#"a.toml:5:8: `rest.endpoints[0].auth`: `type` is missing; expected one of "bearer", "api_key", "basic", "client_credentials""#);
    insta::assert_snapshot!(problems(&endpoint("auth = { type = 'api_key', kee = 'x' }")), @"a.toml:5:28: `rest.endpoints[0].auth.kee`: unknown key; did you mean `key`? expected one of `header`, `key`, `per_agent`, `type`");
    insta::assert_snapshot!(problems(&endpoint("auth = 'bearer'")), @"a.toml:5:8: `rest.endpoints[0].auth`: found a text; expected a table");
}

#[test]
fn an_unknown_search_engine_is_refused() {
    let engine = |lines: &str| problems(&format!("[[web.search]]\n{lines}"));
    insta::assert_snapshot!(engine("provider = 'brve'\nkey = 'x'"), @r#"a.toml:2:12: `web.search[0].provider`: "brve" is not known; did you mean "brave"? expected one of "brave", "searxng", "tavily", "json""#);
    insta::assert_snapshot!(engine("provider = 'Brave'"), @r#"a.toml:2:12: `web.search[0].provider`: "Brave" is not known; did you mean "brave"? expected one of "brave", "searxng", "tavily", "json""#);
    insta::assert_snapshot!(engine("key = 'x'"), @r#"a.toml:1:1: `web.search[0]`: `provider` is missing; expected one of "brave", "searxng", "tavily", "json""#);
    insta::assert_snapshot!(engine("provider = 'brave'\nurl = 'https://x.example'"), @"a.toml:1:1: `web.search[0]`: `key` is missing; expected a text, { env = \"NAME\" } or { file = \"path\" }");
}

#[test]
fn every_mistake_of_an_endpoint_is_reported() {
    let lines = "body = 'json'\nparameters = '['\nheaders = { Host = 'x' }\nauth = { type = 'basic', username = 'a:b', password = 'c' }";
    insta::assert_snapshot!(problems(&endpoint(lines)), @r#"
    a.toml:5:8: `rest.endpoints[0].body`: GET requests have no body; leave `body` out, or use POST, PUT, PATCH or DELETE
    a.toml:6:14: `rest.endpoints[0].parameters`: `parameters` must be a JSON Schema object: EOF while parsing a list at line 1 column 1
    a.toml:7:11: `rest.endpoints[0].headers`: header `host` is set by the daemon itself and cannot be configured
    a.toml:8:8: `rest.endpoints[0].auth`: the user name must not contain `:`
    "#);
}

#[test]
fn a_required_tool_must_be_configured() {
    insta::assert_snapshot!(problems("[tools]\nrequired = ['curent_time', 'convert_time']"), @"a.toml:2:13: `tools.required[0]`: no tool `curent_time` is configured, so the daemon would never be ready; did you mean `current_time`? expected one of `convert_time`, `current_time`");
}

#[test]
fn a_syntax_error_is_reported_with_its_line() {
    insta::assert_snapshot!(problems("[bus]\nname = 'x\nurl = 'y'"), @r#"
    a.toml:2:10: invalid literal string, expected `'`
      2 | name = '*
        |          ^
    "#);
    insta::assert_snapshot!(problems("[bus]\nname = 'x'\nname = 'y'"), @r#"
    a.toml:3:1: duplicate key
      3 | name = '*'
        | ^
    "#);
    insta::assert_snapshot!(problems("[bus\n"), @r#"
    a.toml:1:5: unclosed table, expected `]`
      1 | [bus
        |     ^
    "#);
}

#[test]
fn an_unreadable_file_is_reported() {
    let sources = Sources { files: vec!["/nonexistent/toolbus.toml".into()], ..Sources::default() };
    insta::assert_snapshot!(Config::load(&sources).unwrap_err(), @"/nonexistent/toolbus.toml: the file cannot be read: No such file or directory (os error 2)");
    let sources = Sources { files: vec!["/dev/zero".into()], ..Sources::default() };
    insta::assert_snapshot!(Config::load(&sources).unwrap_err(), @"/dev/zero: the file is larger than 16 MiB");
}

#[test]
fn all_mistakes_of_all_layers_are_reported_at_once() {
    let first = "[bus]\nulr = 'x'\nqueue_type = 5\n[invoke]\ndefault_timeout = '90s'\nmax_timeout = '60s'\n";
    let second = "[http]\nlisten = 'x'\n[tools]\nrequired = ['ecko']\n";
    let environment = [("TOOLBUS__INVOKE__MAX_BODY", "huge"), ("TOOLBUS__INVOKE__MAX_BDY", "1MiB")];
    let reported = load(&[first, second], &environment, &[("bus.name", "")]).unwrap_err();
    insta::assert_snapshot!(reported, @r#"
    environment TOOLBUS__INVOKE__MAX_BDY: `invoke.max_bdy`: unknown key in `invoke`; did you mean `max_body`? expected one of `default_reply_topic`, `default_timeout`, `drain_timeout`, `max_body`, `max_in_flight`, `max_timeout`, `max_waiting`, `topics`
    a.toml:2:1: `bus.ulr`: unknown key; did you mean `url`? expected one of `compat_queues`, `consumer_timeout`, `dead_letter_exchange`, `exchange`, `host`, `name`, `password`, `port`, `queue_prefix`, `queue_type`, `reply_topics`, `tls`, `url`, `user`, `vhost`
    a.toml:3:14: `bus.queue_type`: found a number; expected one of "quorum", "classic"
    a.toml:6:15: `invoke.max_timeout`: max_timeout (60s) is shorter than default_timeout (90s); expected it to be at least as long
    b.toml:2:10: `http.listen`: "x" is not an address; expected IP:PORT, such as "127.0.0.1:8471"
    b.toml:4:13: `tools.required[0]`: no tool `ecko` is configured, so the daemon would never be ready; expected one of `convert_time`, `current_time`
    environment TOOLBUS__INVOKE__MAX_BODY: `invoke.max_body`: "huge" is not a size; expected a whole number and a unit (B, KiB, MiB, GiB), such as "64KiB"
    command line --set bus.name: `bus.name`: empty; expected a text of 1 to 255 bytes
    "#);
}

#[test]
fn consequences_of_a_mistake_are_not_reported() {
    insta::assert_snapshot!(problems("[invoke]\ndefault_timeout = 'soon'\nmax_timeout = '10s'"), @r#"a.toml:2:19: `invoke.default_timeout`: "soon" is not a duration; expected a whole number and a unit (ms, s, m, h, d), such as "60s""#);
}

#[test]
fn an_endpoint_without_name_or_description_has_its_other_mistakes_reported_too() {
    let text = "[[rest.endpoints]]\nurl = 'ftp://host'\nbody = 'json'\nparameters = '{}'";
    insta::assert_snapshot!(problems(text), @r#"
    a.toml:1:1: `rest.endpoints[0]`: `name` is missing; expected a text
    a.toml:1:1: `rest.endpoints[0]`: `description` is missing; expected a text
    a.toml:2:7: `rest.endpoints[0].url`: the URL must start with `http://` or `https://`, followed by a host
    a.toml:3:8: `rest.endpoints[0].body`: GET requests have no body; leave `body` out, or use POST, PUT, PATCH or DELETE
    a.toml:4:14: `rest.endpoints[0].parameters`: `parameters` must have `"type": "object"`: arguments are an object
    "#);
}

#[test]
fn an_unknown_time_zone_is_reported() {
    insta::assert_snapshot!(problems("[schedule]\ntimezone = 'Berlin'"), @"a.toml:2:12: `schedule.timezone`: `Berlin` is no time zone; expected an IANA name such as `Europe/Berlin`, or `UTC`");
}

#[test]
fn room_for_large_results_has_room_for_one() {
    for (text, expected) in [
        ("max_size = '64MiB'\nmax_total_size = '32MiB'", "max_size (64MiB) is larger than max_total_size (32MiB)"),
        ("max_size = '600MiB'\nmax_total_size = '1GiB'", "a result has at most 512MiB, not 600MiB"),
    ] {
        let reported = problems(&format!("[results]\n{text}"));
        assert!(reported.contains(expected), "{reported}");
    }
}
