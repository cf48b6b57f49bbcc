mod changing;
mod credentials;
mod ending;
mod fixture;
mod lazily;
mod naming;
mod remote;
mod replacing;
mod sessions;
mod starting;
mod vetting;

use toolbus_core::events::Discard;
use toolbus_testing::patience::eventually;

use super::*;
use crate::spec::TransportSpec;
use crate::testing;

/// A server whose program is not there, so that it is tried again and again.
fn spec(name: &str, origin: ServerOrigin) -> ServerSpec {
    let program = testing::program("/no/such/mcp-server", &[]);
    ServerSpec { origin, ..ServerSpec::of_tests(name, TransportSpec::Stdio(program)) }
}

#[tokio::test]
async fn a_configured_server_replaces_a_registered_one() {
    let bridge = Servers::new(
        Registry::new(),
        Launcher::with_helper("/no/such/helper"),
        Arc::new(Discard),
        Scanner::new().unwrap(),
    );
    bridge.restore(vec![spec("files", ServerOrigin::Registration), spec("git", ServerOrigin::Registration)]);
    bridge.apply(vec![ServerWithSet { spec: spec("Files", ServerOrigin::Configuration), set: None }], Arc::new(|_| {}));
    let known: Vec<_> = bridge.status().into_iter().map(|server| (server.name, server.origin)).collect();
    let expected = [("Files", "configuration"), ("git", "registration")];
    assert_eq!(known, expected.map(|(name, origin)| (name.to_owned(), origin.to_owned())));
    eventually("the replaced one to be released", async || (bridge.shared.tasks.len() == 2).then_some(())).await;
    bridge.shutdown().await;
    assert!(bridge.shared.tasks.is_empty());
}
