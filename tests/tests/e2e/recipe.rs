//! A broker with the limits of `deploy/rabbitmq/rabbitmq.conf`, the users and permissions of `definitions.json` there, and
//! the document about them.

use std::path::Path;

use lapin::options::{QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::rabbit::RabbitNode;

/// Document that operators read.
pub(crate) const RECIPE: &str = include_str!("../../../docs/rabbitmq.md");
/// Users of the definitions.
pub(crate) const USERS: [&str; 6] = ["toolbus", "operator", "observer", "svc-ana", "svc-bruno", "svc-worker"];
/// The virtual host of the definitions.
pub(crate) const VHOST: &str = "tools";
/// Password of every user.
pub(crate) const PASSWORD: &str = "a-password-of-the-tests";

/// A node with the shipped limits and definitions, and passwords.
pub(crate) struct Fixture {
    pub(crate) node: RabbitNode,
    pub(crate) site: BrokerNamespace,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let node = RabbitNode::start_with(&read("rabbitmq.conf")).await;
        import(&node, &shipped()).await;
        let site = BrokerNamespace {
            url: node.url_on(VHOST, "toolbus", PASSWORD),
            exchange: "rockbot".to_owned(),
            prefix: "toolbus".to_owned(),
        };
        Self { node, site }
    }

    /// Adds what `deploy/rabbitmq/remote.json` gives two daemons of which one passes calls on to the other.
    pub(crate) async fn with_remote(self) -> Self {
        import(&self.node, &read("remote.json")).await;
        self
    }

    /// The daemon that runs the tools, by those definitions.
    pub(crate) fn lab(&self) -> BrokerNamespace {
        BrokerNamespace { url: self.url("toolbus-lab"), ..self.site.beside() }
    }

    pub(crate) fn url(&self, user: &str) -> String {
        self.node.url_on(VHOST, user, PASSWORD)
    }

    pub(crate) async fn connect(&self, user: &str) -> Connection {
        Connection::connect(&self.url(user), ConnectionProperties::default()).await.unwrap()
    }

    /// An agent that receives on the queue that the operator made for it.
    pub(crate) async fn agent(&self, user: &str) -> Client {
        Client::listening_on(&self.site, &self.url(user), &format!("{user}.answers")).await
    }

    /// A program that provides tools, and receives on its queue.
    pub(crate) async fn provider(&self, user: &str) -> Client {
        let (connection, queue) = (self.connect(user).await, format!("provider.{user}"));
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let channel = connection.create_channel().await.unwrap();
        channel.queue_declare(queue.as_str().into(), durable, FieldTable::default()).await.unwrap();
        for control in ["invoke", "list"] {
            let (topic, options) = (format!("tool.{control}.provider.{user}"), QueueBindOptions::default());
            let (queue, none) = (queue.as_str().into(), FieldTable::default());
            channel.queue_bind(queue, "rockbot".into(), topic.into(), options, none).await.unwrap();
        }
        Client::listening_on(&self.site, &self.url(user), &queue).await
    }

    /// Adds a user with these permissions to configure, write and read, and no topic permissions.
    pub(crate) async fn add(&self, user: &str, tags: &[&str], permissions: [&str; 3]) {
        let [configure, write, read] = permissions;
        let definitions = json!({
            "users": [{"name": user, "password": PASSWORD, "tags": tags}],
            "permissions": [{"user": user, "vhost": VHOST, "configure": configure, "write": write, "read": read}],
            "topic_permissions": [{"user": user, "vhost": VHOST, "exchange": "rockbot",
                "write": r"^tool\.invoke$", "read": r"^tool\.result\.loose$"}],
        });
        self.node.import(&definitions.to_string()).await;
    }
}

/// Imports definitions, and gives their users passwords.
async fn import(node: &RabbitNode, definitions: &str) {
    node.import(definitions).await;
    let mut definitions: Value = serde_json::from_str(definitions).unwrap();
    let mut users = definitions["users"].take();
    for user in users.as_array_mut().unwrap() {
        user.as_object_mut().unwrap().remove("password_hash");
        user["password"] = PASSWORD.into();
    }
    node.import(&json!({"users": users}).to_string()).await;
}

pub(crate) fn shipped() -> String {
    read("definitions.json")
}

fn read(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/rabbitmq").join(file)).unwrap()
}
