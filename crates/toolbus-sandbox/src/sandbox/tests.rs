//! What is made ahead, with a helper that does nothing.

use std::collections::BTreeMap;

use super::*;
use crate::plan::Limits;

fn plan() -> Plan {
    let limits =
        Limits { memory: 1, disk: 1, files: 1, file_size: 1, open_files: 1, processes: 1, output: 1, artifacts: 1 };
    Plan {
        program: "/bin/true".into(),
        args: Vec::new(),
        env: BTreeMap::new(),
        read: Vec::new(),
        write: Vec::new(),
        network: false,
        metadata: false,
        waits: true,
        limits,
    }
}

#[tokio::test]
async fn nothing_is_made_ahead_any_more_once_it_is_closed() {
    // Waits for somebody to read what it says.
    let sandbox = Sandbox::with_helper("/usr/bin/yes", Level::NoNamespaces).unwrap();
    sandbox.shared.make_spare(Level::NoNamespaces, plan()).await;
    assert!(sandbox.shared.ahead().spare.is_some());
    sandbox.at(Level::Full).close();
    assert!(sandbox.shared.ahead().spare.is_none());
    sandbox.shared.make_spare(Level::NoNamespaces, plan()).await;
    assert!(sandbox.shared.ahead().spare.is_none());
}
