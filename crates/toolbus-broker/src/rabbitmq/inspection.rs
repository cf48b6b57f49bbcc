//! Inspection of a broker for an operator: its product, the rights of this user, and whether existing objects are as
//! the daemon declares them.
//!
//! Nothing that lasts is declared, bound, published or taken. Each probe has a channel of its own, because the broker
//! closes the channel of one that it refuses. Whether the user may declare a missing object is probed with an argument
//! that the broker refuses after it has checked the right.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::uri::AMQPUri;
use lapin::{BasicProperties, Channel, Confirmation, Connection, Error, ExchangeKind};
use toolbus_bus::{Ownership, Subscription};

use super::cause::{self, ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED};
use super::once::{self, ConnectError, Product};
use super::settings::{Checked, QueueType, RabbitMqSettings, SettingsError, host_of};
use super::{questions, topology};

/// Longest wait for the broker's response to one probe, and for a connection.
const RESPONSE_TIME: Duration = Duration::from_secs(5);

/// One node of the settings.
pub struct Node {
    /// The address, without credentials.
    pub address: String,
    /// Product and version, if the node reports them.
    pub product: Option<Product>,
    /// The connection to it, or why there is none.
    pub opened: Result<Inspection, ConnectError>,
}

/// A connection on which a broker is inspected.
pub struct Inspection {
    connection: Connection,
    settings: Arc<Checked>,
}

/// Result of a probe whether something exists, or is permitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inspected {
    /// Present as it should be, or permitted.
    Yes,
    /// Absent; if the daemon declares it, this user may do so.
    Missing,
    /// Not permitted, in the broker's words.
    Refused(String),
    /// Present in another way.
    Differs {
        /// The difference.
        what: String,
        /// The key of the configuration that decides it, if there is one.
        key: Option<&'static str>,
    },
    /// Undetermined, for this reason.
    Unknown(String),
}

/// Probes of the operations of the daemon on a queue of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnQueue {
    /// Declare it.
    pub declare: Inspected,
    /// Bind it, by topic.
    pub bind: Vec<(String, Inspected)>,
    /// Publish to it by its name.
    pub publish: Inspected,
    /// Consume the published message from it.
    pub consume: Inspected,
    /// Whether the broker takes no messages from publishers, as after a memory or disk alarm.
    pub is_blocked: bool,
    /// Seconds since 1970 by the broker's clock, where it writes them into messages.
    pub broker_time: Option<u64>,
}

/// Kind of declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeclareForm {
    /// Only looks.
    Passive,
    /// The daemon's.
    Wanted,
    /// One that the broker refuses once it has checked the right.
    Impossible,
}

/// Looks at every node of the settings.
///
/// # Errors
///
/// If the settings are not valid.
pub async fn inspect(settings: RabbitMqSettings) -> Result<Vec<Node>, SettingsError> {
    let settings = Arc::new(Checked::new(settings)?);
    Ok(join_all(settings.endpoints.iter().map(|endpoint| node(endpoint, Arc::clone(&settings)))).await)
}

async fn node(endpoint: &AMQPUri, settings: Arc<Checked>) -> Node {
    let opened = tokio::time::timeout(RESPONSE_TIME, once::open(endpoint, &settings, "doctor")).await;
    let opened = opened.unwrap_or_else(|_| Err(ConnectError::Unreachable(no_response())));
    let product = match &opened {
        Err(ConnectError::Unreachable(_)) => None,
        _ => once::product(endpoint, &settings).await,
    };
    let opened = opened.map(|connection| Inspection { connection, settings });
    Node { address: host_of(endpoint), product, opened }
}

impl Inspection {
    /// Looks at the exchange of requests and that of dead letters; gives the name of each.
    pub async fn exchanges(&self) -> Vec<(String, Inspected)> {
        let names = [&self.settings.exchange, &self.settings.dead_letter_exchange];
        join_all(names.map(|name| async move { (name.to_string(), self.exchange(name).await) })).await
    }

    async fn exchange(&self, name: &ShortString) -> Inspected {
        self.existing(async |channel: Channel, form| {
            let options = ExchangeDeclareOptions {
                durable: true,
                passive: form == DeclareForm::Passive,
                ..ExchangeDeclareOptions::default()
            };
            let mut arguments = FieldTable::default();
            if form == DeclareForm::Impossible {
                arguments.insert("alternate-exchange".into(), AMQPValue::LongInt(0));
            }
            channel.exchange_declare(name.clone(), ExchangeKind::Topic, options, arguments).await
        })
        .await
    }

    /// Looks at a queue of the daemon that outlives its connection, and at the queue of its dead letters, if it has
    /// one; gives the name of each. A queue that the daemon declares for a connection alone is not probed.
    pub async fn queues(&self, subscription: &Subscription) -> Vec<(String, Inspected)> {
        let name = &subscription.queue;
        let Ok(short) = ShortString::try_new(name.as_str()) else { return vec![(name.clone(), too_long())] };
        let types: &[QueueType] = match subscription.ownership {
            Ownership::Replica | Ownership::Replies => return Vec::new(),
            Ownership::Existing => {
                let found = self.probe(async |channel| declare(&channel, &short, true, FieldTable::default()).await);
                return vec![(name.clone(), found.await)];
            }
            Ownership::Shared => &[self.settings.queue_type],
            Ownership::ShortLived => &[QueueType::Classic, QueueType::Quorum],
        };
        let mut probed = Inspected::Missing;
        for queue_type in types {
            let arguments = |name: &ShortString| topology::queue_arguments(&self.settings, name, *queue_type);
            probed = self.queue(name, arguments).await;
            if !matches!(probed, Inspected::Differs { key: Some(topology::QUEUE_TYPE_KEY), .. }) {
                break;
            }
        }
        let dead_letters = topology::dead_letters_of(name);
        let of_dead_letters = self.queue(&dead_letters, |_| topology::dead_letter_arguments()).await;
        vec![(name.clone(), probed), (dead_letters, of_dead_letters)]
    }

    async fn queue(&self, name: &str, arguments: impl Fn(&ShortString) -> FieldTable) -> Inspected {
        let Ok(short) = ShortString::try_new(name) else { return too_long() };
        self.existing(async |channel: Channel, form| {
            let mut arguments = if form == DeclareForm::Passive { FieldTable::default() } else { arguments(&short) };
            if form == DeclareForm::Impossible {
                arguments.insert("x-expires".into(), AMQPValue::LongInt(0));
            }
            declare(&channel, &short, form == DeclareForm::Passive, arguments).await
        })
        .await
    }

    /// Declares a queue for this connection, as the daemon does, and tries the operations of the daemon on it. The
    /// queue ends with the connection.
    pub async fn own_queue(&self, subscription: &Subscription) -> OwnQueue {
        let Ok(name) = ShortString::try_new(subscription.queue.as_str()) else {
            return OwnQueue::undeclared(too_long());
        };
        let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        let declared = self.probe(async |channel: Channel| {
            channel.queue_declare(name.clone(), options, FieldTable::default()).await.map(drop)
        });
        let declared = declared.await;
        if declared != Inspected::Yes {
            return OwnQueue::undeclared(declared);
        }
        let publish = self.probe(async |channel: Channel| publish(&channel, &name).await).await;
        let is_blocked = self.is_blocked();
        if is_blocked {
            let (bind, consume) = (Vec::new(), Inspected::Yes);
            return OwnQueue { declare: Inspected::Yes, bind, publish, consume, is_blocked, broker_time: None };
        }
        let mut broker_time = None;
        let consume = self.probe(async |channel: Channel| {
            let taken = channel.basic_get(name.clone(), BasicGetOptions { no_ack: true }).await?;
            broker_time = taken.and_then(|message| *message.delivery.properties.timestamp());
            Ok(())
        });
        let consume = consume.await;
        // Last: before, nothing but its own message can be in the queue.
        let mut bind = Vec::new();
        for topic in &subscription.topics {
            let Ok(short) = ShortString::try_new(topic.as_str()) else { continue };
            let bound = self.probe(async |channel: Channel| {
                let (queue, exchange, options) =
                    (name.clone(), self.settings.exchange.clone(), QueueBindOptions::default());
                channel.queue_bind(queue, exchange, short.clone(), options, FieldTable::default()).await
            });
            bind.push((topic.clone(), bound.await));
        }
        OwnQueue { declare: Inspected::Yes, bind, publish, consume, is_blocked, broker_time }
    }

    /// Probes whether this user may publish on a topic of the exchange of requests. The message is taken back.
    pub async fn may_publish(&self, topic: &str) -> Inspected {
        self.may_publish_to(&self.settings.exchange, topic).await
    }

    /// Probes whether this user may put dead letters of a queue aside. The message is taken back.
    pub async fn may_dead_letter(&self, queue: &str) -> Inspected {
        self.may_publish_to(&self.settings.dead_letter_exchange, queue).await
    }

    async fn may_publish_to(&self, exchange: &ShortString, topic: &str) -> Inspected {
        let Ok(topic) = ShortString::try_new(topic) else { return too_long() };
        if self.is_blocked() {
            return Inspected::Yes;
        }
        self.probe(async |channel: Channel| {
            channel.tx_select().await?;
            questions::attempt(&channel, exchange.clone(), topic.clone()).await
        })
        .await
    }

    /// Whether the broker takes no messages now: it reads nothing more of a connection that has published, so that each
    /// further probe would be late, and none refused.
    fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// Closes the connection in order.
    pub async fn close(self) {
        if self.is_blocked() {
            return;
        }
        // Declarations of the connection end with it in any case.
        let _ = tokio::time::timeout(RESPONSE_TIME, self.connection.close(200, "done".into())).await;
    }

    /// Whether an object exists as the daemon declares it; if it does not exist, whether this user may declare it.
    async fn existing(&self, declare: impl AsyncFn(Channel, DeclareForm) -> Result<(), Error>) -> Inspected {
        let probe = async |form| self.probe(async |channel| declare(channel, form).await).await;
        match probe(DeclareForm::Passive).await {
            Inspected::Missing => match probe(DeclareForm::Impossible).await {
                Inspected::Differs { .. } => Inspected::Missing,
                probed => probed,
            },
            // An existing object suffices for a user that may declare nothing.
            Inspected::Yes => match probe(DeclareForm::Wanted).await {
                Inspected::Refused(_) => Inspected::Yes,
                probed => probed,
            },
            probed => probed,
        }
    }

    /// Runs a probe on a channel of its own.
    async fn probe(&self, mut work: impl AsyncFnMut(Channel) -> Result<(), Error>) -> Inspected {
        let mut probed = Inspected::Unknown(no_response());
        for _ in 0..questions::MAX_TRIES {
            let probe = async {
                let channel = self.connection.create_channel().await?;
                work(channel.clone()).await?;
                channel.close(200, "done".into()).await
            };
            probed = match tokio::time::timeout(RESPONSE_TIME, probe).await {
                Ok(Ok(())) => Inspected::Yes,
                Ok(Err(error)) => refusal(&error),
                Err(_) => return Inspected::Unknown(no_response()),
            };
            if !matches!(probed, Inspected::Unknown(_)) {
                break;
            }
        }
        probed
    }
}

impl OwnQueue {
    /// A queue that could not be declared, so that nothing else could be tried.
    fn undeclared(declare: Inspected) -> Self {
        let unknown = || Inspected::Unknown("there is no queue to try it with".to_owned());
        let (publish, consume) = (unknown(), unknown());
        Self { declare, bind: Vec::new(), publish, consume, is_blocked: false, broker_time: None }
    }
}

fn refusal(error: &Error) -> Inspected {
    let words = cause::words(error);
    match cause::code(error) {
        Some(ACCESS_REFUSED) => Inspected::Refused(words),
        Some(NOT_FOUND) if !words.contains(topology::NODE_DOWN) => Inspected::Missing,
        Some(PRECONDITION_FAILED) => {
            let (what, key) = topology::differing_argument(&words);
            Inspected::Differs { what, key }
        }
        _ => Inspected::Unknown(words),
    }
}

async fn declare(channel: &Channel, name: &ShortString, passive: bool, arguments: FieldTable) -> Result<(), Error> {
    let options = QueueDeclareOptions { durable: true, passive, ..QueueDeclareOptions::default() };
    channel.queue_declare(name.clone(), options, arguments).await.map(drop)
}

/// Publishes a message to a queue by its name, and waits until the broker has it.
async fn publish(channel: &Channel, queue: &ShortString) -> Result<(), Error> {
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let published = channel.basic_publish("".into(), queue.clone(), options, &[], BasicProperties::default());
    match published.await?.await? {
        Confirmation::Ack(None) => Ok(()),
        _ => Err(Error::from(std::io::Error::other("the broker did not put the message into the queue"))),
    }
}

fn no_response() -> String {
    format!("no answer within {} s", RESPONSE_TIME.as_secs())
}

fn too_long() -> Inspected {
    Inspected::Unknown("the name is longer than 255 bytes".to_owned())
}
