//! Interpreters that wait for a script.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_sandbox::{Plan, Sandbox, SandboxError, Waiting};

use crate::config::PoolConfig;

/// Time after the last script for which as many interpreters are kept as while scripts come.
const BUSY: Duration = Duration::from_secs(60);
/// Time that an interpreter has to import what is configured.
const IMPORTS: Duration = Duration::from_secs(30);
/// Wait after one could not be started.
const BACKOFF: Duration = Duration::from_secs(5);

/// Interpreters that wait for a script; each runs one.
pub(super) struct Pool {
    shared: Arc<PoolShared>,
    end: CancellationToken,
}

struct PoolShared {
    config: PoolConfig,
    state: Mutex<PoolState>,
    changed: Notify,
}

#[derive(Default)]
struct PoolState {
    ready: VecDeque<Waiting>,
    last_used: Option<Instant>,
    is_over: bool,
}

impl Pool {
    /// Begins to start interpreters.
    pub(super) fn start(config: PoolConfig, sandbox: Sandbox, plan: Plan) -> Self {
        let shared = Arc::new(PoolShared { config, state: Mutex::default(), changed: Notify::new() });
        let end = CancellationToken::new();
        let (filled, ended) = (Arc::clone(&shared), end.clone());
        #[expect(clippy::disallowed_methods, reason = "`Pool::shutdown` and its drop cancel it between two starts")]
        tokio::spawn(async move { ended.run_until_cancelled(fill(&filled, &sandbox, &plan)).await });
        Self { shared, end }
    }

    /// Takes an interpreter that is ready, if there is one.
    pub(super) fn take(&self) -> Option<Waiting> {
        let mut state = self.shared.state.lock();
        state.last_used = Some(Clock::SYSTEM.now());
        // One that was killed while it waited is of no use.
        state.ready.retain_mut(|waiting| !waiting.is_gone());
        let taken = state.ready.pop_front();
        drop(state);
        self.shared.changed.notify_one();
        taken
    }

    /// Number of interpreters that are ready.
    pub(super) fn ready(&self) -> usize {
        self.shared.state.lock().ready.len()
    }

    /// Ends them all.
    pub(super) fn shutdown(&self) {
        self.end.cancel();
        let mut state = self.shared.state.lock();
        state.is_over = true;
        state.ready.clear();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

impl PoolShared {
    /// Keeps one that is ready, unless that is over since it was begun.
    fn keep(&self, waiting: Waiting) {
        let mut state = self.state.lock();
        if !state.is_over {
            state.ready.push_back(waiting);
        }
    }

    /// Number of missing interpreters, negative if there are too many, and for how long it holds unless a script comes.
    fn wanted(&self) -> (isize, Duration) {
        let state = self.state.lock();
        let busy = state.last_used.map_or(Duration::ZERO, |used| BUSY.saturating_sub(Clock::SYSTEM.since(used)));
        let PoolConfig { min, max, .. } = self.config;
        let wanted = if busy.is_zero() { min } else { max.max(min) };
        let left = if busy.is_zero() { Duration::MAX } else { busy };
        (wanted.cast_signed() - state.ready.len().cast_signed(), left)
    }
}

/// Keeps as many ready as there should be: one is started at a time, so that scripts that run have the processors.
async fn fill(shared: &PoolShared, sandbox: &Sandbox, plan: &Plan) {
    loop {
        let (missing, left) = shared.wanted();
        if missing > 0 {
            match ready(sandbox, plan).await {
                Ok(waiting) => shared.keep(waiting),
                Err(error) => {
                    tracing::warn!(%error, "an interpreter could not be started ahead; scripts start cold meanwhile");
                    sleep(BACKOFF).await;
                }
            }
        } else if missing < 0 {
            shared.state.lock().ready.pop_back();
        } else {
            let _ = timeout(left, shared.changed.notified()).await;
        }
    }
}

async fn ready(sandbox: &Sandbox, plan: &Plan) -> Result<Waiting, SandboxError> {
    let mut waiting = sandbox.start(plan).await?;
    match timeout(IMPORTS, waiting.ready()).await {
        Ok(ready) => ready.map(|()| waiting),
        Err(_) => Err(SandboxError::Confinement("it did not finish its imports in time".to_owned())),
    }
}
