//! A process that is killed with SIGKILL loses nothing that it had put, and its claim.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use toolbus_core::store::Store;
use toolbus_store::{FileClaim, FileClaimError, Sqlite};

use crate::file_in_folder;

/// The program of `examples/put_and_wait.rs`, which is built with the tests.
fn program() -> PathBuf {
    let folder = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples");
    folder.join("put_and_wait")
}

#[tokio::test]
async fn values_of_a_killed_process_are_kept() {
    let (_folder, path) = file_in_folder("store.db");
    let mut child = Command::new(program()).arg(&path).stdout(Stdio::piped()).spawn().unwrap();
    let mut printed = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut printed).unwrap();
    let taken = FileClaim::new(&path, "the test").unwrap_err();
    assert!(matches!(&taken, FileClaimError::Taken(holder) if holder == "the example"), "{taken}");
    assert_eq!(FileClaim::holder(&path).unwrap().as_deref(), Some("the example"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(printed, "everything is put\n", "the child ended early");

    assert_eq!(FileClaim::holder(&path).unwrap(), None);
    let _claim = FileClaim::new(&path, "the test").unwrap();
    let store = Sqlite::open(&path).unwrap();
    assert_eq!(store.list("a").await.unwrap().len(), 50);
    assert_eq!(store.get("a", "49").await, Ok(Some(vec![49])));
}
