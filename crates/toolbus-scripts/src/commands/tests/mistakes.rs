//! Settings that cannot work.

use toolbus_core::ParametersError;

use super::*;

const SCHEMA: &str =
    r#"{"type":"object","properties":{"text":{"type":"string"},"list":{"type":"array"},"map":{"type":"object"}}}"#;

/// A command that has every argument, on its standard input, changed.
fn refused(change: impl FnOnce(&mut CommandConfig)) -> CommandError {
    let mut settings = unconfined(&["echo", "{text}"]);
    (settings.parameters, settings.stdin) = (Some(SCHEMA.to_owned()), Stdin::Arguments);
    assert_eq!(tool(&settings, None).err(), None);
    change(&mut settings);
    tool(&settings, None).expect_err("a refusal")
}

fn command(elements: &[&str]) -> Vec<String> {
    elements.iter().map(|element| (*element).to_owned()).collect()
}

#[test]
fn every_mistake_is_refused_and_names_its_key() {
    type Row = (&'static str, fn(&mut CommandConfig), &'static str);
    let table: [Row; 21] = [
        ("name", |s| s.name = " ".to_owned(), "a command needs a name"),
        (
            "command",
            |s| s.command = command(&["no-such-program"]),
            "program 'no-such-program' was not found; give its full path, or check PATH",
        ),
        (
            "command",
            |s| s.command = command(&["/etc/passwd"]),
            "program '/etc/passwd' cannot be executed; check its permissions",
        ),
        (
            "command",
            |s| s.command = command(&["{text}"]),
            "the command has a placeholder in its program, which must be fixed",
        ),
        (
            "command",
            |s| s.command = command(&["echo", "{txt}"]),
            "the command has a placeholder `{txt}`, but `parameters` has no property of that name",
        ),
        (
            "command",
            |s| s.parameters = None,
            "the command has a placeholder `{text}`, but `parameters` has no property of that name",
        ),
        (
            "command",
            |s| s.command = command(&["echo", "{list}"]),
            "the command has a placeholder `{list}`, but its property is a list; write `{list...}`",
        ),
        (
            "command",
            |s| s.command = command(&["echo", "{text...}"]),
            "the command has a placeholder `{text...}`, but its property is no list; write `{text}`",
        ),
        (
            "command",
            |s| s.command = command(&["echo", "{map}"]),
            "the command has a placeholder `{map}`, but its property is an object, which is no argument",
        ),
        (
            "parameters",
            |s| s.stdin = Stdin::None,
            "`parameters` has a property `list`, but neither the command nor its standard input has it",
        ),
        (
            "parameters",
            |s| s.parameters = Some("[]".to_owned()),
            "`parameters` must be a JSON Schema object: expected a JSON object, found an array",
        ),
        (
            "parameters",
            |s| s.parameters = Some("{}".to_owned()),
            "`parameters` must have `\"type\": \"object\"`: arguments are an object",
        ),
        (
            "allow_dash",
            |s| s.allow_dash = command(&["list"]),
            "`allow_dash` has `list`, which is no placeholder of the command",
        ),
        ("cwd", |s| s.cwd = Some("/no/such/folder".into()), "'/no/such/folder' does not exist or is no folder"),
        ("cwd", |s| s.cwd = Some("/etc/passwd".into()), "'/etc/passwd' does not exist or is no folder"),
        ("read", |s| s.read = vec!["/".into()], "without the sandbox the command may use everything; leave `read` out"),
        (
            "write",
            |s| s.write = vec!["/".into()],
            "without the sandbox the command may use everything; leave `write` out",
        ),
        ("network", |s| s.network = true, "without the sandbox the command may use everything; leave `network` out"),
        (
            "env",
            |s| s.env = BTreeMap::from([("A=B".to_owned(), "x".into())]),
            "`A=B` cannot be set: neither a name with `=` nor a NUL character can",
        ),
        (
            "env",
            |s| s.env = BTreeMap::from([("A".to_owned(), "hunter2\0".into())]),
            "`A` cannot be set: neither a name with `=` nor a NUL character can",
        ),
        (
            "env",
            |s| {
                s.sandbox = true;
                s.env = BTreeMap::from([("HOME".to_owned(), "/root".into())]);
            },
            "`HOME` cannot be set: in the sandbox it leads to a folder of the command's own",
        ),
    ];
    for (key, change, text) in table {
        let error = refused(change);
        assert_eq!((error.key(), error.to_string().as_str()), (key, text));
    }
    let error =
        refused(|s| s.parameters = Some(r#"{"type":"object","properties":{"text":{"type":"strin"}}}"#.to_owned()));
    assert!(matches!(error, CommandError::Parameters(ParametersError::Schema(_))), "{error}");
}
