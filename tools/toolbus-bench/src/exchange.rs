use std::io;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::broker::load::Sample;

/// Wait after a failure, so that a server which refuses at once gets no more requests than one that responds.
const AFTER_FAILURE: Duration = Duration::from_millis(10);

/// Reason why there is no good response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// No program listens there.
    #[error("cannot be connected: {0}")]
    Connect(io::Error),
    /// The connection broke, or what came is no HTTP.
    #[error("the connection failed: {0}")]
    Connection(#[from] hyper::Error),
    /// No response in time.
    #[error("no answer within {0} s")]
    Late(u64),
    /// Not the response that was wanted.
    #[error("answered {0}: {1}")]
    Refused(u16, String),
    /// Not what the protocol requires.
    #[error("{0}")]
    Unreadable(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// A request that is sent again and again.
pub(crate) trait Exchange: Send + 'static {
    /// Sends the request once, and checks the response.
    ///
    /// # Errors
    ///
    /// If the response is missing, or is not the expected one.
    fn once(&mut self) -> impl Future<Output = Result<(), ExchangeError>> + Send;
}

/// Measurements of a closed loop.
#[derive(Debug, Clone)]
pub(crate) struct LoopResult {
    /// The good responses.
    pub(crate) sample: Sample,
    /// Number of responses that were not good.
    pub(crate) failures: u64,
    /// Text of one of the responses that were not good.
    pub(crate) failure: Option<String>,
}

impl LoopResult {
    /// The sample, where every response was good.
    ///
    /// # Errors
    ///
    /// The first failure, where one was not.
    pub(crate) fn flawless(self) -> Result<Sample, ExchangeError> {
        match self.failure {
            None => Ok(self.sample),
            Some(failure) => Err(ExchangeError::Unreadable(failure)),
        }
    }
}

/// A closed loop of callers, each in a task of its own: it sends a request when the last one has its response, for about
/// this long.
///
/// # Errors
///
/// If a task panicked.
pub(crate) async fn closed_loop<E: Exchange>(callers: &mut Vec<E>, time: Duration) -> io::Result<LoopResult> {
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for mut caller in callers.drain(..) {
        tasks.spawn(async move {
            let mut measured = Measurements::default();
            while started.elapsed() < time {
                measured.once(&mut caller).await;
            }
            (caller, measured)
        });
    }
    let mut all = Measurements::default();
    while let Some(ended) = tasks.join_next().await {
        let (caller, measured) = ended.map_err(io::Error::other)?;
        callers.push(caller);
        all.add(measured);
    }
    let Measurements { latencies, failures, failure } = all;
    Ok(LoopResult { sample: Sample { latencies, elapsed: started.elapsed() }, failures, failure })
}

/// Measurements of one caller.
#[derive(Default)]
struct Measurements {
    latencies: Vec<Duration>,
    failures: u64,
    failure: Option<String>,
}

impl Measurements {
    async fn once(&mut self, caller: &mut impl Exchange) {
        let begun = Instant::now();
        match caller.once().await {
            Ok(()) => self.latencies.push(begun.elapsed()),
            Err(error) => {
                self.failures += 1;
                self.failure.get_or_insert_with(|| error.to_string());
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }

    fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.failures += other.failures;
        self.failure = self.failure.take().or(other.failure);
    }
}
