//! Connections that stay while others come and go.

use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::http::{Connection, hello};

use crate::tokens::{ANA, RULES};

#[tokio::test]
async fn connections_with_a_token_stay_while_others_come_and_go() {
    let daemon = Daemon::alone(RULES).await;
    let mut known = Vec::new();
    for _ in 0..200 {
        let mut connection = Connection::open(daemon.listen()).await;
        assert_eq!(connection.post(&[ANA], &hello()).await.code, 200);
        known.push(connection);
    }
    for _ in 0..200 {
        let mut connection = Connection::open(daemon.listen()).await;
        assert_eq!(connection.post(&[], &hello()).await.code, 401);
    }
    for connection in &mut known {
        assert_eq!(connection.post(&[ANA], &hello()).await.code, 200);
    }
    daemon.end().await;
}
