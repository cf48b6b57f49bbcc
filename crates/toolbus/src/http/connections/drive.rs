use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use hyper::rt::{Read, Write};
use hyper::server::conn::http1::Connection;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::IDLE_TIME;
use super::service::Service;
use super::state::Link;

/// Drives a connection until it ends, its time is over, or its place is needed. What a client did wrong on its way out
/// is of no interest to an operator.
pub(super) async fn drive<I>(connection: Connection<I, Service>, link: &Link, stop: &CancellationToken)
where
    I: Read + Write + Unpin,
{
    let mut connection = pin!(connection);
    let mut evicted = pin!(link.evicted());
    let mut stopped = pin!(stop.cancelled());
    let mut is_stopping = false;
    // Set again only for what is due earlier, and looked at when it is due: most requests are over by then.
    let mut alarm = pin!(sleep_until(Instant::now()));
    poll_fn(|cx| {
        if !is_stopping && stopped.as_mut().poll(cx).is_ready() {
            is_stopping = true;
            link.stop();
            connection.as_mut().graceful_shutdown();
        }
        while evicted.as_mut().poll(cx).is_ready() {
            evicted.set(link.evicted());
        }
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            let now = Instant::now();
            let deadline = link.deadline();
            if deadline.is_some_and(|deadline| deadline <= now) {
                tracing::debug!("HTTP: a connection took too long and was closed");
                return Poll::Ready(());
            }
            let is_over = alarm.deadline() <= now;
            let next = deadline.unwrap_or(now + IDLE_TIME);
            if is_over || next < alarm.deadline() {
                alarm.as_mut().reset(next);
            }
            if alarm.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}
