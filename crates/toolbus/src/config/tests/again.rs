//! MCP servers of a file that is read again: a server with a mistake goes on with its previous definition.

use tempfile::TempDir;
use toolbus_mcp_client::spec::TransportSpec;

use super::*;

/// A configuration with a file of servers.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// Loads this configuration and this file of servers, for a process that runs with `running`.
    fn again(&self, toml: &str, json: &str, running: Option<&Config>) -> Loaded {
        let (toml_file, json_file) = (self.folder.path().join("a.toml"), self.folder.path().join("mcp.json"));
        std::fs::write(&json_file, json).unwrap();
        std::fs::write(&toml_file, format!("[mcp]\nservers_file = {json_file:?}\n{toml}")).unwrap();
        let sources = Sources { files: vec![toml_file], ..Sources::default() };
        let mut loaded = match running {
            Some(running) => Config::load_again(&sources, running),
            None => Config::load(&sources),
        }
        .unwrap();
        let here = format!("{}/", self.folder.path().display());
        loaded.warnings.iter_mut().for_each(|warning| *warning = warning.replace(&here, ""));
        loaded
    }
}

/// The servers with their commands, and the warnings.
fn reported(loaded: &Loaded) -> String {
    let line = |spec: &toolbus_mcp_client::spec::ServerSpec| match &spec.transport {
        TransportSpec::Stdio(program) => format!("{}: {}", spec.name, program.command),
        TransportSpec::Http(endpoint) => format!("{}: {}", spec.name, endpoint.url),
    };
    let mut lines: Vec<_> = loaded.config.mcp_servers().specs.iter().map(line).collect();
    lines.extend(loaded.warnings.iter().map(|warning| format!("warning: {warning}")));
    lines.join("\n")
}

const GOOD: &str = r#"{"mcpServers": {"Files": {"command": "x"}, "web": {"url": "http://h/"}}}"#;
const TYPO: &str =
    r#"{"mcpServers": {"files": {"command": "x", "toolTimeoutMs": "30s"}, "web": {"url": "http://h/"}}}"#;

#[test]
fn a_server_with_a_mistake_keeps_its_previous_definition_until_it_is_mended() {
    let files = Files::new();
    insta::assert_snapshot!(reported(&files.again("", TYPO, None)), @"
    web: http://h/
    warning: mcp.json:1:26: `files` is left out: `toolTimeoutMs`: expected a whole number of milliseconds from 1 to 31622400000
    ");
    let running = files.again("", GOOD, None).config;
    let kept = files.again("", TYPO, Some(&running));
    insta::assert_snapshot!(reported(&kept), @"
    web: http://h/
    Files: x
    warning: mcp.json:1:26: `files` goes on as it was: `toolTimeoutMs`: expected a whole number of milliseconds from 1 to 31622400000
    ");
    assert_eq!(kept.config.mcp_servers().specs.len(), running.mcp_servers().specs.len());
    assert_eq!(kept.config.digest(), running.digest(), "the same servers run");

    let still = files.again("", TYPO, Some(&kept.config));
    assert_eq!(still.config.mcp_servers(), kept.config.mcp_servers(), "no new warning");
    let unread = files.again("", "{", Some(&still.config));
    insta::assert_snapshot!(reported(&unread), @"
    web: http://h/
    Files: x
    warning: mcp.json:1:1: not JSON: EOF while parsing an object
    warning: mcp.json:1:26: `files` goes on as it was: `toolTimeoutMs`: expected a whole number of milliseconds from 1 to 31622400000
    ");
    let mended = r#"{"mcpServers": {"files": {"command": "y"}}}"#;
    insta::assert_snapshot!(reported(&files.again("", mended, Some(&unread.config))), @"files: y");
    let gone = r#"{"mcpServers": {"web": {"url": "http://h/"}}}"#;
    insta::assert_snapshot!(reported(&files.again("", gone, Some(&unread.config))), @"web: http://h/");
}

#[test]
fn a_disabled_server_with_a_mistake_is_left_out() {
    let files = Files::new();
    let running = files.again("", GOOD, None).config;
    let off = r#"{"mcpServers": {"files": {"command": "x", "toolTimeoutMs": "30s", "disabled": true}}}"#;
    insta::assert_snapshot!(reported(&files.again("", off, Some(&running))), @"warning: mcp.json:1:26: `files` is left out: `toolTimeoutMs`: expected a whole number of milliseconds from 1 to 31622400000");
}

#[test]
fn a_misplaced_placeholder_leaves_a_server_as_it_was() {
    let files = Files::new();
    let running = files.again("", GOOD, None).config;
    let misplaced = r#"{"mcpServers": {"files": {"command": "x", "args": ["{agent}"]}}}"#;
    insta::assert_snapshot!(reported(&files.again("", misplaced, Some(&running))), @r#"
    Files: x
    warning: mcp.json:1:26: `files` goes on as it was: `args` has `{agent}` or `{session}`, which have a value only in the server of a tool set of scope "session"
    "#);

    let set = "[toolsets.fs]\nkind = 'mcp'\nserver = 'files'\n";
    let in_sessions = files.again(&format!("{set}scope = 'session'"), misplaced, None).config;
    insta::assert_snapshot!(reported(&files.again(set, misplaced, Some(&in_sessions))), @r#"
    warning: toolsets.fs: no agent has this tool set
    warning: mcp.json:1:26: `files` is left out: `args` has `{agent}` or `{session}`, which have a value only in the server of a tool set of scope "session"
    warning: toolsets.fs: there is no MCP server `files` now
    "#);
}

#[test]
fn a_server_of_a_section_stays_despite_a_mistake_in_the_file() {
    let files = Files::new();
    let section = "[mcp.servers.files]\ncommand = 'section'";
    let running = files.again(section, TYPO, None).config;
    insta::assert_snapshot!(reported(&files.again(section, TYPO, Some(&running))), @"
    files: section
    web: http://h/
    warning: mcp.json:1:26: `files` is left out: `toolTimeoutMs`: expected a whole number of milliseconds from 1 to 31622400000
    ");
    insta::assert_snapshot!(reported(&files.again("", TYPO, Some(&running))), @"
    web: http://h/
    files: section
    warning: mcp.json:1:26: `files` goes on as it was: `toolTimeoutMs`: expected a whole number of milliseconds from 1 to 31622400000
    ");
}

#[test]
fn a_file_that_cannot_be_read_again_keeps_its_servers_and_an_empty_one_has_none() {
    let files = Files::new();
    let running = files.again("", GOOD, None).config;
    insta::assert_snapshot!(reported(&files.again("", "{", Some(&running))), @"
    Files: x
    web: http://h/
    warning: mcp.json:1:1: not JSON: EOF while parsing an object
    ");
    insta::assert_snapshot!(reported(&files.again("", r#"{"mcpServers": {}}"#, Some(&running))), @"");
}

#[test]
fn another_file_of_servers_waits_for_a_restart() {
    let (files, elsewhere) = (Files::new(), Files::new());
    let running = files.again("", GOOD, None).config;
    let next = elsewhere.again("", r#"{"mcpServers": {"other": {"command": "x"}}}"#, Some(&running));
    assert_eq!(next.config.mcp_servers().specs, running.mcp_servers().specs);
}

#[test]
fn a_path_of_sessions_that_agents_share_is_a_warning() {
    let files = Files::new();
    let set = "[agents.ana]\ntoolsets = ['fs']\n[identity]\nsource = 'broker'\nunknown = 'deny'\n\
               [toolsets.fs]\nkind = 'mcp'\nserver = 'files'\nscope = 'session'\n";
    let reported = |field: &str| {
        let json = format!(r#"{{"mcpServers": {{"files": {{"command": "x", {field}}}}}}}"#);
        files.again(set, &json, None).warnings.join("\n")
    };
    insta::assert_snapshot!(reported(r#""cwd": "{session}""#), @"mcp.json:1:26: `files`: `cwd` has a path with `{session}` and no `{agent}`: agents share it whose sessions have one name");
    insta::assert_snapshot!(reported(r#""args": ["--data", "data/{session}", "{agent}"]"#), @"mcp.json:1:26: `files`: `args` has a path with `{session}` and no `{agent}`: agents share it whose sessions have one name");
    insta::assert_snapshot!(reported(r#""env": {"DATA": "/srv/{session}"}"#), @"mcp.json:1:26: `files`: `env` has a path with `{session}` and no `{agent}`: agents share it whose sessions have one name");
    assert_eq!(reported(r#""cwd": "{agent}/{session}", "args": ["--agent={agent}", "--session={session}"]"#), "");
    let section = "[mcp.servers.files]\ncommand = 'x'\nroots = ['/srv/{session}']\n";
    insta::assert_snapshot!(warnings_of(&format!("{section}{set}")), @"mcp.servers.files: `roots` has a path with `{session}` and no `{agent}`: agents share it whose sessions have one name");
}

fn warnings_of(text: &str) -> String {
    load(&[text], &[], &[]).unwrap().warnings.join("\n")
}
