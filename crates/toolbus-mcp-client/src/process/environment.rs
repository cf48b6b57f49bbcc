//! The environment of a server, and the program that it leads to.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::SpawnError;
use crate::spec::Program;

/// Variables of the daemon that a server gets: those that the MCP SDKs pass, and those that say where and in which
/// language it runs. Everything else may be a secret of the daemon's.
const INHERITED: [&str; 11] =
    ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TERM", "TMPDIR", "TZ", "USER"];
/// What the names of further such variables begin with.
const INHERITED_PREFIX: &str = "LC_";
/// Where programs are looked for without `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The whole environment of a program, out of the daemon's and its own.
pub(super) fn of(
    program: &Program,
    daemon: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeMap<OsString, OsString> {
    let is_inherited = |name: &str| INHERITED.contains(&name) || name.starts_with(INHERITED_PREFIX);
    daemon
        .filter(|(name, _)| name.to_str().is_some_and(is_inherited))
        .chain(program.env.iter().map(|(name, value)| (name.into(), value.expose().into())))
        .collect()
}

/// Finds the program that a command leads to, as `execvp` does in that directory with that `PATH`.
pub(super) fn find(command: &str, cwd: &Path, path: Option<&OsStr>) -> Result<PathBuf, SpawnError> {
    let places: Vec<PathBuf> = if command.is_empty() {
        Vec::new()
    } else if command.contains('/') {
        vec![cwd.join(command)]
    } else {
        let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
        std::env::split_paths(path).map(|directory| cwd.join(directory).join(command)).collect()
    };
    let is_executable = |place: &&PathBuf| access(place.as_path(), Access::EXEC_OK).is_ok();
    let files: Vec<PathBuf> = places.into_iter().filter(|place| place.is_file()).collect();
    match (files.iter().find(is_executable), files.first()) {
        (Some(program), _) => Ok(program.clone()),
        (None, Some(_)) => Err(SpawnError::NotExecutable(command.to_owned())),
        (None, None) => Err(SpawnError::NotFound(command.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn a_server_gets_what_every_program_needs_and_what_is_configured_and_nothing_else() {
        let program = Program {
            command: "x".to_owned(),
            args: Vec::new(),
            env: BTreeMap::from([("TOKEN".to_owned(), "hunter2".into()), ("LANG".to_owned(), "C".into())]),
            cwd: None,
            roots: Vec::new(),
        };
        let daemon = variables(&[
            ("PATH", "/bin"),
            ("LC_ALL", "de_DE"),
            ("LANG", "de_DE"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("TOOLBUS_BUS__URL", "amqp://u:p@h"),
            ("LD_PRELOAD", "/x.so"),
            ("path", "/"),
        ]);
        assert_eq!(
            of(&program, daemon.into_iter()),
            variables(&[("LANG", "C"), ("LC_ALL", "de_DE"), ("PATH", "/bin"), ("TOKEN", "hunter2")])
                .into_iter()
                .collect()
        );
    }

    #[test]
    fn a_program_is_found_as_execvp_would_find_it() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("first"), directory.path().join("second"));
        for (place, mode) in [(&first, 0o644), (&second, 0o755)] {
            fs::create_dir(place).unwrap();
            fs::write(place.join("tool"), "").unwrap();
            fs::set_permissions(place.join("tool"), fs::Permissions::from_mode(mode)).unwrap();
        }
        let found = |command: &str, path: &str| find(command, directory.path(), Some(path.as_ref()));

        let both = std::env::join_paths([&first, &second]).unwrap();
        assert_eq!(found("tool", both.to_str().unwrap()).unwrap(), second.join("tool"));
        assert_eq!(found("tool", "second").unwrap(), second.join("tool"));
        assert_eq!(found("./second/tool", "").unwrap(), directory.path().join("./second/tool"));
        assert_eq!(found(second.join("tool").to_str().unwrap(), "").unwrap(), second.join("tool"));

        let refused = |command, path| found(command, path).unwrap_err().to_string();
        assert_eq!(refused("tool", "first"), "program 'tool' cannot be executed; check its permissions");
        assert_eq!(refused("tool", "third"), "program 'tool' was not found; give its full path, or check PATH");
        assert_eq!(refused("./second", ""), "program './second' was not found; give its full path, or check PATH");
        assert_eq!(refused("", "first"), "program '' was not found; give its full path, or check PATH");
    }
}
