//! A connection to the broker, for a program that has none.

use std::sync::Arc;
use std::time::Duration;

use toolbus_broker::rabbitmq::{AmqpUrl, QueueType, RabbitMq, RabbitMqSettings, SettingsError, Tls};
use toolbus_bus::{Bus, Clock};
use toolbus_protocol::{AgentName, topic};

use crate::{Client, ClientError, Inbox, Sender};

/// The exchange of a daemon whose configuration names no other.
const EXCHANGE: &str = "rockbot";

/// Options for reaching the broker, and the agent as which to do so.
#[derive(Clone)]
pub struct ConnectionOptions {
    /// One URL, or those of a cluster's nodes, tried in turn: `amqp://` or `amqps://`, with credentials.
    pub urls: Vec<String>,
    /// Files for `amqps://`. Without them, the system's authorities are trusted.
    pub tls: Option<Tls>,
    /// The topic exchange of requests and replies; `rockbot` unless the daemon's `bus.exchange` is another.
    pub exchange: String,
    /// Begins the names of the connections, as the broker shows them.
    pub name: String,
    /// The agent that calls: the header `rb-source`. A daemon with `identity.source = "broker"` believes the login alone.
    pub agent: Option<AgentName>,
}

/// An open connection to the broker. It is restored when it is lost; dropping it ends it without waiting.
pub struct BusConnection {
    bus: Arc<dyn Bus>,
    sender: Sender,
}

impl ConnectionOptions {
    /// Options for a broker, with defaults for everything else.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            urls: vec![url.to_owned()],
            tls: None,
            exchange: EXCHANGE.to_owned(),
            name: env!("CARGO_PKG_NAME").to_owned(),
            agent: None,
        }
    }

    /// The user that all URLs name: the broker compares it with the property `user_id` of messages.
    fn login(&self) -> Option<String> {
        let login = |url: &String| url.parse::<AmqpUrl>().ok()?.login();
        let first = login(self.urls.first()?)?;
        self.urls.iter().all(|url| login(url).as_ref() == Some(&first)).then_some(first)
    }
}

impl BusConnection {
    /// Checks the options, and connects in the background.
    ///
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// If a URL, a name or a file of the options cannot be used.
    pub fn open(options: ConnectionOptions) -> Result<Self, SettingsError> {
        let sender = Sender { agent: options.agent.clone(), login: options.login(), ..Sender::default() };
        let ConnectionOptions { urls, tls, exchange, name, .. } = options;
        let dead_letter_exchange = format!("{exchange}.dlx");
        let queue_type = QueueType::default();
        let bus = RabbitMq::start(RabbitMqSettings {
            urls,
            name,
            exchange,
            dead_letter_exchange,
            queue_type,
            tls,
            clock: Clock::SYSTEM,
        })?;
        Ok(Self { bus: Arc::new(bus), sender })
    }

    /// A client with a queue of its own, which calls as the agent of the options. Waits at most `patience` for the broker.
    ///
    /// # Errors
    ///
    /// As [`Client::ready`].
    pub async fn client(&self, patience: Duration) -> Result<Client, ClientError> {
        let client = Client::start(self.bus(), topic::TOOL_INVOKE, Inbox::default()).signed_by(self.sender.clone());
        client.ready(patience).await?;
        Ok(client)
    }

    /// The bus.
    #[must_use]
    pub fn bus(&self) -> Arc<dyn Bus> {
        Arc::clone(&self.bus)
    }

    /// Closes the connection in order.
    pub async fn close(self) {
        self.bus.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_known_where_every_url_names_the_same() {
        let login = |urls: &[&str]| {
            let urls = urls.iter().map(|url| (*url).to_owned()).collect();
            ConnectionOptions { urls, ..ConnectionOptions::new("") }.login()
        };
        assert_eq!(login(&["amqp://svc%2Dana:secret@one", "amqp://svc-ana@two"]).as_deref(), Some("svc-ana"));
        assert_eq!(login(&["amqp://ana@one", "amqp://bruno@two"]), None);
        assert_eq!(login(&["amqp://one"]), None);
        assert_eq!(login(&["amqps://ana@one?auth_mechanism=external"]), None);
    }

    #[tokio::test]
    async fn a_url_that_cannot_be_used_is_refused_without_repeating_it() {
        let refused = BusConnection::open(ConnectionOptions::new("http://ana:hunter2@host")).err().unwrap().to_string();
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}
