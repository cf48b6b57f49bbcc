//! The most important attacks against a daemon that is not root: its scripts are the same user as it is.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::geteuid;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use toolbus_sandbox::Level;
use toolbus_testing::other_user::as_nobody;
use toolbus_testing::patience::eventually;

use crate::fixture::{ended, helper, named};
use crate::left::{alone, leaves_nothing};

/// A user that nobody is.
const NOBODY: u32 = 65534;

/// A folder of that user's with a copy of the daemon that it can run, and a secret file.
struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = Self { folder };
        fs::copy(helper().with_file_name("run_script"), home.daemon()).unwrap();
        fs::write(home.secret(), "the secret").unwrap();
        fs::set_permissions(home.secret(), Permissions::from_mode(0o600)).unwrap();
        if geteuid().is_root() {
            for path in [home.folder.path().to_owned(), home.secret()] {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        home
    }

    fn daemon(&self) -> PathBuf {
        self.folder.path().join("run_script")
    }

    fn secret(&self) -> PathBuf {
        self.folder.path().join("secret")
    }

    /// Folders of runs that are left.
    fn runs(&self) -> Vec<PathBuf> {
        let inside = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        inside(self.folder.path())
            .filter(|path| path.is_dir())
            .flat_map(|base| inside(&base).collect::<Vec<_>>())
            .collect()
    }

    /// Runs a script in a daemon of that user, and returns what that printed.
    async fn run(&self, level: Level, milliseconds: u32, source: &str) -> String {
        let mut command = if geteuid().is_root() {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(self.daemon());
            command
        } else {
            Command::new(self.daemon())
        };
        command.args([level.as_str(), &milliseconds.to_string()]).env("TMPDIR", self.folder.path());
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut daemon = command.spawn().unwrap();
        daemon.stdin.take().unwrap().write_all(source.as_bytes()).await.unwrap();
        let output = daemon.wait_with_output().await.unwrap();
        assert!(output.status.success(), "{level}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).chars().take(200).collect()
    }
}

/// Attacks, with their time and what the daemon prints of each at `full` and at `no-namespaces`.
fn attacks(secret: &Path) -> Vec<(String, u32, [&'static str; 2])> {
    let prelude = "
import ctypes, os, socket, sys, time
def attempt(*attacks):
    for attack in attacks:
        try:
            print('succeeded', attack())
        except OSError as error:
            print(type(error).__name__)
def call(*arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), '')
    return 'done'
";
    let secret = format!("{secret:?}");
    let attack = |source: &str| format!("{prelude}{}", source.replace("SECRET", &secret));
    let not_there = "Exited(0)\nFileNotFoundError\nFileNotFoundError\nFileNotFoundError\n";
    let refused = "Exited(0)\nPermissionError\nPermissionError\nPermissionError\n";
    vec![
        (
            attack(
                "attempt(lambda: open(SECRET).read(), lambda: open('/proc/@DAEMON@/environ').read(), lambda: open('/etc/passwd').read())",
            ),
            60_000,
            [not_there, refused],
        ),
        (
            attack("attempt(lambda: open(SECRET, 'w'), lambda: os.remove(SECRET), lambda: os.rename(SECRET, 'x'))"),
            60_000,
            [not_there, refused],
        ),
        (
            attack(
                "attempt(lambda: os.chmod(SECRET, 0o777), lambda: os.utime(SECRET), lambda: os.truncate(SECRET, 0))",
            ),
            60_000,
            ["Exited(0)\nFileNotFoundError\nFileNotFoundError\nPermissionError\n", refused],
        ),
        (
            attack(
                "attempt(lambda: os.kill(@DAEMON@, 9), lambda: os.kill(@DAEMON@, 0), lambda: call(101, 16, @DAEMON@, 0, 0))",
            ),
            60_000,
            ["Exited(0)\nProcessLookupError\nProcessLookupError\nPermissionError\n", refused],
        ),
        (
            attack(
                "attempt(lambda: socket.socket(), lambda: socket.socket(socket.AF_UNIX), lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))",
            ),
            60_000,
            [refused, refused],
        ),
        (
            attack(&named("atk-nobody", "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass")),
            1500,
            ["Stopped(", "Stopped("],
        ),
        (attack("kept = b'x' * (700 << 20)\ntime.sleep(600)"), 60_000, ["Stopped(Memory)\n", "Stopped(Memory)\n"]),
        (
            attack(
                "try:\n    for number in range(10 ** 9):\n        open(f'{number}', 'w').close()\nexcept OSError as error:\n    print(error.strerror)",
            ),
            60_000,
            ["Exited(0)\nNo space left on device\n", "Stopped(Disk)\n"],
        ),
        (attack("while True:\n    os.write(1, b'x' * 65536)"), 60_000, ["Stopped(Output)\nx", "Stopped(Output)\nx"]),
        (
            attack(&named("atk-nobody", "for descriptor in range(3):\n    os.close(descriptor)\ntime.sleep(600)")),
            1500,
            ["Stopped(Time)\n", "Stopped(Time)\n"],
        ),
        (
            // Threads, where the user of the script has others besides, for which there is room.
            attack(
                "
import threading
begun = 0
try:
    while begun < 3000:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        begun += 1
except RuntimeError:
    pass
if begun > 16:
    time.sleep(600)
print(begun, flush=True)
os._exit(0)",
            ),
            60_000,
            ["Exited(0)\n16\n", "Stopped(Processes)\n"],
        ),
    ]
}

#[test]
fn a_daemon_that_is_not_root_keeps_the_same_attacks_in() {
    leaves_nothing("after all attacks", async {
        let home = Home::make();
        for (number, (source, time, [full, less])) in attacks(&home.secret()).into_iter().enumerate() {
            let (at_full, at_less) =
                tokio::join!(home.run(Level::Full, time, &source), home.run(Level::NoNamespaces, time, &source));
            assert!(at_full.starts_with(full), "attack {number}, full: {at_full}");
            assert!(at_less.starts_with(less), "attack {number}, no-namespaces: {at_less}");
            assert_eq!(fs::read_to_string(home.secret()).unwrap(), "the secret", "attack {number}");
            assert_eq!(home.secret().metadata().unwrap().permissions().mode() & 0o777, 0o600, "attack {number}");
            ended("atk-nobody").await;
        }
        eventually("the removal of every folder of a run", async || home.runs().is_empty().then_some(())).await;
    });
}

#[test]
fn nothing_is_left_of_scripts_of_a_daemon_that_is_not_root() {
    if geteuid().is_root() {
        let daemon = helper().with_file_name("run_script");
        alone(async {
            as_nobody(&[&helper(), &daemon], &["container::", "many::", "spawner::", "sudden::"], 14).await.unwrap();
        });
    }
}
