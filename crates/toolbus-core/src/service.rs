//! Consuming: deliveries become tasks, and a drain waits for them.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bus::Delivery;
use crate::control::ControlService;
use crate::dispatcher::Dispatcher;

/// Feeds deliveries to the dispatcher, each in a task of its own.
pub struct Service {
    dispatcher: Dispatcher,
    tasks: TaskTracker,
}

/// End of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every call came to its own end.
    Finished,
    /// The daemon ended this many calls.
    Cut(usize),
}

/// Time for replies and settlements of calls that the daemon ended.
const CLOSING_TIME: Duration = Duration::from_secs(15);

impl Service {
    /// A service that has taken nothing in yet.
    #[must_use]
    pub fn new(dispatcher: Dispatcher) -> Self {
        Self { dispatcher, tasks: TaskTracker::new() }
    }

    /// Takes calls in until the channel closes. Everything beyond receiving happens in the call's own task, so that one
    /// slow call never holds up the next.
    pub async fn serve_calls(&self, mut deliveries: mpsc::Receiver<Delivery>) {
        while let Some(delivery) = deliveries.recv().await {
            self.start(delivery);
        }
    }

    /// Starts a call. Its future is in a box, because it has some kilobytes and tokio moves that of a task several
    /// times. As a trait object it is compiled with this crate, for speed, and not with the one that awaits
    /// `serve_calls`.
    fn start(&self, delivery: Delivery) {
        let dispatcher = self.dispatcher.clone();
        let call: BoxFuture<'static, ()> = Box::pin(async move { dispatcher.handle(delivery).await });
        self.tasks.spawn(call);
    }

    /// Takes small requests in until the channel closes, each in a task of its own.
    pub async fn serve_requests(&self, control: &ControlService, mut deliveries: mpsc::Receiver<Delivery>) {
        while let Some(delivery) = deliveries.recv().await {
            self.tasks.spawn(control.clone().handle(delivery));
        }
    }

    /// Takes in what running calls wait for, each in a task of its own, until the channel closes or `ended` is
    /// cancelled; then waits for these tasks. [`Self::drain`] does not wait for them.
    pub async fn serve_inbox(
        &self,
        control: &ControlService,
        mut deliveries: mpsc::Receiver<Delivery>,
        ended: &CancellationToken,
    ) {
        let tasks = TaskTracker::new();
        while let Some(Some(delivery)) = ended.run_until_cancelled(deliveries.recv()).await {
            tasks.spawn(control.clone().handle(delivery));
        }
        deliveries.close();
        while let Some(delivery) = deliveries.recv().await {
            tasks.spawn(control.clone().handle(delivery));
        }
        tasks.close();
        tasks.wait().await;
    }

    /// Waits for the calls under way, at most `patience`; then ends them and waits for their replies.
    ///
    /// To be called when no further request can arrive. Inboxes go on.
    pub async fn drain(&self, patience: Duration) -> Drained {
        let direct = self.dispatcher.direct();
        self.tasks.close();
        direct.close();
        if tokio::time::timeout(patience, self.ended()).await.is_ok() {
            return Drained::Finished;
        }
        let left = self.tasks.len() + direct.len();
        self.dispatcher.shut_down();
        let _ = tokio::time::timeout(CLOSING_TIME, self.ended()).await;
        Drained::Cut(left)
    }

    async fn ended(&self) {
        self.tasks.wait().await;
        self.dispatcher.direct().wait().await;
    }
}
