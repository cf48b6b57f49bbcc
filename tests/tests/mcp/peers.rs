//! Agents of the peers without a bridge of their own: indexes of servers, requests about them, and calls.

use serde_json::{Value, json};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

use crate::peer::{Peer, shown};
use crate::small::{Small, known};

/// Two agents of which the second may use less.
const AGENTS: &str = "[bus]\nname = \"toolbus\"\n[identity]\ntrust_headers = true\nunknown = \"default\"\n\
                      [agents.RockBot]\n[agents.Second]\nallowed_tools = [\"read_note\"]\n[agents.default]\n";

/// A daemon with `Notes` and `mail` in its file of servers.
struct Fixture {
    site: BrokerNamespace,
    small: Small,
    daemon: Daemon,
}

fn both(small: &Small) -> [(&'static str, Value); 2] {
    [("Notes", small.entry("Notes", &["read_note", "write_note"])), ("mail", small.entry("mail", &["send_mail"]))]
}

impl Fixture {
    async fn start() -> Self {
        let (site, small) = (BrokerNamespace::shared().await, Small::new());
        small.write(&both(&small));
        let daemon = Daemon::start(&site, &format!("{AGENTS}{}", small.file())).await;
        known(&daemon, &["Notes", "mail"]).await;
        Self { site, small, daemon }
    }
}

#[tokio::test]
async fn a_request_older_than_the_daemon_gets_its_reply() {
    let Fixture { site, small, daemon } = Fixture::start().await;
    let peer = Peer::start(&site, "Unlisted").await;
    daemon.stop(&site).await;
    let request = peer.refresh_request(None).with(|properties| properties.with_timestamp(1_700_000_000));
    peer.proxy.send(&request).await;
    assert_eq!(peer.indexes(), []);
    let daemon = Daemon::start(&site, &format!("{AGENTS}{}", small.file())).await;
    peer.knows(&[("Notes", &["read_note", "write_note"]), ("mail", &["send_mail"])]).await;
    daemon.stop(&site).await;
}

#[tokio::test]
async fn agents_with_a_section_are_notified_at_the_start_each_of_the_servers_that_it_may_use() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    small.write(&both(&small));
    let (first, second) = (Peer::start(&site, "RockBot").await, Peer::start(&site, "Second").await);
    let other = Peer::start(&site, "Unlisted").await;
    let daemon = Daemon::start(&site, &format!("{AGENTS}{}", small.file())).await;
    first.knows(&[("Notes", &["read_note", "write_note"]), ("mail", &["send_mail"])]).await;
    second.knows(&[("Notes", &["read_note"])]).await;
    assert_eq!(other.indexes(), [], "it is not announced yet");
    other.refresh(Some("notes")).await;
    other.knows(&[("Notes", &["read_note", "write_note"]), ("mail", &["send_mail"])]).await;

    let before = second.indexes().len();
    second.refresh(None).await;
    let index = eventually("an index", async || second.indexes().get(before).cloned()).await;
    insta::assert_json_snapshot!(shown(&index), @r#"
    {
      "body": {
        "removedServers": [],
        "servers": [
          {
            "displayName": null,
            "serverName": "Notes",
            "summary": "Provides 1 tool(s): read_note.",
            "toolCount": 1,
            "toolNames": [
              "read_note"
            ]
          }
        ]
      },
      "contentType": "application/json",
      "deliveryMode": 2,
      "headers": {
        "rb-destination": "Second",
        "rb-rb-content-trust": "system",
        "rb-source": "toolbus"
      },
      "replyTo": "",
      "routingKey": "tool.meta.mcp.Second",
      "type": "RockBot.Tools.Mcp.McpServersIndexed"
    }
    "#);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn agents_are_notified_of_a_change_of_the_file_and_of_nothing_else() {
    let Fixture { site, small, daemon } = Fixture::start().await;
    let (first, second) = (Peer::start(&site, "RockBot").await, Peer::start(&site, "Second").await);
    first.refresh(None).await;
    second.refresh(None).await;
    first.knows(&[("Notes", &["read_note", "write_note"]), ("mail", &["send_mail"])]).await;
    second.knows(&[("Notes", &["read_note"])]).await;
    let before = [first.indexes_since(0).await.len(), second.indexes_since(0).await.len()];

    let [notes, mail] = both(&small);
    small.write(std::slice::from_ref(&notes));
    first.knows(&[("Notes", &["read_note", "write_note"])]).await;
    assert_eq!(first.indexes_since(before[0]).await, [json!({"servers": [], "removedServers": ["mail"]})]);

    small.write(&[mail]);
    first.knows(&[("mail", &["send_mail"])]).await;
    second.knows(&[]).await;
    assert_eq!(second.indexes_since(before[1]).await, [json!({"servers": [], "removedServers": ["Notes"]})]);

    small.write(&[notes]);
    second.knows(&[("Notes", &["read_note"])]).await;
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_proxys_call_by_tool_or_by_server_in_any_case_gets_the_reply_on_its_topic() {
    let Fixture { site, small, daemon } = Fixture::start().await;
    let peer = Peer::start(&site, "RockBot").await;
    let call = peer.call("read_note", "one", None);
    let reply = peer.proxy.exchange(&call).await;
    assert_eq!(reply.correlation_id(), call.correlation);
    insta::assert_json_snapshot!(shown(&reply), @r#"
    {
      "body": {
        "content": "Notes.read_note: one",
        "isError": false,
        "toolCallId": "[id]",
        "toolName": "read_note"
      },
      "contentType": "application/json",
      "deliveryMode": 2,
      "headers": {
        "rb-destination": "RockBot",
        "rb-rb-content-trust": "tool-output",
        "rb-rb-duration-ms": "[ms]",
        "rb-rb-queue-ms": "[ms]",
        "rb-rb-tool-provider": "mcp",
        "rb-source": "toolbus"
      },
      "replyTo": "",
      "routingKey": "tool.result.RockBot",
      "type": "RockBot.Tools.ToolInvokeResponse"
    }
    "#);
    // The peers' management tool writes names of servers in lower case.
    for (server, text) in [("notes", "two"), ("Notes", "three"), ("NOTES", "four")] {
        let reply = peer.called("read_note", text, Some(server)).await;
        assert_eq!(reply.content(), format!("Notes.read_note: {text}"));
    }
    let described = |reply: Message| format!("{} {}", reply.kind(), reply.error());
    let mut errors = Vec::new();
    for (tool, server) in [("send_mail", Some("notes")), ("read_note", Some("nobody")), ("no_tool", None)] {
        errors.push(described(peer.called(tool, "", server).await));
    }
    insta::assert_snapshot!(errors.join("\n"), @r#"
    RockBot.Tools.ToolError Unknown tool 'send_mail' on server 'notes'. Available tools: [read_note, write_note]. Re-invoke with one of those names, or call mcp_get_service_details(server_name: "notes") for their schemas.
    RockBot.Tools.ToolError Unknown MCP server 'nobody'. Registered servers: [Notes, mail].
    RockBot.Tools.ToolError Tool 'no_tool' not found on any connected MCP server.
    "#);
    assert_eq!(small.calls().len(), 4);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn the_reply_to_a_call_without_an_address_goes_to_its_agents_topic() {
    let Fixture { site, small: _small, daemon } = Fixture::start().await;
    let peer = Peer::start(&site, "RockBot").await;
    let call = peer.call("read_note", "home", Some("notes")).reply_to("");
    let reply = peer.proxy.exchange(&call).await;
    assert_eq!((&*reply.routing_key, &*reply.content()), ("tool.result.RockBot", "Notes.read_note: home"));
    daemon.stop(&site).await;
}

#[tokio::test]
async fn every_request_about_servers_gets_a_reply_and_an_unsupported_one_an_error() {
    let Fixture { site, small: _small, daemon } = Fixture::start().await;
    let peer = Peer::start(&site, "RockBot").await;
    let details = peer.manage("McpGetServiceDetailsRequest", &json!({"serverName": "notes"})).await;
    insta::assert_json_snapshot!(shown(&details), @r#"
    {
      "body": {
        "error": null,
        "serverName": "Notes",
        "tools": [
          {
            "description": "Tells read_note",
            "name": "read_note",
            "parametersSchema": "{\"properties\":{\"text\":{\"type\":\"string\"}},\"type\":\"object\"}"
          },
          {
            "description": "Tells write_note",
            "name": "write_note",
            "parametersSchema": "{\"properties\":{\"text\":{\"type\":\"string\"}},\"type\":\"object\"}"
          }
        ]
      },
      "contentType": "application/json",
      "deliveryMode": 2,
      "headers": {
        "rb-destination": "RockBot",
        "rb-rb-content-trust": "tool-output",
        "rb-rb-tool-provider": "mcp",
        "rb-source": "toolbus"
      },
      "replyTo": "",
      "routingKey": "mcp.manage.response.RockBot",
      "type": "RockBot.Tools.Mcp.McpGetServiceDetailsResponse"
    }
    "#);

    let mut replies = Vec::new();
    for (kind, body) in [
        ("McpGetServiceDetailsRequest", json!({"serverName": "nobody"})),
        ("McpGetServiceDetailsRequest", json!([])),
        ("McpRegisterServerRequest", json!({"serverName": "new", "type": "sse", "url": "https://h/sse"})),
        ("McpUnregisterServerRequest", json!({"serverName": "notes"})),
        ("McpGetPromptRequest", json!({"serverName": "notes", "promptName": "p", "arguments": {}})),
        ("McpListResourcesRequest", json!({"serverName": "notes"})),
        ("McpReadResourceRequest", json!({"serverName": "notes", "uri": "file:///x"})),
        ("McpAnswerQuestionRequest", json!({"questionId": "q", "answers": "{}", "decline": false})),
        ("McpOfTomorrowRequest", json!({"serverName": "notes"})),
    ] {
        let reply = peer.manage(kind, &body).await;
        assert_eq!(reply.routing_key, "mcp.manage.response.RockBot");
        replies.push(format!("{} {}", reply.kind().trim_start_matches("RockBot.Tools.Mcp."), reply.body()));
    }
    insta::assert_snapshot!(replies.join("\n"), @r#"
    McpGetServiceDetailsResponse {"error":"Server 'nobody' is not connected","serverName":"nobody","tools":[]}
    McpGetServiceDetailsResponse {"error":"The request cannot be read: expected a JSON object, found an array.","serverName":"","tools":[]}
    McpRegisterServerResponse {"error":"Tool 'mcp_register_server' is not registered: registration is off.","serverName":"new","success":false,"summary":null}
    McpUnregisterServerResponse {"error":"Tool 'mcp_unregister_server' is not registered: registration is off.","serverName":"notes","success":false}
    McpGetPromptResponse {"description":null,"error":"This bridge serves the tools of MCP servers, and not their prompts.","messages":[],"promptName":"p","serverName":"notes"}
    McpListResourcesResponse {"error":"This bridge serves the tools of MCP servers, and not their resources.","resources":[],"serverName":"notes","templates":[]}
    McpReadResourceResponse {"contents":[],"error":"This bridge serves the tools of MCP servers, and not their resources.","serverName":"notes","uri":"file:///x"}
    McpAnswerQuestionResponse {"error":"This bridge serves the tools of MCP servers, and not their questions.","questionId":"q","result":null,"serverName":null,"toolName":null}
    McpOfTomorrowResponse {"error":"This bridge does not serve requests of the type RockBot.Tools.Mcp.McpOfTomorrowRequest.","serverName":"notes"}
    "#);

    // The only one that has no reply; the reply to a later request shows that it was taken.
    let release = peer.question("McpReleaseSessionQuestionsRequest", &json!({"sessionId": "s"}));
    peer.management.send(&release).await;
    let unknown = peer.question("any", &json!({})).of_type("of.nobody");
    let mut reply = shown(&peer.management.exchange(&unknown).await);
    insta::assert_json_snapshot!(reply["body"].take(), @r#"
    {
      "code": "invalid_arguments",
      "isRetryable": false,
      "message": "The request is not usable: its type of.nobody does not belong on this topic.",
      "toolCallId": "[id]",
      "toolName": "mcp.manage"
    }
    "#);
    daemon.stop(&site).await;
    peer.management.caught_up().await;
    assert_eq!(peer.management.replies_to(&release.correlation), []);
}
