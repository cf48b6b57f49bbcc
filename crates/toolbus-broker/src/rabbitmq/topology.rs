//! Exchanges, queues and bindings, declared as `docs/wire.md` tables them.
//!
//! Each declaration has a short-lived channel of its own, because the broker closes the channel of one that it refuses.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use lapin::options::{
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Connection, Error, ExchangeKind, Queue};
use toolbus_bus::{Ownership, Subscription};
use tracing::{debug, warn};

use super::cause::{self, ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, RESOURCE_LOCKED};
use super::settings::{Checked, QueueType};

/// Deliveries of one message after which a quorum queue gives up on it.
const DELIVERY_LIMIT: i64 = 20;
/// Time for which a dead letter is kept: 72 h, in milliseconds.
const DEAD_LETTER_TTL_MS: i64 = 72 * 60 * 60 * 1_000;
const DEAD_LETTER_MAX_MESSAGES: i64 = 10_000;
const DEAD_LETTER_MAX_BYTES: i64 = 256 * 1024 * 1024;
/// Number of times that the consumers of a queue to be deleted are counted, and the time between.
const UNUSED_LOOKS: usize = 30;
const UNUSED_PERIOD: Duration = Duration::from_millis(100);
/// Words of RabbitMQ about a classic queue, which is on one node of a cluster, while that node is down.
pub(super) const NODE_DOWN: &str = "home node";
/// The key of the configuration that decides the type of our queues.
pub(super) const QUEUE_TYPE_KEY: &str = "bus.queue_type";

/// Reason why something could not be declared or subscribed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TopologyError {
    /// Failure that may not recur later.
    #[error("{0}")]
    Lost(String),
    /// Failure that lasts until an operator has changed something at the broker or in the configuration.
    #[error("{0}")]
    Refused(String),
    /// Failure that never ends; the text states the remedy.
    #[error("{0}")]
    Fatal(String),
}

/// Declares both exchanges, or finds them where we may not declare.
pub(super) async fn exchanges(connection: &Connection, settings: &Checked) -> Result<(), TopologyError> {
    for exchange in [&settings.exchange, &settings.dead_letter_exchange] {
        let declare = |passive| {
            let options = ExchangeDeclareOptions { durable: true, passive, ..ExchangeDeclareOptions::default() };
            on_own_channel(connection, async move |channel: Channel| {
                channel.exchange_declare(exchange.clone(), ExchangeKind::Topic, options, FieldTable::default()).await
            })
        };
        let advice = "delete or rename the exchange, or name another in the configuration";
        actively_or_passively("exchange", exchange, advice, declare).await?;
    }
    Ok(())
}

/// Bindings that were made, and the dead-letter queue, if there is one.
pub(super) struct Bindings(Vec<Binding>);

struct Binding {
    queue: ShortString,
    exchange: ShortString,
    key: ShortString,
}

/// Declares and binds what a subscription needs.
pub(super) async fn queue(
    connection: &Connection,
    settings: &Checked,
    subscription: &Subscription,
) -> Result<Bindings, TopologyError> {
    let name = short(&subscription.queue)?;
    let mut bindings = Vec::new();
    match subscription.ownership {
        Ownership::Existing => {
            let found = find_queue(connection, &name).await;
            return found.map(|()| Bindings(bindings)).map_err(|error| match cause::code(&error) {
                Some(NOT_FOUND) => TopologyError::Lost(format!("queue '{name}' does not exist; it is waited for")),
                _ => lost("queue", &name, &error),
            });
        }
        Ownership::Replica | Ownership::Replies => {
            let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
            let declared = declare(connection, &name, options, FieldTable::default()).await;
            declared.map_err(|error| refused_or_lost(&name, &error))?;
        }
        Ownership::Shared => {
            bindings.extend(shared(connection, settings, &name, &[settings.queue_type]).await?);
        }
        Ownership::ShortLived => {
            bindings.extend(shared(connection, settings, &name, &[QueueType::Classic, QueueType::Quorum]).await?);
        }
    }
    for topic in &subscription.topics {
        let binding = Binding { queue: name.clone(), exchange: settings.exchange.clone(), key: short(topic)? };
        bindings.extend(bind(connection, binding).await?);
    }
    Ok(Bindings(bindings))
}

/// Makes the bindings again: that costs little where they are there. What else is gone is declared again, and then all
/// bindings are given anew.
pub(super) async fn renew(
    connection: &Connection,
    settings: &Checked,
    subscription: &Subscription,
    bindings: &Bindings,
) -> Result<Option<Bindings>, TopologyError> {
    let renewed = on_own_channel(connection, async move |channel: Channel| {
        // Looking needs no right, and so leaves no refusal in the broker's log.
        let look = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        for exchange in [&settings.exchange, &settings.dead_letter_exchange] {
            channel.exchange_declare(exchange.clone(), ExchangeKind::Topic, look, FieldTable::default()).await?;
        }
        for Binding { queue, exchange, key } in &bindings.0 {
            let (queue, exchange, key) = (queue.clone(), exchange.clone(), key.clone());
            channel.queue_bind(queue, exchange, key, QueueBindOptions::default(), FieldTable::default()).await?;
        }
        Ok(())
    });
    if renewed.await.is_ok() {
        return Ok(None);
    }
    exchanges(connection, settings).await?;
    queue(connection, settings, subscription).await.map(Some)
}

/// Looks for a queue of this name. For one that is not there, or is another connection's own, the broker responds with
/// an error.
pub(super) async fn find_queue(connection: &Connection, name: &ShortString) -> Result<(), Error> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    declare(connection, name, options, FieldTable::default()).await
}

/// Whether the queue exists. One whose node is down counts as existing.
pub(super) fn is_there(found: Result<(), Error>) -> Option<bool> {
    let Err(error) = found else { return Some(true) };
    match cause::code(&error)? {
        // Another connection's own.
        RESOURCE_LOCKED => Some(true),
        NOT_FOUND => Some(cause::words(&error).contains(NODE_DOWN)),
        _ => None,
    }
}

/// The name of a queue's dead-letter queue.
pub(super) fn dead_letters_of(queue: &str) -> String {
    format!("{queue}.dlq")
}

/// A durable queue of the first of these types, or as it is if it exists with another of them; and its dead-letter
/// queue, which comes first, so that no dead letter is lost. Gives the binding of the latter.
async fn shared(
    connection: &Connection,
    settings: &Checked,
    name: &ShortString,
    types: &[QueueType],
) -> Result<Option<Binding>, TopologyError> {
    let dead_letters = short(&dead_letters_of(name.as_str()))?;
    let durable = |passive| QueueDeclareOptions { durable: true, passive, ..QueueDeclareOptions::default() };
    let declared = actively_or_passively("queue", &dead_letters, "delete or rename the queue", |passive| {
        declare(connection, &dead_letters, durable(passive), dead_letter_arguments())
    });
    let bound = match declared.await {
        // Calls need no dead letters. The queue and its binding are there again when its node is.
        Err(TopologyError::Lost(reason)) if reason.contains(NODE_DOWN) => {
            warn!(queue = dead_letters.as_str(), reason, "dead letters have no queue for now");
            None
        }
        declared => {
            declared?;
            let exchange = settings.dead_letter_exchange.clone();
            bind(connection, Binding { queue: dead_letters, exchange, key: name.clone() }).await?
        }
    };

    let advice = "delete the queue, or set bus.queue_prefix so that another one is used";
    actively_or_passively("queue", name, advice, |passive| async move {
        let mut declared = Ok(());
        for queue_type in types {
            let arguments = queue_arguments(settings, name, *queue_type);
            declared = declare(connection, name, durable(passive), arguments).await;
            if !declared.as_ref().is_err_and(is_of_another_type) {
                break;
            }
        }
        declared
    })
    .await?;
    Ok(bound)
}

fn is_of_another_type(error: &Error) -> bool {
    cause::code(error) == Some(PRECONDITION_FAILED)
        && differing_argument(&cause::words(error)).1 == Some(QUEUE_TYPE_KEY)
}

pub(super) fn queue_arguments(settings: &Checked, name: &ShortString, queue_type: QueueType) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text(queue_type.as_str()));
    arguments.insert("x-dead-letter-exchange".into(), text(settings.dead_letter_exchange.as_str()));
    // Under the queue's own name, so that dead letters do not spill into the queues of other owners.
    arguments.insert("x-dead-letter-routing-key".into(), text(name.as_str()));
    if queue_type == QueueType::Quorum {
        arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(DELIVERY_LIMIT));
    }
    arguments
}

pub(super) fn dead_letter_arguments() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text(QueueType::Classic.as_str()));
    arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(DEAD_LETTER_TTL_MS));
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(DEAD_LETTER_MAX_MESSAGES));
    arguments.insert("x-max-length-bytes".into(), AMQPValue::LongLongInt(DEAD_LETTER_MAX_BYTES));
    arguments.insert("x-overflow".into(), text("drop-head"));
    arguments
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// Declares; where that is not permitted, what exists is good enough.
async fn actively_or_passively<F: Future<Output = Result<(), Error>>>(
    kind: &str,
    name: &ShortString,
    advice: &str,
    declare: impl Fn(bool) -> F,
) -> Result<(), TopologyError> {
    let Err(error) = declare(false).await else { return Ok(()) };
    match cause::code(&error) {
        Some(PRECONDITION_FAILED) => {
            let (what, key) = differing_argument(&cause::words(&error));
            let key = key.map(|key| format!(", or set {key} to what it has")).unwrap_or_default();
            Err(TopologyError::Fatal(format!("{kind} '{name}' exists with {what}; {advice}{key}")))
        }
        Some(ACCESS_REFUSED) => {
            debug!(kind, name = name.as_str(), "may not be declared by this user; looking for it");
            declare(true).await.map_err(|error| match cause::code(&error) {
                Some(NOT_FOUND) => TopologyError::Refused(format!(
                    "{kind} '{name}' does not exist, and this user may not declare it: declare it, or give the user the right to configure it"
                )),
                Some(ACCESS_REFUSED) => TopologyError::Refused(format!("{kind} '{name}': {}", cause::words(&error))),
                _ => lost(kind, name, &error),
            })
        }
        _ => Err(lost(kind, name, &error)),
    }
}

/// From `… inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received 'quorum' but current is 'classic'`.
/// With the key of the configuration that decides this argument, if there is one.
pub(super) fn differing_argument(words: &str) -> (String, Option<&'static str>) {
    let argument = words.split_once("inequivalent arg '").and_then(|(_, rest)| rest.split_once('\''));
    let values = words.split_once("': ").map(|(_, values)| values);
    let Some((argument, _)) = argument else { return (format!("other arguments ({words})"), None) };
    let key = match argument {
        "x-queue-type" => Some(QUEUE_TYPE_KEY),
        "x-dead-letter-exchange" => Some("bus.dead_letter_exchange"),
        _ => None,
    };
    let values = values.map(|values| format!(" ({values})")).unwrap_or_default();
    (format!("another '{argument}'{values}"), key)
}

/// Binds, and returns the bindings. A binding that we may not make is the operator's to make: what is bound already
/// stays bound.
async fn bind(connection: &Connection, binding: Binding) -> Result<Option<Binding>, TopologyError> {
    let Binding { queue, exchange, key } = &binding;
    let bound = on_own_channel(connection, async move |channel: Channel| {
        let (queue, exchange, key) = (queue.clone(), exchange.clone(), key.clone());
        channel.queue_bind(queue, exchange, key, QueueBindOptions::default(), FieldTable::default()).await
    });
    match bound.await {
        Err(error) if cause::code(&error) == Some(ACCESS_REFUSED) => {
            debug!(queue = queue.as_str(), topic = key.as_str(), "may not be bound by this user; taken as bound");
            Ok(None)
        }
        Err(error) => Err(lost("binding of queue", queue, &error)),
        Ok(()) => Ok(Some(binding)),
    }
}

async fn declare(
    connection: &Connection,
    name: &ShortString,
    options: QueueDeclareOptions,
    arguments: FieldTable,
) -> Result<(), Error> {
    on_own_channel(connection, async move |channel: Channel| {
        channel.queue_declare(name.clone(), options, arguments).await.map(drop)
    })
    .await
}

/// Returns the number of consumers of a queue, if the broker reports it to this user.
pub(super) async fn consumer_count(connection: &Connection, queue: &str) -> Option<u32> {
    Some(look_up(connection, queue).await?.consumer_count())
}

/// Returns the number of messages that wait in a queue, without those that consumers have, if the broker reports it.
pub(super) async fn message_count(connection: &Connection, queue: &str) -> Option<u32> {
    Some(look_up(connection, queue).await?.message_count())
}

async fn look_up(connection: &Connection, queue: &str) -> Option<Queue> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let channel = connection.create_channel().await.ok()?;
    let queue = channel.queue_declare(short(queue).ok()?, options, FieldTable::default()).await.ok()?;
    // Whatever becomes of the channel, the counts are known.
    let _ = channel.close(200, "done".into()).await;
    Some(queue)
}

/// Deletes queues without a consumer, with their dead-letter queues, and then the exchanges that nothing is bound to.
pub(super) async fn remove(connection: &Connection, settings: &Checked, queues: &[String]) {
    let log_failure = |kind, name: &ShortString, result: Result<(), Error>| {
        if let Err(error) = result {
            debug!(kind, name = name.as_str(), reason = cause::words(&error), "not deleted");
        }
    };
    for name in queues.iter().flat_map(|queue| [queue.clone(), dead_letters_of(queue)]) {
        if !is_unused(connection, &name).await {
            continue;
        }
        let Ok(name) = short(&name) else { continue };
        let options = QueueDeleteOptions::default();
        let delete = async |channel: Channel| channel.queue_delete(name.clone(), options).await.map(drop);
        log_failure("queue", &name, on_own_channel(connection, delete).await);
    }
    for name in [&settings.exchange, &settings.dead_letter_exchange] {
        let options = ExchangeDeleteOptions { if_unused: true, ..ExchangeDeleteOptions::default() };
        let delete = async |channel: Channel| channel.exchange_delete(name.clone(), options).await;
        log_failure("exchange", name, on_own_channel(connection, delete).await);
    }
}

/// Whether the queue exists and has no consumers. RabbitMQ refuses `if_unused` for a quorum queue, and its consumer count
/// includes a cancelled consumer until the last delivery of that consumer is settled. While the count is not zero, this
/// function repeats the query, for at most 3 s.
async fn is_unused(connection: &Connection, queue: &str) -> bool {
    for _ in 0..UNUSED_LOOKS {
        match consumer_count(connection, queue).await {
            Some(0) => return true,
            Some(_) => tokio::time::sleep(UNUSED_PERIOD).await,
            None => return false,
        }
    }
    debug!(queue, "not deleted, because others consume it");
    false
}

async fn on_own_channel(
    connection: &Connection,
    work: impl AsyncFnOnce(Channel) -> Result<(), Error>,
) -> Result<(), Error> {
    let channel = connection.create_channel().await?;
    work(channel.clone()).await?;
    channel.close(200, "done".into()).await
}

fn short(name: &str) -> Result<ShortString, TopologyError> {
    let too_long = |_| TopologyError::Fatal(format!("'{:.40}…' is longer than 255 bytes: choose a shorter name", name));
    ShortString::try_new(name).map_err(too_long)
}

/// Reason for which a queue of the daemon cannot be declared or consumed.
pub(super) fn refused_or_lost(name: &ShortString, error: &Error) -> TopologyError {
    match cause::code(error) {
        Some(ACCESS_REFUSED) => TopologyError::Refused(format!(
            "queue '{name}': {}: give this user the right to configure, write and read queues of such a name",
            cause::words(error)
        )),
        _ => lost("queue", name, error),
    }
}

fn lost(kind: &str, name: impl Display, error: &Error) -> TopologyError {
    let words = cause::words(error);
    // After a partition, nodes that are one cluster again may disagree on this for ever.
    let advice = if words.contains(NODE_DOWN) { "; if that node runs, restart it" } else { "" };
    TopologyError::Lost(format!("{kind} '{name}': {words}{advice}"))
}

#[cfg(test)]
mod tests {
    use super::differing_argument;

    #[test]
    fn the_differing_argument_is_named_with_both_values() {
        let words = "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': \
                     received 'quorum' but current is 'classic'";
        let (what, key) = differing_argument(words);
        assert_eq!(what, "another 'x-queue-type' (received 'quorum' but current is 'classic')");
        assert_eq!(key, Some("bus.queue_type"));
    }

    #[test]
    fn a_text_without_an_argument_is_shown_whole() {
        let whole = ("other arguments (PRECONDITION_FAILED)".to_owned(), None);
        assert_eq!(differing_argument("PRECONDITION_FAILED"), whole);
    }
}
