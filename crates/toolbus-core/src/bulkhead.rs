//! Runs one call so that nothing it does can take the daemon down.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use crate::failure::{Cause, ToolFailure, text_of_panic};
use crate::tool::{AnyExecutor, ToolCall, ToolOutput};

/// Reason why a call ended before its executor did, other than by its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// The caller cancelled the call.
    Cancelled,
    /// The daemon's time to finish calls is over.
    ShuttingDown,
    /// The same, and the executor reports that nothing has begun: it waited, such as for its backend to start.
    ShuttingDownUnbegun,
}

/// Runs a call until it ends, its deadline passes, or it is stopped. A panic is a failure like any other.
pub(crate) async fn run(
    executor: Arc<dyn AnyExecutor>,
    call: ToolCall,
    deadline: Instant,
    shutdown: &CancellationToken,
) -> Result<Result<ToolOutput, ToolFailure>, StopReason> {
    let tool = Arc::clone(&call.tool);
    let cancelled = call.cancelled.clone();
    // An executor may panic before it returns its future.
    let mut running = match panic::catch_unwind(AssertUnwindSafe(|| executor.execute_boxed(call))) {
        Ok(running) => running,
        Err(panic) => return Ok(Err(panicked(&tool, &*panic))),
    };
    let ended = tokio::select! {
        biased;
        result = AssertUnwindSafe(&mut running).catch_unwind() => {
            Ok(result.unwrap_or_else(|panic| Err(panicked(&tool, &*panic))))
        }
        () = cancelled.cancelled() => Err(StopReason::Cancelled),
        () = shutdown.cancelled() => {
            cancelled.cancel();
            // An executor that waits ends at once, with this failure.
            let last = AssertUnwindSafe(&mut running).catch_unwind().now_or_never();
            Err(match last {
                Some(Ok(Err(failure))) if failure.cause == Cause::CancelledBeforeStart => {
                    StopReason::ShuttingDownUnbegun
                }
                _ => StopReason::ShuttingDown,
            })
        }
        () = tokio::time::sleep_until(deadline.into()) => {
            cancelled.cancel();
            Ok(Err(timed_out(&tool)))
        }
    };
    // What is stopped is dropped half-way, and its clean-up may panic as well. The result is known by then.
    if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(move || drop(running))) {
        tracing::error!(tool = &*tool, detail = text_of_panic(&*panic), "a tool panicked while it was stopped");
    }
    ended
}

fn timed_out(tool: &str) -> ToolFailure {
    ToolFailure::new(Cause::DeadlineExceeded, format!("Tool '{tool}' did not answer before the deadline of the call."))
}

fn panicked(tool: &str, panic: &(dyn Any + Send)) -> ToolFailure {
    ToolFailure::new(Cause::Panicked, format!("Tool '{tool}' failed because of a mistake in its code."))
        .with_detail(format_args!("panic: {}", text_of_panic(panic)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Clock;
    use crate::tool::Executor;

    enum Behaviour {
        Returns,
        Panics,
        Hangs,
    }

    impl Executor for Behaviour {
        async fn execute(&self, _: ToolCall) -> Result<ToolOutput, ToolFailure> {
            match self {
                Self::Returns => Ok(ToolOutput::text("done")),
                Self::Panics => panic!("secret detail"),
                Self::Hangs => std::future::pending().await,
            }
        }
    }

    struct PanicsBeforeItsFuture;

    impl AnyExecutor for PanicsBeforeItsFuture {
        fn execute_boxed(
            self: Arc<Self>,
            _: ToolCall,
        ) -> futures_util::future::BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
            panic!("early")
        }
    }

    fn call() -> ToolCall {
        ToolCall::new("t", crate::caller::Caller::unknown(), serde_json::Map::new(), Duration::ZERO)
    }

    async fn run_for(
        executor: impl AnyExecutor,
        time: Duration,
    ) -> Result<Result<ToolOutput, ToolFailure>, StopReason> {
        run(Arc::new(executor), call(), Clock::SYSTEM.now() + time, &CancellationToken::new()).await
    }

    #[tokio::test]
    async fn a_result_passes_through() {
        let result = run_for(Behaviour::Returns, Duration::from_secs(30)).await.unwrap();
        assert_eq!(result.unwrap(), ToolOutput::text("done"));
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_without_internals_for_the_caller() {
        let failure = run_for(Behaviour::Panics, Duration::from_secs(30)).await.unwrap().unwrap_err();
        assert_eq!(failure.cause, Cause::Panicked);
        assert!(!failure.message.contains("secret"));
        assert!(failure.detail.unwrap().contains("secret detail"));
    }

    #[tokio::test]
    async fn a_panic_before_the_future_exists_is_caught_too() {
        let failure = run_for(PanicsBeforeItsFuture, Duration::from_secs(30)).await.unwrap().unwrap_err();
        assert_eq!(failure.cause, Cause::Panicked);
    }

    struct PanicsWhenStopped;

    impl Drop for PanicsWhenStopped {
        fn drop(&mut self) {
            panic!("late");
        }
    }

    impl Executor for PanicsWhenStopped {
        async fn execute(&self, _: ToolCall) -> Result<ToolOutput, ToolFailure> {
            let _guard = Self;
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn a_panic_while_a_call_is_stopped_leaves_its_end_as_it_was() {
        // Kept by the test, because the executor itself panics when dropped, too.
        let executor = std::mem::ManuallyDrop::new(Arc::new(PanicsWhenStopped));
        let never = CancellationToken::new();
        let ended = run(Arc::<PanicsWhenStopped>::clone(&executor), call(), Clock::SYSTEM.now(), &never);
        let failure = ended.await.unwrap().unwrap_err();
        assert_eq!(failure.cause, Cause::DeadlineExceeded);
    }

    #[tokio::test]
    async fn a_tool_that_never_returns_ends_with_the_deadline() {
        let failure = run_for(Behaviour::Hangs, Duration::from_millis(10)).await.unwrap().unwrap_err();
        assert_eq!(failure.cause, Cause::DeadlineExceeded);
    }

    #[tokio::test]
    async fn a_cancelled_call_stops() {
        let call = call();
        call.cancelled.cancel();
        let shutdown = CancellationToken::new();
        let stop = run(Arc::new(Behaviour::Hangs), call, Clock::SYSTEM.now() + Duration::from_secs(30), &shutdown);
        assert_eq!(stop.await.unwrap_err(), StopReason::Cancelled);
    }

    #[tokio::test]
    async fn shutdown_stops_a_call_and_cancels_its_token() {
        let (call, shutdown) = (call(), CancellationToken::new());
        let cancelled = call.cancelled.clone();
        shutdown.cancel();
        let stop = run(Arc::new(Behaviour::Hangs), call, Clock::SYSTEM.now() + Duration::from_secs(30), &shutdown);
        assert_eq!(stop.await.unwrap_err(), StopReason::ShuttingDown);
        assert!(cancelled.is_cancelled());
    }
}
