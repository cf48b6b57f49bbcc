//! The folder in which a daemon keeps its state where nothing names another.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::fs::{Access, access};

/// Variable that a service manager sets to the folders of a service's state, with `:` between them.
pub(super) const STATE_DIRECTORY: &str = "STATE_DIRECTORY";
/// Folder of the packages' service.
const SYSTEM: &str = "/var/lib/toolbus";
/// Folder below that of a user's state (XDG Base Directory Specification).
const NAME: &str = "toolbus";
/// Name of the store's file.
const FILE: &str = "toolbus.db";
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// The first folder that the service manager gives.
pub(super) fn of_service(environment: &BTreeMap<String, String>) -> Option<&Path> {
    environment.get(STATE_DIRECTORY)?.split(':').find(|folder| !folder.is_empty()).map(Path::new)
}

/// The file of a daemon with this name and this prefix of its queues, in the first folder that it may write: two daemons of
/// one user have two. Nothing is created.
pub(super) fn store_file(environment: &BTreeMap<String, String>, name: &str, prefix: &str) -> Option<PathBuf> {
    let set = |variable: &str| environment.get(variable).filter(|value| value.starts_with('/')).map(Path::new);
    let user = || Some(set("HOME")?.join(".local/state"));
    let user = set("XDG_STATE_HOME").map(Path::to_owned).or_else(user).map(|folder| folder.join(NAME));
    let folders = [
        of_service(environment).map(Path::to_owned),
        Some(SYSTEM.into()).filter(|system: &PathBuf| system.is_dir()),
        user,
    ];
    let folder = folders.into_iter().flatten().find(|folder| is_writable(folder))?;
    let own = format!("{}.{}", utf8_percent_encode(name, ENCODED), utf8_percent_encode(prefix, ENCODED));
    Some(folder.join(own).join(FILE))
}

/// Whether files can be made in a folder, which may have to be made itself.
fn is_writable(folder: &Path) -> bool {
    let existing = folder.ancestors().find(|folder| folder.exists());
    existing.is_some_and(|folder| folder.is_dir() && access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_in_the_folder_of_the_service_manager_or_the_user_by_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().display().to_string();
        let file = |variables: &[(&str, &str)], name: &str| {
            let environment = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            let file = store_file(&environment, name, "prefix")?;
            Some(file.display().to_string().replace(&home, "HOME"))
        };
        let found = |variables: &[(&str, &str)]| file(variables, "name").unwrap_or_default();
        let state = format!("{home}:/elsewhere");
        assert_eq!(found(&[("STATE_DIRECTORY", &state), ("HOME", "/x")]), "HOME/name.prefix/toolbus.db");
        assert_eq!(found(&[("HOME", &home)]), "HOME/.local/state/toolbus/name.prefix/toolbus.db");
        let xdg = format!("{home}/xdg");
        assert_eq!(found(&[("HOME", "/x"), ("XDG_STATE_HOME", &xdg)]), "HOME/xdg/toolbus/name.prefix/toolbus.db");
        assert_eq!(found(&[("HOME", &home), ("XDG_STATE_HOME", "relative")]), found(&[("HOME", &home)]));
        let file_of_another = format!("{home}/file");
        std::fs::write(&file_of_another, "").unwrap();
        assert_eq!(found(&[("XDG_STATE_HOME", &file_of_another)]), "", "a file is no folder");
        assert_eq!(found(&[]), "");
        let strange = file(&[("HOME", &home)], "../a b").unwrap();
        assert_eq!(strange, "HOME/.local/state/toolbus/..%2Fa%20b.prefix/toolbus.db");
    }
}
