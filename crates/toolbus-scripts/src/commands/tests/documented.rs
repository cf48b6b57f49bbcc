//! The command that the documentation shows.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::testing::{LEVELS, sandbox};

const PAGE: &str = include_str!("../../../../../docs/commands.md");

/// The settings on the page, with another folder.
fn shown(folder: &std::path::Path) -> CommandSettings {
    let text = PAGE.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let table: toml::Table = text.replace("/srv/notes", folder.to_str().unwrap()).parse().unwrap();
    let command = table["commands"][0].clone().try_into::<toml::Table>().unwrap();
    let keys: Vec<&str> = command.keys().map(String::as_str).collect();
    let known =
        ["allow_dash", "command", "cwd", "description", "effect", "name", "parameters", "success_codes", "timeout"];
    assert_eq!(keys, known, "every key is read below");
    assert_eq!((command["timeout"].as_str(), command["effect"].as_str()), (Some("10s"), Some("read-only")));
    let text = |key: &str| command[key].as_str().unwrap().to_owned();
    let list = |key: &str| command[key].clone().try_into::<Vec<String>>().unwrap();
    let success_codes = command["success_codes"].clone().try_into().unwrap();
    CommandSettings {
        success_codes,
        description: text("description"),
        parameters: Some(text("parameters")),
        cwd: Some(text("cwd").into()),
        allow_dash: list("allow_dash"),
        timeout: Some(Duration::from_secs(10)),
        effect: Effect::ReadOnly,
        ..CommandSettings::new(text("name"), list("command"))
    }
}

#[tokio::test]
async fn the_command_on_the_page_does_what_the_page_says() {
    for level in LEVELS {
        let sandbox = sandbox(level);
        let notes = tempfile::tempdir().unwrap();
        fs::set_permissions(notes.path(), Permissions::from_mode(0o755)).unwrap();
        fs::write(notes.path().join("a.txt"), "one\ntwo --one\nONE; $(id)\n").unwrap();
        let search = async |arguments: Value| {
            let output = run_in(&sandbox, shown(notes.path()), arguments).await.unwrap();
            (output.is_error, output.content.unwrap())
        };
        let found = |text: &str| (false, text.to_owned());
        assert_eq!(search(json!({"text": "--one"})).await, found("./a.txt:2:two --one"), "{level}");
        assert_eq!(search(json!({"text": "one", "most": 1})).await, found("./a.txt:1:one"), "{level}");
        assert_eq!(search(json!({"text": "; $(id)"})).await, found("./a.txt:3:ONE; $(id)"), "{level}");
        assert_eq!(search(json!({"text": "three"})).await, found("(no output)"), "{level}");
    }
}
