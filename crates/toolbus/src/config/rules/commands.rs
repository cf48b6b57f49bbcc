//! What a program that is a tool must be.

use serde::Deserialize;
use serde_json::{Map, Value};
use toolbus_config::KeyPath;
use toolbus_scripts::commands::{self, CommandError};

use super::{Checker, path};
use crate::config::commands::CommandConfig;

/// A program that is there wherever this one runs, also where there is no shell.
const STAND_IN: &str = "/proc/self/exe";

impl Checker<'_> {
    /// Lets the scripts crate look at every command, as far as that is in order by itself.
    pub(super) fn commands(&mut self) {
        let list = self.tree.get(&path("commands")).and_then(Value::as_array);
        for (index, command) in list.into_iter().flatten().enumerate() {
            let mut command = command.clone();
            let Some(members) = command.as_object_mut() else { continue };
            let here: KeyPath = path(&format!("commands.{index}"));
            // What is missing stands for the command as a whole; the rest of it is looked at all the same.
            self.wrong.retain(|wrong| *wrong != here);
            members.retain(|key, _| !self.wrong.iter().any(|w| w.starts_with(&here) && w.get(here.len()) == Some(key)));
            complete(members);
            // Each mistake is taken out, so that the next one is seen: at most one for every key.
            while let Ok(settings) = CommandConfig::deserialize(&command).map(|command| command.settings()) {
                let mistake = match commands::tool(settings, None) {
                    // Nothing runs here, so that nothing has to be kept in.
                    Ok(_) | Err(CommandError::NoSandbox) => break,
                    Err(mistake) => mistake,
                };
                let key = |name: &str| format!("commands.{index}.{name}");
                let related = match mistake.key() {
                    "command" => vec![key("command"), key("parameters")],
                    "allow_dash" => vec![key("allow_dash"), key("command")],
                    other => vec![key(other)],
                };
                let place = path(&key(mistake.key()));
                // What stands for a wrong key may be wrong itself, such as where there is no /proc.
                if self.wrong.contains(&place) {
                    break;
                }
                self.tell(&related.iter().map(String::as_str).collect::<Vec<_>>(), mistake.to_string());
                self.wrong.push(place);
                let Some(members) = command.as_object_mut() else { break };
                if members.remove(mistake.key()).is_none() {
                    break;
                }
                complete(members);
            }
        }
    }
}

/// Gives a command what it must have, so that the rest of it can be looked at.
fn complete(command: &mut Map<String, Value>) {
    for key in ["name", "description"] {
        command.entry(key).or_insert_with(|| Value::from("command"));
    }
    if !command.contains_key("command") {
        command.insert("command".to_owned(), Value::from(vec![STAND_IN]));
        // What its own arguments would have had is not told as unused.
        command.insert("stdin".to_owned(), Value::from("arguments"));
    }
}
