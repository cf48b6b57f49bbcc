use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::assembly;

/// Longer than a reload that waits for nobody takes.
const LATE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_file_that_is_slow_to_read_holds_no_thread_of_the_runtime_up() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("a.toml");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let config = Config::default();
    let (registry, sets) = assembly::tools(&config).unwrap();
    let live = Live {
        access: assembly::access(&config, registry).unwrap(),
        sessions: SessionSets::new(sets),
        servers: None,
        digest: watch::Sender::new(config.digest()),
    };
    let sources = Sources { files: vec![pipe.clone()], ..Sources::default() };
    let mut reloader = Reloader::new(sources, config, live);

    let (let_go, may_end) = mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        let _ = may_end.recv_timeout(LATE);
        std::fs::write(pipe, "[invoke]\nmax_in_flight = 7\n")
    });
    let reload = reloader.reload();
    tokio::pin!(reload);
    tokio::select! {
        biased;
        _ = &mut reload => panic!("the only thread of the runtime waited for the file"),
        () = std::future::ready(()) => {}
    }
    let_go.send(()).unwrap();
    assert_eq!(reload.await.unwrap().waiting, ["invoke"]);
    writer.join().unwrap().unwrap();
}
