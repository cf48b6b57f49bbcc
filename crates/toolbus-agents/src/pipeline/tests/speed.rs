//! Cost of a pipeline, next to the calls that it saves.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use toolbus_broker::embedded::Embedded;
use toolbus_core::bus::{Bus as _, Delivery, Outgoing, Target};
use toolbus_core::{Clock, Service};
use toolbus_protocol::Envelope;

use super::fixture::Fixture;
use crate::testing;

/// Steps of the pipeline.
const STEPS: usize = 10;
/// Pairs that are measured.
const ROUNDS: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_steps_cost_no_more_than_ten_calls_over_the_bus() {
    let fixture = Fixture::new();
    let service = Service::new(fixture.dispatcher.clone());
    let requests = testing::queue(&fixture.bus, "bus.tool.invoke", &["tool.invoke"], 1024 * 1024);
    let mut replies = testing::queue(&fixture.bus, "replies", &[], 1024 * 1024);
    let steps: Vec<Value> =
        (0..STEPS).map(|step| json!({"id": format!("s{step}"), "tool": "echo", "params": {"text": "hello"}})).collect();
    let pipeline = json!({"definitions": [{"description": "x", "steps": steps}]});
    let (one, ten) = (request("echo", &json!({"text": "hello"})), request("spawn_wisps", &pipeline));
    let client = fixture.bus.connect();
    let measuring = async {
        let (mut singles, mut pipelines) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let began = Clock::SYSTEM.now();
            for _ in 0..STEPS {
                exchange(&client, &one, &mut replies).await;
            }
            let between = Clock::SYSTEM.now();
            exchange(&client, &ten, &mut replies).await;
            singles.push(between - began);
            pipelines.push(Clock::SYSTEM.since(between));
        }
        (median(singles), median(pipelines))
    };
    let (singles, pipelines) = tokio::select! {
        measured = measuring => measured,
        () = service.serve_calls(requests) => panic!("the bus ended"),
    };
    let ratio = pipelines.as_secs_f64() / singles.as_secs_f64();
    println!("{STEPS} calls {singles:?}, a pipeline of {STEPS} steps {pipelines:?}: {ratio:.2}");
    assert!(ratio <= 1.0, "{STEPS} calls {singles:?}, a pipeline of as many steps {pipelines:?}");
}

fn request(tool: &str, arguments: &Value) -> Outgoing {
    let envelope = Envelope { reply_to: "replies".to_owned(), source: Some("ana".to_owned()), ..Envelope::default() };
    let body = json!({"toolName": tool, "arguments": arguments}).to_string();
    Outgoing {
        target: Target::Topic("tool.invoke".to_owned()),
        mandatory: true,
        proven: true,
        properties: envelope.into_properties().into(),
        body: body.into(),
    }
}

/// Sends a request, and waits for its reply.
async fn exchange(client: &Embedded, request: &Outgoing, replies: &mut mpsc::Receiver<Delivery>) {
    client.publish(request).await.unwrap();
    let reply = replies.recv().await.unwrap();
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(body["isError"], false, "{body}");
    reply.settle.acknowledge().await;
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
