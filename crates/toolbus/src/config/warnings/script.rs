//! Scripts and commands that are hardly meant as they are.

use crate::config::script::{Require, Runner, SCRIPT_TOOL};
use crate::config::{Config, Role, ScriptConfig};

/// What is allowed and yet hardly meant, in words.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(script) = &config.script {
        warnings.extend(script.warnings(config));
    }
    for command in &config.commands {
        let name = &command.name;
        if command.timeout > config.invoke.max_timeout {
            warnings.push(format!(
                "commands: the timeout of `{name}`, {}, is longer than any call may take (invoke.max_timeout is {})",
                command.timeout, config.invoke.max_timeout
            ));
        }
    }
    warnings
}

impl ScriptConfig {
    fn warnings(&self, config: &Config) -> Vec<String> {
        let mut warnings = Vec::new();
        let longest_call = config.invoke.max_timeout;
        let times = [("timeout", Some(self.timeout)), ("max_timeout", self.max_timeout)];
        for (key, time) in times {
            if let Some(time) = time.filter(|time| *time > longest_call) {
                warnings.push(format!(
                    "script.{key}: {time} is longer than any call may take; raise invoke.max_timeout, which is {longest_call}"
                ));
            }
        }
        if !config.roles().contains(&Role::Scripts) {
            warnings.push("script: not used, because `daemon.roles` has no \"scripts\"".to_owned());
            if config.tools.required.iter().any(|name| name == SCRIPT_TOOL) {
                warnings.push(format!("tools.required: `{SCRIPT_TOOL}` is never there in this process"));
            }
        }
        match self.runner {
            Runner::Local => warnings.push(
                "script.runner: nothing keeps scripts in; whoever may call the tool can do all that the daemon can"
                    .to_owned(),
            ),
            Runner::Sandbox if self.sandbox.require == Require::LimitsOnly => warnings.push(
                "script.sandbox.require: \"limits-only\" lets scripts read every file that the daemon can read"
                    .to_owned(),
            ),
            Runner::Sandbox => {}
        }
        if self.packages.allow.iter().any(|name| name == "*") {
            warnings.push("script.packages.allow: lets scripts have any package that there is".to_owned());
        }
        warnings
    }
}
