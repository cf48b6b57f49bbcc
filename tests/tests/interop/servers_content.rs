//! Results of third-party servers, as the wire has them.

use serde_json::{Value, json};
use toolbus_e2e::mcp::Workplace;
use toolbus_e2e::message::Message;

/// The parts of a reply that are the tool's, without long data.
fn shown(reply: &Message) -> Value {
    let mut body = reply.body();
    for block in body["contentBlocks"].as_array_mut().into_iter().flatten() {
        if let Some(data) = block.get_mut("data") {
            let start: String = data.as_str().unwrap_or_default().chars().take(12).collect();
            *data = json!(format!("{start}…"));
        }
    }
    json!({"isError": body["isError"], "content": body["content"], "contentBlocks": body["contentBlocks"]})
}

#[tokio::test]
async fn every_kind_of_content_comes_through() {
    let (site, _work, daemon, client) = Workplace::serving(&["everything"], "").await;
    let image = client.call("get-tiny-image", &json!({})).await;
    assert!(image.body()["contentBlocks"][1]["data"].as_str().unwrap().len() > 4_000, "whole");
    insta::assert_json_snapshot!(shown(&image), @r#"
    {
      "content": "Here's the image you requested:\nThe image above is the MCP logo.",
      "contentBlocks": [
        {
          "text": "Here's the image you requested:",
          "type": "text"
        },
        {
          "data": "iVBORw0KGgoA…",
          "mimeType": "image/png",
          "type": "image"
        },
        {
          "text": "The image above is the MCP logo.",
          "type": "text"
        }
      ],
      "isError": false
    }
    "#);
    let annotated = client.call("get-annotated-message", &json!({"messageType": "error", "includeImage": true})).await;
    insta::assert_json_snapshot!(shown(&annotated), @r#"
    {
      "content": "Error: Operation failed",
      "contentBlocks": [
        {
          "text": "Error: Operation failed",
          "type": "text"
        },
        {
          "data": "iVBORw0KGgoA…",
          "mimeType": "image/png",
          "type": "image"
        }
      ],
      "isError": false
    }
    "#);
    let links = client.call("get-resource-links", &json!({"count": 2})).await;
    insta::assert_json_snapshot!(shown(&links), @r#"
    {
      "content": "Here are 2 resource links to resources available in this server:",
      "contentBlocks": [
        {
          "text": "Here are 2 resource links to resources available in this server:",
          "type": "text"
        },
        {
          "mimeType": "text/plain",
          "text": "Blob Resource 1",
          "type": "resource",
          "uri": "demo://resource/dynamic/blob/1"
        },
        {
          "mimeType": "text/plain",
          "text": "Text Resource 2",
          "type": "resource",
          "uri": "demo://resource/dynamic/text/2"
        }
      ],
      "isError": false
    }
    "#);
    let blob = client.call("get-resource-reference", &json!({"resourceType": "Blob", "resourceId": 3})).await;
    insta::assert_json_snapshot!(shown(&blob), @r#"
    {
      "content": "Returning resource reference for Resource 3:\nYou can access this resource using the URI: demo://resource/dynamic/blob/3",
      "contentBlocks": [
        {
          "text": "Returning resource reference for Resource 3:",
          "type": "text"
        },
        {
          "data": "UmVzb3VyY2Ug…",
          "mimeType": "text/plain",
          "type": "resource",
          "uri": "demo://resource/dynamic/blob/3"
        },
        {
          "text": "You can access this resource using the URI: demo://resource/dynamic/blob/3",
          "type": "text"
        }
      ],
      "isError": false
    }
    "#);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_file_is_sent_once_as_content_of_its_type() {
    let (site, work, daemon, client) = Workplace::serving(&["filesystem"], "").await;
    std::fs::write(work.path("files/beep.wav"), b"RIFF, and what follows").unwrap();
    let sound = client.call("read_media_file", &json!({"path": work.text("files/beep.wav")})).await;
    insta::assert_json_snapshot!(shown(&sound), @r#"
    {
      "content": null,
      "contentBlocks": [
        {
          "data": "UklGRiwgYW5k…",
          "mimeType": "audio/wav",
          "type": "audio"
        }
      ],
      "isError": false
    }
    "#);
    let text = client.call("read_text_file", &json!({"path": work.text("files/hello.txt")})).await;
    insta::assert_json_snapshot!(shown(&text), @r#"
    {
      "content": "hello\nworld\n",
      "contentBlocks": null,
      "isError": false
    }
    "#);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_tool_that_runs_as_a_task_fails_with_the_reason() {
    let (site, _work, daemon, client) = Workplace::serving(&["everything"], "").await;
    let research = client.call("simulate-research-query", &json!({"topic": "buses"})).await;
    insta::assert_json_snapshot!(shown(&research), @r#"
    {
      "content": "MCP error -32601: Tool simulate-research-query requires task augmentation (taskSupport: 'required')",
      "contentBlocks": null,
      "isError": true
    }
    "#);
    assert_eq!(research.error(), "");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn structured_content_is_kept_and_not_repeated() {
    let (site, _work, daemon, client) = Workplace::serving(&["everything", "time"], "").await;
    let weather = client.call("get-structured-content", &json!({"location": "Chicago"})).await;
    insta::assert_json_snapshot!(shown(&weather), @r#"
    {
      "content": "{\"temperature\":36,\"conditions\":\"Light rain / drizzle\",\"humidity\":82}",
      "contentBlocks": null,
      "isError": false
    }
    "#);
    let wanted = client.request("get-structured-content", &json!({"location": "Chicago"}));
    let weather = client.exchange(&wanted.header("rb-rb-structured-content", "1")).await;
    insta::assert_json_snapshot!(shown(&weather)["contentBlocks"][1], @r#"
    {
      "mimeType": "application/json",
      "text": "{\"conditions\":\"Light rain / drizzle\",\"humidity\":82,\"temperature\":36}",
      "type": "resource",
      "uri": "toolbus:structured-content"
    }
    "#);
    let time = client.call("get_current_time", &json!({"timezone": "UTC"})).await;
    let result: Value = serde_json::from_str(&time.content()).unwrap();
    assert_eq!((&result["timezone"], &result["is_dst"]), (&json!("UTC"), &json!(false)));
    assert_eq!(time.body()["contentBlocks"], Value::Null);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn an_error_that_a_tool_returns_is_a_result() {
    let (site, _work, daemon, client) = Workplace::serving(&["filesystem", "git", "sqlite", "time"], "").await;
    let outside = client.call("read_text_file", &json!({"path": "/etc/hostname"})).await;
    assert_eq!((outside.body()["isError"].clone(), outside.code()), (json!(true), String::new()));
    assert!(outside.content().starts_with("Access denied - path outside allowed directories"), "{:?}", outside.body());
    let elsewhere = client.call("git_status", &json!({"repo_path": "/etc"})).await;
    let nowhere = client.call("get_current_time", &json!({"timezone": "Mars/Olympus"})).await;
    for reply in [elsewhere, nowhere] {
        assert_eq!((reply.body()["isError"].clone(), reply.code()), (json!(true), String::new()), "{:?}", reply.body());
    }
    // This server reports an error in text alone.
    let query = client.call("read_query", &json!({"query": "SELECT * FROM missing"})).await;
    assert_eq!(query.content(), "Database error: no such table: missing");
    assert_eq!(query.body()["isError"], false);
    daemon.stop(&site).await;
}
