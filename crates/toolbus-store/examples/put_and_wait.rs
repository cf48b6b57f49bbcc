//! Claims the file that its argument names, puts fifty values into it, reports that, and waits to be killed.

#![expect(clippy::unwrap_used, reason = "an example fails by panicking")]

use std::path::PathBuf;

use toolbus_core::store::Store;
use toolbus_store::{FileClaim, Sqlite};

#[tokio::main]
async fn main() {
    let file = PathBuf::from(std::env::args_os().nth(1).unwrap());
    let _claim = FileClaim::new(&file, "the example").unwrap();
    let store = Sqlite::open(&file).unwrap();
    for number in 0..50 {
        store.put("a", &format!("{number:02}"), vec![number]).await.unwrap();
    }
    println!("everything is put");
    std::future::pending::<()>().await;
}
