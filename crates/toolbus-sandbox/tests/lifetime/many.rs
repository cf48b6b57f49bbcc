//! Many runs, and runs of every kind, leave the daemon as it was.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use toolbus_sandbox::{Ending, Level, Stop};
use toolbus_scripts::runner::{Runner as _, Script};
use toolbus_testing::patience::eventually;

use crate::fixture::{brief, named, runner, script};
use crate::left::{leaves_nothing, memory, work_folders};

const LEVELS: [Level; 2] = [Level::Full, Level::NoNamespaces];
/// Memory that the daemon may have grown by: allocators keep some.
const GROWTH: u64 = 16 << 20;

#[test]
fn two_hundred_runs_leave_the_daemon_as_it_was() {
    leaves_nothing("after 200 runs", async {
        for level in LEVELS {
            let runner = runner(level, 2).await;
            let run = async |number: usize| {
                let finished = runner.run(script(format!("print('x' * 1000, {number})"))).await.unwrap();
                assert_eq!(finished.outcome.ending, Ending::Exited(0), "{level}");
            };
            stream::iter(0..20).for_each_concurrent(4, &run).await;
            let begun = memory();
            stream::iter(0..80).for_each_concurrent(4, &run).await;
            let ended = memory();
            assert!(ended < begun + GROWTH, "{level}: from {begun} to {ended} bytes");
            runner.shutdown().await;
        }
    });
}

#[test]
fn scripts_run_after_the_system_has_removed_temporary_folders() {
    leaves_nothing("after folders were removed", async {
        for level in LEVELS {
            for warm in [0, 1] {
                let runner = runner(level, warm).await;
                for _ in 0..3 {
                    eventually("the pool", async || (runner.status().warm >= warm).then_some(())).await;
                    for folder in work_folders() {
                        // The daemon may be making a work folder in it.
                        let removed = async || {
                            let _ = std::fs::remove_dir_all(&folder);
                            (!folder.exists()).then_some(())
                        };
                        eventually("a folder to be removed", removed).await;
                    }
                    let finished = runner.run(script("print('done')")).await.unwrap();
                    assert_eq!(finished.outcome.ending, Ending::Exited(0), "{level}");
                }
                runner.shutdown().await;
            }
        }
    });
}

/// A script, and whether this is how it may end.
type Attack = (Script, fn(Ending) -> bool);

/// An attack of each kind.
fn attacks() -> Vec<Attack> {
    let fork_bomb = "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass";
    let daemon = "if os.fork() == 0:\n    os.fork()\n    time.sleep(600)";
    let deep = "while True:\n    os.mkdir('d')\n    os.chdir('d')";
    let closed = "os.mkdir('closed', 0)\nos.symlink('/', 'link')\nos.kill(os.getpid(), 9)";
    let lingers = "for descriptor in range(3):\n    os.close(descriptor)\ntime.sleep(600)";
    let threads = "import threading\nwhile True:\n    threading.Thread(target=time.sleep, args=(600,)).start()";
    let descriptors = "import socket\nkept = []\nwhile True:\n    kept.append(socket.socketpair())";
    vec![
        (brief(named("atk-all", fork_bomb), 1500), |end| matches!(end, Ending::Stopped(_))),
        (script(named("atk-all", daemon)), |end| matches!(end, Ending::Exited(0 | 1))),
        (script("kept = b'x' * (700 << 20)\nwhile True: pass"), |end| end == Ending::Stopped(Stop::Memory)),
        (script(named("atk-all", deep)), |end| matches!(end, Ending::Stopped(Stop::Disk) | Ending::Exited(1))),
        (script(named("atk-all", closed)), |end| end == Ending::Signalled(9)),
        (script("while True: print('x' * 10000)"), |end| end == Ending::Stopped(Stop::Output)),
        (brief(named("atk-all", lingers), 1000), |end| end == Ending::Stopped(Stop::Time)),
        (brief(named("atk-all", threads), 2000), |end| matches!(end, Ending::Stopped(Stop::Time | Stop::Processes))),
        (script(descriptors), |end| end == Ending::Exited(1)),
        (Script { cpu: Duration::from_millis(300), ..script("while True: pass") }, |end| {
            end == Ending::Stopped(Stop::Cpu)
        }),
        (script("import ctypes; ctypes.string_at(0)"), |end| end == Ending::Signalled(11)),
        (script("not python"), |end| end == Ending::Exited(1)),
    ]
}

#[test]
fn after_attacks_of_every_kind_nothing_is_left() {
    leaves_nothing("after all attacks", async {
        let mut begun = 0;
        for round in 0..2 {
            for level in LEVELS {
                let runner = runner(level, 1).await;
                for (number, (script, may_end)) in attacks().into_iter().enumerate() {
                    let ending = runner.run(script).await.unwrap().outcome.ending;
                    assert!(may_end(ending), "{level}, attack {number}: {ending:?}");
                }
                runner.shutdown().await;
            }
            if round == 0 {
                begun = memory();
            }
        }
        let ended = memory();
        assert!(ended < begun + GROWTH, "from {begun} to {ended} bytes");
    });
}
