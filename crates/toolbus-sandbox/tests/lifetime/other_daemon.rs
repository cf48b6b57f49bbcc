//! Two daemons that share a folder for temporary files and cgroups, and do not see each other's processes.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Signal, geteuid, kill_process};
use tokio::process::Command;
use toolbus_sandbox::Level;
use toolbus_testing::patience::eventually;

use crate::fixture::{has_cgroups, named};
use crate::left::{cgroups, leaves_nothing, lineages};
use crate::sudden::{daemon, give};

/// Waits for a signal, and then uses its work folder.
const WAITS: &str = "
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
ctypes.CDLL(None).prctl(15, b'atk-shares', 0, 0, 0)
signal.sigwait([signal.SIGUSR1])
open('file', 'w').write('written')
print(open('file').read())
";

/// A daemon with a PID namespace of its own, whose `/proc` shows no process outside of it.
fn hidden(temporary: &Path) -> tokio::process::Child {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.arg(crate::fixture::helper().with_file_name("run_script")).args(["no-namespaces", "60000"]);
    command.env("TMPDIR", temporary).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
}

#[test]
fn a_daemon_that_another_does_not_see_keeps_its_folders() {
    // Only root can make such a namespace.
    if !geteuid().is_root() {
        return;
    }
    leaves_nothing("after both", async {
        let temporary = tempfile::tempdir().unwrap();
        let mut seen = daemon(Level::NoNamespaces, temporary.path());
        give(&mut seen, &named("atk-begins", WAITS)).await;
        let [program, ..] = eventually("the script", async || lineages("atk-shares").into_iter().next()).await;

        let mut other = hidden(temporary.path());
        give(&mut other, "print('other')").await;
        let output = other.wait_with_output().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "Exited(0)\nother\n");

        let cgroups = cgroups(seen.id().unwrap());
        assert_eq!(!cgroups.is_empty(), has_cgroups());
        for cgroup in cgroups {
            let locked = flock(File::open(&cgroup).unwrap(), FlockOperation::NonBlockingLockExclusive);
            assert_eq!(locked, Err(Errno::WOULDBLOCK), "{}", cgroup.display());
        }
        kill_process(program, Signal::USR1).unwrap();
        let output = seen.wait_with_output().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "Exited(0)\nwritten\n");
        // With a daemon that is the first process of its namespace the kernel ends all others of that, which cannot remove
        // what they have made. The next daemon does.
        let mut next = daemon(Level::NoNamespaces, temporary.path());
        give(&mut next, "print('next')").await;
        let output = next.wait_with_output().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "Exited(0)\nnext\n");
        let bases = || fs::read_dir(temporary.path()).unwrap().flatten();
        let runs = || bases().flat_map(|base| fs::read_dir(base.path()).into_iter().flatten()).count();
        eventually("the removal of the folders of all runs", async || (runs() == 0).then_some(())).await;
    });
}
