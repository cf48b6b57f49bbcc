//! The section `[pins]`, and the pins of single servers.

use toolbus_trust::pins::Level;

use super::*;

/// Where a daemon of the tests could keep pins.
const STATE: (&str, &str) = ("STATE_DIRECTORY", "/tmp");

/// A configuration with a file of servers of this text.
fn with_servers(json: &str, toml: &str) -> Loaded {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mcp.json");
    std::fs::write(&file, json).unwrap();
    load(&[&format!("mcp.servers_file = {file:?}\n{toml}")], &[STATE], &[]).unwrap()
}

const SECTIONS: &str = r#"
[pins]
sources = { "rest" = true, "mcp:*" = "strict" }

[mcp.servers.Files]
command = "x"
pin = true

[mcp.servers.git]
command = "x"
pin = false

[mcp.servers.web]
url = "http://127.0.0.1/"
"#;

#[test]
fn the_pin_of_a_server_precedes_patterns_in_sections_and_in_the_file() {
    let json = r#"{"mcpServers": {
        "a": {"command": "x", "Pin": true}, "b": {"command": "x", "pin": null}, "git": {"command": "x", "pin": true}
    }}"#;
    let sources = ["rest", "command", "mcp:Files", "mcp:git", "mcp:web", "mcp:a", "mcp:b"];
    let expected = [Level::Hold, Level::Record, Level::Hold, Level::Record, Level::Strict, Level::Hold, Level::Strict];
    let levels = with_servers(json, SECTIONS).config.pin_levels();
    assert_eq!(sources.map(|source| levels.of(source)), expected);
}

#[test]
fn a_pin_can_be_given_in_the_environment_and_on_the_command_line() {
    let server = "[mcp.servers.files]\ncommand = \"x\"\n";
    for (text, level) in [("true", Level::Hold), ("false", Level::Record), ("strict", Level::Strict)] {
        let by_variable = load(&[server], &[STATE, ("TOOLBUS__MCP__SERVERS__FILES__PIN", text)], &[]).unwrap();
        let by_option = load(&[server], &[STATE], &[("mcp.servers.files.pin", text)]).unwrap();
        for loaded in [by_variable, by_option] {
            assert_eq!(loaded.config.pin_levels().of("mcp:files"), level, "{text}");
        }
    }
}

#[test]
fn an_invalid_pin_is_reported_with_the_expected_values() {
    insta::assert_snapshot!(problems("[mcp.servers.a]\ncommand = 'x'\npin = 'yes'\n"), @r#"a.toml:3:7: `mcp.servers.a.pin`: "yes" is not known; expected true, false or "strict""#);
    insta::assert_snapshot!(problems("[pins]\nsources = { rest = 1 }\n"), @r#"a.toml:2:20: `pins.sources.rest`: found a number; expected true, false or "strict""#);
    let json = r#"{"mcpServers": {"a": {"command": "x", "pin": "yes"}}}"#;
    let reported = with_servers(json, "").warnings.join("\n");
    assert!(reported.ends_with(r#"`a` is left out: `pin`: expected true, false or "strict""#), "{reported}");
}

#[test]
fn a_server_that_keeps_its_previous_definition_stays_pinned() {
    let folder = tempfile::tempdir().unwrap();
    let (toml, json) = (folder.path().join("a.toml"), folder.path().join("mcp.json"));
    std::fs::write(&toml, format!("mcp.servers_file = {json:?}")).unwrap();
    let environment = [STATE].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let sources = Sources { files: vec![toml], environment, ..Sources::default() };
    let good = r#"{"mcpServers": {"a": {"command": "x", "pin": true}}}"#;
    std::fs::write(&json, good).unwrap();
    let running = Config::load(&sources).unwrap().config;
    for mistake in [good.replace("\"x\"", "7"), good.replace("true", "\"no\""), "{".to_owned()] {
        std::fs::write(&json, &mistake).unwrap();
        let next = Config::load_again(&sources, &running).unwrap().config;
        assert_eq!(next.pin_levels().of("mcp:a"), Level::Hold, "{mistake}");
    }
    std::fs::write(&json, good.replace("true", "false")).unwrap();
    let next = Config::load_again(&sources, &running).unwrap().config;
    assert_eq!(next.pin_levels().of("mcp:a"), Level::Record);
}

#[test]
fn pins_that_would_be_forgotten_by_accident_are_a_mistake() {
    let pinned = [("pins.sources.rest", "true")];
    for files in [&[][..], &["[daemon]\n"]] {
        let reported = load(files, &[], &pinned).unwrap_err();
        insta::allow_duplicates! {
            insta::assert_snapshot!(reported, @r#"configuration: `pins.file`: is missing, and the daemon keeps no state beside which pins could be; expected the path of a file that it may write, a store.url such as "sqlite:/var/lib/toolbus/toolbus.db", the variable STATE_DIRECTORY, or "none" to forget pins with the process"#);
        }
    }
    for file in ["none", "/tmp/p.json"] {
        assert!(load(&[], &[], &[pinned[0], ("pins.file", file)]).is_ok(), "{file}");
    }
    assert!(load(&[], &[], &[("pins.sources.rest", "false")]).is_ok());
    assert!(load(&["[store]\nurl = 'sqlite:toolbus.db'\n"], &[], &pinned).is_ok());
    assert!(load(&[], &[STATE], &pinned).is_ok());
}

#[test]
fn an_unknown_source_of_pins_is_warned_of() {
    let text = "[pins]\nsources = { time = true, tiem = true, 'mcp:management' = true, 'mcp:*' = true }\n";
    let loaded = load(&[text], &[STATE], &[]).unwrap();
    assert_eq!(loaded.warnings, ["pins.sources: `tiem` is no source of this configuration"]);
}
