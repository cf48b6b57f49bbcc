//! A broker that grants few channels, and callers that name another queue for each reply: thousands of these cost the
//! daemon no channel, no connection and no consumer.
//!
//! `TOOLBUS_CALLS` is the number of calls of a test.

use futures_util::future::join_all;
use lapin::options::{BasicGetOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;
use toolbus_testing::rabbit::RabbitNode;
use uuid::Uuid;

/// Calls of a test, unless the environment overrides it.
const CALLS: usize = 1_000;
/// Calls that are under way at a time.
const AT_ONCE: usize = 50;
const FEW_CHANNELS: &str = "channel_max = 40\n";
/// Type of peers' requests.
const TYPE: &str = "RockBot.Tools.ToolInvokeRequest";

fn calls() -> usize {
    std::env::var("TOOLBUS_CALLS").map_or(CALLS, |text| text.parse().unwrap())
}

/// An agent with another exclusive queue for each reply.
struct Caller {
    client: Client,
    channel: Channel,
    _connection: Connection,
}

impl Caller {
    async fn connect(site: &BrokerNamespace) -> Self {
        let (connection, channel) = site.channel().await;
        Self { client: Client::connect(site).await, channel, _connection: connection }
    }

    /// Sends a request with a new queue for its reply; gives the queue.
    async fn send(&self, tool: &str, arguments: &Value) -> String {
        let queue = format!("reply.{}", Uuid::new_v4().simple());
        let own = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(queue.as_str().into(), own, FieldTable::default()).await.unwrap();
        self.client.send(&typed(self.client.request(tool, arguments), &queue)).await;
        queue
    }

    async fn get(&self, queue: &str) -> Option<Message> {
        let got = self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap()?;
        Some(Message::from(got.delivery))
    }

    /// Waits for the reply.
    async fn reply(&self, queue: &str) -> Message {
        eventually("a reply", async || self.get(queue).await).await
    }

    /// Deletes a queue; gives the replies that were still there.
    async fn delete(&self, queue: &str) -> u32 {
        self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap()
    }
}

fn typed(request: Request, reply_to: &str) -> Request {
    request.of_type(TYPE).reply_to(reply_to)
}

async fn assert_unharmed(daemon: &Daemon) {
    let (code, ready) = daemon.get("/readyz").await.unwrap();
    assert_eq!(code, 200, "{ready}");
    let (_, status) = daemon.get("/status").await.unwrap();
    assert_eq!(status["broker"]["reconnects"], 0, "{status}");
}

#[tokio::test]
async fn a_new_exclusive_queue_for_each_reply_costs_the_daemon_nothing() {
    let node = RabbitNode::start_with(FEW_CHANNELS).await;
    let site = BrokerNamespace::on(&node);
    let daemon = Daemon::start(&site, "[tools]\necho = true\n").await;
    let (caller, arguments) = (Caller::connect(&site).await, json!({"text": "here"}));
    for _ in 0..calls() / AT_ONCE {
        let queues = join_all((0..AT_ONCE).map(|_| caller.send("echo", &arguments))).await;
        for queue in queues {
            assert_eq!(caller.reply(&queue).await.content(), "here");
            assert_eq!(caller.delete(&queue).await, 0);
        }
        assert_unharmed(&daemon).await;
    }
    caller.delete(&site.queue()).await;
    eventually("a new consumer", async || site.consumers(&site.queue()).await.filter(|count| *count == 1)).await;
    let last = caller.send("echo", &json!({"text": "again"})).await;
    assert_eq!(caller.reply(&last).await.content(), "again");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn dead_queues_of_one_agent_leave_the_calls_of_others_alone() {
    const DEAD: usize = 80;
    let node = RabbitNode::start_with(FEW_CHANNELS).await;
    let site = BrokerNamespace::on(&node);
    let daemon = Daemon::start(&site, "[tools]\necho = true\n").await;
    let (faulty, other) = (Client::connect(&site).await, Caller::connect(&site).await);
    for _ in 0..calls().div_ceil(DEAD) {
        for number in 0..DEAD {
            let request = faulty.request("echo", &json!({"text": "lost"}));
            let dead = format!("reply.dead-{number}");
            faulty.send(&if number % 2 == 0 { typed(request, &dead) } else { request.reply_to(&dead) }).await;
        }
        let queue = other.send("echo", &json!({"text": "here"})).await;
        assert_eq!(other.reply(&queue).await.content(), "here");
        site.wait_for_ready(&site.dead_letters(), DEAD.try_into().unwrap()).await;
        site.purge(&site.dead_letters()).await;
        assert_unharmed(&daemon).await;
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn slow_calls_with_exclusive_queues_are_replied_once_on_the_connection_that_took_them() {
    let node = RabbitNode::start_with(FEW_CHANNELS).await;
    let (site, backend) = (BrokerNamespace::on(&node), Backend::start().await);
    let hold = backend.tool("hold", "/gate?id={id}", "timeout = \"1700s\"\n");
    let daemon = Daemon::start(
        &site,
        &format!("[invoke]\ndefault_timeout = \"1700s\"\nmax_timeout = \"1700s\"\nmax_waiting = 60000\n{hold}"),
    )
    .await;
    let callers = [Caller::connect(&site).await, Caller::connect(&site).await];
    let ids: Vec<(usize, String)> = (0..calls()).map(|number| (number % 2, number.to_string())).collect();
    let mut queues = Vec::new();
    for ids in ids.chunks(AT_ONCE) {
        let sent = ids.iter().map(async |(agent, id)| callers[*agent].send("hold", &json!({"id": id})).await);
        queues.extend(join_all(sent).await);
    }
    backend.open();
    for ((agent, id), queue) in ids.iter().zip(&queues) {
        let reply = callers[*agent].reply(queue).await;
        assert_eq!(reply.content(), format!("passed {id}"), "{reply:?}");
        assert_eq!(backend.count(id), 1);
    }
    assert_unharmed(&daemon).await;
    for ((agent, _), queue) in ids.iter().zip(&queues) {
        assert_eq!(callers[*agent].delete(queue).await, 0, "a second reply");
    }
    daemon.stop(&site).await;
}
