//! What an interpreter runs before a script: compiled once, because compiling it takes longer than most scripts.

use std::time::Duration;

use toolbus_sandbox::{Ending, Job, Plan, Sandbox};

/// What it is made of.
const SOURCE: &str = concat!(include_str!("bootstrap.py"), "\n\n", include_str!("run.py"));
/// The same for interpreters that fork.
const SOURCE_OF_FORKS: &str =
    concat!(include_str!("bootstrap.py"), "\n\n", include_str!("run.py"), "\n\n", include_str!("fork.py"));
/// Defines what the last argument has, or the one before it, which is the source, if another version of Python compiled the
/// last one; and runs it.
const LOAD: &str = "\
import marshal, sys
import _frozen_importlib_external as files
code, source = bytes.fromhex(sys.argv.pop()), sys.argv.pop()
magic = files.MAGIC_NUMBER
exec(marshal.loads(code[len(magic):]) if code.startswith(magic) else compile(source, '<string>', 'exec'))
del code, source, magic
";
const RUN: &str = "run(*wait_for_script())\n";
const RUN_IN_FORK: &str = "end(run, *wait_for_script())\n";
/// Variables that keep libraries from starting threads when they are imported. No script sees them.
pub(super) const ONE_THREAD: [&str; 4] =
    ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"];
/// Prints what a source becomes, after the number that changes with the form of compiled programs.
const COMPILE: &str = "\
import marshal, sys
import _frozen_importlib_external as files
code = compile(sys.argv[1], '<string>', 'exec')
sys.stdout.write((files.MAGIC_NUMBER + marshal.dumps(code)).hex())
";
/// Time to compile it.
const TIME: Duration = Duration::from_secs(10);

/// The program, as one version of Python compiles it.
#[derive(Debug, Default)]
pub(super) struct Bootstrap {
    /// Hexadecimal digits; empty if it could not be compiled.
    code: String,
}

impl Bootstrap {
    /// Has the interpreter of a plan compile it, in the sandbox. If that fails, each interpreter compiles it anew.
    pub(super) async fn compile(sandbox: &Sandbox, plan: &Plan) -> Self {
        let args = ["-I", "-S", "-c", COMPILE, SOURCE].map(str::to_owned).to_vec();
        let plan = Plan { args, waits: false, ..plan.clone() };
        let job = Job { time: TIME, cpu: TIME, ..Job::default() };
        let compiled = async {
            let outcome = sandbox.start(&plan).await.map_err(|error| error.to_string())?.run(job).await;
            let outcome = outcome.map_err(|error| error.to_string())?;
            match (outcome.ending, String::from_utf8(outcome.stdout.bytes.to_vec())) {
                (Ending::Exited(0), Ok(code)) if !outcome.stdout.is_cut => Ok(code),
                (ending, _) => Err(format!("{ending:?}: {}", String::from_utf8_lossy(&outcome.stderr.bytes).trim())),
            }
        };
        let code = compiled.await.unwrap_or_else(|error: String| {
            tracing::warn!(error, "what precedes a script could not be compiled; interpreters start slower");
            String::new()
        });
        Self { code }
    }

    /// The arguments of an interpreter that imports modules and waits for a script, which may use the packages in a folder.
    pub(super) fn args(&self, imports: &str, packages: &str) -> Vec<String> {
        // Isolated, and without the packages of the machine: of which a script must not depend.
        let load = format!("{LOAD}{RUN}");
        ["-I", "-S", "-c", &load, imports, packages, "", SOURCE, &self.code].map(str::to_owned).to_vec()
    }

    /// The arguments of one that imports modules and forks for each script.
    pub(super) fn args_of_template(imports: &str, packages: &str) -> Vec<String> {
        let load = format!("{LOAD}{RUN_IN_FORK}");
        let forks = ONE_THREAD.join(" ");
        ["-I", "-S", "-c", &load, imports, packages, &forks, SOURCE_OF_FORKS, ""].map(str::to_owned).to_vec()
    }
}
