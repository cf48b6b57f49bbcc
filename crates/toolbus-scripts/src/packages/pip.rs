//! One run of pip.

mod environment;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use rustix::process::geteuid;
use toolbus_core::secret::Secret;
use toolbus_sandbox::{Ending, Job, Limits, Outcome, Plan, Sandbox, Stop};

use super::PackageError;
use super::mask::Mask;
use super::store::{Workshop, key};
use super::tree;
use crate::interpreter::Interpreter;
use crate::requirement::Requirement;
use crate::unconfined::{self, Run};

/// Runs pip in this interpreter. A sandbox may not let it touch modes, times and attributes of files, which it can do without.
const START: &str = "\
import os, runpy, sys
def lenient(call, otherwise):
    def attempt(*args, **named):
        try:
            return call(*args, **named)
        except PermissionError:
            return otherwise
    return attempt
for name, otherwise in [('chmod', None), ('utime', None), ('listxattr', [])]:
    setattr(os, name, lenient(getattr(os, name), otherwise))
sys.argv[0] = 'pip'
runpy.run_module('pip', run_name='__main__', alter_sys=True)
";

/// What pip is told, but for the folder and the packages.
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
/// Bytes of what it says.
const OUTPUT: u64 = 1024 * 1024;

/// What all runs have in common.
pub(super) struct Pip {
    program: PathBuf,
    read: Vec<PathBuf>,
    environment: BTreeMap<OsString, OsString>,
    sandbox: Option<Sandbox>,
    max_size: u64,
    source: String,
    mask: Mask,
}

impl Pip {
    pub(super) fn new(
        interpreter: &Interpreter,
        sandbox: Option<&Sandbox>,
        index_url: Option<&Secret>,
        max_size: u64,
        daemon: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        let environment::Given { environment, read, source, secrets } =
            environment::of(interpreter, sandbox.is_some(), index_url, daemon);
        Self {
            program: interpreter.program.clone(),
            read,
            environment,
            sandbox: sandbox.cloned(),
            max_size,
            source: key(&source.iter().map(String::as_str).collect::<Vec<_>>()),
            mask: Mask::new(&secrets),
        }
    }

    /// Where packages come from: equal for equal places.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Installs packages into the target of a workshop.
    pub(super) async fn install(
        &self,
        packages: &[Requirement],
        workshop: &Workshop,
        time: Duration,
    ) -> Result<(), PackageError> {
        let target = workshop.target();
        let options = ["-I", "-c", START].into_iter().chain(OPTIONS).map(str::to_owned);
        let target_and_packages = [target.to_string_lossy().into_owned(), "--".to_owned()];
        let packages = packages.iter().map(|package| package.as_str().to_owned());
        let args: Vec<String> = options.chain(target_and_packages).chain(packages).collect();
        let outcome = match &self.sandbox {
            Some(sandbox) => self.run_confined(sandbox, args, target, time).await,
            None => self.run_unconfined(&args, workshop, time).await,
        };
        self.read(&outcome.map_err(PackageError::Unavailable)?, workshop, time)
    }

    async fn run_confined(
        &self,
        sandbox: &Sandbox,
        args: Vec<String>,
        target: PathBuf,
        time: Duration,
    ) -> Result<Outcome, String> {
        if geteuid().is_root() {
            // pip runs as another user then. Nobody else knows the name of the folder around it.
            fs::set_permissions(&target, Permissions::from_mode(0o777)).map_err(|error| error.to_string())?;
        }
        let text = |text: &OsString| text.to_string_lossy().into_owned();
        let plan = Plan {
            program: self.program.clone(),
            args,
            env: self.environment.iter().map(|(name, value)| (text(name), text(value))).collect(),
            read: self.read.clone(),
            write: vec![target],
            network: true,
            metadata: true,
            waits: false,
            limits: self.limits(),
        };
        let waiting = sandbox.start(&plan).await.map_err(|error| error.to_string())?;
        let job = Job { files: Vec::new(), stdin: Bytes::new(), time, cpu: time };
        waiting.run(job).await.map_err(|error| error.to_string())
    }

    async fn run_unconfined(&self, args: &[String], workshop: &Workshop, time: Duration) -> Result<Outcome, String> {
        let tmp = workshop.tmp();
        let mut env = self.environment.clone();
        env.insert("TMPDIR".into(), tmp.clone().into_os_string());
        let (program, cwd, stdin) = (&self.program, Some(tmp.as_path()), Bytes::new());
        let run = unconfined::run(Run { program, args, env: &env, cwd, stdin, time, output: OUTPUT });
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

    fn read(&self, outcome: &Outcome, workshop: &Workshop, time: Duration) -> Result<(), PackageError> {
        let own = |text: String| PackageError::Failed { exit_code: -1, stderr: text };
        match outcome.ending {
            Ending::Exited(0) => Ok(()),
            Ending::Exited(exit_code) => Err(PackageError::Failed { exit_code, stderr: self.said(outcome, workshop) }),
            Ending::Signalled(signal) => Err(own(format!("pip was ended by signal {signal}"))),
            Ending::Stopped(Stop::Time) => Err(PackageError::TimedOut { seconds: time.as_secs() }),
            Ending::Stopped(Stop::Disk) => Err(self.too_large()),
            Ending::Stopped(stop) => Err(own(format!("pip was ended: it used too much ({})", stop.as_str()))),
        }
    }

    /// What pip said about its failure, as a caller may read it.
    fn said(&self, outcome: &Outcome, workshop: &Workshop) -> String {
        let said = [&outcome.stderr, &outcome.stdout].map(|stream| String::from_utf8_lossy(&stream.bytes));
        let said = said.iter().map(|text| text.trim()).find(|text| !text.is_empty()).unwrap_or_default();
        let installed = self.program.ancestors().nth(2).unwrap_or(&self.program);
        self.mask.hide(said, &[&workshop.target(), &workshop.tmp(), &self.program, installed])
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
