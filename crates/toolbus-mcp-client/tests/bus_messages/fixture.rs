//! A daemon that replies to requests about servers on a bus in memory, and agents on the same bus.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use toolbus_broker::embedded::Embedded;
use toolbus_core::bus::{Bus, Delivery, Outgoing, Ownership, Subscription, Target};
use toolbus_core::caller::{AgentName, Identity};
use toolbus_core::events::Discard;
use toolbus_core::failure::ToolFailure;
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{AgentPolicy, Allowed, Capacity, EffectiveTools, Policy, PolicyHandle};
use toolbus_core::registry::{Rank, Registry};
use toolbus_core::store::Store;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::toolsets::SessionSets;
use toolbus_core::{
    About, AllArrived, Budgets, Clock, ControlService, Dispatcher, DispatcherSettings, Gates, Invoker, ReplyRules,
    Service,
};
use toolbus_protocol::{Envelope, Properties, Random, header, new_message_id, topic};

use toolbus_mcp_client::bus_messages::{Index, ManageHandler, RefreshHandler, RememberedAgents};
use toolbus_mcp_client::servers::{ServerControl, ServerDescription};
use toolbus_mcp_client::spec::{ServerName, ServerOrigin, ServerSpec};
use toolbus_store::MemoryStore;

/// Longest wait for a message that must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns its arguments.
struct Repeats;

impl Executor for Repeats {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let given = Value::from((*call.arguments).clone());
        let name = given["server_name"].as_str().unwrap_or_default();
        Ok(match name {
            "refused" => ToolOutput::error("Failed to register server 'refused': the host is not allowed."),
            "added" => ToolOutput::text("Server 'added' registered successfully. 2 tool(s) available."),
            "kept" => ToolOutput::error("Failed to remove server 'kept': it was configured by an operator."),
            _ => ToolOutput::text(format!("{} {given}", call.caller.name)),
        })
    }
}

/// Servers of which `Lazy` publishes a tool when it is woken, and `stuck` never does.
pub(crate) struct Fleet {
    registry: Registry,
    pub(crate) refreshed: Mutex<Vec<String>>,
    pub(crate) woken: Mutex<Vec<String>>,
    asleep: BTreeSet<String>,
}

impl ServerControl for Fleet {
    fn within_reach(&self, effective: &EffectiveTools) -> Vec<ServerName> {
        let published = self.registry.snapshot();
        let published = published.tools().filter_map(|tool| tool.descriptor.server.clone());
        let all: BTreeSet<_> = published.chain(["Lazy".into(), "stuck".into()]).collect();
        let all = all.iter().map(|name| ServerName::parse(name).unwrap());
        all.filter(|name| effective.could_have(name.source(), None)).collect()
    }

    fn asleep(&self, effective: &EffectiveTools) -> Vec<ServerName> {
        let mut servers = self.within_reach(effective);
        servers.retain(|server| self.asleep.contains(&**server.as_str()));
        servers
    }

    fn refresh(&self, server: &ServerName) {
        self.refreshed.lock().push(server.to_string());
    }

    fn describe(&self, server: &str) -> Option<ServerDescription> {
        (server == "Files").then(|| ServerDescription {
            name: "Files".to_owned(),
            summary: None,
            description: Some("A file system.".to_owned()),
            instructions: None,
        })
    }

    fn wake<'a>(&'a self, server: &'a ServerName, latest: Instant) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.woken.lock().push(server.to_string());
            match &**server.folded() {
                "lazy" => publish(&self.registry, "lazy", &["dream"]),
                _ => tokio::time::sleep_until(latest.into()).await,
            }
        })
    }

    fn add<'a>(&'a self, _: ServerSpec, _: Instant) -> BoxFuture<'a, Result<Vec<String>, String>> {
        panic!("no message adds a server directly")
    }

    fn remove<'a>(&'a self, _: &'a ServerName) -> BoxFuture<'a, bool> {
        panic!("no message removes a server directly")
    }

    fn origin(&self, name: &str) -> Option<ServerOrigin> {
        let published = self.registry.snapshot();
        let is_it = |server: &str| server.eq_ignore_ascii_case(name);
        let is_there = ["Lazy", "stuck"].into_iter().any(is_it)
            || published.tools().filter_map(|tool| tool.descriptor.server.as_deref()).any(is_it);
        is_there.then_some(ServerOrigin::Configuration)
    }
}

/// Publishes the tools of a server.
fn publish(registry: &Registry, server: &str, tools: &[&str]) {
    let described: Vec<_> = tools.iter().map(|name| (*name, format!("Does {name}."))).collect();
    publish_described(registry, server, &described);
}

fn publish_described(registry: &Registry, server: &str, tools: &[(&str, String)]) {
    let source: Arc<str> = format!("mcp:{server}").into();
    let tool = |(name, description): &(&str, String)| {
        let descriptor = ToolDescriptor {
            description: description.clone(),
            parameters: Some(Arc::new(json!({"type": "object"}))),
            server: Some(server.into()),
            ..ToolDescriptor::new(*name, Arc::clone(&source), "mcp")
        };
        Tool::new(descriptor, Repeats)
    };
    registry.publish(Rank::Configured, &source, tools.iter().map(tool).collect()).unwrap();
}

pub(crate) struct Fixture {
    bus: Embedded,
    registry: Registry,
    pub(crate) access: PolicyHandle,
    pub(crate) fleet: Arc<Fleet>,
    running: JoinSet<()>,
}

/// Message that an agent or a listener got.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) envelope: Envelope,
    pub(crate) properties: Properties,
    pub(crate) body: Value,
}

/// A queue with a consumer.
pub(crate) struct Listener(mpsc::Receiver<Delivery>);

impl Listener {
    pub(crate) async fn next(&mut self) -> Received {
        let delivery = tokio::time::timeout(PATIENCE, self.0.recv()).await.expect("a message").unwrap();
        let body = serde_json::from_slice(&delivery.body).unwrap();
        let properties = Properties::clone(&delivery.properties);
        let got = Received { envelope: Envelope::read(&properties), properties, body };
        delivery.settle.acknowledge().await;
        got
    }

    /// The properties of a message whose body may be anything.
    pub(crate) async fn next_raw(&mut self) -> Properties {
        let delivery = tokio::time::timeout(PATIENCE, self.0.recv()).await.expect("a message").unwrap();
        let properties = Properties::clone(&delivery.properties);
        delivery.settle.acknowledge().await;
        properties
    }

    /// Whether no message has arrived yet; waits for none.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.0.try_recv().is_err()
    }
}

/// A policy for `ana`, with all tools, `bob`, with tools that begin with `read`, and `eve`, without tools.
pub(crate) fn policy() -> Policy {
    let only = |tools| AgentPolicy { tools, ..AgentPolicy::default() };
    let agents =
        [("ana", Allowed::All), ("bob", Allowed::Only(vec![Pattern::parse("read*").unwrap()])), ("eve", Allowed::None)];
    let agents = agents.map(|(name, tools)| (AgentName::parse(name).unwrap(), only(tools)));
    Policy { agents: agents.into(), ..Policy::default() }
}

impl Fixture {
    /// A daemon that consumes requests; servers are connected later.
    pub(crate) fn new() -> Self {
        Self::with(policy(), false)
    }

    /// The same for other agents; their replies may have to go to topics of their own.
    pub(crate) fn with(policy: Policy, own_topics_only: bool) -> Self {
        Self::of(Identity::default(), policy, own_topics_only, Arc::new(MemoryStore::default()), &[])
    }

    /// The same for agents with another identity, with what an earlier daemon has stored, and with servers that
    /// start with their first use.
    pub(crate) fn of(
        identity: Identity,
        policy: Policy,
        own_topics_only: bool,
        store: Arc<dyn Store>,
        asleep: &[&str],
    ) -> Self {
        let (bus, registry) = (Embedded::new(), Registry::new());
        let access =
            PolicyHandle::new(registry.clone(), identity, policy, Capacity { max_in_flight: 8, max_waiting: 8 });
        let rules = ReplyRules {
            reply_topics: vec!["tool.result.#".to_owned(), "mcp.manage.response.#".to_owned()],
            request_topics: vec!["tool.invoke".to_owned()],
            queue_prefix: "bus7".to_owned(),
            default_topic: "tool.result".to_owned(),
            own_topics_only,
        };
        let settings = DispatcherSettings {
            name: "toolbus".to_owned(),
            replies: rules.clone(),
            budgets: Budgets { default: Duration::from_secs(60), max: Duration::from_secs(120) },
            max_body: 1024 * 1024,
            max_in_flight: 8,
            max_waiting: 8,
            redactor: Default::default(),
            ignores_unknown_servers: false,
            ledger: None,
            results: None,
            clock: Clock::SYSTEM,
            random: Random::SYSTEM,
        };
        let shared = Arc::new(bus.clone()) as Arc<dyn Bus>;
        let dispatcher = Dispatcher::new(
            settings,
            Arc::new(Gates::new(access.clone())),
            Arc::clone(&shared),
            Arc::new(Discard),
            Arc::new(Discard),
            Arc::default(),
            Arc::new(AllArrived),
        );
        let refreshed = Mutex::default();
        let asleep = asleep.iter().map(|server| (*server).into()).collect();
        let fleet = Arc::new(Fleet { registry: registry.clone(), refreshed, woken: Mutex::default(), asleep });
        let servers = Arc::clone(&fleet) as Arc<dyn ServerControl>;
        let (notifier, notify) =
            dispatcher.notifier_of(Index::new(Arc::clone(&servers), Arc::clone(&store)), Arc::clone(&shared));
        let invoker = Arc::new(dispatcher.clone()) as Arc<dyn Invoker>;
        let before = RememberedAgents::new(store, Clock::SYSTEM);
        let refresh = Arc::new(RefreshHandler::new(access.clone(), notify, Arc::clone(&servers), before));
        let about = About {
            name: "toolbus".to_owned(),
            version: "1".to_owned(),
            config_digest: tokio::sync::watch::channel("0".to_owned()).1,
            roles: Vec::new(),
            started: Instant::now(),
        };
        let desk = ControlService::new(about, shared, rules, dispatcher.clone(), SessionSets::default())
            .with(topic::MCP_MANAGE, Arc::new(ManageHandler::new(access.clone(), servers, invoker, false)))
            .with(topic::MCP_REFRESH, Arc::clone(&refresh) as _);
        let mut running = JoinSet::new();
        let service = Arc::new(Service::new(dispatcher));
        for (queue, topic) in [("bus7.mcp-manage", topic::MCP_MANAGE), ("bus7.mcp-refresh", topic::MCP_REFRESH)] {
            let requests = bus.consume(subscription(queue, topic, Ownership::Shared));
            let (service, desk) = (Arc::clone(&service), desk.clone());
            running.spawn(async move { service.serve_requests(&desk, requests).await });
        }
        let followed = access.clone();
        running.spawn(async move { followed.follow().await });
        running.spawn(notifier.run());
        running.spawn(async move { refresh.notify_again().await });
        Self { bus, registry, access, fleet, running }
    }

    /// Publishes the tools of a server; none: it is gone.
    pub(crate) fn publish(&self, server: &str, tools: &[&str]) {
        publish(&self.registry, server, tools);
    }

    /// Publishes a server whose tool has this description.
    pub(crate) fn publish_described(&self, server: &str, tool: &str, description: String) {
        publish_described(&self.registry, server, &[(tool, description)]);
        self.access.refresh();
    }

    /// Registers a tool of no server.
    pub(crate) fn register(&self, name: &str) {
        self.registry.register(Tool::new(ToolDescriptor::new(name, "mcp:management", "mcp"), Repeats)).unwrap();
        self.access.refresh();
    }

    /// Listens to a topic, through a queue that an agent would have.
    pub(crate) fn listen(&self, topic: &str) -> Listener {
        Listener(self.bus.connect().consume(subscription(&format!("rockbot.{topic}"), topic, Ownership::Shared)))
    }

    /// Listens to the dead letters of a queue.
    pub(crate) fn dead_letters(&self, queue: &str) -> Listener {
        let dead = subscription(&format!("{queue}.dlq"), "unused", Ownership::Existing);
        Listener(self.bus.connect().consume(dead))
    }

    /// Publishes a request as an agent does.
    pub(crate) async fn request(&self, request: Request<'_>) {
        self.send(request, Vec::new()).await;
    }

    /// Publishes a request of an agent that waits no longer than this.
    pub(crate) async fn request_within(&self, request: Request<'_>, budget: Duration) {
        let budget = budget.as_millis().to_string();
        self.send(request, vec![(header::TIMEOUT_MS.to_owned(), budget)]).await;
    }

    async fn send(&self, request: Request<'_>, headers: Vec<(String, String)>) {
        // The time of a message counts where the sender waits for a time.
        let timestamp = if headers.is_empty() { Some(1) } else { None };
        let properties = Envelope {
            headers,
            message_id: Some(new_message_id()),
            message_type: request.message_type.to_owned(),
            correlation_id: "corr-1".to_owned(),
            reply_to: request.reply_to.unwrap_or_default().to_owned(),
            timestamp,
            source: Some(request.agent.to_owned()),
            ..Envelope::default()
        };
        let properties = properties.into_properties().into();
        let target = Target::Topic(request.topic.to_owned());
        let body = request.body.to_owned().into_bytes().into();
        let message = Outgoing { target, mandatory: false, proven: false, properties, body };
        self.bus.connect().publish(&message).await.unwrap();
    }

    /// Sends a request on `mcp.manage`, as the agent does, and returns the reply.
    pub(crate) async fn exchange(&self, agent: &str, message_type: &str, body: &str) -> Received {
        let reply_to = topic::mcp_manage_response(agent);
        let mut replies = self.listen(&reply_to);
        let message_type = format!("RockBot.Tools.Mcp.Mcp{message_type}");
        let request =
            Request { agent, topic: topic::MCP_MANAGE, message_type: &message_type, reply_to: Some(&reply_to), body };
        self.request(request).await;
        replies.next().await
    }

    /// Requests the index of servers again.
    pub(crate) async fn request_index(&self, agent: &str, body: &str) {
        let message_type = toolbus_protocol::message_type::MCP_METADATA_REFRESH_REQUEST;
        self.request(Request { agent, topic: topic::MCP_REFRESH, message_type, reply_to: None, body }).await;
    }

    /// Stops the daemon.
    pub(crate) async fn end(mut self) {
        self.running.shutdown().await;
    }
}

/// A request to publish.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) agent: &'a str,
    pub(crate) topic: &'a str,
    pub(crate) message_type: &'a str,
    pub(crate) reply_to: Option<&'a str>,
    pub(crate) body: &'a str,
}

fn subscription(queue: &str, topic: &str, ownership: Ownership) -> Subscription {
    Subscription {
        queue: queue.to_owned(),
        topics: vec![topic.to_owned()],
        prefetch: 64,
        max_body: usize::MAX,
        ownership,
        is_inbox: false,
    }
}
