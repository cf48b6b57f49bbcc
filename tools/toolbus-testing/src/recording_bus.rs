//! A bus that records what is published, and routes it as a test decides.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use toolbus_core::bus::{Bus, BusState, Delivery, Outgoing, PublishError, Routing, Subscription, Target};

use crate::locked;

/// Words of a bus that refuses an address.
const REFUSED: &str = "ACCESS_REFUSED";

/// Outcome of a publish.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Route {
    /// The message arrives.
    #[default]
    Routed,
    /// There is no queue for it.
    Unroutable,
    /// The address is refused.
    Refused,
    /// No queue takes the message.
    Rejected,
    /// The connection is lost before the message arrives.
    Unavailable,
    /// The message arrives, and its publish fails so all the same, or does not end.
    Doubted(Option<PublishError>),
}

/// A bus that delivers nothing, or what another bus delivers. Every address is routed by default.
#[derive(Default)]
pub struct RecordingBus {
    behind: Option<Arc<dyn Bus>>,
    default: Mutex<Route>,
    routes: Mutex<HashMap<Target, Route>>,
    attempts: Mutex<Vec<(Target, bool)>>,
    refusal_queries: AtomicUsize,
    sent: Mutex<Vec<Outgoing>>,
}

impl RecordingBus {
    /// Returns a bus that passes what arrives on to another.
    pub fn before(bus: impl Bus) -> Self {
        Self { behind: Some(Arc::new(bus)), ..Self::default() }
    }

    /// Sets the outcome of publishes to an address from now on.
    pub fn route(&self, target: Target, route: Route) {
        locked(&self.routes).insert(target, route);
    }

    /// Sets the outcome of publishes to addresses without one of their own.
    pub fn route_all(&self, route: Route) {
        *locked(&self.default) = route;
    }

    /// Returns the messages that arrived, in order.
    pub fn sent(&self) -> Vec<Outgoing> {
        locked(&self.sent).clone()
    }

    /// Returns the number of calls of [`Bus::refusal`].
    pub fn refusal_queries(&self) -> usize {
        self.refusal_queries.load(Ordering::SeqCst)
    }

    /// Returns the address of every publish, and whether it was marked as proven.
    pub fn attempts(&self) -> Vec<(Target, bool)> {
        locked(&self.attempts).clone()
    }

    fn route_of(&self, target: &Target) -> Route {
        locked(&self.routes).get(target).unwrap_or(&locked(&self.default)).clone()
    }
}

impl Bus for RecordingBus {
    fn consume(&self, subscription: Subscription) -> mpsc::Receiver<Delivery> {
        self.behind.as_ref().map_or_else(|| mpsc::channel(1).1, |bus| bus.consume(subscription))
    }

    fn publish<'a>(&'a self, message: &'a Outgoing) -> BoxFuture<'a, Result<Routing, PublishError>> {
        locked(&self.attempts).push((message.target.clone(), message.proven));
        let route = self.route_of(&message.target);
        async move {
            match &route {
                Route::Unroutable if message.mandatory => return Ok(Routing::Unroutable),
                Route::Refused => return Err(PublishError::Refused(REFUSED.to_owned())),
                Route::Rejected => return Err(PublishError::Rejected("a queue for it is full or down".to_owned())),
                Route::Unavailable => return Err(PublishError::Unavailable("connection lost".to_owned())),
                Route::Routed | Route::Unroutable | Route::Doubted(_) => {}
            }
            locked(&self.sent).push(message.clone());
            let routing = match &self.behind {
                Some(bus) => bus.publish(message).await?,
                None => Routing::Routed,
            };
            match route {
                Route::Doubted(Some(error)) => Err(error),
                Route::Doubted(None) => std::future::pending().await,
                _ => Ok(routing),
            }
        }
        .boxed()
    }

    fn has_queue<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<bool>> {
        match &self.behind {
            Some(bus) => bus.has_queue(name),
            None => {
                let exists = self.route_of(&Target::Queue(name.to_owned())) != Route::Unroutable;
                std::future::ready(Some(exists)).boxed()
            }
        }
    }

    fn refusal<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Option<String>> {
        self.refusal_queries.fetch_add(1, Ordering::SeqCst);
        let is_refused = self.route_of(target) == Route::Refused;
        std::future::ready(is_refused.then(|| REFUSED.to_owned())).boxed()
    }

    fn state(&self) -> watch::Receiver<BusState> {
        self.behind.as_ref().map_or_else(|| watch::channel(BusState::default()).1, |bus| bus.state())
    }

    fn stop_consuming(&self) -> BoxFuture<'_, ()> {
        self.behind.as_ref().map_or_else(|| std::future::ready(()).boxed(), |bus| bus.stop_consuming())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.behind.as_ref().map_or_else(|| std::future::ready(()).boxed(), |bus| bus.close())
    }
}
