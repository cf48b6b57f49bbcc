//! A process that is killed with SIGKILL loses nothing that it had put.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use toolbus_core::store::Store;
use toolbus_store::Sqlite;

/// Names the file in the child's environment.
const FILE: &str = "TOOLBUS_STORE_OF_CHILD";
/// What the child says when everything is put.
const DONE: &str = "everything is put";

#[tokio::test]
#[ignore = "the child that the next test kills"]
async fn child_that_puts_and_is_killed() {
    let store = Sqlite::open(Path::new(&std::env::var(FILE).unwrap())).unwrap();
    for number in 0..50 {
        store.put("a", &format!("{number:02}"), vec![number]).await.unwrap();
    }
    // Past the test harness, which keeps what tests print.
    writeln!(std::io::stderr(), "{DONE}").unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn what_a_killed_process_had_put_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "killed::child_that_puts_and_is_killed"])
        .env(FILE, &path)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let said = lines.map_while(Result::ok).find(|line| line.contains(DONE));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said.is_some(), "the child ended early");

    let store = Sqlite::open(&path).unwrap();
    assert_eq!(store.list("a").await.unwrap().len(), 50);
    assert_eq!(store.get("a", "49").await, Ok(Some(vec![49])));
}
