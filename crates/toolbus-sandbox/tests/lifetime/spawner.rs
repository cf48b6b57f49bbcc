//! The process that forks the watchdogs: it may be killed, and knows nothing of what they do.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use toolbus_sandbox::{Ending, Level};
use toolbus_scripts::runner::{Runner as _, Script};
use toolbus_testing::patience::eventually;

use crate::fixture::{named, runner, script, text};
use crate::left::{leaves_nothing, lineages, parent};

const LEVELS: [Level; 2] = [Level::Full, Level::NoNamespaces];
/// Waits for a signal, and says whether it came.
const WAITS: &str = "
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
ctypes.CDLL(None).prctl(15, NAME, 0, 0, 0)
print(signal.sigtimedwait([signal.SIGUSR1], 50).si_signo == signal.SIGUSR1)
";

/// A script that has this name once it waits for [`Signal::USR1`].
fn waits(name: &str) -> Script {
    script(named("atk-begins", &WAITS.replace("NAME", &format!("b'{name}'"))))
}

/// The script, its init process, the parent of that, and the spawner. The third is the watchdog, or the init process of the
/// template.
async fn processes(name: &str) -> [Pid; 4] {
    let [program, init, above] = eventually("the script", async || lineages(name).into_iter().next()).await;
    let mut spawner = above;
    while !fs::read_to_string(format!("/proc/{}/comm", spawner.as_raw_nonzero())).unwrap().contains("spawner") {
        spawner = parent(spawner).unwrap();
    }
    [program, init, above, spawner]
}

#[test]
fn a_spawner_that_is_killed_is_replaced_and_its_runs_go_on() {
    leaves_nothing("after spawners were killed", async {
        for level in LEVELS {
            let runner = runner(level, 0).await;
            let kill = async {
                let [program, _, _, spawner] = processes("atk-goes-on").await;
                kill_process(spawner, Signal::KILL).unwrap();
                for _ in 0..3 {
                    let next = runner.run(script("print('next')")).await.unwrap().outcome;
                    assert_eq!((next.ending, text(&next.stdout)), (Ending::Exited(0), "next\n".to_owned()), "{level}");
                }
                kill_process(program, Signal::USR1).unwrap();
            };
            let (finished, ()) = tokio::join!(runner.run(waits("atk-goes-on")), kill);
            assert_eq!(text(&finished.unwrap().outcome.stdout), "True\n", "{level}");
            runner.shutdown().await;
        }
    });
}

/// Targets of the descriptors of a process, but for devices, for the network namespace of the daemon, and for `/proc`,
/// also of a namespace.
fn descriptors(process: Pid) -> HashSet<String> {
    let open = fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).unwrap().flatten();
    let targets = open.filter_map(|entry| fs::read_link(entry.path()).ok()?.into_os_string().into_string().ok());
    let shared = ["/dev/", "anon_inode:", "net:["];
    let is_shared = |target: &str| matches!(target, "/" | "/proc") || shared.iter().any(|it| target.starts_with(it));
    targets.filter(|target| !is_shared(target)).collect()
}

/// Whether a process has these bytes anywhere in memory that it may write to.
fn has_in_memory(process: Pid, bytes: &[u8]) -> bool {
    let maps = fs::read_to_string(format!("/proc/{}/maps", process.as_raw_nonzero())).unwrap();
    let memory = File::open(format!("/proc/{}/mem", process.as_raw_nonzero())).unwrap();
    maps.lines().filter(|line| line.contains(" rw")).any(|line| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        let mut content = vec![0; usize::try_from(end - start).unwrap()];
        let read = memory.read_at(&mut content, start).unwrap_or_default();
        content[..read].windows(bytes.len()).any(|window| window == bytes)
    })
}

#[test]
fn what_a_script_is_given_does_not_reach_the_spawner_or_the_next_script() {
    // Only root may look at the memory of such processes.
    if !geteuid().is_root() {
        return;
    }
    leaves_nothing("after looking", async {
        for level in LEVELS {
            let runner = runner(level, 0).await;
            // In no binary: it is put together here.
            let secret = ["only", "this", "script", "knows"].join("-");
            let first = Script { input: Some(secret.clone()), ..waits("atk-first") };
            let look = async {
                let [first, first_init, first_watchdog, spawner] = processes("atk-first").await;
                let next = async {
                    let [next, next_init, next_watchdog, same] = processes("atk-next").await;
                    assert_eq!(same, spawner, "{level}");
                    assert!(has_in_memory(first, secret.as_bytes()), "{level}: or nothing is found anywhere");
                    for other in [spawner, next_watchdog, next_init, next] {
                        assert!(!has_in_memory(other, secret.as_bytes()), "{level}");
                    }
                    let mut of_first: HashSet<_> =
                        [first, first_init, first_watchdog].into_iter().flat_map(descriptors).collect();
                    if first_watchdog == next_watchdog {
                        // The init process of their template, which has what it had before both.
                        of_first.retain(|it| !descriptors(next_watchdog).contains(it));
                    }
                    for other in [spawner, next_watchdog, next_init, next] {
                        let both: Vec<_> = descriptors(other).intersection(&of_first).cloned().collect();
                        assert!(both.is_empty(), "{level}: {both:?}");
                    }
                    assert_eq!(descriptors(spawner).len(), 1, "{level}: its socket to the daemon");
                    for waiting in [next, first] {
                        kill_process(waiting, Signal::USR1).unwrap();
                    }
                };
                tokio::join!(runner.run(waits("atk-next")), next).0
            };
            let (first, next) = tokio::join!(runner.run(first), look);
            for finished in [first, next] {
                assert_eq!(text(&finished.unwrap().outcome.stdout), "True\n", "{level}");
            }
            runner.shutdown().await;
        }
    });
}
