//! How interpreters are started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toolbus_sandbox::{Limits, Plan};

use crate::interpreter::Interpreter;
use crate::system;

/// What an interpreter runs first.
const BOOTSTRAP: &str = include_str!("bootstrap.py");
/// What a script may start besides, where it may start anything: what `PATH` leads to.
const PROGRAMS: [&str; 3] = ["/bin", "/usr/bin", "/etc/alternatives"];
/// The whole environment of a script, but for what names its own files.
const ENVIRONMENT: [(&str, &str); 2] = [("LANG", "C.UTF-8"), ("PATH", "/usr/local/bin:/usr/bin:/bin")];

/// Plans for interpreters that run one script each.
#[derive(Debug)]
pub(super) struct Plans {
    plan: Plan,
    imports: String,
}

impl Plans {
    /// For an interpreter that imports these modules before it waits warm.
    pub(super) fn new(interpreter: &Interpreter, limits: Limits, imports: &[String]) -> Self {
        let programs = system::existing(PROGRAMS.map(PathBuf::from));
        let env = ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let plan = Plan {
            program: interpreter.program.clone(),
            args: Vec::new(),
            env: BTreeMap::from(env),
            read: interpreter.read.iter().cloned().chain(programs).collect(),
            write: Vec::new(),
            network: false,
            metadata: false,
            waits: true,
            limits,
        };
        Self { plan, imports: imports.join(" ") }
    }

    /// One that waits for whatever script comes.
    pub(super) fn warm(&self) -> Plan {
        self.with(&self.imports, None)
    }

    /// One for a script that is there, with the folder of its packages.
    pub(super) fn cold(&self, packages: Option<&Path>) -> Plan {
        self.with("", packages)
    }

    fn with(&self, imports: &str, packages: Option<&Path>) -> Plan {
        let mut plan = self.plan.clone();
        let folder = packages.map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
        // Isolated, and without the packages of the machine: of which a script must not depend.
        plan.args = ["-I", "-S", "-c", BOOTSTRAP, imports, &folder].map(str::to_owned).to_vec();
        plan.read.extend(packages.map(PathBuf::from));
        plan
    }
}
