//! The users and permissions of `deploy/rabbitmq/definitions.json`, as shipped: what each user may do, in short in
//! `docs/rabbitmq.md`, and what the daemon and agents need.

use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeBindOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Error, ErrorKind, ExchangeKind};
use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::toolbus_at;
use toolbus_e2e::stdio::Stdio;
use toolbus_testing::patience::eventually;

use crate::recipe::{Fixture, PASSWORD, USERS, VHOST, shipped};

/// Requests of a client until the broker's refusal is its reply, each of which may take ten seconds.
const TRIES: usize = 6;

/// Attempts of each user, what comes of each (`yes`, or the code with which the broker closes the channel), and with
/// which names: of `publish` exchange and topic, of `publish as` the `user_id` before them, of `bind queue` queue,
/// exchange and topic. In this order: what is bound was declared before.
const ATTEMPTS: &str = "
svc-ana | publish | yes | rockbot tool.invoke, rockbot tool.invoke.mcp, rockbot tool.invoke.agent.ana
svc-ana | publish | yes | rockbot tool.list, rockbot tool.hints, rockbot tool.ping, rockbot tool.cancel
svc-ana | publish | yes | rockbot tool.session.end
svc-ana | publish | yes | rockbot mcp.manage, rockbot tool.meta.mcp.refresh, rockbot script.invoke
svc-ana | publish | 403 | rockbot tool.invoke.agent.bruno, rockbot tool.invoke.agent, rockbot tool.invoke.x
svc-ana | publish | 403 | rockbot xtool.invoke, rockbot tool.result, rockbot tool.result.ana
svc-ana | publish | 403 | rockbot tool.result.bruno, rockbot tool.meta.tools.bruno, rockbot tool.meta.mcp.ana
svc-ana | publish | 403 | rockbot tool.meta.mcp.bruno, rockbot mcp.manage.response.bruno, rockbot script.result.ana
svc-ana | publish | 403 | rockbot script.result.bruno, rockbot agent.response.bruno, rockbot agent.response.ana
svc-ana | publish | yes | rockbot discovery.announce, rockbot agent.task.status, rockbot agent.response.toolbus
svc-ana | publish | yes | rockbot agent.task.toolbus
svc-ana | publish | 403 | rockbot agent.response.toolbus.any, rockbot subagent.report, rockbot subagent.task.thinkers
svc-ana | publish | 403 | rockbot subagent.result.ana, rockbot subagent.result.bruno, rockbot subagent.cancel.thinkers
svc-ana | consume | 403 | pool.thinkers
svc-ana | publish | 403 | rockbot agent.task.bruno, rockbot agent.task.cancel.bruno, rockbot agent.response
svc-ana | publish | 403 | amq.default toolbus.invoke, amq.default svc-bruno.answers, amq.default svc-ana.answers
svc-ana | publish | 403 | rockbot.dlx toolbus.invoke, amq.topic tool.invoke, amq.fanout tool.invoke
svc-ana | publish as | yes | svc-ana rockbot tool.invoke
svc-ana | publish as | 406 | svc-bruno rockbot tool.invoke, toolbus rockbot tool.invoke
svc-ana | consume | yes | svc-ana.answers, amq.rabbitmq.reply-to
svc-ana | publish | 403 | rockbot scheduled.task.ana, rockbot scheduled.task.bruno
svc-ana | consume | yes | svc-ana.tasks
svc-ana | consume | 403 | svc-bruno.tasks
svc-ana | consume | 403 | svc-bruno.answers, toolbus.invoke, toolbus.invoke.dlq, toolbus.mcp, toolbus.mcp-manage
svc-ana | consume | 403 | toolbus.script, toolbus.replica.any
svc-ana | count | yes | toolbus.invoke
svc-ana | declare queue | 403 | svc-ana.answers, svc-ana.second, svc-bruno.second, toolbus.second, amq.gen-mine
svc-ana | declare exchange | 403 | svc-ana.exchange, rockbot, amq.gen-mine
svc-ana | bind queue | 403 | svc-ana.answers rockbot tool.result.ana, svc-ana.answers rockbot tool.result.bruno
svc-ana | bind queue | 403 | svc-ana.answers rockbot #, toolbus.invoke rockbot tool.result.bruno
svc-ana | bind exchange | 403 | rockbot amq.fanout #, amq.fanout rockbot #
svc-ana | purge | yes | svc-ana.answers
svc-ana | purge | 403 | toolbus.invoke, svc-bruno.answers
svc-ana | delete queue | 403 | toolbus.invoke, toolbus.invoke.dlq, svc-bruno.answers, svc-ana.answers
svc-bruno | publish | yes | rockbot tool.invoke, rockbot tool.invoke.agent.bruno
svc-bruno | publish | 403 | rockbot tool.invoke.agent.ana, rockbot tool.result.ana
svc-bruno | publish as | 406 | svc-ana rockbot tool.invoke
svc-bruno | consume | yes | svc-bruno.answers
svc-bruno | consume | 403 | svc-ana.answers
svc-bruno | bind queue | 403 | svc-bruno.answers rockbot tool.result.ana
toolbus | publish | yes | rockbot tool.result.ana, rockbot tool.result, rockbot tool.meta.tools.ana
toolbus | publish | yes | rockbot tool.meta.mcp.ana, rockbot script.result.ana, rockbot agent.response.ana
toolbus | publish | yes | rockbot mcp.manage.response.ana, amq.default any.queue, rockbot.dlx toolbus.invoke
toolbus | publish | yes | rockbot scheduled.task.ana, rockbot agent.task.ana, rockbot agent.task.cancel.ana
toolbus | publish | yes | rockbot discovery.announce, rockbot agent.task.status, rockbot tool.ping
toolbus | publish | yes | rockbot agent.response.toolbus.any, rockbot subagent.task.thinkers
toolbus | publish | yes | rockbot subagent.cancel.thinkers, rockbot subagent.progress.ana, rockbot subagent.result.ana
toolbus | publish | 403 | rockbot subagent.report
toolbus | consume | 403 | pool.thinkers
toolbus | bind queue | yes | toolbus.mcp rockbot subagent.report
toolbus | bind queue | 403 | toolbus.mcp rockbot subagent.task.thinkers, toolbus.mcp rockbot subagent.result.ana
toolbus | publish | 403 | rockbot tool.invoke, rockbot tool.cancel, rockbot mcp.manage, rockbot script.invoke
toolbus | publish | 403 | rockbot.dlx other.queue, amq.topic any
toolbus | publish as | 406 | svc-ana rockbot tool.result.ana
toolbus | declare queue | yes | toolbus.more
toolbus | declare queue | 403 | other, svc-ana.answers
toolbus | declare exchange | 403 | rockbot
toolbus | bind queue | yes | toolbus.more rockbot tool.list, toolbus.more rockbot tool.hints
toolbus | bind queue | yes | toolbus.invoke rockbot tool.invoke, toolbus.mcp rockbot tool.invoke.mcp
toolbus | bind queue | yes | toolbus.mcp-manage rockbot mcp.manage, toolbus.mcp-refresh rockbot tool.meta.mcp.refresh
toolbus | bind queue | yes | toolbus.script rockbot script.invoke, toolbus.invoke.dlq rockbot.dlx toolbus.invoke
toolbus | bind queue | yes | toolbus.mcp rockbot discovery.announce, toolbus.mcp rockbot agent.response.toolbus.any
toolbus | bind queue | yes | toolbus.mcp rockbot agent.task.status, toolbus.mcp rockbot agent.task.toolbus
toolbus | bind queue | 403 | toolbus.mcp rockbot agent.response.ana, toolbus.mcp rockbot agent.task.ana
toolbus | bind queue | 403 | toolbus.script rockbot script.result.ana, toolbus.mcp-refresh rockbot tool.meta.mcp.ana
toolbus | bind queue | 403 | toolbus.mcp-manage rockbot mcp.manage.response.ana
toolbus | bind queue | 403 | toolbus.invoke rockbot tool.result.ana, toolbus.invoke rockbot #
toolbus | bind queue | 403 | svc-ana.answers rockbot tool.invoke
toolbus | consume | yes | toolbus.invoke.dlq
toolbus | consume | 403 | svc-ana.answers
svc-worker | publish | yes | rockbot subagent.report
svc-worker | publish | 403 | rockbot subagent.task.thinkers, rockbot subagent.cancel.thinkers, rockbot subagent.result.ana
svc-worker | publish | 403 | rockbot subagent.progress.ana, rockbot subagent.report.any, rockbot subagent
svc-worker | publish | 403 | rockbot tool.invoke, rockbot tool.list, rockbot tool.ping, rockbot tool.cancel
svc-worker | publish | 403 | rockbot agent.task.ana, rockbot agent.response.toolbus, rockbot discovery.announce
svc-worker | publish | 403 | amq.default toolbus.invoke, amq.default pool.thinkers, rockbot.dlx toolbus.invoke
svc-worker | publish as | yes | svc-worker rockbot subagent.report
svc-worker | publish as | 406 | svc-ana rockbot subagent.report
svc-worker | consume | yes | pool.thinkers
svc-worker | consume | 403 | svc-ana.answers, svc-ana.tasks, toolbus.invoke, toolbus.subagent-report, pool.others
svc-worker | declare queue | 403 | pool.thinkers, pool.mine, svc-worker.mine
svc-worker | declare exchange | 403 | pool.thinkers
svc-worker | bind queue | 403 | pool.thinkers rockbot subagent.task.others, pool.thinkers rockbot #
svc-worker | bind exchange | 403 | rockbot amq.fanout #
svc-worker | delete queue | 403 | pool.thinkers
operator | publish | yes | rockbot tool.invoke, rockbot tool.cancel, rockbot tool.list, rockbot tool.hints
operator | publish | yes | rockbot tool.ping
operator | publish | 403 | rockbot tool.session.end, rockbot tool.result.ana, rockbot tool.invoke.agent.ana
operator | publish | 403 | amq.default toolbus.invoke
operator | publish as | 406 | svc-ana rockbot tool.invoke
operator | declare queue | yes | reply.mine
operator | bind queue | 403 | reply.mine rockbot tool.result.ana
operator | consume | yes | toolbus.invoke.dlq
operator | consume | 403 | toolbus.invoke, svc-ana.answers
operator | purge | yes | toolbus.invoke.dlq
operator | delete queue | 403 | toolbus.invoke.dlq
observer | publish | 403 | rockbot tool.invoke
observer | consume | 403 | toolbus.invoke.dlq
observer | declare queue | 403 | observer.mine
observer | bind queue | 403 | svc-ana.answers rockbot tool.result.ana
observer | count | yes | toolbus.invoke
";

/// The attempts: user, action, outcome, names.
fn attempts(lines: &'static str) -> Vec<[&'static str; 4]> {
    let lines = lines.lines().filter(|line| !line.is_empty());
    lines
        .flat_map(|line| {
            let [user, action, outcome, all]: [&str; 4] = line.split(" | ").collect::<Vec<_>>().try_into().unwrap();
            all.split(", ").map(move |names| [user, action, outcome, names])
        })
        .collect()
}

/// Does it on a channel of its own. The broker's code, when it refuses.
async fn attempt(connection: &Connection, action: &str, names: &str) -> Option<u16> {
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let names: Vec<&str> = names.split_whitespace().collect();
    let Err(error) = act(&channel, action, &names).await else {
        channel.close(200, "done".into()).await.unwrap();
        return None;
    };
    assert!(!channel.status().connected(), "a refusal closes the channel: {action} {names:?}");
    assert!(connection.status().connected(), "a refusal does not close the connection: {action} {names:?}");
    Some(code(&error))
}

fn code(error: &Error) -> u16 {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_id(),
        other => panic!("no response of the broker's: {other:?}"),
    }
}

async fn act(channel: &Channel, action: &str, names: &[&str]) -> Result<(), Error> {
    let none = FieldTable::default();
    let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    match (action, names) {
        ("publish", [exchange, key]) => publish(channel, exchange, key, None).await,
        ("publish as", [user, exchange, key]) => publish(channel, exchange, key, Some(user)).await,
        ("declare queue", [queue]) => channel.queue_declare((*queue).into(), exclusive, none).await.map(drop),
        ("declare exchange", [exchange]) => {
            let options = ExchangeDeclareOptions { auto_delete: true, ..ExchangeDeclareOptions::default() };
            channel.exchange_declare((*exchange).into(), ExchangeKind::Fanout, options, none).await
        }
        ("bind queue", [queue, exchange, key]) => {
            let (queue, exchange) = ((*queue).into(), (*exchange).into());
            channel.queue_bind(queue, exchange, (*key).into(), QueueBindOptions::default(), none).await
        }
        ("bind exchange", [to, from, key]) => {
            let (to, from) = ((*to).into(), (*from).into());
            channel.exchange_bind(to, from, (*key).into(), ExchangeBindOptions::default(), none).await
        }
        ("consume", [queue]) => {
            let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
            channel.basic_consume((*queue).into(), "".into(), options, none).await.map(drop)
        }
        ("count", [queue]) => {
            let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            channel.queue_declare((*queue).into(), passive, none).await.map(drop)
        }
        ("purge", [queue]) => channel.queue_purge((*queue).into(), QueuePurgeOptions::default()).await.map(drop),
        ("delete queue", [queue]) => {
            channel.queue_delete((*queue).into(), QueueDeleteOptions::default()).await.map(drop)
        }
        _ => panic!("not an action: {action} {names:?}"),
    }
}

/// Publishes what the daemon settles without a word: on a request topic, a message that is no request.
async fn publish(channel: &Channel, exchange: &str, key: &str, user: Option<&str>) -> Result<(), Error> {
    // Permissions have a name for the default exchange; the protocol has none.
    let exchange = if exchange == "amq.default" { "" } else { exchange };
    let mut properties = BasicProperties::default().with_type("RockBot.Tools.ToolInvokeResponse".into());
    if let Some(user) = user {
        properties = properties.with_user_id(user.into());
    }
    let published =
        channel.basic_publish(exchange.into(), key.into(), BasicPublishOptions::default(), b"{}", properties);
    published.await?.await.map(drop)
}

/// Has each of these users make its attempts in `lines`, and compares their outcomes.
pub(crate) async fn try_all(fixture: &Fixture, users: &[&str], lines: &'static str) {
    let attempts = attempts(lines);
    assert!(users.iter().all(|user| attempts.iter().any(|attempt| attempt[0] == *user)), "every user tries something");
    let mut differing = Vec::new();
    for user in users {
        let connection = fixture.connect(user).await;
        for [_, action, outcome, names] in attempts.iter().filter(|attempt| attempt[0] == *user) {
            let seen = attempt(&connection, action, names).await.map_or("yes".to_owned(), |code| code.to_string());
            if seen != *outcome {
                differing.push(format!("{user} {action} {names}: {outcome} is intended, {seen} at the broker"));
            }
        }
    }
    assert!(differing.is_empty(), "{differing:#?}");
}

#[tokio::test]
async fn the_shipped_permissions_let_each_user_do_what_it_must_and_nothing_else() {
    let fixture = Fixture::new().await;
    let parts = "[mcp.servers.none]\ncommand = \"none\"\ndisabled = true\n\
                 [script]\nrunner = \"local\"\nlocal = { i_understand = true }\n\
                 [a2a]\nannounce = [\"none\"]\n[subagents.pools]\nthinkers = [\"worker\"]\n";
    let path = std::env::var("PATH").unwrap();
    let daemon = Daemon::launch(&fixture.site, parts, &[("PATH", &path)]).await;
    daemon.wait_until_ready().await;
    try_all(&fixture, &USERS, ATTEMPTS).await;
    // Everything that was published for the daemon comes before this.
    let ana = fixture.agent("svc-ana").await;
    assert_eq!(ana.call("none", &json!({})).await.code(), "tool_not_found");
    daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn no_login_works_without_a_password_of_the_operators() {
    let fixture = Fixture::new().await;
    let login = async |user: &str, password: &str| {
        Connection::connect(&fixture.node.url_on(VHOST, user, password), ConnectionProperties::default()).await
    };
    for user in USERS {
        assert!(login(user, PASSWORD).await.is_ok(), "{user}");
    }
    fixture.node.import(&shipped()).await;
    for user in USERS {
        for password in ["", user, PASSWORD] {
            assert_eq!(code(&login(user, password).await.unwrap_err()), 403, "{user} with '{password}'");
        }
    }
}

#[tokio::test]
async fn the_daemon_needs_no_more_than_the_recipe_gives_it() {
    let fixture = Fixture::new().await;
    let daemon = Daemon::start(&fixture.site, "[tools]\necho = true\n").await;
    let ana = fixture.agent("svc-ana").await;
    let by_topic = |text: &str| ana.request("echo", &json!({"text": text})).reply_to("tool.result.ana");
    let reply = ana.exchange(&by_topic("by topic")).await;
    assert_eq!((reply.content().as_str(), reply.exchange.as_str()), ("by topic", "rockbot"));
    assert_eq!(ana.call("echo", &json!({"text": "by name"})).await.content(), "by name");

    let direct = Client::listening_on(&fixture.site, &fixture.url("svc-bruno"), "amq.rabbitmq.reply-to").await;
    assert_eq!(direct.call("echo", &json!({"text": "direct"})).await.content(), "direct", "without a queue of its own");

    let operator = BrokerNamespace { url: fixture.url("operator"), ..fixture.site.clone() };
    let called = toolbus_at(&operator, &["call", "echo", "text=called"]).await;
    assert_eq!((called.code, called.out.trim()), (0, "called"), "{called:?}");

    ana.send(&ana.request("echo", &json!({"text": "lost"})).reply_to("tool.result.nobody")).await;
    assert_eq!(operator.take_dead_letter().await.header("rb-dead-reason"), "undeliverable_answer");
    ana.send(&ana.request("echo", &json!({"text": "astray"})).reply_to("toolbus.invoke")).await;
    assert_eq!(operator.take_dead_letter().await.header("rb-dead-reason"), "reply_to_refused");

    fixture.node.ctl(&["close_all_connections", "-p", VHOST, "maintenance"]).await;
    eventually("both connections to be lost", async || {
        let (_, status) = daemon.get("/status").await?;
        (status["broker"]["reconnects"].as_u64()? >= 2).then_some(())
    })
    .await;
    daemon.wait_until_ready().await;
    let ana = fixture.agent("svc-ana").await;
    let again = ana.request("echo", &json!({"text": "again"})).reply_to("tool.result.ana");
    assert_eq!(ana.exchange(&again).await.content(), "again");
    daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn an_agent_needs_no_more_than_the_recipe_gives_it_for_mcp_servers() {
    let fixture = Fixture::new().await;
    let ana = fixture.agent("svc-ana").await;
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/python/mcp_server.py");
    let more = format!(
        "[identity]\nsource = \"broker\"\nusers = {{ svc-ana = \"ana\", svc-bruno = \"bruno\" }}\n\
         [agents.ana]\nallowed_tools = [\"count_words\"]\n\
         [mcp.servers.words]\ncommand = \"python3\"\nargs = [{server:?}]\n"
    );
    let path = std::env::var("PATH").unwrap();
    let daemon = Daemon::launch(&fixture.site, &more, &[("PATH", &path)]).await;
    daemon.wait_until_ready().await;
    let as_ana = |request: Request| request.with(|properties| properties.with_user_id("svc-ana".into()));
    let indexed = async |name: &str| {
        let all = ana.received().into_iter();
        let indexes = all.filter(|message| message.kind() == "RockBot.Tools.Mcp.McpServersIndexed");
        let servers: Vec<Value> =
            indexes.flat_map(|message| message.body()["servers"].as_array().cloned().unwrap()).collect();
        let known = servers.iter().filter(|server| server["serverName"] == name).count();
        (known > 0).then_some(known)
    };
    let first = eventually("an index with the server", async || indexed("words").await).await;
    ana.send(&as_ana(ana.raw("{}").on("tool.meta.mcp.refresh").reply_to(""))).await;
    eventually("another index", async || (indexed("words").await? > first).then_some(())).await;

    let details = ana.raw(json!({"serverName": "words"}).to_string()).on("mcp.manage");
    let details = details.of_type("RockBot.Tools.Mcp.McpGetServiceDetailsRequest").reply_to("mcp.manage.response.ana");
    let details = ana.exchange(&as_ana(details)).await;
    assert_eq!(details.body()["tools"][0]["name"], "count_words", "{}", details.body());

    let call = ana.request("count_words", &json!({"text": "three little words"})).on("tool.invoke.mcp");
    let reply = ana.exchange(&as_ana(call.reply_to("tool.result.ana"))).await;
    assert_eq!(reply.content(), "3 words", "{}", reply.body());
    daemon.stop(&fixture.site).await;
}

/// Builds the request that RockBot's stock agent sends: the agent names itself, sets no `user_id`, and wants its reply
/// on its own topic.
fn of_stock_agent(client: &Client, topic: &str, kind: &str, body: &Value) -> Request {
    let request = client.raw(body.to_string()).on(topic).of_type(kind).header("rb-source", "ana");
    request.with(|it| it.with_content_type("application/json".into()).with_timestamp(now()))
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

#[tokio::test]
async fn an_agent_without_user_id_is_served_by_its_sidecar_on_its_own_topic_beside_a_daemon_that_believes_the_broker() {
    let fixture = Fixture::new().await;
    let rules = "[tools]\necho = true\n[agents.ana]\nallowed_tools = [\"echo\"]\n";
    let shared = format!("{rules}[identity]\nsource = \"broker\"\nusers = {{ svc-ana = \"ana\" }}\n");
    let shared = Daemon::start(&fixture.site, &shared).await;
    let own = fixture.site.of_sidecar("ana");
    let topics = "[invoke]\ntopics = [\"tool.invoke.agent.ana\"]\n";
    let sidecar = Daemon::start(&own, &format!("{rules}{topics}[identity]\nagent = \"ana\"\n")).await;

    let ana = fixture.agent("svc-ana").await;
    let call = |topic: &str| {
        let body =
            json!({"toolCallId": "c1", "toolName": "echo", "arguments": "{\"text\":\"from ana\"}", "sessionId": "s"});
        of_stock_agent(&ana, topic, "RockBot.Tools.ToolInvokeRequest", &body).reply_to("tool.result.ana")
    };
    let reply = ana.exchange(&call("tool.invoke.agent.ana")).await;
    assert_eq!((reply.content().as_str(), reply.exchange.as_str()), ("from ana", "rockbot"), "{reply:?}");
    assert_eq!((reply.routing_key.as_str(), reply.kind()), ("tool.result.ana", "RockBot.Tools.ToolInvokeResponse"));

    // On the shared topic, the daemon with verified identity does not know it.
    let operator = BrokerNamespace { url: fixture.url("operator"), ..fixture.site.clone() };
    ana.send(&call("tool.invoke")).await;
    assert_eq!(operator.take_dead_letter().await.header("rb-dead-reason"), "reply_to_refused");
    sidecar.stop(&own).await;
    shared.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_stock_agent_is_served_by_its_sidecar_in_a_virtual_host_of_its_own() {
    let fixture = Fixture::new().await;
    let ctl = |arguments: &'static [&'static str]| fixture.node.ctl(arguments);
    ctl(&["add_vhost", "of-ana"]).await;
    ctl(&["set_permissions", "-p", "of-ana", "svc-ana", r"^rockbot(\..*)?$", r"^rockbot(\..*)?$", r"^rockbot(\..*)?$"])
        .await;
    let of_daemon = r"^(toolbus\..*|rockbot|rockbot\.dlx)$";
    fixture.node.ctl(&["set_permissions", "-p", "of-ana", "toolbus", of_daemon, of_daemon, of_daemon]).await;

    // As RockBot starts: exchanges, and a queue for replies with its dead letters.
    let url = fixture.node.url_on("of-ana", "svc-ana", PASSWORD);
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    for exchange in ["rockbot", "rockbot.dlx"] {
        let declared = channel.exchange_declare(exchange.into(), ExchangeKind::Topic, durable, FieldTable::default());
        declared.await.unwrap();
    }
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let mut dead = FieldTable::default();
    dead.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("rockbot.dlx".into()));
    let queue = "rockbot.mcp-proxy.ana";
    channel.queue_declare(format!("{queue}.dlq").into(), durable, FieldTable::default()).await.unwrap();
    channel.queue_declare(queue.into(), durable, dead).await.unwrap();
    for topic in ["tool.result.ana", "tool.meta.mcp.ana", "mcp.manage.response.ana"] {
        act(&channel, "bind queue", &[queue, "rockbot", topic]).await.unwrap();
    }

    let site =
        BrokerNamespace { url: fixture.node.url_on("of-ana", "toolbus", PASSWORD), ..fixture.site.of_sidecar("ana") };
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/python/mcp_server.py");
    let rules = format!(
        "[identity]\nagent = \"ana\"\n[agents.ana]\nallowed_tools = [\"count_words\"]\n\
         [mcp.servers.words]\ncommand = \"python3\"\nargs = [{server:?}]\n"
    );
    let path = std::env::var("PATH").unwrap();
    let sidecar = Daemon::launch(&site, &rules, &[("PATH", &path)]).await;
    sidecar.wait_until_ready().await;
    let ana = Client::listening_on(&site, &url, queue).await;
    let refresh = "RockBot.Tools.Mcp.McpMetadataRefreshRequest";
    ana.send(&of_stock_agent(&ana, "tool.meta.mcp.refresh", refresh, &json!({})).reply_to("")).await;
    eventually("an index with the server", async || {
        let all = ana.received().into_iter();
        let mut indexed = all.filter(|message| message.kind() == "RockBot.Tools.Mcp.McpServersIndexed");
        indexed.any(|message| message.body()["servers"][0]["serverName"] == "words").then_some(())
    })
    .await;
    let arguments = r#"{"text":"three little words"}"#;
    let body = json!({"toolCallId": "c1", "toolName": "count_words", "arguments": arguments, "sessionId": null});
    let call = of_stock_agent(&ana, "tool.invoke.mcp", "RockBot.Tools.ToolInvokeRequest", &body);
    let call = call.header("rb-rb-mcp-server", "words").header("rb-rb-timeout-ms", "60000");
    let reply = ana.exchange(&call.reply_to("tool.result.ana")).await;
    assert_eq!(reply.content(), "3 words", "{}", reply.body());
    sidecar.stop(&site).await;
}

#[tokio::test]
async fn an_mcp_client_on_standard_input_and_output_needs_no_more_than_an_agent() {
    let fixture = Fixture::new().await;
    let rules = |tools: &str| {
        format!(
            "[tools]\necho = true\n[identity]\nsource = \"broker\"\nusers = {{ svc-ana = \"ana\" }}\n\
             [agents.ana]\nallowed_tools = [{tools}]\n"
        )
    };
    let daemon = Daemon::start(&fixture.site, &rules("\"echo\"")).await;
    let site = BrokerNamespace { url: fixture.url("svc-ana"), ..fixture.site.clone() };
    let mut client = Stdio::start_with(&site, &["--agent", "ana", "--answers", "svc-ana.answers"]);
    client.begin().await;
    assert_eq!(client.names().await, json!(["echo"]));
    let result = client.call("echo", &json!({"text": "hello"})).await;
    assert_eq!(result["content"][0]["text"], "hello", "{result}");
    daemon.reload(&rules("\"echo\", \"current_time\"")).await;
    client.notification("notifications/tools/list_changed").await;
    client.close();
    assert_eq!(client.ended().await.0, Some(0));

    // Without that queue it has none.
    let mut client = Stdio::start(&site, "ana");
    client.begin().await;
    // On a busy machine the broker's refusal may come after the first request was given up.
    let mut listed = Value::Null;
    for _ in 0..TRIES {
        listed = client.names().await;
        if listed.as_str().is_some_and(|listed| listed.contains("reply.")) {
            break;
        }
    }
    assert!(listed.as_str().unwrap().contains("reply."), "{listed}");
    daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_worker_needs_no_more_than_the_recipe_gives_it_for_tasks_of_its_pool() {
    let fixture = Fixture::new().await;
    let more = "[identity]\nsource = \"broker\"\n\
                users = { svc-ana = \"ana\", svc-bruno = \"bruno\", svc-worker = \"worker\" }\n\
                [subagents.pools]\nthinkers = [\"worker\"]\n[agents.ana]\n[agents.bruno]\n\
                [agents.worker]\nprofile = \"subagent\"\n";
    let daemon = Daemon::start(&fixture.site, more).await;
    let ana = fixture.agent("svc-ana").await;
    let tasks = Client::listening_on(&fixture.site, &fixture.url("svc-ana"), "svc-ana.tasks").await;
    let worker = Client::listening_on(&fixture.site, &fixture.url("svc-worker"), "pool.thinkers").await;
    let spawn = ana.request("spawn_subagent", &json!({"description": "Count the frogs"}));
    let spawn = spawn.with(|properties| properties.with_user_id("svc-ana".into()));
    let spawned = ana.exchange(&spawn).await.content();
    let task = eventually("the task", async || worker.received().pop()).await;
    let id = task.body()["taskId"].as_str().unwrap().to_owned();
    assert!(spawned.contains(&id), "{spawned} {id}");
    let report = |kind: &str, body: Value| {
        let report = worker.raw(body.to_string()).on("subagent.report").reply_to("");
        report.of_type(kind).with(|properties| properties.with_user_id("svc-worker".into()))
    };
    worker.send(&report("RockBot.Host.SubagentProgressMessage", json!({"taskId": id, "message": "counting"}))).await;
    let is = |kind: &'static str| move |message: &Message| message.kind() == kind;
    let progress = is("RockBot.Host.SubagentProgressMessage");
    let update = eventually("its progress", async || ana.received().into_iter().find(&progress)).await;
    assert_eq!(update.body()["message"], "counting");
    let result = json!({"taskId": id, "output": "42", "isSuccess": true});
    worker.send(&report("RockBot.Host.SubagentResultMessage", result)).await;
    let result = is("RockBot.Host.SubagentResultMessage");
    let finished = eventually("its result", async || tasks.received().into_iter().find(&result)).await;
    assert_eq!((&finished.body()["output"], &finished.body()["taskId"]), (&json!("42"), &json!(id)));
    daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_forged_user_id_is_refused_by_the_broker_and_reaches_no_tool() {
    let (fixture, backend) = (Fixture::new().await, Backend::start().await);
    let daemon = Daemon::start(&fixture.site, &backend.tool("work", "/work?id={id}", "")).await;
    let connection = fixture.connect("svc-ana").await;
    let body = json!({"toolName": "work", "arguments": {"id": "forged"}}).to_string();
    for topic in ["tool.invoke", "tool.cancel"] {
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let forged = BasicProperties::default().with_user_id("svc-bruno".into());
        let options = BasicPublishOptions::default();
        let published = channel.basic_publish("rockbot".into(), topic.into(), options, body.as_bytes(), forged);
        let error = published.await.unwrap().await.unwrap_err();
        assert_eq!(code(&error), 406, "PRECONDITION_FAILED: {error}");
        assert!(!channel.status().connected(), "a refusal closes the channel");
    }
    let ana = fixture.agent("svc-ana").await;
    let request = |id: &str, user: &'static str| {
        let request = ana.request("work", &json!({"id": id})).reply_to("tool.result.ana");
        request.with(|properties| properties.with_user_id(user.into()))
    };
    assert_eq!(ana.exchange(&request("own", "svc-ana")).await.content(), "worked for own");
    assert_eq!((backend.count("forged"), backend.total()), (0, 1));

    // Why no user may have this tag.
    fixture.add("actor", &["impersonator"], ["^$", "^rockbot$", "^$"]).await;
    let actor = fixture.connect("actor").await;
    assert_eq!(
        attempt(&actor, "publish as", "svc-bruno rockbot tool.invoke").await,
        None,
        "the broker lets an impersonator lie"
    );
    let settled = format!("{}\t0", fixture.site.queue());
    eventually("the daemon to settle that", async || {
        let queues = fixture.node.ctl(&["list_queues", "-p", VHOST, "name", "messages"]).await;
        queues.lines().any(|line| line == settled).then_some(())
    })
    .await;
    daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_message_over_the_limit_of_the_broker_closes_its_senders_channel_and_reaches_no_queue() {
    let fixture = Fixture::new().await;
    let daemon = Daemon::start(&fixture.site, "[tools]\necho = true\n").await;
    let (ana, connection) = (fixture.agent("svc-ana").await, fixture.connect("svc-ana").await);
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let body = vec![b'x'; 17 * 1024 * 1024];
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    let published = channel.basic_publish("rockbot".into(), "tool.invoke".into(), options, &body, properties);
    let error = published.await.unwrap().await.unwrap_err();
    assert_eq!(code(&error), 406, "PRECONDITION_FAILED: {error}");
    assert!(error.to_string().contains("16777216"), "{error}");
    // One that the broker takes, and the daemon refuses.
    let large = ana.exchange(&ana.raw(vec![b'x'; 2 * 1024 * 1024])).await;
    assert_eq!(large.code(), "invalid_arguments", "{large:?}");
    assert_eq!(ana.call("echo", &json!({"text": "after it"})).await.content(), "after it");
    assert_eq!(fixture.site.ready(&fixture.site.dead_letters()).await, 0);
    daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_message_that_another_agent_slips_into_a_reply_queue_does_not_come_by_its_topic() {
    let fixture = Fixture::new().await;
    let daemon = Daemon::start(&fixture.site, "[tools]\necho = true\n").await;
    let (ana, bruno) = (fixture.agent("svc-ana").await, fixture.agent("svc-bruno").await);
    // By name, through the daemon: it may write to any queue.
    let by_name = ana.request("echo", &json!({"text": "slipped"})).reply_to(bruno.queue());
    ana.send(&by_name).await;
    let slipped = bruno.reply(&by_name).await;
    assert_eq!((slipped.exchange.as_str(), slipped.routing_key.as_str()), ("", "svc-bruno.answers"));

    // By a copy, which brokers before 4.0 do not check. A newer one refuses it, and closes the channel.
    for header in ["CC", "BCC"] {
        let connection = fixture.connect("svc-ana").await;
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let mut headers = FieldTable::default();
        let copies = vec![AMQPValue::LongString("tool.result.bruno".into())];
        headers.insert(header.into(), AMQPValue::FieldArray(FieldArray::from(copies)));
        let properties = BasicProperties::default()
            .with_correlation_id(header.into())
            .with_type("RockBot.Tools.ToolInvokeResponse".into())
            .with_headers(headers);
        let options = BasicPublishOptions::default();
        let published = channel.basic_publish("rockbot".into(), "tool.ping".into(), options, b"{}", properties);
        if let Err(error) = published.await.unwrap().await {
            assert_eq!(code(&error), 403, "{error}");
            continue;
        }
        let copied = eventually("the copy", async || bruno.replies_to(header).pop()).await;
        assert_eq!((copied.exchange.as_str(), copied.routing_key.as_str()), ("rockbot", "tool.ping"));
    }
    daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn the_right_to_declare_gets_around_topic_permissions() {
    let fixture = Fixture::new().await;
    let own = r"^loose\..*$";
    let with_exchange = r"^(loose\..*|rockbot)$";
    fixture.add("loose", &[], [own, with_exchange, with_exchange]).await;
    let bruno = fixture.agent("svc-bruno").await;
    let connection = fixture.connect("loose").await;
    assert_eq!(attempt(&connection, "publish", "rockbot tool.result.bruno").await, Some(403), "not directly");

    // Through an exchange of its own, whose topics the broker does not check.
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    act(&channel, "declare exchange", &["loose.way"]).await.unwrap();
    act(&channel, "bind exchange", &["rockbot", "loose.way", ""]).await.unwrap();
    act(&channel, "publish", &["loose.way", "tool.result.bruno"]).await.unwrap();
    let forged = eventually("the message", async || bruno.received().pop()).await;
    assert_eq!(forged.routing_key, "tool.result.bruno", "its topic is that of a reply");

    // Through a dead letter of its own queue, whose topic the broker does not check either.
    let mut arguments = FieldTable::default();
    arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("rockbot".into()));
    arguments.insert("x-dead-letter-routing-key".into(), AMQPValue::LongString("tool.result.bruno".into()));
    arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(0));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare("loose.dies".into(), durable, arguments).await.unwrap();
    act(&channel, "bind queue", &["loose.dies", "loose.way", ""]).await.unwrap();
    act(&channel, "publish", &["loose.way", "tool.nothing"]).await.unwrap();
    let dead = eventually("the dead letter", async || bruno.received().into_iter().nth(1)).await;
    assert_eq!((dead.exchange.as_str(), dead.routing_key.as_str()), ("rockbot", "tool.result.bruno"));
}
