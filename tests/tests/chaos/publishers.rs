//! Messages that one publisher can send to harm others: huge bodies, headers that fill a frame, thousands of calls of a
//! tool that hangs, names without end. Memory stays bounded, and the calls of another agent take hardly longer than at
//! a responder that does nothing, on the same broker beside the same messages. (Agents in any number: `agents.rs`.)

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions, QueueBindOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use lapin::{BasicProperties, Channel};
use serde_json::json;
use tokio::sync::{MutexGuard, oneshot};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::metrics::sum;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::otlp::Receiver;
use toolbus_testing::patience::{at_most, eventually};

use crate::turn;

/// Calls of another agent of which the time is taken, at least.
const CALLS: usize = 200;
/// Multiple of the time at rest, or at the bare responder, that 99 of 100 of these calls may take beside what is sent
/// here.
const SLOWER: u32 = 3;
/// And how long in any case, on a machine with nothing else to do: publisher, broker and daemon share its processors, and
/// what one queue has before a call is delivered before it.
const SHORT: Duration = Duration::from_secs(1);
/// Messages that one publisher has under way.
const AT_ONCE: usize = 64;
/// Messages of which the bare responder gets no more: they show what each costs.
const ENOUGH: usize = 5_000;
/// Names of tools that there are not, each by a caller of its own.
const NAMES: usize = 30_000;
/// Names of which the daemon may remember something: no further one costs anything.
const REMEMBERED: usize = 12_000;
/// Topic of the bare responder.
const BARE: &str = "bare.invoke";
/// Messages that it has at a time: as the daemon by default.
const PREFETCH: u16 = 1_280;

struct Fixture {
    site: BrokerNamespace,
    backend: Backend,
    daemon: Daemon,
    bare: BareResponder,
    hostile: Client,
    bruno: Client,
    _turn: MutexGuard<'static, ()>,
}

/// The times within which 95 and 99 of 100 replies come.
#[derive(Debug, Clone, Copy)]
struct Times {
    p95: Duration,
    p99: Duration,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p95, p99 } = self;
        write!(f, "p95 {p95:.1?}, p99 {p99:.1?}")
    }
}

impl Fixture {
    async fn start() -> Self {
        Self::start_with("", &[]).await
    }

    /// With further configuration, and variables, of the daemon.
    async fn start_with(more: &str, environment: &[(&str, &str)]) -> Self {
        let turn = turn().await;
        let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
        let hold = backend.tool("hold", "/gate?id={id}", "timeout = \"100s\"");
        let rules = "[tools]\necho = true\n[invoke]\ndefault_timeout = \"110s\"\n[identity]\ntrust_headers = true\n\
                     [agents.ana]\n[agents.bruno]\n";
        let daemon = Daemon::launch(&site, &format!("{rules}{hold}{more}"), environment).await;
        daemon.wait_until_ready().await;
        let bare = BareResponder::start(&site).await;
        let (hostile, bruno) = (Client::connect(&site).await, Client::connect(&site).await);
        let fixture = Self { site, backend, daemon, bare, hostile, bruno, _turn: turn };
        // The first calls pay for connections and sets that are made once.
        fixture.quiet(None).await;
        fixture.quiet(Some(BARE)).await;
        fixture
    }

    /// Measures the time that bruno's replies take, by the daemon or by what listens on this topic: of some calls, and
    /// of all until the flood is over.
    async fn times(&self, topic: Option<&str>, is_over: &AtomicBool) -> Times {
        let mut times = Vec::new();
        while times.len() < CALLS || !is_over.load(Ordering::Relaxed) {
            let request = to(self.bruno.request("echo", &json!({"text": "well"})).by("bruno"), topic);
            let began = Instant::now();
            assert_eq!(self.bruno.exchange(&request).await.content(), "well");
            times.push(began.elapsed());
        }
        times.sort();
        let within = |percent: usize| times[times.len() * percent / 100];
        Times { p95: within(95), p99: within(99) }
    }

    /// Times of some calls while the broker is quiet.
    async fn quiet(&self, topic: Option<&str>) -> Times {
        self.times(topic, &AtomicBool::new(true)).await
    }

    /// Measures the time that bruno's replies take on one topic while all of these are sent to another, or the same.
    async fn beside(&self, topic: Option<&str>, flooded: Option<&str>, requests: &[Request]) -> Times {
        let is_over = AtomicBool::new(false);
        let flood = async {
            for part in requests.chunks(AT_ONCE) {
                let goal = self.hostile.count() + part.len();
                join_all(part.iter().map(|request| self.send(flooded, request))).await;
                eventually("their replies", async || (self.hostile.count() >= goal).then_some(())).await;
            }
            is_over.store(true, Ordering::Relaxed);
        };
        let (beside, ()) = tokio::join!(self.times(topic, &is_over), flood);
        beside
    }

    async fn send(&self, topic: Option<&str>, request: &Request) {
        match topic {
            None => self.hostile.send(request).await,
            Some(_) => self.hostile.send(&to(request.clone(), topic)).await,
        }
    }

    /// Sends all of these while bruno calls. They may cost the daemon this much memory, in KiB. Gives its replies.
    async fn endure(&self, what: &str, requests: &[Request], most: u64) -> Vec<Message> {
        self.daemon.forget_peak();
        let before = self.daemon.peak();
        let quiet = self.quiet(None).await;
        let beside = self.beside(None, None, requests).await;
        let grown = self.daemon.peak().saturating_sub(before);
        let replies = self.hostile.received();
        let few = requests.get(..ENOUGH).unwrap_or(requests);
        let bare_quiet = self.quiet(Some(BARE)).await;
        let bare = self.beside(Some(BARE), Some(BARE), few).await;
        // The daemon gets none of these: what its caller waits for is the broker's share, and the machine's.
        let elsewhere = self.beside(None, Some(BARE), few).await;
        println!(
            "{what}: {beside}, {quiet} at rest, {elsewhere} if they go to another; bare responder: {bare}, {bare_quiet} \
             at rest; {grown} KiB more than {before} KiB"
        );
        let most_time = (quiet.p99.max(bare.p99) * SLOWER).max(at_most(SHORT));
        assert!(beside.p99 < most_time, "{beside}; {quiet} at rest, {bare} at the bare responder");
        assert!(grown < most, "{grown} KiB");
        replies
    }

    async fn end(self) {
        self.backend.open();
        self.bare.stop().await;
        self.daemon.stop(&self.site).await;
    }
}

/// To the daemon, or to what listens on this topic.
fn to(request: Request, topic: Option<&str>) -> Request {
    match topic {
        Some(topic) => request.on(topic),
        None => request,
    }
}

/// The least that replies and loses nothing, in a thread of its own: what the others wait for beside it is the broker's
/// share, and the machine's.
struct BareResponder {
    queue: String,
    channel: Channel,
    _connection: lapin::Connection,
    stop: oneshot::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl BareResponder {
    async fn start(site: &BrokerNamespace) -> Self {
        let queue = format!("{}.bare", site.prefix);
        let kind = AMQPValue::LongString("quorum".into());
        site.declare(&queue, [("x-queue-type", kind)].into()).await;
        let (connection, channel) = site.channel().await;
        let none = FieldTable::default();
        let (name, exchange) = (queue.as_str().into(), site.exchange.as_str().into());
        channel.queue_bind(name, exchange, BARE.into(), QueueBindOptions::default(), none).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let (site, own) = (site.clone(), queue.clone());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = respond(&site, &own) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { queue, channel, _connection: connection, stop, thread }
    }

    async fn stop(self) {
        drop(self.stop);
        self.thread.join().unwrap();
        let queue = self.queue.as_str().into();
        self.channel.queue_delete(queue, QueueDeleteOptions::default()).await.unwrap();
    }
}

async fn respond(site: &BrokerNamespace, queue: &str) {
    let ((_consuming, channel), (_publishing, replies)) = (site.channel().await, site.channel().await);
    replies.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.unwrap();
    let consume = channel.basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default());
    let mut deliveries = consume.await.unwrap();
    while let Some(Ok(delivery)) = deliveries.next().await {
        tokio::spawn(send_reply(replies.clone(), delivery));
    }
}

async fn send_reply(channel: Channel, delivery: Delivery) {
    let address = delivery.properties.reply_to().clone().unwrap();
    let correlation = delivery.properties.correlation_id().clone().unwrap();
    let properties = BasicProperties::default().with_delivery_mode(2).with_correlation_id(correlation);
    let body = json!({"toolName": "echo", "content": "well", "isError": false}).to_string();
    let options = BasicPublishOptions::default();
    channel.basic_publish("".into(), address, options, body.as_bytes(), properties).await.unwrap().await.unwrap();
    delivery.acker.ack(BasicAckOptions::default()).await.unwrap();
}

#[tokio::test]
async fn bodies_of_50_mb_are_refused_one_by_one() {
    let fixture = Fixture::start().await;
    let body = vec![b'x'; 50 * 1024 * 1024];
    let requests: Vec<_> = (0..6).map(|_| fixture.hostile.raw(body.clone()).by("ana")).collect();
    // AMQP has no way to skip a body: what comes behind one waits until it has been read.
    let replies = fixture.endure("bodies of 50 MB", &requests, 64 * 1024).await;
    assert!(replies.iter().all(|reply| reply.code() == "invalid_arguments"), "{:?}", replies.first());
    fixture.end().await;
}

#[tokio::test]
async fn headers_that_fill_a_frame_cost_others_little() {
    let fixture = Fixture::start().await;
    let mut many = FieldTable::default();
    for number in 0..3_000 {
        many.insert(format!("h{number}").into(), AMQPValue::LongLongInt(number));
    }
    let mut deep = AMQPValue::Void;
    for _ in 0..500 {
        deep = AMQPValue::FieldArray(FieldArray::from(vec![deep]));
    }
    let long = AMQPValue::LongString("x".repeat(100_000).into());
    let requests: Vec<_> = (0..1_000)
        .map(|number| {
            let request = fixture.hostile.request("echo", &json!({"text": "x"}));
            let request = match number % 4 {
                0 => Request { headers: many.clone(), ..request },
                1 => request.header_of("rb-many", AMQPValue::FieldTable(many.clone())),
                2 => request.header_of("rb-deep", deep.clone()),
                _ => request.header_of("rb-long", long.clone()),
            };
            request.by("ana")
        })
        .collect();
    let replies = fixture.endure("header bombs", &requests, 100 * 1024).await;
    assert!(replies.iter().all(|reply| reply.content() == "x"), "{:?}", replies.first());
    fixture.end().await;
}

#[tokio::test]
async fn ten_thousand_calls_of_a_tool_that_hangs_leave_others_their_time() {
    let fixture = Fixture::start().await;
    let requests: Vec<_> =
        (0..10_000).map(|_| fixture.hostile.request("hold", &json!({"id": "held"})).by("ana")).collect();
    let quiet = fixture.quiet(None).await;
    fixture.daemon.forget_peak();
    let before = fixture.daemon.peak();
    stream::iter(&requests).for_each_concurrent(AT_ONCE, |request| fixture.send(None, request)).await;
    // While they arrive, a call behind them waits in the broker's queue. These have been taken, and some wait.
    fixture.site.wait_for_ready(&fixture.site.queue(), 0).await;
    fixture.backend.wait_for("held").await;
    let beside = fixture.quiet(None).await;
    let grown = fixture.daemon.peak().saturating_sub(before);
    println!("calls of a tool that hangs: {beside}, {quiet} at rest; {grown} KiB more than {before} KiB");
    assert!(beside.p99 < (quiet.p99 * SLOWER).max(at_most(SHORT)), "{beside}; {quiet} at rest");
    assert!(grown < 64 * 1024, "{grown} KiB");

    fixture.backend.open();
    eventually("all replies", async || (fixture.hostile.count() >= requests.len()).then_some(())).await;
    let replies = fixture.hostile.received();
    let passed = replies.iter().filter(|reply| reply.content() == "passed held").count();
    let refused = replies.iter().filter(|reply| reply.code() == "overloaded").count();
    assert_eq!(passed + refused, requests.len(), "{:?}", replies.first());
    assert_eq!(passed, fixture.backend.count("held"));
    fixture.end().await;
}

#[tokio::test]
async fn thirty_thousand_names_of_tools_and_callers_leave_no_trace() {
    let receiver = Receiver::start().await.unwrap();
    let exported = format!("[telemetry]\notlp_endpoint = \"{}\"\n", receiver.grpc_endpoint());
    let metrics_alone = [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_LOGS_EXPORTER", "none")];
    let fixture = Fixture::start_with(&exported, &metrics_alone).await;
    let requests: Vec<_> = (0..NAMES)
        .map(|number| {
            // Near to a tool that there is, so that a name for it would be looked for.
            let request = fixture.hostile.request(&format!("ech{number}"), &json!({"text": "x"}));
            request.by(&format!("publisher-{number}"))
        })
        .collect();
    let (first, others) = requests.split_at(REMEMBERED);
    fixture.endure("the first names", first, 32 * 1024).await;
    let replies = fixture.endure("the other names", others, 12 * 1024).await;
    let refused = replies.iter().filter(|reply| reply.code() == "tool_not_found").count();
    assert_eq!(refused, NAMES, "{:?}", replies.first());
    // The end exports what was not.
    fixture.end().await;
    let unknown = [("tool_name", "_unknown"), ("status", "tool_not_found"), ("tool_source", "_unknown")];
    assert_eq!(sum(&receiver, "rockbot.tool.invocations", &unknown), NAMES as i64);
    let labels = format!("{:?}", receiver.metrics());
    assert!(!labels.contains("ech1") && !labels.contains("publisher-"), "{labels}");
}
