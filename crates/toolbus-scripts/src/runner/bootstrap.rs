//! What an interpreter runs before a script: compiled once, because compiling it takes longer than most scripts.

use std::time::Duration;

use toolbus_sandbox::{Ending, Job, Plan, Sandbox};

/// What it is made of.
const SOURCE: &str = concat!(include_str!("bootstrap.py"), "\n\n", include_str!("run.py"));
/// The same for interpreters that fork.
const SOURCE_OF_FORKS: &str =
    concat!(include_str!("bootstrap.py"), "\n\n", include_str!("run.py"), "\n\n", include_str!("fork.py"));
/// Defines what [`CODE`] has, or [`SOURCE_TEXT`] if another version of Python compiled that; and runs it. They are variables
/// because Python converts each argument several times.
const LOAD: &str = "\
import marshal, posix, sys
import _frozen_importlib_external as files
code, source = [posix.environ.pop(name) for name in (b'TOOLBUS_CODE', b'TOOLBUS_SOURCE')]
posix.unsetenv(b'TOOLBUS_CODE')
posix.unsetenv(b'TOOLBUS_SOURCE')
code, magic = bytes.fromhex(code.decode()), files.MAGIC_NUMBER
exec(marshal.loads(code[len(magic):]) if code.startswith(magic) else compile(source, '<string>', 'exec'))
del code, source, magic
end(run, *wait_for_script())
";
/// Names the compiled program for [`LOAD`].
const CODE: &str = "TOOLBUS_CODE";
/// Names its source.
const SOURCE_TEXT: &str = "TOOLBUS_SOURCE";
/// Variables that keep libraries from starting threads when they are imported. No script sees them.
const ONE_THREAD: [&str; 4] = ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"];
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

    /// Has an interpreter import modules and wait for a script, which may use the packages in a folder.
    pub(super) fn prepare(&self, plan: &mut Plan, imports: &str, packages: &str) {
        load(plan, [imports, packages, ""], SOURCE, &self.code);
    }

    /// Has an interpreter import modules and fork for each script.
    pub(super) fn prepare_template(plan: &mut Plan, imports: &str, packages: &str) {
        load(plan, [imports, packages, &ONE_THREAD.join(" ")], SOURCE_OF_FORKS, "");
        plan.env.extend(ONE_THREAD.map(|name| (name.to_owned(), "1".to_owned())));
    }
}

fn load(plan: &mut Plan, args: [&str; 3], source: &str, code: &str) {
    // Isolated, and without the packages of the machine: of which a script must not depend.
    plan.args = ["-I", "-S", "-c", LOAD].into_iter().chain(args).map(str::to_owned).collect();
    plan.env.extend([(CODE, code), (SOURCE_TEXT, source)].map(|(name, value)| (name.to_owned(), value.to_owned())));
}
