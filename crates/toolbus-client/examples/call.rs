//! Calls a tool, and prints its progress and its result; without a tool, lists what there is.
//!
//! ```sh
//! cargo run -p toolbus-client --example call -- echo '{"text": "hello"}'
//! ```
//!
//! `AMQP_URL` names the broker, `TOOLBUS_AGENT` the agent that calls.

use std::env;
use std::error::Error;
use std::time::Duration;

use serde_json::{Map, Value};
use toolbus_client::{AgentName, BusConnection, Client, ConnectionOptions, ReplyContent, ToolListRequest};

const PATIENCE: Duration = Duration::from_secs(10);
const BUDGET: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("AMQP_URL").unwrap_or_else(|_| "amqp://guest:guest@127.0.0.1:5672/%2f".to_owned());
    let agent = env::var("TOOLBUS_AGENT").unwrap_or_else(|_| "ana".to_owned());
    let connection = BusConnection::open(ConnectionOptions {
        agent: Some(AgentName::parse(&agent)?),
        ..ConnectionOptions::new(&url)
    })?;
    let client = connection.client(PATIENCE).await?;
    let done = match env::args().nth(1) {
        Some(tool) => call(&client, &tool).await,
        None => list(&client).await,
    };
    connection.close().await;
    done
}

async fn list(client: &Client) -> Result<(), Box<dyn Error>> {
    for tool in client.list(&ToolListRequest::default(), PATIENCE).await?.tools {
        println!("{}", tool.get("name").and_then(Value::as_str).unwrap_or_default());
    }
    Ok(())
}

async fn call(client: &Client, tool: &str) -> Result<(), Box<dyn Error>> {
    let arguments = env::args().nth(2).map_or(Ok(Map::new()), |json| serde_json::from_str(&json))?;
    let mut call = client.invoke(tool, &arguments, BUDGET).await?;
    while let Some(report) = call.progress().await {
        println!("{} of {:?}", report.progress, report.total);
    }
    match call.response().await?.content {
        ReplyContent::Result(result) => println!("{}", result.content.unwrap_or_default()),
        ReplyContent::Error(error) => return Err(format!("{}: {}", error.code, error.message).into()),
    }
    Ok(())
}
