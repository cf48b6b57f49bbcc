//! No secret is in any text.

use rmcp::transport::Transport as _;
use serde_json::json;
use toolbus_core::Clock;
use toolbus_testing::log::LogCapture;

use super::server::{Server, json_of, orderly, status};
use super::{begin, call, endpoint, received};
use crate::spec::{ClientCredentials, Credential, HttpKind};
use crate::transport::http::Opener;

#[tokio::test]
async fn a_credential_is_in_no_log_line_and_no_error() {
    let page = LogCapture::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(page.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let tokens = Server::start(|_| json_of(&json!({ "access_token": "hunter2-token" }))).await;
    let grant = ClientCredentials {
        token_url: tokens.url.clone(),
        client_id: "bus".to_owned(),
        client_secret: "hunter2-secret".into(),
        scopes: Vec::new(),
    };
    let credentials = [
        Credential::Bearer("hunter2-bearer".into()),
        Credential::Header { name: "X-Api-Key".to_owned(), value: "hunter2-key".into() },
        Credential::ClientCredentials(grant),
    ];
    let good = Server::start(orderly).await;
    let bad = Server::start(|_| status(401, "")).await;
    let mut texts = Vec::new();
    for credential in credentials {
        for server in [&good, &bad] {
            let mut url = server.url.clone();
            url.set_username("bus").unwrap();
            url.set_password(Some("hunter2-password")).unwrap();
            url.set_query(Some("key=hunter2-query"));
            for kind in [HttpKind::Detect, HttpKind::Streamable, HttpKind::Sse] {
                let mut endpoint = endpoint(&url, kind);
                endpoint.headers.insert("X-Other".to_owned(), "hunter2-header".into());
                match Opener::new(&endpoint, Some(credential.clone()), &Default::default(), Clock::SYSTEM)
                    .unwrap()
                    .open()
                    .await
                {
                    Ok(mut transport) => match begin(&mut transport).await {
                        Ok(()) => {
                            transport.send(call(1)).await.unwrap();
                            received(&mut transport).await;
                            transport.close().await.unwrap();
                        }
                        Err(error) => texts.push(format!("{error} {error:?}")),
                    },
                    Err(error) => texts.push(format!("{error} {error:?}")),
                }
            }
        }
    }
    assert_eq!(texts.len(), 12);
    let log = page.text();
    assert!(log.contains("rmcp"), "the log is read at all");
    for text in texts.iter().chain([&log]) {
        let leak = text.lines().find(|line| line.contains("hunter2"));
        assert_eq!(leak, None);
    }
}
