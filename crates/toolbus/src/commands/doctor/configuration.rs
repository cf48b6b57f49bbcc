//! The configuration: the findings of `toolbus check`, and the permissions of the files.

use std::path::{Path, PathBuf};

use toolbus_config::read_text;

use super::{Finding, mode};
use crate::commands::check::{Checked, mere_warnings, of_servers};
use crate::commands::shell_word;
use crate::config::{Config, Problems, Sources};

const SUBJECT: &str = "configuration";
/// Password of the user with which brokers are installed, which is no secret.
const GUEST: &str = "guest";
/// Permission bits of others: to read, and to write.
const READABLE: u32 = 0o004;
const WRITABLE: u32 = 0o002;

/// Examines a configuration that can be read.
pub(super) fn examine(checked: &Checked, sources: &Sources) -> Vec<Finding> {
    let Checked { loaded, problems, .. } = checked;
    let servers = loaded.config.mcp_servers().problems;
    let problems: Vec<Finding> = [Problems(problems.clone()), of_servers(&servers)].iter().flat_map(mistakes).collect();
    let warnings = mere_warnings(loaded, &servers).map(|warning| Finding::warning(SUBJECT, warning));
    let files: Vec<String> = sources.files.iter().map(|file| format!("`{}`", file.display())).collect();
    let files = if files.is_empty() { "there is no file: defaults".to_owned() } else { files.join(", ") };
    let valid = problems.is_empty().then(|| Finding::ok(SUBJECT, format!("valid: {files}")));
    let rights = rights(&loaded.config, sources);
    valid.into_iter().chain(problems).chain(warnings).chain(rights).collect()
}

/// The mistakes of a configuration that cannot be used.
pub(super) fn mistakes(problems: &Problems) -> Vec<Finding> {
    problems.0.iter().map(|problem| Finding::problem(SUBJECT, problem.to_string())).collect()
}

/// Files that others may change, and those with secrets that others may read.
fn rights(config: &Config, sources: &Sources) -> Vec<Finding> {
    let files = sources.files.iter().chain(&config.mcp.servers_file);
    let files = files.map(|file| (file.clone(), holds_secret(file, config)));
    let secrets = Config::secret_files(sources).into_iter().map(|file| (file, true));
    let finding = |(file, is_secret): (PathBuf, bool)| {
        let (mode, name) = (mode(&file)?, shell_word(&file.display().to_string()));
        let shown = file.display();
        if mode & WRITABLE != 0 {
            let text = format!("everybody on this machine may change `{shown}`");
            return Some(Finding::problem(SUBJECT, text).mended_by(format!("chmod o-w {name}")));
        }
        (is_secret && mode & READABLE != 0).then(|| {
            let text = format!("everybody on this machine may read `{shown}`, which holds a secret");
            Finding::warning(SUBJECT, text).mended_by(format!("chmod o-r {name}"))
        })
    };
    files.chain(secrets).filter_map(finding).collect()
}

fn holds_secret(file: &Path, config: &Config) -> bool {
    let Ok(text) = read_text(file) else { return false };
    let is_in = |secret: &str| secret != GUEST && text.contains(secret);
    config.secrets().iter().any(|given| is_in(given.secret.expose()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::commands::doctor::Verdict;

    /// The findings of a file with this text and these rights, and of a secret file beside it that others may read.
    fn found(text: &str, mode: u32) -> Vec<(Verdict, String)> {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().display().to_string();
        let (file, secret) = (folder.path().join("a.toml"), folder.path().join("token"));
        fs::write(&secret, "a-long-random-token").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
        fs::write(&file, text.replace("HERE", &here)).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let sources = Sources { files: vec![file], ..Sources::default() };
        let checked = Checked::new(Config::load(&sources).unwrap(), &sources);
        let findings = examine(&checked, &sources).into_iter();
        findings.map(|it| (it.verdict, format!("{} {:?}", it.text, it.mend).replace(&here, "HERE"))).collect()
    }

    fn finding(verdict: Verdict, text: &str) -> (Verdict, String) {
        (verdict, text.to_owned())
    }

    #[test]
    fn a_file_without_secrets_may_be_readable_but_not_writable_by_others() {
        let valid = finding(Verdict::Ok, "valid: `HERE/a.toml` None");
        assert_eq!(found("tools.echo = true", 0o644), std::slice::from_ref(&valid));
        let writable = r#"everybody on this machine may change `HERE/a.toml` Some("chmod o-w HERE/a.toml")"#;
        assert_eq!(found("tools.echo = true", 0o666), [valid, finding(Verdict::Problem, writable)]);
    }

    #[test]
    fn a_secret_that_others_can_read_is_reported_in_the_configuration_and_in_its_own_file() {
        let in_file = "http.admin_token = 'another-long-random-token'";
        let read = |file: &str| {
            let text = format!("everybody on this machine may read `HERE/{file}`, which holds a secret");
            finding(Verdict::Warning, &format!("{text} Some(\"chmod o-r HERE/{file}\")"))
        };
        let valid = finding(Verdict::Ok, "valid: `HERE/a.toml` None");
        assert_eq!(found(in_file, 0o600), std::slice::from_ref(&valid));
        assert_eq!(found(in_file, 0o644), [valid.clone(), read("a.toml")]);
        assert_eq!(found("http.admin_token = { file = 'HERE/token' }", 0o644), [valid, read("token")]);
    }
}
