//! Files and programs of a configuration with which a daemon would not start.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::Access;
use rustix::io::Errno;
use toolbus_agents::Guides;
use toolbus_agents::a2a::{AgentDirectory, AgentsError};
use toolbus_config::{KeyPath, key_path};
use toolbus_core::Clock;
use toolbus_core::policy::EffectiveTools;
use toolbus_scripts::config::RunnerKind;
use toolbus_scripts::interpreter::Interpreter;
use toolbus_scripts::runner::language::LanguageRunner;
use toolbus_store::{Sqlite, StoreUrl};
use toolbus_trust::pins::Pins;

use crate::audit::AuditLog;
use crate::config::{Config, Problem, Sources};
use crate::families::script_section;

/// Every file, folder and program that a daemon with this configuration could not use. Nothing is created, written or run.
///
/// The daemon looks at them when it starts; other commands work without them, and may run on another machine. Files
/// that this user may not read are left out.
#[must_use]
pub fn unusable(config: &Config, sources: &Sources) -> Vec<Problem> {
    let mut found: Vec<(KeyPath, String)> = Vec::new();
    let mut report = |key: &[&str], what: String| found.push((key_path(key), what));
    if let Some(StoreUrl::Sqlite(file)) = &config.store.url
        && !is_of_another(file, Access::READ_OK | Access::WRITE_OK)
        && let Err(error) = Sqlite::check(file)
    {
        report(&["store", "url"], format!("the file `{}` cannot be used: {error}", file.display()));
    }
    if let Some(file) = config.pin_file(sources)
        && !is_of_another(&file, Access::READ_OK)
        && let Err(error) = Pins::check(&file, config.pin_levels().hold_anything())
    {
        report(&["pins", "file"], error.to_string());
    }
    if let Some(file) = &config.audit.file
        && !is_of_another(file, Access::READ_OK | Access::WRITE_OK)
        && let Err(error) = AuditLog::check(file)
    {
        report(&["audit", "file"], format!("the file `{}` cannot be used: {error}", file.display()));
    }
    if let Some(section) = &config.a2a
        && !section.agents_file.as_ref().is_some_and(|file| is_of_another(file, Access::READ_OK))
    {
        match AgentDirectory::new(section, &config.bus.name, Clock::SYSTEM) {
            Ok(_) => {}
            Err(AgentsError::File(file, what)) => {
                report(&["a2a", "agents_file"], format!("`{}` cannot be read: {what}", file.display()));
            }
            Err(AgentsError::Agent(name, what)) => report(&["a2a"], format!("agent `{name}`: {what}")),
            Err(AgentsError::Client(what)) => report(&["a2a"], format!("no HTTP client can be made: {what}")),
        }
    }
    if let Some(section) = &config.guides
        && !section.folder.as_ref().is_some_and(|folder| is_of_another(folder, Access::READ_OK))
        && let Err(error) = Guides::new(&[], section, Arc::new(|_: &EffectiveTools| Vec::new()))
    {
        report(&["guides", "folder"], format!("cannot be read: {error}"));
    }
    if let Some(section) = script_section(config).filter(|section| section.runner != RunnerKind::Kubernetes) {
        if let Err(error) = Interpreter::check(&section.python) {
            report(&["script", "python"], error.to_string());
        }
        for (name, language) in &section.languages {
            if let Err(error) = LanguageRunner::check(language) {
                report(&["script", "languages", name, error.key()], error.to_string());
            }
        }
    }
    Config::problems_at(sources, found)
}

/// Whether this user may not access a file, and so cannot check whether the daemon's user can.
pub(crate) fn is_of_another(file: &Path, access: Access) -> bool {
    rustix::fs::access(file, access) == Err(Errno::ACCESS)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_that_prevent_a_start_are_reported_at_their_keys() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("guides")).unwrap();
        fs::write(path("guides/a.md"), b"\xff\xfe").unwrap();
        fs::write(path("text.db"), "no database".repeat(20)).unwrap();
        fs::write(path("pins.json"), "{").unwrap();
        let problems_of = |text: &str| {
            let here = folder.path().display().to_string();
            fs::write(path("a.toml"), text.replace("HERE", &here)).unwrap();
            let sources = Sources { files: vec![path("a.toml")], ..Sources::default() };
            let config = Config::load(&sources).unwrap().config;
            let problems = unusable(&config, &sources);
            problems.iter().map(|problem| format!("{problem}\n").replace(&here, "HERE")).collect::<String>()
        };
        insta::assert_snapshot!(problems_of("store.url = 'sqlite:HERE/none/x.db'\naudit.file = 'HERE/none/x.log'\na2a.agents_file = 'HERE/none'\npins.file = 'HERE/pins.json'\nguides.folder = 'HERE/guides'\n[script]\npython = 'missing-python'\n[script.languages.bash]\ncommand = ['missing-bash']"), @"
        HERE/a.toml:1:13: `store.url`: the file `HERE/none/x.db` cannot be used: its folder does not exist; create it, for the daemon's user alone
        HERE/a.toml:2:14: `audit.file`: the file `HERE/none/x.log` cannot be used: its folder does not exist; create it, for the daemon's user alone
        HERE/a.toml:3:19: `a2a.agents_file`: `HERE/none` cannot be read: No such file or directory (os error 2)
        HERE/a.toml:4:13: `pins.file`: the pin file `HERE/pins.json` is broken: EOF while parsing an object at line 1 column 1; put back a copy of it, or, to pin everything as it is now, move it away
        HERE/a.toml:5:17: `guides.folder`: cannot be read: `HERE/guides/a.md`: stream did not contain valid UTF-8
        HERE/a.toml:7:10: `script.python`: program 'missing-python' was not found; give its full path, or check PATH
        HERE/a.toml:9:11: `script.languages.bash.command`: program 'missing-bash' was not found; give its full path, or check PATH
        ");
        insta::assert_snapshot!(problems_of("store.url = 'sqlite:HERE/text.db'\npins.file = 'HERE/none/pins.json'\n[pins.sources]\nrest = true"), @"
        HERE/a.toml:1:13: `store.url`: the file `HERE/text.db` cannot be used: it is not a database of SQLite; name another file
        HERE/a.toml:2:13: `pins.file`: the pin file `HERE/none/pins.json` cannot be written: its folder does not exist; create it, or set pins.file
        ");
        let usable = "store.url = 'sqlite:HERE/new.db'\naudit.file = 'HERE/new.log'\npins.file = 'HERE/new.json'\n\
                      pins.sources.rest = true";
        assert_eq!(problems_of(usable), "");
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["a.toml", "guides", "pins.json", "text.db"], "nothing is created");
    }
}
