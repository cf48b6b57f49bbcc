//! Code that an interpreter runs before a script: compiled once, because compiling it takes longer than most scripts.

use std::time::Duration;

use toolbus_sandbox::{Ending, Job, Plan, Sandbox};

/// Source of the bootstrap.
const SOURCE: &str = concat!(include_str!("bootstrap.py"), "\n\n", include_str!("run.py"));
/// The same for interpreters that fork.
const SOURCE_OF_FORKS: &str =
    concat!(include_str!("bootstrap.py"), "\n\n", include_str!("run.py"), "\n\n", include_str!("fork.py"));
/// Defines what the compiled program has, or its source if another version of Python compiled that; and runs it. They are
/// the standard input, which is empty afterwards: arguments and variables are copied and converted several times.
const LOAD: &str = "\
import marshal, posix, sys
import _frozen_importlib_external as files
length = int.from_bytes(posix.pread(0, 4, 0), 'little')
if posix.pread(0, 4, 4) == files.MAGIC_NUMBER:
    code = marshal.loads(posix.pread(0, length - 4, 8))
else:
    code = compile(posix.pread(0, 1 << 20, 4 + length), '<string>', 'exec')
nothing = posix.open('/dev/null', 0)
posix.dup2(nothing, 0)
posix.close(nothing)
exec(code)
del length, code, nothing
end(run, *prepare())
";
/// Variables that keep libraries from starting threads when they are imported, and have them linked at once and not in each
/// fork. No script sees them.
const OF_TEMPLATES: [&str; 5] =
    ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "LD_BIND_NOW"];
/// Prints what a source becomes, after the number that changes with the form of compiled programs.
const COMPILE: &str = "\
import marshal, sys
import _frozen_importlib_external as files
code = compile(sys.argv[1], '<string>', 'exec')
sys.stdout.buffer.write(files.MAGIC_NUMBER + marshal.dumps(code))
";
/// Options of an interpreter for scripts: without the packages of the machine, on which a script must not depend. Modules
/// that start another interpreter, such as `multiprocessing`, give it the same options: with `-I` it would not find the
/// packages of the script, by `PYTHONPATH`.
pub(super) const WITHOUT_PACKAGES: [&str; 2] = ["-s", "-S"];
/// Time to compile it.
const TIME: Duration = Duration::from_secs(10);

/// The program, as one version of Python compiles it.
#[derive(Debug, Default)]
pub(super) struct Bootstrap {
    /// Empty if it could not be compiled.
    code: Vec<u8>,
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
            match (outcome.ending, outcome.stdout.is_cut) {
                (Ending::Exited(0), false) => Ok(outcome.stdout.bytes.to_vec()),
                (ending, _) => Err(format!("{ending:?}: {}", String::from_utf8_lossy(&outcome.stderr.bytes).trim())),
            }
        };
        let code = compiled.await.unwrap_or_else(|error: String| {
            tracing::warn!(error, "what precedes a script could not be compiled; interpreters start slower");
            Vec::new()
        });
        Self { code }
    }

    /// Has an interpreter import modules and wait for a script, which may use the packages in a folder.
    pub(super) fn prepare(&self, plan: &mut Plan, imports: &str, packages: &str) {
        load(plan, [imports, packages, ""], SOURCE, &self.code);
    }

    /// Has an interpreter import modules and fork for each script.
    pub(super) fn prepare_template(plan: &mut Plan, imports: &str, packages: &str) {
        load(plan, [imports, packages, &OF_TEMPLATES.join(" ")], SOURCE_OF_FORKS, &[]);
        plan.env.extend(OF_TEMPLATES.map(|name| (name.to_owned(), "1".to_owned())));
    }
}

/// Has an interpreter run [`LOAD`], which reads the length of the compiled program, that, and the source.
fn load(plan: &mut Plan, args: [&str; 3], source: &str, code: &[u8]) {
    plan.args = WITHOUT_PACKAGES.into_iter().chain(["-c", LOAD]).chain(args).map(str::to_owned).collect();
    let length = u32::try_from(code.len()).unwrap_or_default().to_le_bytes();
    plan.stdin = [&length, code, source.as_bytes()].concat().into();
}
