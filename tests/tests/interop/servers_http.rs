//! A server that others wrote, over both HTTP transports.

use serde_json::json;
use toolbus_e2e::client::Client;
use toolbus_e2e::mcp::{HttpServer, Workplace, at, ready, with_progress};
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

#[tokio::test]
async fn the_transport_of_a_url_is_detected() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let (streamable, sse) = tokio::join!(HttpServer::start("streamableHttp"), HttpServer::start("sse"));
    let servers = json!({
        "detected": {"url": streamable.url("/mcp")},
        "detected-sse": {"url": sse.url("/sse")},
        "told": {"type": "streamable-http", "url": streamable.url("/mcp")},
        "told-sse": {"type": "sse", "url": sse.url("/sse")},
    });
    let daemon = work.daemon(&site, &servers, "").await;
    let client = Client::connect(&site).await;
    let transports = [("detected", "http"), ("detected-sse", "sse"), ("told", "http"), ("told-sse", "sse")];
    for (server, transport) in transports {
        let sum = client.exchange(&at(&client, server, "get-sum", &json!({"a": 20, "b": 22}))).await;
        assert_eq!(sum.content(), "The sum of 20 and 22 is 42.", "{server}: {:?}", sum.body());
        let status = ready(&daemon, server).await;
        let facts = (&status["transport"], &status["protocolVersion"], status["tools"].as_array().map(Vec::len));
        assert_eq!(facts, (&json!(transport), &json!("2025-11-25"), Some(13)), "{server}");

        let long = json!({"duration": 1, "steps": 2});
        let call = at(&client, server, "trigger-long-running-operation", &long).header("rb-rb-progress", "1");
        client.send(&call).await;
        let (reports, reply) = with_progress(&client, &call).await;
        assert_eq!((reports.len(), &reply.body()["isError"]), (2, &json!(false)), "{server}: {reports:?}");

        let image = client.exchange(&at(&client, server, "get-tiny-image", &json!({}))).await;
        assert_eq!(image.body()["contentBlocks"][1]["mimeType"], "image/png", "{server}");
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn an_http_server_that_was_started_anew_is_reached_again() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    for (transport, path) in [("streamableHttp", "/mcp"), ("sse", "/sse")] {
        let server = HttpServer::start(transport).await;
        let daemon = work.daemon(&site, &json!({"remote": {"url": server.url(path)}}), "").await;
        ready(&daemon, "remote").await;
        let client = Client::connect(&site).await;
        let echo = || at(&client, "remote", "echo", &json!({"message": "here"}));
        assert_eq!(client.exchange(&echo()).await.content(), "Echo: here");

        let port = server.kill().await;
        let away = client.exchange(&echo().header("rb-rb-timeout-ms", "1500")).await;
        assert_ne!(away.code(), "", "{:?}", away.body());
        let _again = HttpServer::start_on(transport, port).await;
        let since = std::time::Instant::now();
        eventually("a good reply", async || (client.exchange(&echo()).await.content() == "Echo: here").then_some(()))
            .await;
        println!("{transport}: a good answer {:?} after the server was there again", since.elapsed());
        daemon.stop(&site).await;
    }
}
