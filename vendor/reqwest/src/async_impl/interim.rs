//! A limit of the interim (1xx) responses to a request. Changed for Toolbus: the whole file.

use std::fmt;
use std::future::{poll_fn, Future};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Most interim responses to a request.
const MAX_INTERIM: usize = 10;
/// More than the cooperative budget that a task has.
const BUDGET: usize = 256;

/// The interim responses to a request until now, and who waits for the final one.
#[derive(Clone, Default)]
pub(crate) struct Interim(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    count: usize,
    waker: Option<Waker>,
}

/// The failure of a request with more interim responses than [`MAX_INTERIM`].
#[derive(Debug)]
pub(crate) struct TooManyInterim;

impl Interim {
    /// Counts the interim responses to this request.
    pub(crate) fn to<B>(request: &mut http::Request<B>) -> Self {
        let interim = Self::default();
        let counted = interim.clone();
        hyper::ext::on_informational(request, move |_| counted.count());
        interim
    }

    fn count(&self) {
        let mut state = self.lock();
        state.count += 1;
        if state.count > MAX_INTERIM {
            let waker = state.waker.take();
            drop(state);
            waker.into_iter().for_each(Waker::wake);
            end_turn();
        }
    }

    /// Waits for the final response. When too many others have come, `response` is dropped, and the connection, which
    /// has lost its request, closes.
    pub(crate) async fn limit<T, E: Into<crate::error::BoxError>>(
        self,
        response: impl Future<Output = Result<T, E>>,
    ) -> Result<T, crate::Error> {
        let mut response = pin!(response);
        poll_fn(|context| {
            {
                let mut state = self.lock();
                if state.count > MAX_INTERIM {
                    return Poll::Ready(Err(crate::error::request(TooManyInterim)));
                }
                state.waker = Some(context.waker().clone());
            }
            response.as_mut().poll(context).map_err(crate::error::request)
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Spends the budget of the task of the connection: it yields before it reads more, and then finds its request gone.
fn end_turn() {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..BUDGET {
        if pin!(tokio::task::coop::consume_budget()).poll(&mut context).is_pending() {
            return;
        }
    }
}

impl fmt::Display for TooManyInterim {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "more than {MAX_INTERIM} interim responses")
    }
}

impl std::error::Error for TooManyInterim {}
