//! Other scripts, interpreters that wait, and the processes that keep a script in.

use std::fs;
use std::path::{Path, PathBuf};

use toolbus_sandbox::Level;
use toolbus_scripts::config::PoolConfig;
use toolbus_scripts::runner::sandbox::{SandboxRunner, SandboxSettings};
use toolbus_scripts::runner::{Finished, Runner as _, StartKind};
use toolbus_testing::patience::eventually;

use crate::fixture::{LEVELS, SECRET, attack, is_root, processes, runner, runner_with, settings, stdout};

async fn process(marker: &str) -> u32 {
    eventually("the process", async || processes(marker).first().copied()).await
}

fn parent_of(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn status_of(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn tell(pid: u32) {
    let status = std::process::Command::new("kill").args(["-USR1", &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

/// A script that gives itself a name, has a secret, waits to be told, and says what became of it.
const NEIGHBOUR: &str = "
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
with open('kept', 'w') as file: file.write(given[1])
with open(os.environ['TOOLBUS_OUTPUT'] + '/result', 'w') as file: file.write(given[1])
libc.prctl(15, given[0].encode())
told = signal.sigtimedwait([signal.SIGUSR1], 25)
print(told is not None and told.si_signo == signal.SIGUSR1, open('kept').read(), sorted(os.listdir('.')), os.getuid())
";

/// Tries to reach processes and folders: each line of the input is a process or a path.
const INTRUDER: &str = "
import signal
for line in given:
    if line.isdigit():
        pid = int(line)
        for what in (lambda: os.kill(pid, signal.SIGKILL), lambda: os.kill(pid, signal.SIGUSR1), lambda: open('/proc/%d/mem' % pid, 'rb'),
                lambda: open('/proc/%d/environ' % pid).read(), lambda: os.listdir('/proc/%d/cwd' % pid), lambda: os.open('/proc/%d/fd/1' % pid, os.O_WRONLY),
                lambda: os.readlink('/proc/%d/cwd' % pid), lambda: open('/proc/%d/cwd/kept' % pid).read(), lambda: open('/proc/%d/root/work/home/kept' % pid).read()):
            found = tried(what)
            if found not in ('EPERM', 'ESRCH', 'ENOENT', 'EACCES'): print(line, found)
    else:
        for what in (lambda: os.listdir(line), lambda: open(line + '/kept').read(), lambda: open(line + '/kept', 'w'), lambda: open(line + '/new', 'w'),
                lambda: open(line + '/../job/script.py').read(), lambda: open(line + '/../out/result').read(), lambda: os.rename(line, line + '2'),
                lambda: os.symlink('/etc', line + '/link'), lambda: os.unlink(line + '/kept')):
            found = tried(what)
            if found not in ('EPERM', 'ENOENT', 'EACCES'): print(line, found)
print(os.getuid())
";

/// Current folder of a process, by the path that leads there from outside.
fn folder_of(pid: u32, level: Level) -> PathBuf {
    match level {
        Level::Full => PathBuf::from(format!("/proc/{pid}/root/work/home")),
        _ => fs::read_link(format!("/proc/{pid}/cwd")).unwrap(),
    }
}

async fn attacked(runner: &SandboxRunner, pids: &[u32], folder: &Path) -> Finished {
    let mut input: Vec<String> = pids.iter().map(u32::to_string).collect();
    input.push(folder.to_str().unwrap().to_owned());
    runner.run(attack(&input.join("\n"), INTRUDER)).await.unwrap()
}

#[tokio::test]
async fn a_script_that_runs_at_the_same_time_is_out_of_reach() {
    for level in LEVELS {
        let runner = runner(level).await;
        let name = format!("atk-n{}-{level}", std::process::id() % 1000);
        let name: String = name.chars().take(15).collect();
        let neighbour = runner.run(attack(&format!("{name}\n{SECRET}"), NEIGHBOUR));
        let intruder = async {
            let pid = process(&name).await;
            let keeper = parent_of(pid);
            let found =
                attacked(&runner, &[pid, keeper, parent_of(keeper), std::process::id()], &folder_of(pid, level)).await;
            tell(pid);
            found
        };
        let (neighbour, intruder) = tokio::join!(neighbour, intruder);
        let (neighbour, intruder) = (neighbour.unwrap(), stdout(&intruder));
        let said = stdout(&neighbour);
        assert!(said.starts_with(&format!("True {SECRET} ['kept'] ")), "{level}: {said}");
        assert_eq!(neighbour.outcome.artifacts[0].bytes, SECRET, "{level}");
        // No word but its own user, which is not the other's where the daemon may choose.
        let (own, other) = (intruder.trim_end(), said.trim_end().rsplit(' ').next().unwrap());
        assert!(own.parse::<u32>().is_ok(), "{level}: {intruder}");
        assert!(level == Level::Full || own == "0" || own != other || !is_root(), "{level}: {own} {other}");
    }
}

#[tokio::test]
async fn an_interpreter_that_waits_is_out_of_reach() {
    for level in LEVELS {
        // A module of this name is not there, which is no trouble: it tells whose process it is.
        let marker = format!("toolbus_attack_{}_{}", std::process::id(), level.as_str().replace('-', "_"));
        let pool = PoolConfig { min: 1, max: 1, imports: vec![marker.clone()], ..PoolConfig::NONE };
        let runner = runner_with(SandboxSettings { pool, ..settings(level).await }).await;
        eventually("a warm interpreter", async || (runner.status().warm > 0).then_some(())).await;
        let warm = process(&marker).await;
        let cold = crate::fixture::runner(level).await;
        let found = stdout(
            &attacked(&cold, &[warm, parent_of(warm), parent_of(parent_of(warm))], &folder_of(warm, level)).await,
        );
        assert!(found.trim_end().parse::<u32>().is_ok(), "{level}: {found}");

        let source =
            "print(sorted(os.listdir('.')), sorted(os.listdir(os.environ['TOOLBUS_OUTPUT'])), os.path.exists('kept'))";
        let finished = runner.run(attack("", source)).await.unwrap();
        assert_eq!((finished.start, &*stdout(&finished)), (StartKind::Warm, "[] [] False\n"), "{level}");
        runner.shutdown().await;
    }
}

#[tokio::test]
async fn what_one_script_leaves_the_next_does_not_find() {
    let leave = "
import builtins, sys, json
for folder in '.', os.environ['TMPDIR'], os.environ['HOME']:
    open(folder + '/left', 'w').write('left')
builtins.left = 1
json.dumps = None
os.environ['LEFT'] = '1'
for path in list(sys.path) + [os.path.dirname(os.__file__), os.path.dirname(os.environ['TOOLBUS_INPUT_FILE'])]:
    tried(lambda: open(path + '/json.py', 'w').write('left = 1'))
";
    let look = "
import builtins, json
print(os.path.exists('left'), os.path.exists(os.environ['TMPDIR'] + '/left'), hasattr(builtins, 'left'), json.dumps is None, hasattr(json, 'left'),
    'LEFT' in os.environ)
";
    for level in LEVELS {
        let pool = PoolConfig { min: 1, max: 1, imports: vec!["json".to_owned()], ..PoolConfig::NONE };
        let runner = runner_with(SandboxSettings { pool, ..settings(level).await }).await;
        for _ in 0..2 {
            eventually("a warm interpreter", async || (runner.status().warm > 0).then_some(())).await;
            let left = runner.run(attack("", leave)).await.unwrap();
            assert_eq!((left.start, &*stdout(&left)), (StartKind::Warm, ""), "{level}");
            for warm in [true, false] {
                if warm {
                    eventually("a warm interpreter", async || (runner.status().warm > 0).then_some(())).await;
                }
                let found = stdout(&runner.run(attack("", look)).await.unwrap());
                assert_eq!(found, "False False False False False False\n", "{level}");
            }
        }
        runner.shutdown().await;
    }
}

#[tokio::test]
async fn seen_from_outside_a_script_has_no_rights() {
    for level in LEVELS {
        let runner = runner(level).await;
        let name: String = format!("atk-r{}-{level}", std::process::id() % 1000).chars().take(15).collect();
        let neighbour = runner.run(attack(&format!("{name}\n{SECRET}"), NEIGHBOUR));
        let look = async {
            let pid = process(&name).await;
            let rights =
                ["CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp"].map(|name| status_of(pid, name));
            let none = "0".repeat(16);
            assert_eq!(rights, [&none, &none, &none, &none, "1", "2"].map(|text| text.to_owned()), "{level}");
            let users = status_of(pid, "Uid");
            let user = users.split(' ').next().unwrap();
            assert_eq!(users, [user; 4].join(" "), "{level}");
            if is_root() {
                assert!((61184..=65519).contains(&user.parse::<u32>().unwrap()), "{level}: {user}");
                assert_eq!(status_of(pid, "Groups"), "", "{level}");
            }
            // At one byte the system starts no program of its own to look at what crashed; at zero it does.
            let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
            let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
            assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["1", "1"], "{level}: {core}");
            let first_to_end = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
            assert_eq!(first_to_end.trim(), "1000", "{level}: if the machine runs out of memory");
            let namespaces = |pid: u32| {
                let kinds = ["user", "mnt", "pid", "net", "ipc", "uts"];
                kinds.map(|kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap())
            };
            let shared = namespaces(pid)
                .into_iter()
                .zip(namespaces(std::process::id()))
                .filter(|(its, ours)| its == ours)
                .count();
            assert_eq!(shared, if level == Level::Full { 0 } else { 6 }, "{level}");
            tell(pid);
        };
        let (neighbour, ()) = tokio::join!(neighbour, look);
        assert!(stdout(&neighbour.unwrap()).starts_with("True"), "{level}");
    }
}

#[tokio::test]
async fn scripts_that_want_to_tell_each_other_things_by_locks() {
    let hold = "
import fcntl, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
shared = open(os.__file__)
fcntl.flock(shared, fcntl.LOCK_EX)
libc.prctl(15, given[0].encode())
signal.sigtimedwait([signal.SIGUSR1], 25)
";
    let look = "
import fcntl
print(tried(lambda: fcntl.flock(open(os.__file__), fcntl.LOCK_SH | fcntl.LOCK_NB)))
";
    for level in LEVELS {
        let runner = runner(level).await;
        let name: String = format!("atk-l{}-{level}", std::process::id() % 1000).chars().take(15).collect();
        let holder = runner.run(attack(&name, hold));
        let looker = async {
            let pid = process(&name).await;
            let found = runner.run(attack("", look)).await.unwrap();
            tell(pid);
            stdout(&found)
        };
        let (held, found) = tokio::join!(holder, looker);
        assert_eq!((&*stdout(&held.unwrap()), &*found), ("", "EAGAIN\n"), "{level}");
    }
}
