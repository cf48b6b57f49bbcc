//! The command that the documentation shows.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use serde::Deserialize;

use super::*;
use crate::testing::{LEVELS, sandbox};

const PAGE: &str = include_str!("../../../../../docs/commands.md");

/// The command on the page, with another folder.
fn shown(folder: &std::path::Path) -> CommandConfig {
    #[derive(Deserialize)]
    struct Page {
        commands: [CommandConfig; 1],
    }

    let text = PAGE.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let Page { commands: [command] } = toml::from_str(&text.replace("/srv/notes", folder.to_str().unwrap())).unwrap();
    command
}

#[tokio::test]
async fn the_command_on_the_page_works_as_documented() {
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
