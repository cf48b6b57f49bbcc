//! One run of pip.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use percent_encoding::percent_decode_str;
use rustix::process::geteuid;
use toolbus_core::secret::Secret;
use toolbus_sandbox::{Ending, Job, Limits, Outcome, Plan, Sandbox, Stop};

use super::mask::CredentialMask;
use super::store::{BuildFolder, key};
use super::{PackageError, tree};
use crate::interpreter::Interpreter;
use crate::requirement::Requirement;
use crate::unconfined::{self, UnconfinedRun};
use crate::{environment, system};

/// Runs pip in this interpreter. A sandbox may not let it touch modes, times and attributes of files, which it can do
/// without. A package may name an address for one that it requires, which anything might be at: pip follows it, and has
/// no option.
const START: &str = "\
import os, runpy, sys
from pip._internal.exceptions import InstallationError
from pip._internal.req import constructors
def lenient(call, otherwise):
    def attempt(*args, **named):
        try:
            return call(*args, **named)
        except PermissionError:
            return otherwise
    return attempt
for name, otherwise in [('chmod', None), ('utime', None), ('listxattr', [])]:
    setattr(os, name, lenient(getattr(os, name), otherwise))
required = constructors.install_req_from_req_string
def of_the_index(text, comes_from=None, *args, **named):
    made = required(text, comes_from, *args, **named)
    if getattr(made.req, 'url', None):
        whose = getattr(comes_from, 'name', comes_from)
        raise InstallationError(f'{whose} requires {made.name} from an address. Packages come from the index alone.')
    return made
constructors.install_req_from_req_string = of_the_index
sys.argv[0] = 'pip'
runpy.run_module('pip', run_name='__main__', alter_sys=True)
";

/// Arguments of pip, without the folder and the packages.
const OPTIONS: [&str; 9] = [
    "install",
    // Building a package would run what its author wrote.
    "--only-binary",
    ":all:",
    "--no-input",
    "--disable-pip-version-check",
    "--no-cache-dir",
    "--progress-bar",
    "off",
    "--target",
];

/// Resident memory of pip, in bytes.
const MEMORY: u64 = 1024 * 1024 * 1024;
/// Most bytes of pip's output that are kept.
const OUTPUT: u64 = 1024 * 1024;

/// Settings that all runs have in common.
pub(super) struct Pip {
    program: PathBuf,
    read: Vec<PathBuf>,
    environment: BTreeMap<OsString, OsString>,
    sandbox: Option<Sandbox>,
    max_size: u64,
    source: String,
    mask: CredentialMask,
}

impl Pip {
    pub(super) fn new(
        interpreter: &Interpreter,
        sandbox: Option<&Sandbox>,
        index_url: Option<&Secret>,
        max_size: u64,
        daemon: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        let PipEnvironment { environment, read, source, secrets } =
            of(interpreter, sandbox.is_some(), index_url, daemon);
        Self {
            program: interpreter.program.clone(),
            read,
            environment,
            sandbox: sandbox.cloned(),
            max_size,
            source: key(&source.iter().map(String::as_str).collect::<Vec<_>>()),
            mask: CredentialMask::new(&secrets),
        }
    }

    /// Sources of packages, equal for equal sources.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Installs packages into the target of a workshop.
    pub(super) async fn install(
        &self,
        packages: &[Requirement],
        build: &BuildFolder,
        time: Duration,
    ) -> Result<(), PackageError> {
        let target = build.target();
        let options = ["-I", "-c", START].into_iter().chain(OPTIONS).map(str::to_owned);
        let target_and_packages = [target.to_string_lossy().into_owned(), "--".to_owned()];
        let packages = packages.iter().map(|package| package.as_str().to_owned());
        let args: Vec<String> = options.chain(target_and_packages).chain(packages).collect();
        let outcome = match &self.sandbox {
            Some(sandbox) => self.run_confined(sandbox, args, target, time).await,
            None => self.run_unconfined(&args, build, time).await,
        };
        self.read(&outcome.map_err(PackageError::Unavailable)?, build, time)
    }

    async fn run_confined(
        &self,
        sandbox: &Sandbox,
        args: Vec<String>,
        target: PathBuf,
        time: Duration,
    ) -> Result<Outcome, String> {
        if geteuid().is_root() {
            // pip runs as another user then. The folder around it has a name that other users cannot list.
            fs::set_permissions(&target, Permissions::from_mode(0o777)).map_err(|error| error.to_string())?;
        }
        let text = |text: &OsString| text.to_string_lossy().into_owned();
        let plan = Plan {
            program: self.program.clone(),
            args,
            env: self.environment.iter().map(|(name, value)| (text(name), text(value))).collect(),
            stdin: Bytes::new(),
            read: self.read.clone(),
            write: vec![target],
            network: true,
            metadata: true,
            waits: false,
            forks: false,
            owner: None,
            limits: self.limits(),
        };
        let waiting = sandbox.start(&plan).await.map_err(|error| error.to_string())?;
        let job = Job { time, cpu: time, ..Job::default() };
        waiting.run(job).await.map_err(|error| error.to_string())
    }

    async fn run_unconfined(&self, args: &[String], build: &BuildFolder, time: Duration) -> Result<Outcome, String> {
        let tmp = build.tmp();
        let mut env = self.environment.clone();
        env.insert("TMPDIR".into(), tmp.clone().into_os_string());
        let (program, cwd, stdin) = (&self.program, Some(tmp.as_path()), Bytes::new());
        let run = unconfined::run(UnconfinedRun {
            program,
            args,
            env: &env,
            cwd,
            stdin,
            time,
            output: OUTPUT,
            watcher: None,
        });
        run.await.map_err(|error| format!("cannot start '{}': {error}", program.display()))
    }

    const fn limits(&self) -> Limits {
        Limits {
            memory: MEMORY,
            // What is downloaded is there beside what is unpacked.
            disk: self.max_size.saturating_mul(2),
            files: 200_000,
            file_size: self.max_size,
            open_files: 1024,
            processes: 64,
            output: OUTPUT,
            artifacts: 0,
        }
    }

    fn read(&self, outcome: &Outcome, build: &BuildFolder, time: Duration) -> Result<(), PackageError> {
        let own = |text: String| PackageError::Failed { exit_code: -1, stderr: text };
        match outcome.ending {
            Ending::Exited(0) => Ok(()),
            Ending::Exited(exit_code) => {
                Err(PackageError::Failed { exit_code, stderr: self.failure_text(outcome, build) })
            }
            Ending::Signalled(signal) => Err(own(format!("pip was ended by signal {signal}"))),
            Ending::Stopped(Stop::Time) => Err(PackageError::TimedOut { seconds: time.as_secs() }),
            Ending::Stopped(Stop::Disk) => Err(self.too_large()),
            Ending::Stopped(stop) => Err(own(format!("pip was ended: it used too much ({})", stop.as_str()))),
        }
    }

    /// pip's message about its failure, without credentials and internal paths.
    fn failure_text(&self, outcome: &Outcome, build: &BuildFolder) -> String {
        let streams = [&outcome.stderr, &outcome.stdout].map(|stream| String::from_utf8_lossy(&stream.bytes));
        let text = streams.iter().map(|text| text.trim()).find(|text| !text.is_empty()).unwrap_or_default();
        let installed = self.program.ancestors().nth(2).unwrap_or(&self.program);
        let text = self.mask.hide(text, &[&build.target(), &build.tmp(), &self.program, installed]);
        if text.contains(NOT_FOUND) { format!("{text}\n{WHEELS_ONLY}") } else { text }
    }

    /// Refuses packages that are too large.
    pub(super) fn check_size(&self, bytes: u64) -> Result<(), PackageError> {
        if bytes > self.max_size { Err(self.too_large()) } else { Ok(()) }
    }

    fn too_large(&self) -> PackageError {
        let stderr = format!("the packages are larger than {} MiB; ask for fewer or smaller ones", self.max_size >> 20);
        PackageError::Failed { exit_code: -1, stderr }
    }
}

/// Makes what pip installed read-only, and returns how many bytes it is and each package with its version.
pub(super) fn installed(target: &Path) -> io::Result<(u64, Vec<String>)> {
    let bytes = tree::seal(target)?;
    let mut packages = Vec::new();
    for entry in fs::read_dir(target)? {
        let name = entry?.file_name();
        let described = name.to_str().and_then(|name| name.strip_suffix(".dist-info")?.rsplit_once('-'));
        packages.extend(described.map(|(name, version)| format!("{}=={version}", name.to_ascii_lowercase())));
    }
    packages.sort();
    if packages.is_empty() { Err(io::Error::other("pip installed nothing")) } else { Ok((bytes, packages)) }
}

/// Words of pip for a package, or a version, that the index does not have as a wheel.
const NOT_FOUND: &str = "No matching distribution found";
/// Sentence that the daemon adds then.
const WHEELS_ONLY: &str = "Only wheels can be installed, and no package or version that exists as source alone.";
/// Keeps pip from reading any file of its own configuration.
const NO_FILES: &str = "/dev/null";
/// Scheme of a folder of wheels, which is used instead of an index.
const FOLDER: &str = "file://";
/// Scheme of an index without TLS, which pip uses only if it is named.
const WITHOUT_TLS: &str = "http://";
/// Variables for proxies, compared without case.
const NETWORK: [&str; 4] = ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"];
/// Which authorities are trusted.
const AUTHORITIES: [&str; 4] = ["CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"];
/// Variables that the sandbox sets itself.
const OF_THE_SANDBOX: [&str; 2] = ["HOME", "TMPDIR"];

/// Files that name the system: pip sends the name to the index, and fails if it cannot read them.
const SYSTEM: [&str; 3] = ["/etc/debian_version", "/etc/lsb-release", "/etc/os-release"];

/// Environment and arguments of pip.
struct PipEnvironment {
    environment: BTreeMap<OsString, OsString>,
    read: Vec<PathBuf>,
    /// Arguments that name the source of packages.
    source: Vec<String>,
    /// Texts with credentials in them.
    secrets: Vec<String>,
}

/// pip takes the highest version of all sources that it knows, so an attacker who can add to a second one would choose
/// the package. So there is one source, and nothing of pip's own configuration, which may name others.
fn of(
    interpreter: &Interpreter,
    is_confined: bool,
    index_url: Option<&Secret>,
    daemon: impl IntoIterator<Item = (OsString, OsString)>,
) -> PipEnvironment {
    let daemon: BTreeMap<OsString, OsString> = daemon.into_iter().collect();
    let reaches_index = |name: &str| AUTHORITIES.contains(&name) || NETWORK.contains(&&*name.to_ascii_uppercase());
    let own = daemon.iter().filter(|(name, _)| name.to_str().is_some_and(reaches_index));
    let mut environment: BTreeMap<OsString, OsString> =
        own.map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut secrets: Vec<String> = environment.values().filter_map(|value| value.to_str()).map(str::to_owned).collect();
    let named = environment.values().filter_map(|value| value.to_str()).filter(|value| value.starts_with('/'));
    let mut named: Vec<PathBuf> = named.map(PathBuf::from).collect();

    environment.insert("PIP_CONFIG_FILE".into(), NO_FILES.into());
    let index = index_url.map(Secret::expose);
    if let Some(url) = index {
        secrets.push(url.to_owned());
        if let Some(folder) = url.strip_prefix(FOLDER) {
            environment.insert("PIP_NO_INDEX".into(), "1".into());
            environment.insert("PIP_FIND_LINKS".into(), url.into());
            named.push(percent_decode_str(folder).decode_utf8_lossy().into_owned().into());
        } else {
            environment.insert("PIP_INDEX_URL".into(), url.into());
        }
        let host = url.strip_prefix(WITHOUT_TLS).and_then(|rest| rest.split(['/', '?', '#']).next());
        let host = host.and_then(|host| host.rsplit('@').next());
        environment.extend(host.map(|host| ("PIP_TRUSTED_HOST".into(), host.into())));
    }
    let source = index.map(str::to_owned).into_iter().collect();

    let files = system::NETWORK.iter().chain(&SYSTEM).map(PathBuf::from).chain(named);
    let read = system::existing(files.chain(interpreter.read.iter().cloned()).filter(|path| path != Path::new("/")));

    let is_kept = |name: &OsString| !(is_confined && OF_THE_SANDBOX.iter().any(|own| name == own));
    let inherited = environment::inherited(daemon).filter(|(name, _)| is_kept(name));
    let environment = inherited.chain(environment).collect();
    PipEnvironment { environment, read, source, secrets }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn given(index_url: Option<&str>, is_confined: bool, daemon: &[(&str, &str)]) -> PipEnvironment {
        let interpreter = Interpreter {
            program: "/usr/bin/python3".into(),
            read: vec!["/usr/lib".into()],
            version: "3.11.7".to_owned(),
            abi: "x".to_owned(),
        };
        let daemon = daemon.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        of(&interpreter, is_confined, index_url.map(Secret::new).as_ref(), daemon)
    }

    fn shown(given: &PipEnvironment) -> Vec<String> {
        let show = |(name, value): (&OsString, &OsString)| format!("{}={}", name.display(), value.display());
        given.environment.iter().map(show).collect()
    }

    const DAEMON: [(&str, &str); 12] = [
        ("PATH", "/bin"),
        ("HOME", "/no/such/home"),
        ("PIP_INDEX_URL", "https://u:hunter2@index.example/"),
        ("PIP_EXTRA_INDEX_URL", "https://extra.example/"),
        ("PIP_FIND_LINKS", "/usr/share"),
        ("PIP_NO_INDEX", "1"),
        ("PIP_CONFIG_FILE", "/etc/passwd"),
        ("PIP_TRUSTED_HOST", "extra.example"),
        ("PIP_PROXY", "http://other.example:3128"),
        ("https_proxy", "http://proxy.example:3128"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("PIP_TARGET", "/"),
    ];

    /// A home folder in which pip is configured, and the variables of a daemon that has it.
    fn configured(home: &Path) -> Vec<(&'static str, String)> {
        for file in [".config/pip/pip.conf", ".pip/pip.conf"] {
            fs::create_dir_all(home.join(file).parent().unwrap()).unwrap();
            fs::write(home.join(file), "[global]\nextra-index-url = https://other.example/\n").unwrap();
        }
        let others =
            DAEMON.iter().filter(|(name, _)| *name != "HOME").map(|(name, value)| (*name, (*value).to_owned()));
        others.chain([("HOME", home.to_str().unwrap().to_owned())]).collect()
    }

    #[test]
    fn an_index_that_is_configured_is_the_only_one() {
        let home = tempfile::tempdir().unwrap();
        let daemon = configured(home.path());
        let daemon: Vec<(&str, &str)> = daemon.iter().map(|(name, value)| (*name, &**value)).collect();
        let of = |index: Option<&str>, is_confined| {
            let mut given = given(index, is_confined, &daemon);
            given.environment.remove(&OsString::from("HOME"));
            assert_eq!(given.source, index.into_iter().collect::<Vec<_>>());
            let is_pips =
                |path: &&PathBuf| path.ends_with("pip.conf") || path.ends_with("share") || path.ends_with("passwd");
            assert_eq!(given.read.iter().find(is_pips), None);
            shown(&given).join("\n")
        };
        for is_confined in [true, false] {
            insta::allow_duplicates!(insta::assert_snapshot!(of(Some("https://own.example/"), is_confined), @"
            PATH=/bin
            PIP_CONFIG_FILE=/dev/null
            PIP_INDEX_URL=https://own.example/
            https_proxy=http://proxy.example:3128
            "));
            // The one that pip uses by itself.
            insta::allow_duplicates!(insta::assert_snapshot!(of(None, is_confined), @"
            PATH=/bin
            PIP_CONFIG_FILE=/dev/null
            https_proxy=http://proxy.example:3128
            "));
            insta::allow_duplicates!(
                insta::assert_snapshot!(of(Some("http://u:p@own.example:8080/simple"), is_confined), @"
            PATH=/bin
            PIP_CONFIG_FILE=/dev/null
            PIP_INDEX_URL=http://u:p@own.example:8080/simple
            PIP_TRUSTED_HOST=own.example:8080
            https_proxy=http://proxy.example:3128
            ")
            );
        }
    }

    #[test]
    fn a_folder_of_wheels_replaces_the_index() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        fs::create_dir(home.join("my wheels")).unwrap();
        let url = format!("file://{}/my%20wheels", home.display());
        let given = given(Some(&url), true, &[]);
        let expected =
            ["PIP_CONFIG_FILE=/dev/null".to_owned(), format!("PIP_FIND_LINKS={url}"), "PIP_NO_INDEX=1".to_owned()];
        assert_eq!(shown(&given), expected);
        assert!(given.read.contains(&home.join("my wheels")), "{:?}", given.read);
    }

    #[test]
    fn pip_reads_files_that_variables_for_certificates_name_and_no_others_of_the_daemons_user() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        for file in [".config/pip/pip.conf", "ca.pem", "private"] {
            fs::create_dir_all(home.join(file).parent().unwrap()).unwrap();
            fs::write(home.join(file), "").unwrap();
        }
        let (at, ca) = (home.to_str().unwrap(), home.join("ca.pem"));
        let daemon = [("HOME", at), ("REQUESTS_CA_BUNDLE", ca.to_str().unwrap()), ("SSL_CERT_DIR", "/")];
        let given = given(None, true, &daemon);
        let own: Vec<_> = given.read.iter().filter(|path| path.starts_with(&home)).collect();
        assert_eq!(own, [&ca]);
        assert!(given.read.contains(&"/usr/lib".into()) && !given.read.contains(&"/".into()), "{:?}", given.read);
    }
}
