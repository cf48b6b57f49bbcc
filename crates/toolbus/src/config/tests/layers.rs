use std::time::Duration;

use super::*;

#[test]
fn without_any_source_the_defaults_hold() {
    assert_eq!(load(&[], &[], &[]).unwrap().config, Config::default());
    assert_eq!(load(&[""], &[], &[]).unwrap().config, Config::default());
}

#[test]
fn later_layers_win() {
    let first = "[bus]\nname = 'first'\nqueue_prefix = 'first'\nexchange = 'first'\n[invoke]\nmax_in_flight = 1";
    let second = "[bus]\nqueue_prefix = 'second'\nexchange = 'second'\n[invoke]\nmax_in_flight = 2";
    let environment = [("TOOLBUS__BUS__EXCHANGE", "third"), ("TOOLBUS__INVOKE__MAX_IN_FLIGHT", "3")];
    let config = load(&[first, second], &environment, &[("invoke.max_in_flight", "4")]).unwrap().config;
    let names = (&*config.bus.name, &*config.queue_prefix(), &*config.bus.exchange, config.invoke.max_in_flight);
    assert_eq!(names, ("first", "second", "third", 4));
    assert_eq!(config.bus.dead_letter_exchange, "rockbot.dlx");
}

#[test]
fn a_list_replaces_the_list_below_it() {
    let config =
        load(&["[bus]\nreply_topics = ['a.#']", "[bus]\nreply_topics = ['b.#', 'c']"], &[], &[]).unwrap().config;
    assert_eq!(config.bus.reply_topics, ["b.#", "c"]);
}

#[test]
fn the_environment_is_named_where_its_value_is_wrong() {
    let environment = [("TOOLBUS__INVOKE__MAX_IN_FLIGHT", "many"), ("TOOLBUS__HTTP__LISTEN", "here")];
    insta::assert_snapshot!(load(&[], &environment, &[]).unwrap_err(), @r#"
    environment TOOLBUS__HTTP__LISTEN: `http.listen`: "here" is not an address; expected IP:PORT, such as "127.0.0.1:8471"
    environment TOOLBUS__INVOKE__MAX_IN_FLIGHT: `invoke.max_in_flight`: found a text; expected a whole number
    "#);
}

#[test]
fn the_command_line_is_named_where_it_is_wrong() {
    insta::assert_snapshot!(load(&[], &[], &[("invoke.max_timout", "1s"), ("tools.echo", "yes")]).unwrap_err(), @r#"
    command line --set invoke.max_timout: `invoke.max_timout`: unknown key; did you mean `max_timeout`? expected one of `default_reply_topic`, `default_timeout`, `drain_timeout`, `max_body`, `max_in_flight`, `max_timeout`, `max_waiting`, `topics`
    command line --set tools.echo: `tools.echo`: found a text; expected true or false
    "#);
    let reported = load(&[], &[], &[("toools.echo", "true")]).unwrap_err();
    assert!(
        reported.starts_with("command line --set toools.echo: `toools`: unknown key; did you mean `tools`? "),
        "{reported}"
    );
}

#[test]
fn a_contradiction_is_reported_where_the_value_was_given() {
    let text = "[invoke]\ndefault_timeout = '90s'";
    let environment = [("TOOLBUS__INVOKE__MAX_TIMEOUT", "80s")];
    insta::assert_snapshot!(load(&[text], &environment, &[]).unwrap_err(), @"environment TOOLBUS__INVOKE__MAX_TIMEOUT: `invoke.max_timeout`: max_timeout (80s) is shorter than default_timeout (90s); expected it to be at least as long");
    insta::assert_snapshot!(load(&["[invoke]\ndefault_timeout = '300s'"], &[], &[]).unwrap_err(), @"a.toml:2:19: `invoke.default_timeout`: max_timeout (120s) is shorter than default_timeout (5m); expected it to be at least as long");
}

#[test]
fn a_cluster_of_brokers_is_a_list_in_any_layer() {
    let listed = r#"["amqp://one", "amqp://two"]"#;
    let url = |loaded: Result<Loaded, String>| loaded.unwrap().config.bus.url.to_string();
    assert_eq!(url(load(&[&format!("[bus]\nurl = {listed}")], &[], &[])), "amqp://one, amqp://two");
    assert_eq!(url(load(&[], &[("TOOLBUS__BUS__URL", listed)], &[])), "amqp://one, amqp://two");
    assert_eq!(url(load(&[], &[], &[("bus.url", "amqp://one")])), "amqp://one");
    assert_eq!(url(load(&["[bus]\nurl = 'embedded'"], &[], &[])), "embedded");
}

#[test]
fn probable_mistakes_are_warned_of() {
    let text = r#"
        [bus]
        url = ["amqp://guest:guest@broker", "amqp://guest:guest@localhost", "amqps://ana:secret-of-ana@broker"]
        [http]
        listen = "0.0.0.0:8471"
        [tools.limits.webb]
        timeout = "1s"
        [[rest.endpoints]]
        name = "weather"
        description = "Weather"
        url = "http://api.example/"
        auth = { type = "bearer", token = "secret-of-weather" }
        [[rest.endpoints]]
        name = "notes"
        description = "Notes"
        url = "http://api.example/"
        headers = { Accept = "application/json", X-Token = "secret-of-notes" }
        [[rest.endpoints]]
        name = "news"
        description = "News"
        url = "http://api.example/"
        headers = { Accept = "application/json" }
    "#;
    insta::assert_snapshot!(load(&[text], &[], &[]).unwrap().warnings.join("\n"), @r#"
    bus.url: amqp://broker is not on this machine and gets the credentials guest/guest, which brokers take from their own machine only; create a user for the daemon
    bus.url: credentials and calls travel to amqp://broker unencrypted; use amqps://
    http.listen: 0.0.0.0:8471 can be reached from other machines
    rest.endpoints: `weather` sends credentials unencrypted; use https://
    rest.endpoints: `notes` sends credentials unencrypted; use https://
    tools.limits: `webb` matches no tool
    "#);
    assert!(load(&["[bus]\nurl = 'amqp://guest:guest@127.0.0.1:5672'"], &[], &[]).unwrap().warnings.is_empty());
}

#[test]
fn a_variable_that_only_looks_like_a_key_is_warned_of() {
    let text = r#"
        [[rest.endpoints]]
        name = "weather"
        description = "Weather"
        url = "https://api.example/"
        auth = { type = "bearer", token = { env = "TOOLBUS_WEATHER" } }
    "#;
    let environment = [
        ("TOOLBUS_BUS_URL", "amqp://x"),
        ("TOOLBUS_COMMIT", "abc"),
        ("TOOLBUS_DOCS", "x"),
        ("TOOLBUS_FILES", "x"),
        ("TOOLBUS_NOTES", "x"),
        ("TOOLBUS_TOKEN", "x"),
        ("TOOLBUS_WEATHER", "secret-of-weather"),
        ("TOOLBUS", "x"),
    ];
    let servers = tempfile::NamedTempFile::new().unwrap();
    let arguments = r#"["${TOOLBUS_DOCS}", "${env:TOOLBUS_FILES}", "${TOOLBUS_NOTES:-none}"]"#;
    let server = format!(r#"{{"mcpServers": {{"files": {{"command": "x", "args": {arguments}}}}}}}"#);
    std::fs::write(servers.path(), server).unwrap();
    let text = &format!("mcp.servers_file = {:?}\n{text}", servers.path());
    insta::assert_snapshot!(load(&[text], &environment, &[]).unwrap().warnings.join("\n"), @"environment TOOLBUS_BUS_URL: not used; keys of the configuration are written TOOLBUS__SECTION__KEY");
}

#[test]
fn a_variable_that_cargo_gives_to_a_program_which_it_runs_is_not_warned_of() {
    let script = include_str!("../../../build.rs");
    let names: Vec<&str> =
        script.split("rustc-env=").skip(1).filter_map(|rest| rest.split_once('=').map(|(name, _)| name)).collect();
    assert!(names.contains(&"TOOLBUS_COMMIT"), "{names:?}");
    let environment: Vec<(&str, &str)> = names.into_iter().map(|name| (name, "x")).collect();
    assert_eq!(load(&[], &environment, &[]).unwrap().warnings, [""; 0]);
}

#[test]
fn the_override_that_is_shown_as_an_example_can_be_given() {
    let config = load(&[], &[], &[("invoke.drain_timeout", "10s")]).unwrap().config;
    assert_eq!(config.invoke.drain_timeout.get(), Duration::from_secs(10));
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for file in ["README.md", "docs/configuration.md", "config/toolbus.toml"] {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        assert!(text.contains("--set invoke.drain_timeout=10s"), "{file}");
    }
}
