//! Dead letters in the admin API: listed, replayed and dropped on a connection that is opened for each request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use toolbus_broker::rabbitmq::{DeadLetter, DeadLetterError, ReplayOutcome};
use toolbus_core::Clock;
use toolbus_core::text::shortened;
use toolbus_protocol::derived_message_id;

use super::Admin;
use super::view::ApiError;
use crate::config::Config;
use crate::dead_letters::{Letter, LetterBroker, LetterQueue, letter_queues};

/// Letters that are listed, and acted on, at most.
pub const MAX_LETTERS: usize = 200;
/// Letters that are read to find the selected ones.
const MAX_READ: usize = 1_000;
/// Time in which letters are begun to be read for a list, and for an action.
const READ_TIME: Duration = Duration::from_secs(4);
const ACT_TIME: Duration = Duration::from_secs(6);
/// Time besides for the rest, so that a request still gets its response.
const REST_TIME: Duration = Duration::from_secs(2);
/// Reasons for which letters were left, in the report of an action.
const MAX_REASONS: usize = 5;
/// Longest text of a letter's own, in characters.
const MAX_TEXT: usize = 1_000;

/// Works on the dead letters of a daemon's queues, one request after the other: a letter that a request reads is hidden
/// from all others until its connection ends.
pub struct DeadLetterAdmin {
    config: watch::Receiver<Arc<Config>>,
    workers: Handle,
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Last reading.
    last: Arc<Mutex<Option<Reading>>>,
}

/// Letters that were read, for requests that waited meanwhile and mean the same.
struct Reading {
    query: LetterQuery,
    began: Instant,
    found: Arc<LettersFound>,
}

/// Selection of letters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LetterQuery {
    /// Name of a queue of the daemon; empty: all of them.
    pub queue: String,
    /// Reason for which the letters are dead; empty: any.
    pub reason: String,
}

/// The letters that were found.
pub(in crate::http) struct LettersFound {
    /// By queue, the oldest first, each with a name that its content has.
    pub(in crate::http) letters: Vec<(Letter, String)>,
    /// Whether there are no others.
    pub(in crate::http) is_whole: bool,
}

/// Work on a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetterAction {
    /// Back to the queue that it came from; a reply is sent again.
    Replay,
    /// Removed for ever.
    Drop,
}

/// Outcome of an action.
#[derive(Default)]
pub(super) struct LetterOutcome {
    /// Number of letters that are gone from their queue.
    pub(super) done: usize,
    /// Reasons for which letters are left, the first [`MAX_REASONS`].
    reasons: Vec<String>,
    /// Number of letters that are left.
    left: usize,
    /// Number of letters that were not found any more.
    missing: usize,
    /// Whether there was no time for all.
    is_late: bool,
}

impl LetterAction {
    /// In the imperative.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Drop => "drop",
        }
    }
}

impl LetterOutcome {
    fn note(&mut self, done: ReplayOutcome) {
        match done {
            ReplayOutcome::Routed => self.done += 1,
            ReplayOutcome::Left(reason) => {
                self.left += 1;
                if self.reasons.len() < MAX_REASONS && !self.reasons.contains(&reason) {
                    self.reasons.push(reason);
                }
            }
        }
    }

    /// Notes why the remaining letters were not reached.
    fn rest(&mut self, count: usize, done: Result<(), DeadLetterError>) {
        let reason = match done {
            Ok(()) if self.is_late => Some("the broker was slow".to_owned()),
            Ok(()) => None,
            Err(error) => Some(error.to_string()),
        };
        match reason {
            Some(reason) => {
                self.left += count;
                self.reasons.push(reason);
            }
            None => self.missing += count,
        }
    }

    /// # Errors
    ///
    /// If a letter is left, or was not found.
    pub(super) fn checked(self, action: LetterAction) -> Result<Self, ApiError> {
        if self.left == 0 && self.missing == 0 {
            return Ok(self);
        }
        let done = match action {
            LetterAction::Replay => "replayed",
            LetterAction::Drop => "dropped",
        };
        let left = (self.left > 0).then(|| format!("; left: {}, because {}", self.left, self.reasons.join("; ")));
        let missing = (self.missing > 0).then(|| format!("; not there any more: {}", self.missing));
        let text = format!("dead letters {done}: {}", self.done);
        Err(ApiError::conflict([Some(text), left, missing].into_iter().flatten().collect::<String>()))
    }
}

impl Admin {
    /// The queues that dead letters can come from; none on the embedded bus.
    pub(in crate::http) fn letter_queues(&self) -> Vec<String> {
        let Some(letters) = &self.dead_letters else { return Vec::new() };
        queues(&letters.config.borrow(), "").into_iter().map(|queue| queue.queue).collect()
    }

    /// Reads the selected dead letters, which stay in their queues.
    ///
    /// # Errors
    ///
    /// If the bus has none, the broker is away or slow, it refuses the user, or others read for too long.
    pub(in crate::http) async fn letters(&self, query: LetterQuery) -> Result<Arc<LettersFound>, ApiError> {
        let letters = self.dead_letters.as_ref().ok_or_else(embedded)?;
        let config = Arc::clone(&letters.config.borrow());
        let (requested, meant) = (Clock::SYSTEM.now(), query.clone());
        let reading = async move {
            let broker = connect(&config).await?;
            let found = read(&broker, &config, &meant, requested + READ_TIME).await;
            broker.close().await;
            found.map_err(refused)
        };
        letters.read(query, requested, reading).await
    }

    /// Replays or drops the letters of a queue, or of all queues, whose contents have these names. Each letter that
    /// is found is passed to `record` with whether it is gone from its queue, also where the client does not wait.
    ///
    /// # Errors
    ///
    /// If the bus has none, or the broker is away. Later errors are in the outcome.
    pub(super) async fn act_on_letters(
        &self,
        action: LetterAction,
        queue: &str,
        names: Vec<String>,
        record: impl Fn(&Letter, bool) + Send + Sync + 'static,
    ) -> Result<LetterOutcome, ApiError> {
        let letters = self.dead_letters.as_ref().ok_or_else(embedded)?;
        let (config, queue) = (Arc::clone(&letters.config.borrow()), queue.to_owned());
        let latest = Clock::SYSTEM.now() + ACT_TIME;
        let acting = async move {
            let broker = connect(&config).await?;
            let (mut outcome, mut names) = (LetterOutcome::default(), names);
            names.truncate(MAX_LETTERS);
            let queues = queues(&config, &queue);
            let done = act(&broker, action, queues, &mut names, &mut outcome, &record, latest).await;
            broker.close().await;
            outcome.rest(names.len(), done);
            Ok(outcome)
        };
        letters.within(ACT_TIME, acting).await
    }
}

impl DeadLetterAdmin {
    /// Work on the broker of the configuration in force, on the current runtime.
    #[must_use]
    pub fn new(config: watch::Receiver<Arc<Config>>) -> Self {
        Self { config, workers: Handle::current(), turn: Arc::default(), last: Arc::default() }
    }

    /// Reads once it is its turn, unless another request with the same query has read meanwhile, which began after this
    /// one was `requested`.
    async fn read(
        &self,
        query: LetterQuery,
        requested: Instant,
        reading: impl Future<Output = Result<LettersFound, ApiError>> + Send + 'static,
    ) -> Result<Arc<LettersFound>, ApiError> {
        let last = Arc::clone(&self.last);
        let sharing = async move {
            let began = Clock::SYSTEM.now();
            let is_same = |reading: &&Reading| reading.query == query && reading.began >= requested;
            let shared = last.lock().as_ref().filter(is_same).map(|reading| Arc::clone(&reading.found));
            if let Some(found) = shared {
                return Ok(found);
            }
            if began >= requested + READ_TIME {
                return Err(ApiError::unavailable("others read the dead letters now; try again in a moment"));
            }
            let found = Arc::new(reading.await?);
            *last.lock() = Some(Reading { query, began, found: Arc::clone(&found) });
            Ok(found)
        };
        self.within(READ_TIME, sharing).await
    }

    /// Works for a limited time, also where the client does not wait: then letters are back in their queue sooner.
    async fn within<T: Send + 'static>(
        &self,
        time: Duration,
        work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = Arc::clone(&self.turn);
        let limited = async move {
            let _turn = turn.lock().await;
            work.await
        };
        let time = time + REST_TIME;
        match self.workers.spawn(timeout(time, limited)).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(ApiError::unavailable(format!("the broker did not do this within {} s", time.as_secs()))),
            Err(_) => Err(ApiError::unavailable("the daemon is ending")),
        }
    }
}

/// The queue of this whole name, or all without a name.
fn queues(config: &Config, named: &str) -> Vec<LetterQueue> {
    let mut all = letter_queues(config, None).unwrap_or_default();
    all.retain(|queue| named.is_empty() || queue.queue == named);
    all
}

async fn connect(config: &Config) -> Result<LetterBroker<'_>, ApiError> {
    let settings = config.bus.broker_settings().ok_or_else(embedded)?;
    LetterBroker::connect(config, settings).await.map_err(refused)
}

fn embedded() -> ApiError {
    ApiError::conflict("the embedded bus keeps no dead letters: they are on a broker, which bus.url names")
}

fn refused(error: DeadLetterError) -> ApiError {
    ApiError::unavailable(error)
}

async fn read(
    broker: &LetterBroker<'_>,
    config: &Config,
    query: &LetterQuery,
    latest: Instant,
) -> Result<LettersFound, DeadLetterError> {
    let (mut found, mut left) = (LettersFound { letters: Vec::new(), is_whole: true }, MAX_READ);
    for (_, mut queue) in broker.open(queues(config, &query.queue)).await? {
        while queue.left() > 0 {
            if left == 0 || found.letters.len() == MAX_LETTERS || Clock::SYSTEM.now() >= latest {
                found.is_whole = false;
                break;
            }
            let Some(dead) = queue.next().await? else { break };
            left -= 1;
            let letter = Letter::read(queue.origin(), &dead);
            if query.reason.is_empty() || letter.reason == query.reason {
                let name = name_of(&letter, &dead);
                found.letters.push((bounded(letter), name));
            }
        }
        queue.end().await?;
    }
    Ok(found)
}

async fn act(
    broker: &LetterBroker<'_>,
    action: LetterAction,
    queues: Vec<LetterQueue>,
    names: &mut Vec<String>,
    outcome: &mut LetterOutcome,
    record: &(impl Fn(&Letter, bool) + Sync),
    latest: Instant,
) -> Result<(), DeadLetterError> {
    let mut left = MAX_READ;
    for (of, mut queue) in broker.open(queues).await? {
        while left > 0 && !names.is_empty() {
            if Clock::SYSTEM.now() >= latest {
                outcome.is_late = true;
                break;
            }
            let Some(dead) = queue.next().await? else { break };
            left -= 1;
            let mut letter = Letter::read(queue.origin(), &dead);
            let name = name_of(&letter, &dead);
            let Some(index) = names.iter().position(|wanted| *wanted == name) else { continue };
            let done = match action {
                LetterAction::Replay => broker.replay(&mut queue, &of, &letter, &dead).await?,
                LetterAction::Drop => queue.remove(dead.number()).await.map(|()| ReplayOutcome::Routed)?,
            };
            names.swap_remove(index);
            letter.id.get_or_insert(name);
            record(&letter, matches!(done, ReplayOutcome::Routed));
            outcome.note(done);
        }
        queue.end().await?;
    }
    Ok(())
}

/// Returns a name that identifies a letter by its content.
fn name_of(letter: &Letter, dead: &DeadLetter) -> String {
    let about = serde_json::to_string(letter).unwrap_or_default();
    derived_message_id(&letter.queue, &about, &String::from_utf8_lossy(dead.body()))
}

/// Cuts the texts of a letter, which its sender chose.
fn bounded(mut letter: Letter) -> Letter {
    let own = [&mut letter.id, &mut letter.call_id, &mut letter.agent, &mut letter.tool, &mut letter.reply_to];
    for text in own.into_iter().flatten() {
        *text = shortened(text, MAX_TEXT).into_owned();
    }
    letter
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[test]
    fn the_report_of_an_action_counts_the_letters_left_and_names_the_reason() {
        let mut outcome = LetterOutcome::default();
        for _ in 0..30 {
            outcome.note(ReplayOutcome::Routed);
        }
        outcome.note(ReplayOutcome::Left("no queue takes it".to_owned()));
        outcome.rest(2, Ok(()));
        let error = outcome.checked(LetterAction::Replay).err().unwrap();
        insta::assert_snapshot!(error, @"dead letters replayed: 30; left: 1, because no queue takes it; not there any more: 2");
        assert!(LetterOutcome::default().checked(LetterAction::Drop).is_ok());
    }

    #[tokio::test]
    async fn waiting_requests_for_the_same_letters_share_a_reading_and_a_later_one_reads_anew() {
        let letters = DeadLetterAdmin::new(watch::Sender::default().subscribe());
        let (reads, now) = (Arc::new(AtomicUsize::new(0)), Clock::SYSTEM.now());
        let read = |reason: &str, requested| {
            let reads = Arc::clone(&reads);
            let query = LetterQuery { reason: reason.to_owned(), ..LetterQuery::default() };
            letters.read(query, requested, async move {
                reads.fetch_add(1, Ordering::Relaxed);
                Ok(LettersFound { letters: Vec::new(), is_whole: true })
            })
        };
        join_all([read("one", now), read("one", now), read("one", now), read("other", now)]).await;
        assert_eq!(reads.load(Ordering::Relaxed), 2);
        read("other", Clock::SYSTEM.now()).await.unwrap();
        assert_eq!(reads.load(Ordering::Relaxed), 3);
        let late = read("late", now.checked_sub(READ_TIME).unwrap()).await.err().unwrap();
        insta::assert_snapshot!(late, @"others read the dead letters now; try again in a moment");
    }

    #[test]
    fn only_queues_of_the_daemon_are_read() {
        let config = Config::default();
        assert_eq!(queues(&config, "toolbus.invoke").len(), 1);
        assert_eq!(queues(&config, "others.invoke").len(), 0);
        assert!(queues(&config, "").len() > 1);
    }
}
