//! A client's connection to the simulated broker: the third implementation of [`Bus`], on which messages meet faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use toolbus_core::bus::{Bus, BusState, Delivery, Outgoing, PublishError, Routing, Subscription, Target};

use crate::broker::{SimBroker, SimMessage};
use crate::context::{Fault, Observed, ScheduleContext};

/// The numbers of connections, none of which is used twice in a process. Their values are not in the trace.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// State of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connection {
    /// By the connection of this number.
    Open(u64),
    /// Not now.
    Lost,
    /// The process is gone: nothing it waits for comes.
    Killed,
    /// The client has ended it.
    Closed,
}

/// A client of the broker.
pub(crate) struct SimBus {
    owner: Arc<str>,
    context: Arc<ScheduleContext>,
    broker: Arc<SimBroker>,
    connection: Observed<Connection>,
    state: watch::Sender<BusState>,
    subscriptions: Mutex<Vec<(Subscription, mpsc::Sender<Delivery>)>>,
}

impl SimBus {
    /// A client that is connected.
    pub(crate) fn new(owner: &str, context: &Arc<ScheduleContext>, broker: &Arc<SimBroker>) -> Arc<Self> {
        let bus = Self {
            owner: owner.into(),
            context: Arc::clone(context),
            broker: Arc::clone(broker),
            connection: Observed::new(Connection::Lost),
            state: watch::Sender::default(),
            subscriptions: Mutex::default(),
        };
        bus.connect();
        Arc::new(bus)
    }

    /// Name of the connection's owner.
    pub(crate) fn name(&self) -> &str {
        &self.owner
    }

    /// Connects again, and consumes what was consumed before.
    pub(crate) fn connect(&self) {
        if self.connection.get() != Connection::Lost {
            return;
        }
        let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        self.context.note(&self.owner, "is connected");
        self.turn(Connection::Open(number));
        for (subscription, deliveries) in &*self.subscriptions.lock() {
            self.broker.subscribe(number, &self.owner, subscription, deliveries.clone());
        }
    }

    /// Loses the connection.
    pub(crate) fn lose(&self) {
        self.end(Connection::Lost);
    }

    /// Ends the process, as far as the broker sees it.
    pub(crate) fn kill(&self) {
        self.end(Connection::Killed);
    }

    fn end(&self, next: Connection) {
        let before = self.connection.get();
        if matches!(before, Connection::Killed | Connection::Closed) {
            return;
        }
        self.turn(next);
        if let Connection::Open(number) = before {
            self.broker.disconnect(number);
        }
    }

    fn turn(&self, next: Connection) {
        self.connection.set(next);
        self.state.send_modify(|state| state.connected = matches!(next, Connection::Open(_)));
    }

    /// The number of the connection, as soon as there is one.
    async fn connected(&self) -> Result<u64, PublishError> {
        let is_settled = |connection| matches!(connection, Connection::Open(_) | Connection::Closed);
        match self.connection.wait_for(is_settled).await {
            Connection::Open(number) => Ok(number),
            _ => Err(PublishError::Closed),
        }
    }

    /// Whether the connection is still the one of this number; never returns in a process that is gone.
    async fn still(&self, number: u64) -> bool {
        if self.connection.get() == Connection::Killed {
            std::future::pending::<()>().await;
        }
        self.connection.get() == Connection::Open(number)
    }

    async fn transmit(&self, message: &Outgoing) -> Result<Routing, PublishError> {
        let (context, owner) = (&*self.context, &*self.owner);
        let strikes = |fault| context.strikes(fault, owner, SimMessage::name(&message.properties));
        let number = self.connected().await?;
        let time = if strikes(Fault::Delayed) { 100..=2_000 } else { 0..=3 };
        tokio::time::sleep(context.chance.millis(time)).await;
        self.broker.thawed().await;
        if !self.still(number).await || strikes(Fault::MessageLost) {
            return Err(PublishError::Unavailable("the message was lost".to_owned()));
        }
        if strikes(Fault::Nacked) {
            return Err(PublishError::Rejected("a queue is full".to_owned()));
        }
        // A queue for dead letters is always there.
        if message.mandatory && !matches!(message.target, Target::DeadLetter(_)) && strikes(Fault::Returned) {
            return Ok(Routing::Unroutable);
        }
        let copies = if strikes(Fault::Duplicate) { 2 } else { 1 };
        let mut routed = 0;
        for _ in 0..copies {
            routed = self.broker.route(owner, &message.target, &message.properties, &message.body);
        }
        tokio::time::sleep(context.chance.millis(0..=3)).await;
        self.broker.thawed().await;
        if !self.still(number).await || strikes(Fault::ConfirmLost) {
            return Err(PublishError::Unavailable("the confirm was lost".to_owned()));
        }
        Ok(if routed == 0 && message.mandatory { Routing::Unroutable } else { Routing::Routed })
    }
}

impl Bus for SimBus {
    fn consume(&self, subscription: Subscription) -> mpsc::Receiver<Delivery> {
        let (deliveries, receiver) = mpsc::channel(usize::from(subscription.prefetch.max(1)));
        if let Connection::Open(number) = self.connection.get() {
            self.broker.subscribe(number, &self.owner, &subscription, deliveries.clone());
        }
        self.subscriptions.lock().push((subscription, deliveries));
        receiver
    }

    fn publish<'a>(&'a self, message: &'a Outgoing) -> BoxFuture<'a, Result<Routing, PublishError>> {
        self.transmit(message).boxed()
    }

    fn has_queue<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<bool>> {
        ready(Some(self.broker.has_queue(name))).boxed()
    }

    fn state(&self) -> watch::Receiver<BusState> {
        self.state.subscribe()
    }

    fn stop_consuming(&self) -> BoxFuture<'_, ()> {
        self.subscriptions.lock().retain(|(subscription, _)| subscription.is_inbox);
        if let Connection::Open(number) = self.connection.get() {
            self.broker.unsubscribe(number);
        }
        ready(()).boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.end(Connection::Closed);
        ready(()).boxed()
    }
}
