//! Environment of programs, from that of the daemon, and the file that a program's name leads to.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// The variable by which a program or script recognises a call that is run again.
pub const KEY_VARIABLE: &str = "TOOLBUS_IDEMPOTENCY_KEY";

/// Variables of the daemon that every program gets: where and in which language it runs. All else may be a secret.
const INHERITED: [&str; 10] =
    ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TERM", "TZ", "USER"];
/// Prefix of the names of further such variables.
const INHERITED_PREFIX: &str = "LC_";
/// Where programs are looked for without `PATH`.
const DEFAULT_PATH: &str = "/usr/bin:/bin";

/// Reason why a command leads to no program. The texts are for an operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// There is no such program.
    #[error("program '{0}' was not found; give its full path, or check PATH")]
    NotFound(String),
    /// The program may not be executed.
    #[error("program '{0}' cannot be executed; check its permissions")]
    NotExecutable(String),
}

/// The variables of the daemon that every program may have.
pub(crate) fn inherited(
    daemon: impl IntoIterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    daemon.into_iter().filter(|(name, _)| {
        name.to_str().is_some_and(|name| INHERITED.contains(&name) || name.starts_with(INHERITED_PREFIX))
    })
}

/// Finds the program that a command leads to, as `execvp` does in that folder with that environment. The path that it
/// returns is absolute if `cwd` is.
pub(crate) fn find(
    command: &str,
    cwd: &Path,
    environment: &BTreeMap<OsString, OsString>,
) -> Result<PathBuf, ProgramError> {
    let paths: Vec<PathBuf> = if command.is_empty() {
        Vec::new()
    } else if command.contains('/') {
        vec![cwd.join(command)]
    } else {
        let path = environment.get(OsStr::new("PATH")).map_or(OsStr::new(DEFAULT_PATH), OsString::as_os_str);
        std::env::split_paths(path).map(|folder| cwd.join(folder).join(command)).collect()
    };
    let is_executable = |file: &&PathBuf| access(file.as_path(), Access::EXEC_OK).is_ok();
    let files: Vec<PathBuf> = paths.into_iter().filter(|file| file.is_file()).collect();
    match (files.iter().find(is_executable), files.first()) {
        (Some(program), _) => Ok(program.clone()),
        (None, Some(_)) => Err(ProgramError::NotExecutable(command.to_owned())),
        (None, None) => Err(ProgramError::NotFound(command.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn a_program_gets_what_every_program_needs_and_nothing_else() {
        let daemon = [
            ("PATH", "/bin"),
            ("LC_ALL", "de_DE"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("TOOLBUS__BUS__URL", "amqp://u:p@h"),
            ("LD_PRELOAD", "/x.so"),
            ("PYTHONPATH", "/x"),
            ("path", "/"),
        ];
        let kept: BTreeMap<_, _> = inherited(variables(&daemon)).collect();
        assert_eq!(kept, variables(&[("LC_ALL", "de_DE"), ("PATH", "/bin")]));
    }

    #[test]
    fn a_program_is_found_as_execvp_would_find_it() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        for (directory, mode) in [(&first, 0o644), (&second, 0o755)] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("tool"), "").unwrap();
            fs::set_permissions(directory.join("tool"), fs::Permissions::from_mode(mode)).unwrap();
        }
        let found = |command: &str, path: &str| find(command, folder.path(), &variables(&[("PATH", path)]));

        let both = std::env::join_paths([&first, &second]).unwrap();
        assert_eq!(found("tool", both.to_str().unwrap()).unwrap(), second.join("tool"));
        assert_eq!(found("tool", "second").unwrap(), second.join("tool"));
        assert_eq!(found("./second/tool", "").unwrap(), folder.path().join("./second/tool"));
        assert_eq!(find("sh", folder.path(), &BTreeMap::new()).unwrap().file_name(), Some(OsStr::new("sh")));

        let refused = |command, path| found(command, path).unwrap_err().to_string();
        assert_eq!(refused("tool", "first"), "program 'tool' cannot be executed; check its permissions");
        assert_eq!(refused("tool", "third"), "program 'tool' was not found; give its full path, or check PATH");
        assert_eq!(refused("./second", ""), "program './second' was not found; give its full path, or check PATH");
        assert_eq!(refused("", "first"), "program '' was not found; give its full path, or check PATH");
    }
}
