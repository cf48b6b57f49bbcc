//! Scripts whose interpreters are forked, and templates that do not confine what they fork.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use toolbus_sandbox::{Job, Level, Outcome, Plan, Sandbox, SandboxError, Template, Watcher, Written};
use toolbus_scripts::config::{PoolConfig, PoolMode};
use toolbus_scripts::packages::{Installer, PackageError};
use toolbus_scripts::requirement::Requirement;
use toolbus_scripts::runner::sandbox::{SandboxRunner, SandboxSettings};
use toolbus_scripts::runner::{Runner as _, Script, StartKind};
use toolbus_testing::patience::eventually;

use crate::fixture::{LIMITS, attack, helper, interpreter, is_root, runner_with, script, settings, stdout};

/// Forks that are tried for one that is refused for the reason that is looked for.
const TRIES: usize = 20;

/// Scripts without a fork, one after another, after which their template is not tried again: another would be ready sooner.
const COLD_IN_A_ROW: usize = 6;

/// A runner that forks interpreters, one of which waits for the agent of the scripts here.
async fn runner() -> SandboxRunner {
    let pool = PoolConfig { mode: PoolMode::Fork, imports: vec!["random".to_owned()], ..PoolConfig::NONE };
    runner_with(SandboxSettings { pool, ..settings(Level::Full).await }).await
}

/// Output of a script in a forked interpreter.
async fn forked(runner: &SandboxRunner, script: Script) -> String {
    let finished = runner.run(script).await.unwrap();
    assert_eq!(finished.start, StartKind::Forked);
    stdout(&finished)
}

#[tokio::test]
async fn what_one_script_leaves_the_next_fork_does_not_find() {
    let leave = "
import builtins, json, random, signal, threading, time
for folder in '.', os.environ['TMPDIR'], os.environ['HOME'], os.environ['TOOLBUS_OUTPUT']:
    open(folder + '/left', 'w').write('left')
builtins.left = left = 1
json.dumps = None
sys.modules['left'] = json
os.environ['LEFT'] = '1'
sys.path.append('/left')
random.seed(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.umask(0)
os.dup2(0, 40)
kept = b'left' * (10 << 20)
if os.fork() == 0:
    os.setsid()
    libc.prctl(15, b'left')
    time.sleep(60)
";
    let look = "
import builtins, json, random, signal
found = [name for name in os.listdir('.') + os.listdir(os.environ['TMPDIR']) + os.listdir(os.environ['TOOLBUS_OUTPUT'])]
open_files = [fd for fd in range(3, 64) if tried(lambda: os.fstat(fd) and None) == 'done']
random_state = random.Random(1).getstate() == random.getstate()
print(found, open_files, hasattr(builtins, 'left'), 'left' in globals(), json.dumps is None, 'left' in sys.modules, 'LEFT' in os.environ,
    '/left' in sys.path, random_state, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, os.umask(0o22),
    tried(lambda: os.kill(-1, 0)), os.getpid() < 10)
";
    let runner = runner().await;
    for _ in 0..3 {
        assert_eq!(forked(&runner, attack("", leave)).await, "");
        let expected = "[] [5] False False False False False False False True 18 ESRCH True\n";
        assert_eq!(forked(&runner, attack("", look)).await, expected);
    }
    runner.shutdown().await;
}

#[tokio::test]
async fn each_fork_reports_its_own_progress() {
    let source = "
os.write(int(os.environ['TOOLBUS_PROGRESS_FD']), given[0].encode() + b'\\n')
print('printed', given[0])
";
    let runner = runner().await;
    for number in 0..3 {
        let reported = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&reported);
        let watcher: Watcher = Arc::new(move |written| {
            if let Written::Progress(line) = written {
                lines.lock().push(line.to_owned());
            }
        });
        let finished = runner.run_watched(attack(&number.to_string(), source), Some(&watcher)).await.unwrap();
        assert_eq!(finished.start, StartKind::Forked);
        assert_eq!(stdout(&finished), format!("printed {number}\n"));
        assert_eq!(*reported.lock(), [number.to_string()]);
    }
    runner.shutdown().await;
}

#[tokio::test]
async fn three_hundred_scripts_print_their_own_and_the_interpreter_they_are_forked_from_changes() {
    let source = "
import random, uuid
print(given[0], hash('toolbus'), random.random(), uuid.uuid4(), os.urandom(8).hex())
";
    let runner = runner().await;
    let (mut hashes, mut drawn) = (BTreeSet::new(), BTreeSet::new());
    let mut forks = 0;
    for number in 0..300 {
        let finished = runner.run(attack(&number.to_string(), source)).await.unwrap();
        let printed = stdout(&finished);
        let words: Vec<&str> = printed.split_whitespace().collect();
        assert_eq!((words.len(), words[0]), (5, &*number.to_string()), "{printed}");
        if finished.start == StartKind::Forked {
            forks += 1;
            hashes.insert(words[1].to_owned());
        }
        assert!(words[2..].iter().all(|word| drawn.insert((*word).to_owned())), "drawn twice: {printed}");
    }
    assert!(forks > 200, "{forks}");
    assert!(hashes.len() > 1 && hashes.len() < 10, "{hashes:?}");
    runner.shutdown().await;
}

#[tokio::test]
async fn the_next_interpreter_is_ready_before_one_has_forked_for_all_its_scripts() {
    let runner = runner().await;
    let mut hashes = BTreeSet::new();
    for number in 0..230 {
        if number == 170 {
            // Two forks of each wait for a script.
            eventually("the next interpreter", async || (runner.status().warm > 2).then_some(())).await;
        }
        let finished = runner.run(attack(&number.to_string(), "print(hash('toolbus'))")).await.unwrap();
        assert_eq!(finished.start, StartKind::Forked, "{number}");
        hashes.insert(stdout(&finished));
    }
    assert_eq!(hashes.len(), 2);
    runner.shutdown().await;
}

#[tokio::test]
async fn agents_do_not_share_what_their_interpreters_are_forked_from() {
    let runner = runner().await;
    let print_hash = || script("print(hash('toolbus'))");
    let first = forked(&runner, print_hash()).await;
    let of = |owner: Option<&str>| Script { owner: owner.map(Into::into), ..print_hash() };
    let other = runner.run(of(Some("other"))).await.unwrap();
    assert_eq!(other.start, StartKind::Cold);
    let other = eventually("a fork for the other agent", async || {
        let finished = runner.run(of(Some("other"))).await.unwrap();
        (finished.start == StartKind::Forked).then(|| stdout(&finished))
    });
    assert_ne!(first, other.await);
    assert_eq!(first, forked(&runner, print_hash()).await);
    // They may be different ones.
    for _ in 0..3 {
        assert_eq!(runner.run(of(None)).await.unwrap().start, StartKind::Cold);
    }
    runner.shutdown().await;
}

/// Has a folder for each of these modules.
struct Modules(tempfile::TempDir);

impl Modules {
    fn new(modules: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        for (name, source) in modules {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(format!("{name}/{}.py", name.replace('-', "_"))), source).unwrap();
        }
        Self(folder)
    }
}

impl Installer for Modules {
    fn install<'a>(&'a self, packages: &'a [Requirement], _: Instant) -> BoxFuture<'a, Result<PathBuf, PackageError>> {
        let package = packages.first().map_or("none", Requirement::name);
        async move { Ok(self.0.path().join(package)) }.boxed()
    }
}

/// A script that asks for this package.
fn with_package(package: &str, source: &str) -> Script {
    Script { packages: vec![Requirement::parse(package).unwrap()], ..script(source) }
}

#[tokio::test]
async fn a_package_is_imported_before_and_one_that_starts_threads_is_not() {
    let modules = Modules::new(&[
        ("calm-one", "import os\nprint('imported')\nVALUE = 7\nTHREADS = os.environ['OPENBLAS_NUM_THREADS']\n"),
        ("threaded", "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"),
        ("busy", "import os\nif os.fork() == 0:\n    import time\n    time.sleep(600)\n"),
        ("sharing", "import mmap\nBLOCK = mmap.mmap(-1, 4096)\n"),
        ("locking", "import multiprocessing\nLOCK = multiprocessing.Lock()\n"),
        ("opening", "FILE = open(__file__)\n"),
    ]);
    let runner = runner().await.with_installer(Arc::new(modules));
    let source = "import os, sys\nprint('calm_one' in sys.modules, 'OPENBLAS_NUM_THREADS' in os.environ)";
    assert_eq!(runner.run(with_package("calm-one", source)).await.unwrap().start, StartKind::Cold);
    eventually("a fork with the package", async || {
        let finished = runner.run(with_package("calm-one", source)).await.unwrap();
        // What it prints when it is imported belongs to no script.
        (finished.start == StartKind::Forked).then(|| assert_eq!(stdout(&finished), "True False\n"))
    })
    .await;
    for package in ["threaded", "busy", "sharing", "locking", "opening"] {
        let waiting = runner.status().warm;
        let refused = "import sys\nprint(len(sys.modules) > 0)";
        for _ in 0..10 {
            assert_eq!(runner.run(with_package(package, refused)).await.unwrap().start, StartKind::Cold, "{package}");
        }
        assert_eq!(runner.status().warm, waiting, "{package}");
    }
    runner.shutdown().await;
}

#[tokio::test]
async fn a_package_that_does_something_after_its_import_ends_the_template() {
    let later = |action: &str| {
        let begin = "import ctypes, os, signal, time\n";
        let end = "signal.signal(signal.SIGALRM, act)\nsignal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)\n";
        format!("{begin}KEPT = []\ndef act(*_):\n{action}{end}")
    };
    let forking =
        "    if os.fork() == 0:\n        ctypes.CDLL(None).prctl(15, b'atk-later')\n        time.sleep(600)\n";
    let actions = [
        ("forking", later(forking)),
        (
            "burning",
            later("    until = time.process_time() + 0.2\n    while time.process_time() < until:\n        pass\n"),
        ),
        ("growing", later("    KEPT.append(b'x' * (6 << 20))\n")),
    ];
    let modules = Modules::new(&actions.each_ref().map(|(name, source)| (*name, source.as_str())));
    let runner = runner().await.with_installer(Arc::new(modules));
    for (package, _) in &actions {
        let (mut was_forked, mut cold) = (false, 0);
        eventually("a template that is ended and not tried again", async || {
            // Each script allows its template some CPU time, and one that 200 were forked from is replaced.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let finished = runner.run(with_package(package, "print('ran')")).await.unwrap();
            assert_eq!(stdout(&finished), "ran\n", "{package}");
            was_forked |= finished.start == StartKind::Forked;
            cold = if finished.start == StartKind::Cold { cold + 1 } else { 0 };
            // A single fork may be lost without that: the script then gets an interpreter of its own.
            (was_forked && cold == COLD_IN_A_ROW).then_some(())
        })
        .await;
    }
    eventually("the end of what the package has started", async || (living("atk-later") == 0).then_some(())).await;
    runner.shutdown().await;
}

#[tokio::test]
async fn generators_that_an_import_has_made_draw_other_numbers_in_each_fork() {
    let seeded = "import random, uuid\nOWN = random.Random(1)\nclass Own(random.Random): pass\nOTHER = Own()\n\
                  uuid._node = uuid._random_getnode()\n";
    let runner = runner().await.with_installer(Arc::new(Modules::new(&[("seeded", seeded)])));
    let source = "import seeded, uuid\nprint(seeded.OWN.random(), seeded.OTHER.random(), uuid.uuid1().node)";
    let (mut forks, mut drawn) = (0, BTreeSet::new());
    eventually("four forks", async || {
        let finished = runner.run(with_package("seeded", source)).await.unwrap();
        if finished.start == StartKind::Forked {
            forks += 1;
            let printed = stdout(&finished);
            assert!(printed.split_whitespace().all(|it| drawn.insert(it.to_owned())), "drawn twice: {printed}");
        }
        (forks == 4).then_some(())
    })
    .await;
    runner.shutdown().await;
}

#[tokio::test]
async fn an_interpreter_that_a_script_starts_finds_its_packages() {
    let runner = runner().await.with_installer(Arc::new(Modules::new(&[("calm", "VALUE = 7\n")])));
    let source =
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import calm; print(calm.VALUE)'], check=True)";
    let (mut was_cold, mut was_forked) = (false, false);
    eventually("a cold start and a fork", async || {
        let finished = runner.run(with_package("calm", source)).await.unwrap();
        assert_eq!(stdout(&finished), "7\n");
        was_cold |= finished.start == StartKind::Cold;
        was_forked |= finished.start == StartKind::Forked;
        (was_cold && was_forked).then_some(())
    })
    .await;
    runner.shutdown().await;
}

/// Number of processes of this name that are alive on the machine.
fn living(name: &str) -> usize {
    let stats = fs::read_dir("/proc").unwrap().flatten().map(|entry| fs::read_to_string(entry.path().join("stat")));
    stats.flatten().filter(|stat| stat.contains(&format!("({name}) ")) && !stat.contains(") Z ")).count()
}

/// A plan for a template with this program instead of what forks.
async fn template(fork: &str) -> Plan {
    let parts = [
        include_str!("../../../toolbus-scripts/src/runner/bootstrap.py"),
        include_str!("../../../toolbus-scripts/src/runner/run.py"),
        fork,
    ];
    let source = format!("{}\nend(run, *prepare())", parts.join("\n\n"));
    let interpreter = interpreter().await;
    Plan {
        program: interpreter.program,
        args: ["-s", "-S", "-c", &source, "", "", "NONE"].map(str::to_owned).to_vec(),
        env: BTreeMap::new(),
        stdin: Bytes::new(),
        read: interpreter.read.into_iter().chain([Path::new("/usr/bin").to_owned()]).collect(),
        write: Vec::new(),
        network: false,
        metadata: true,
        waits: false,
        forks: true,
        owner: None,
        limits: LIMITS,
    }
}

const FORK: &str = include_str!("../../../toolbus-scripts/src/runner/fork.py");

/// A template whose program has something else in place of a step.
async fn template_with(sandbox: &Sandbox, step: &str, instead: &str) -> Arc<Template> {
    assert!(FORK.contains(step));
    let plan = template(&FORK.replace(step, instead)).await;
    Arc::new(sandbox.template(&plan).await.unwrap())
}

/// Runs a script in a fork of a template.
async fn run_in_fork(template: &Arc<Template>) -> Result<Outcome, SandboxError> {
    let job = Job {
        files: [("script.py", "print('ran')"), ("input", ""), ("key", "")]
            .map(|(name, text)| (name.to_owned(), text.into()))
            .into(),
        time: Duration::from_secs(10),
        cpu: std::time::Duration::from_secs(10),
        ..Job::default()
    };
    template.fork()?.run(job).await
}

/// Whether forks move themselves into their cgroups: in version 2 they cannot.
fn forks_move_themselves(sandbox: &Sandbox) -> bool {
    sandbox.cgroups_missing().is_none() && Path::new("/sys/fs/cgroup/memory/tasks").exists()
}

#[tokio::test]
async fn a_template_that_enters_the_cgroup_of_a_fork_is_ended_before_the_next() {
    let sandbox = Sandbox::with_helper(helper(), Level::Full).unwrap();
    // Where no fork is given the files, there is nothing to enter by.
    let moves = forks_move_themselves(&sandbox);
    let before = "        child = libc.clone(enter,";
    let enter = "        for mover in given[6:8] if message[1] else []:\n            posix.write(mover, b\"0\")\n";
    let template = template_with(&sandbox, before, &format!("{enter}{before}")).await;
    assert_eq!(&*run_in_fork(&template).await.unwrap().stdout.bytes, b"ran\n");
    let second = run_in_fork(&template).await;
    if moves {
        assert!(!second.unwrap_err().has_begun());
        eventually("the template to end", async || template.is_gone().then_some(())).await;
    } else {
        assert_eq!(&*second.unwrap().stdout.bytes, b"ran\n");
    }
}

#[tokio::test]
async fn a_template_that_could_not_fork_once_forks_for_the_next_script() {
    let sandbox = Sandbox::with_helper(helper(), Level::Full).unwrap();
    let enter = "            for namespace in given[8:]";
    let fail = "            if not hasattr(sys, 'failed'): sys.failed = True; raise OSError('once')\n";
    let template = template_with(&sandbox, enter, &format!("{fail}{enter}")).await;
    let error = run_in_fork(&template).await.unwrap_err();
    assert!(!error.has_begun() && error.to_string().contains("OSError, line "), "{error}");
    assert_eq!(&*run_in_fork(&template).await.unwrap().stdout.bytes, b"ran\n");
}

#[tokio::test]
async fn a_template_ends_when_a_process_that_shares_its_memory_is_killed() {
    let sandbox = Sandbox::with_helper(helper(), Level::Full).unwrap();
    for step in ["            for namespace in given[8:]", "            if posix.fork():\n"] {
        let kill = "            posix.kill(posix.getpid(), 9)\n";
        let template = template_with(&sandbox, step, &format!("{kill}{step}")).await;
        assert!(!run_in_fork(&template).await.unwrap_err().has_begun());
        eventually("the template to end", async || template.is_gone().then_some(())).await;
    }
}

#[tokio::test]
async fn a_fork_goes_on_when_its_template_ends() {
    let sandbox = Sandbox::with_helper(helper(), Level::Full).unwrap();
    let step = "if child < 0 or posix.waitpid(child, 0)[1]:";
    let template = template_with(&sandbox, step, "if posix.waitpid(child, 0):").await;
    assert_eq!(&*run_in_fork(&template).await.unwrap().stdout.bytes, b"ran\n");
    eventually("the template to end", async || template.is_gone().then_some(())).await;
}

#[tokio::test]
async fn a_fork_that_is_not_confined_gets_no_script() {
    let fork = FORK;
    let sandbox = Sandbox::with_helper(helper(), Level::Full).unwrap();
    let run = async |fork: &str| {
        let template = Arc::new(sandbox.template(&template(fork).await).await.unwrap());
        run_in_fork(&template).await
    };
    assert_eq!(&*run(fork).await.unwrap().stdout.bytes, b"ran\n");
    let omitted = [
        ("    posix.setresuid(USER, USER, USER)\n", "Uid"),
        ("    posix.setresgid(USER, USER, USER)\n", "Gid"),
        ("    checked(ctypes, libc.capset(Header(CAPABILITY_VERSION_3, 0), Capabilities()))\n", "Cap"),
        (
            "    checked(ctypes, libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))\n",
            "Seccomp_filters",
        ),
        ("    for mover in given[6:8] if message[1] else []:\n        posix.write(mover, b\"0\")\n", "its cgroup"),
        ("                checked(ctypes, libc.setns(namespace, 0))\n", ""),
        (
            "            child = libc.clone(leave, stack - 2 * PART, CLONE_VM | CLONE_VFORK | SIGCHLD, None)\n",
            "did not fork",
        ),
    ];
    // Where the daemon may not change users, forks have the one of their template.
    let (has_users, moves) = (is_root(), forks_move_themselves(&sandbox));
    let is_done = |named| match named {
        "Uid" | "Gid" => has_users,
        "its cgroup" => moves,
        _ => true,
    };
    for (step, named) in omitted.into_iter().filter(|(_, named)| is_done(named)) {
        let indent = &step[..step.len() - step.trim_start().len()];
        let without = fork.replace(step, &format!("{indent}pass\n"));
        let without = without.replace("    while posix.getppid() != INIT:\n        posix.sched_yield()\n", "");
        assert_ne!(without, fork, "{step}");
        let mut refused = Vec::new();
        for _ in 0..TRIES {
            let error = run(&without).await.unwrap_err();
            assert!(!error.has_begun(), "{step}: {error}");
            refused.push(error.to_string());
            // Nothing waits for the process in between, which may be there still.
            if !error.to_string().contains("has not forked one process") {
                break;
            }
        }
        assert!(refused.last().is_some_and(|text| text.contains(named)), "{step}: {refused:?}");
    }
}
