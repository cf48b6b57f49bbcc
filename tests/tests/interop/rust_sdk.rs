//! The SDK for Rust uses the MCP server, in both of its life cycles.

use std::sync::{Arc, Mutex};

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, ProgressNotificationParam, ProtocolVersion,
    ReadResourceRequestParams, SubscriptionFilter,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt as _, NotificationContext, Peer, PeerRequestOptions, RunningService,
    ServiceError,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Value, json};
use tokio::sync::Notify;
use toolbus_testing::patience::eventually;

use crate::fixture::{Fixture, TOKEN};

/// Notifications that the client gets besides responses.
#[derive(Debug, Clone, Default)]
struct Notifications {
    progress: Arc<Mutex<Vec<f64>>>,
    changed: Arc<Notify>,
}

impl ClientHandler for Notifications {
    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.progress.lock().unwrap().push(params.progress);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }
}

type Client = RunningService<RoleClient, Notifications>;

async fn connect(fixture: &Fixture, lifecycle: ClientLifecycleMode) -> (Client, Notifications) {
    let notifications = Notifications::default();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let config = StreamableHttpClientTransportConfig::with_uri(fixture.url()).auth_header(TOKEN);
    let transport = StreamableHttpClientTransport::with_client(http, config);
    (notifications.clone().serve_with_lifecycle(transport, lifecycle).await.unwrap(), notifications)
}

fn request(tool: &'static str, arguments: &Value) -> CallToolRequestParams {
    CallToolRequestParams::new(tool).with_arguments(arguments.as_object().unwrap().clone())
}

/// Everything but news: what both life cycles have in common.
async fn use_mcp_server(fixture: &Fixture, client: &Client, notifications: &Notifications) {
    let tools = client.list_all_tools().await.unwrap();
    assert_eq!(tools.len(), 255);
    let structured =
        client.call_tool(request("get-structured-content", &json!({"location": "Chicago"}))).await.unwrap();
    assert_eq!(structured.structured_content.unwrap()["conditions"], "Light rain / drizzle");
    let nowhere = json!({"datetime": "2026-01-02T03:04", "from_timezone": "UTC", "to_timezone": "Nowhere/At_All"});
    let failed = client.call_tool(request("convert_time", &nowhere)).await.unwrap();
    assert_eq!(failed.is_error, Some(true));
    let unknown = client.call_tool(request("no_such_tool", &json!({}))).await;
    let Err(ServiceError::McpError(error)) = unknown else { panic!("{unknown:?}") };
    assert_eq!(error.code.0, -32_602);

    client.call_tool(request("trigger-long-running-operation", &json!({"duration": 1, "steps": 4}))).await.unwrap();
    assert_eq!(notifications.progress.lock().unwrap().last(), Some(&4.0));

    let endless = request("trigger-long-running-operation", &json!({"duration": 1000, "steps": 10_000}));
    let call = ClientRequest::CallToolRequest(CallToolRequest::new(endless));
    let handle = client.send_cancellable_request(call, PeerRequestOptions::no_options()).await.unwrap();
    let reports = notifications.progress.lock().unwrap().len();
    eventually("progress", async || (notifications.progress.lock().unwrap().len() > reports).then_some(())).await;
    handle.cancel(Some("enough".to_owned())).await.unwrap();
    fixture.eventually_heard("notifications/cancelled").await;

    let resources = client.list_all_resources().await.unwrap();
    let read = client.read_resource(ReadResourceRequestParams::new(resources[0].uri.clone())).await.unwrap();
    assert_eq!(read.contents.len(), 1);
}

fn has_sum(tools: &[rmcp::model::Tool]) -> bool {
    tools.iter().any(|tool| tool.name == "get-sum")
}

#[tokio::test]
async fn the_rust_sdk_uses_the_mcp_server_in_a_session() {
    let fixture = Fixture::new().await;
    let (client, notifications) = connect(&fixture, ClientLifecycleMode::Initialize).await;
    use_mcp_server(&fixture, &client, &notifications).await;
    fixture.allow("get-sum").await;
    notifications.changed.notified().await;
    assert!(has_sum(&client.list_all_tools().await.unwrap()));
    client.cancel().await.unwrap();
    fixture.daemon.end().await;
}

#[tokio::test]
async fn the_rust_sdk_uses_the_mcp_server_without_a_session() {
    let fixture = Fixture::new().await;
    let lifecycle = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] };
    let (client, notifications) = connect(&fixture, lifecycle).await;
    use_mcp_server(&fixture, &client, &notifications).await;
    let filter = SubscriptionFilter::builder().tools_list_changed().build();
    let peer: &Peer<RoleClient> = &client;
    let mut news = peer.listen(filter).await.unwrap();
    fixture.allow("get-sum").await;
    news.next().await.unwrap().unwrap();
    assert!(has_sum(&client.list_all_tools().await.unwrap()));
    client.cancel().await.unwrap();
    fixture.daemon.end().await;
}
