//! The thread that connections have beside those of calls.

use tokio::runtime::{Builder, EnterGuard, Runtime};
use tracing::warn;

/// A thread on which heartbeats fall due and sockets become ready, whatever the threads of calls are busy with.
pub(super) struct ConnectionThread(Option<Runtime>);

impl ConnectionThread {
    pub(super) fn start() -> Self {
        let built = Builder::new_multi_thread().worker_threads(1).thread_name("amqp").enable_all().build();
        let failed = |error: &std::io::Error| warn!(%error, "heartbeats have no thread of their own");
        Self(built.inspect_err(failed).ok())
    }

    /// Makes connections that are opened meanwhile use the runtime of this thread.
    pub(super) fn enter(&self) -> Option<EnterGuard<'_>> {
        self.0.as_ref().map(Runtime::enter)
    }
}

impl Drop for ConnectionThread {
    fn drop(&mut self) {
        // Not by waiting: this may be a task.
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}
