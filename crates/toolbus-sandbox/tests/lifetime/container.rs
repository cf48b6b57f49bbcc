//! System calls that the profiles of containers refuse, refused here in the same way.

use std::fs;
use std::process::Stdio;

use rustix::process::geteuid;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::fixture::{ended, helper, named};
use crate::left::leaves_nothing;

const SYS_SETHOSTNAME: u32 = 170;
const SYS_SECCOMP: u32 = 317;
const SYS_FSOPEN: u32 = 430;

/// Runs a script in a daemon to which one system call is refused, and, as root, in a mount namespace in which a part of
/// `/proc` is covered. Returns what the daemon printed, and what it wrote to standard error.
async fn run(refused: u32, require: &str, milliseconds: u32, source: &str) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("refuse.py"), include_str!("refuse.py")).unwrap();
    let mut command = Command::new("/usr/bin/env");
    if geteuid().is_root() {
        command.args(["unshare", "--mount", "sh", "-c", "mount --bind /dev/null /proc/uptime && exec \"$@\"", "sh"]);
    }
    command.arg("/usr/bin/python3").arg(folder.path().join("refuse.py")).arg(refused.to_string());
    command.arg(helper().with_file_name("run_script")).args(["full", &milliseconds.to_string(), require]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut daemon = command.spawn().unwrap();
    daemon.stdin.take().unwrap().write_all(source.as_bytes()).await.unwrap();
    let output = daemon.wait_with_output().await.unwrap();
    [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).into()
}

#[test]
fn where_a_new_proc_and_a_host_name_are_refused_scripts_run_at_full() {
    leaves_nothing("after attacks", async {
        let source = "import os\npid = os.fork()\nif pid == 0: os._exit(0)\nos.wait()\nprint(os.getpid() < 9)";
        let (printed, said) = run(SYS_SETHOSTNAME, "full", 60_000, source).await;
        assert_eq!(printed, "Exited(0)\nTrue\n", "{said}");
        let grow = "
for _ in range(8):
    if os.fork() == 0:
        kept = b'x' * (40 << 20)
        time.sleep(600)
time.sleep(600)
";
        let (printed, said) = run(SYS_SETHOSTNAME, "full", 60_000, &named("atk-outer", grow)).await;
        assert_eq!(printed, "Stopped(Memory)\n", "{said}");
        ended("atk-outer").await;
        let bomb = "
while True:
    try:
        os.fork()
    except OSError:
        pass
";
        let (printed, said) = run(SYS_SETHOSTNAME, "full", 1500, &named("atk-outer", bomb)).await;
        assert!(printed.starts_with("Stopped("), "{printed} {said}");
        ended("atk-outer").await;
    });
}

#[test]
fn where_one_layer_is_refused_the_others_stay() {
    leaves_nothing("after both", async {
        let look = "import os\nprint(os.getpid() < 9, os.path.exists('/etc/passwd'))";
        let (printed, said) = run(SYS_SECCOMP, "limits-only", 60_000, look).await;
        assert_eq!(printed, "Exited(0)\nTrue False\n", "{said}");
        assert!(said.starts_with("limits-only: namespaces, landlock"), "{said}");
        let (printed, said) = run(SYS_FSOPEN, "limits-only", 60_000, look).await;
        assert_eq!(printed, "Exited(0)\nFalse True\n", "{said}");
        assert!(said.starts_with("no-namespaces: landlock, seccomp"), "{said}");
    });
}

#[test]
fn a_profile_that_refuses_namespaces_is_named_as_the_cause() {
    leaves_nothing("after it", async {
        let (printed, said) = run(SYS_FSOPEN, "full", 60_000, "").await;
        assert_eq!(printed, "");
        assert!(
            said.contains("a seccomp profile is in force, as in containers: allow clone with namespaces"),
            "{said}"
        );
    });
}
