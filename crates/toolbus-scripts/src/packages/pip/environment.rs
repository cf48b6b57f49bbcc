//! Where pip finds packages: what it gets of the daemon's environment, and what it must be able to read.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use toolbus_core::secret::Secret;

use crate::environment;
use crate::interpreter::Interpreter;
use crate::system;

/// What says where packages are.
const INDEX: [&str; 2] = ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"];
/// What else concerns pip alone: how it reaches an index, and other places that it looks in.
const PIP: [&str; 9] = [
    "PIP_CERT",
    "PIP_CLIENT_CERT",
    "PIP_CONFIG_FILE",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "PIP_PROXY",
    "PIP_RETRIES",
    "PIP_TRUSTED_HOST",
];
/// How the network is reached, whatever the case of letters.
const NETWORK: [&str; 4] = ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"];
/// Which authorities are trusted.
const AUTHORITIES: [&str; 4] = ["CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"];
/// Variables that the sandbox sets itself.
const OF_THE_SANDBOX: [&str; 2] = ["HOME", "TMPDIR"];

/// Files that pip is configured by for all users, and those of one user, below the home folder.
const OF_ALL: [&str; 2] = ["/etc/pip.conf", "/etc/xdg/pip/pip.conf"];
const OF_ONE: [&str; 2] = [".config/pip/pip.conf", ".pip/pip.conf"];

/// What says which system this is: pip tells the index, and fails where it cannot read what it sees.
const SYSTEM: [&str; 3] = ["/etc/debian_version", "/etc/lsb-release", "/etc/os-release"];

/// What pip is given.
pub(super) struct Given {
    pub(super) environment: BTreeMap<OsString, OsString>,
    pub(super) read: Vec<PathBuf>,
    /// What says where packages are.
    pub(super) source: Vec<String>,
    /// Texts with credentials in them.
    pub(super) secrets: Vec<String>,
}

pub(super) fn of(
    interpreter: &Interpreter,
    is_confined: bool,
    index_url: Option<&Secret>,
    daemon: impl IntoIterator<Item = (OsString, OsString)>,
) -> Given {
    let daemon: BTreeMap<OsString, OsString> = daemon.into_iter().collect();
    let value = |name: &str| daemon.get(&OsString::from(name)).and_then(|value| value.to_str());
    let home = value("HOME").map(PathBuf::from);

    let is_own = |name: &str| {
        let upper = name.to_ascii_uppercase();
        PIP.contains(&name)
            || AUTHORITIES.contains(&name)
            || NETWORK.contains(&&*upper)
            || (index_url.is_none() && INDEX.contains(&name))
    };
    let own = daemon.iter().filter(|(name, _)| name.to_str().is_some_and(is_own));
    let mut environment: BTreeMap<OsString, OsString> =
        own.map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut secrets: Vec<String> = environment.values().filter_map(|value| value.to_str()).map(str::to_owned).collect();
    if let Some(url) = index_url {
        environment.insert("PIP_INDEX_URL".into(), url.expose().into());
        secrets.push(url.expose().to_owned());
    }
    let source = INDEX.iter().chain(&PIP).filter_map(|name| environment.get(&OsString::from(name)));
    let source = source.map(|value| value.to_string_lossy().into_owned()).collect();

    // In the sandbox the home folder is another, so pip has to be told where that of the daemon's user has its file.
    let of_one = home.iter().flat_map(|home| OF_ONE.map(|file| home.join(file))).find(|file| file.is_file());
    if let (true, Some(file)) = (is_confined, &of_one) {
        environment.entry("PIP_CONFIG_FILE".into()).or_insert_with(|| file.clone().into_os_string());
    }
    let installed = interpreter.program.ancestors().nth(2).map(|prefix| prefix.join("pip.conf"));
    let named = environment.values().filter_map(|value| value.to_str()).flat_map(str::split_whitespace);
    let named: Vec<PathBuf> = named.filter(|value| value.starts_with('/')).map(PathBuf::from).collect();
    let files = OF_ALL
        .iter()
        .chain(&system::NETWORK)
        .chain(&SYSTEM)
        .map(PathBuf::from)
        .chain(installed)
        .chain(of_one)
        .chain(named);
    let read = system::existing(files.chain(interpreter.read.iter().cloned()).filter(|path| path != Path::new("/")));

    let is_kept = |name: &OsString| !(is_confined && OF_THE_SANDBOX.iter().any(|own| name == own));
    let inherited = environment::inherited(daemon).filter(|(name, _)| is_kept(name));
    let environment = inherited.chain(environment).collect();
    Given { environment, read, source, secrets }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn given(index_url: Option<&str>, is_confined: bool, daemon: &[(&str, &str)]) -> Given {
        let interpreter = Interpreter {
            program: "/usr/bin/python3".into(),
            read: vec!["/usr/lib".into()],
            version: "3.11.7".to_owned(),
            abi: "x".to_owned(),
        };
        let daemon = daemon.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        of(&interpreter, is_confined, index_url.map(Secret::new).as_ref(), daemon)
    }

    fn shown(given: &Given) -> Vec<String> {
        let show = |(name, value): (&OsString, &OsString)| format!("{}={}", name.display(), value.display());
        given.environment.iter().map(show).collect()
    }

    const DAEMON: [(&str, &str); 7] = [
        ("PATH", "/bin"),
        ("HOME", "/no/such/home"),
        ("PIP_INDEX_URL", "https://u:hunter2@index.example/"),
        ("PIP_EXTRA_INDEX_URL", "https://extra.example/"),
        ("https_proxy", "http://proxy.example:3128"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("PIP_TARGET", "/"),
    ];

    #[test]
    fn pip_gets_what_says_where_packages_are_and_nothing_else() {
        insta::assert_snapshot!(shown(&given(None, true, &DAEMON)).join("\n"), @"
        PATH=/bin
        PIP_EXTRA_INDEX_URL=https://extra.example/
        PIP_INDEX_URL=https://u:hunter2@index.example/
        https_proxy=http://proxy.example:3128
        ");
    }

    #[test]
    fn an_index_that_is_configured_is_the_only_one() {
        let given = given(Some("https://own.example/"), false, &DAEMON);
        insta::assert_snapshot!(shown(&given).join("\n"), @"
        HOME=/no/such/home
        PATH=/bin
        PIP_INDEX_URL=https://own.example/
        https_proxy=http://proxy.example:3128
        ");
        assert_eq!(given.source, ["https://own.example/"]);
    }

    #[test]
    fn pip_reads_its_files_and_those_that_variables_name() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        for file in [".config/pip/pip.conf", "ca.pem", "private"] {
            fs::create_dir_all(home.join(file).parent().unwrap()).unwrap();
            fs::write(home.join(file), "").unwrap();
        }
        let (at, ca) = (home.to_str().unwrap(), home.join("ca.pem"));
        let given = given(None, true, &[("HOME", at), ("PIP_CERT", ca.to_str().unwrap()), ("PIP_FIND_LINKS", "/")]);
        let own: Vec<_> = given.read.iter().filter(|path| path.starts_with(&home)).collect();
        assert_eq!(own, [&home.join(".config/pip/pip.conf"), &ca]);
        assert!(given.read.contains(&"/usr/lib".into()) && !given.read.contains(&"/".into()), "{:?}", given.read);
        let file = given.environment.get(&OsString::from("PIP_CONFIG_FILE")).unwrap();
        assert_eq!(Path::new(file), home.join(".config/pip/pip.conf"));
    }
}
