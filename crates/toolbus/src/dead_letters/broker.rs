//! A connection to the broker of a configuration, on which its dead letters are read and replayed.

use toolbus_broker::rabbitmq::{
    DeadLetter, DeadLetterError, DeadLetterQueue, DeadLetters, RabbitMqSettings, ReplayOutcome,
};
use toolbus_core::Clock;
use toolbus_core::bus::Target;
use toolbus_core::caller::IdentitySource;
use toolbus_core::telemetry::DeadReason;
use toolbus_protocol::topic;

use super::letter::Letter;
use super::queues::LetterQueue;
use crate::config::Config;

/// The dead letters of a configuration, on a connection of its own. Letters that were read and neither removed nor
/// replayed are back in their queue when the connection ends.
pub(crate) struct LetterBroker<'a> {
    config: &'a Config,
    letters: DeadLetters,
}

impl<'a> LetterBroker<'a> {
    /// Connects to the broker of `config`, whose `settings` these are.
    ///
    /// # Errors
    ///
    /// If no broker takes the login.
    pub(crate) async fn connect(config: &'a Config, settings: RabbitMqSettings) -> Result<Self, DeadLetterError> {
        Ok(Self { config, letters: DeadLetters::connect(settings).await? })
    }

    /// Opens those of the queues that exist.
    ///
    /// # Errors
    ///
    /// If none exists, or the user may not read one.
    pub(crate) async fn open(
        &self,
        queues: Vec<LetterQueue>,
    ) -> Result<Vec<(LetterQueue, DeadLetterQueue<'_>)>, DeadLetterError> {
        let (mut open, mut missing) = (Vec::new(), None);
        for queue in queues {
            match self.letters.of_queue(&queue.queue).await {
                Ok(letters) => open.push((queue, letters)),
                Err(error @ DeadLetterError::NoQueue(_)) => {
                    missing.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        match missing {
            Some(error) if open.is_empty() => Err(error),
            _ => Ok(open),
        }
    }

    /// Puts a request back into the queue that it came from, or sends a reply again.
    ///
    /// # Errors
    ///
    /// If the user may not do that, or the broker is lost.
    pub(crate) async fn replay(
        &self,
        queue: &mut DeadLetterQueue<'_>,
        letter_queue: &LetterQueue,
        letter: &Letter,
        dead: &DeadLetter,
    ) -> Result<ReplayOutcome, DeadLetterError> {
        if dead.reason == DeadReason::Undeliverable.as_str() {
            let targets = self.addresses(dead.reply_to.as_deref().unwrap_or_default());
            return queue.reply_again(dead, &self.config.bus.exchange, &targets).await;
        }
        let login = self.config.bus.url.login();
        let user_id = match (self.config.identity.source, &dead.properties.user_id) {
            (IdentitySource::Header, _) => None,
            (IdentitySource::Broker, Some(user)) if login.as_ref() == Some(user) => login.as_deref(),
            (IdentitySource::Broker, _) => {
                let text = "under identity.source = \"broker\" only its sender can send it again, because only the \
                            sender may name itself";
                return Ok(ReplayOutcome::Left(text.to_owned()));
            }
        };
        let Some(topic) = letter.topic.as_deref().or_else(|| letter_queue.topic_of(letter)) else {
            return Ok(ReplayOutcome::Left("the topic that it came on is not known".to_owned()));
        };
        let now = Clock::SYSTEM.since_epoch().as_secs();
        queue.request_again(dead, topic, user_id, now).await
    }

    /// Where a reply goes, as the daemon tries it for a plain client: a queue of that name, else a topic for replies.
    fn addresses(&self, reply_to: &str) -> Vec<Target> {
        if reply_to.is_empty() {
            return vec![Target::Topic(self.config.invoke.default_reply_topic.clone())];
        }
        let is_topic = self.config.bus.reply_topics.iter().any(|pattern| topic::matches(pattern, reply_to));
        let topic = is_topic.then(|| Target::Topic(reply_to.to_owned()));
        [Target::Queue(reply_to.to_owned())].into_iter().chain(topic).collect()
    }

    /// Closes the connection in order.
    pub(crate) async fn close(self) {
        self.letters.close().await;
    }
}
