//! One call of a tool, over the bus.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use toolbus_core::bus::{BusState, PublishError};
use toolbus_core::failure::{Cause, ToolFailure, Verdict, verdict};
use toolbus_core::tool::{Effect, ToolOutput};
use toolbus_mcp_server::BackendCall;
use toolbus_protocol::{
    Code, Outcome, ToolCancelRequest, ToolInvokeRequest, header, message_type, new_message_id, topic,
};

use super::response::response;
use super::{BackendParts, sentence};
use crate::{CallReply, ClientError, Expected, SignedRequest};

/// Longest wait for the broker before a call is sent.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Longest wait for the broker to confirm a call.
const PUBLISH_TIME: Duration = Duration::from_secs(10);
/// Time beyond a call's own in which its answer may still arrive.
const GRACE: Duration = Duration::from_secs(5);
/// Time after the loss of a connection in which an answer may still arrive.
const LOSS_TIME: Duration = Duration::from_secs(30);
/// Time between two requests to cancel: the first may overtake its call.
const CANCEL_PERIOD: Duration = Duration::from_millis(500);
/// Requests to cancel.
const CANCELS: u32 = 4;

/// What is known of a call that has no answer.
const OUTCOME_UNKNOWN: &str = "Whether it had its effect is not known: find out before calling again.";

impl BackendParts {
    /// Makes a call, and waits for what becomes of it.
    pub(super) async fn run(&self, call: BackendCall) -> Result<ToolOutput, ToolFailure> {
        let cancelled = call.cancelled.clone();
        match cancelled.run_until_cancelled(self.client.ready(CONNECT_TIME)).await {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(not_sent(&error, true)),
            None => return Err(ToolFailure::new(Cause::CancelledBeforeStart, "The call was cancelled.")),
        }
        let effect = self.effect(&call);
        let id = new_message_id();
        let request = self.request(&call, &id);
        let mut losses = self.client.state();
        let before = losses.borrow().reconnects;
        let mut expected = self.client.expect(&request, call.progress);
        let mut until = self.client.clock.now() + self.max_timeout + GRACE;
        let mut is_lost = self.publish(&request).await?;
        if is_lost {
            until = until.min(self.client.clock.now() + LOSS_TIME);
        }
        loop {
            tokio::select! {
                received = expected.received() => return answered(received.and_then(CallReply::read), effect),
                () = cancelled.cancelled() => return self.cancel(&id, &mut expected, effect).await,
                () = tokio::time::sleep_until(until.into()) => break,
                () = lost(&mut losses, before), if !is_lost => {
                    is_lost = true;
                    until = until.min(self.client.clock.now() + LOSS_TIME);
                }
            }
        }
        let failure = self.given_up(is_lost, effect);
        self.tell_cancelled(&id).await;
        Err(failure)
    }

    fn request(&self, call: &BackendCall, id: &str) -> SignedRequest {
        let body = ToolInvokeRequest {
            tool_call_id: Some(id.to_owned()),
            tool_name: call.tool.clone(),
            arguments: call.arguments.clone(),
            session_id: call.caller.session.as_deref().map(str::to_owned),
            batch_id: None,
        };
        // With a budget, the daemon does not begin a call after its caller has stopped waiting.
        let mut request = self.client.call(&body, Some(self.max_timeout), call.trace.clone());
        let progress = call.progress.as_ref().map(|_| header::PROGRESS);
        let wanted = [Some(header::STRUCTURED_CONTENT), Some(header::RESOURCE_LINKS), progress].into_iter().flatten();
        let wanted = wanted.map(|name| (header::on_the_wire(name), "1".to_owned()));
        let key = call.idempotency_key.as_deref();
        let key = key.map(|key| (header::on_the_wire(header::IDEMPOTENCY_KEY), key.to_owned()));
        Arc::make_mut(&mut request.properties).headers.extend(wanted.chain(key));
        self.sender.sign(request)
    }

    /// Publishes a call. Whether it is not known if the broker has it.
    async fn publish(&self, request: &SignedRequest) -> Result<bool, ToolFailure> {
        match tokio::time::timeout(PUBLISH_TIME, self.client.publish(request)).await {
            Ok(Ok(())) => Ok(false),
            Ok(Err(ClientError::Publish(PublishError::Unavailable(_)))) | Err(_) => Ok(true),
            Ok(Err(error @ ClientError::Publish(PublishError::Refused(_)))) => Err(not_sent(&error, false)),
            Ok(Err(error)) => Err(not_sent(&error, true)),
        }
    }

    /// Has the call cancelled, and waits a moment for what it says of that.
    async fn cancel(&self, id: &str, expected: &mut Expected, effect: Effect) -> Result<ToolOutput, ToolFailure> {
        for _ in 0..CANCELS {
            self.tell_cancelled(id).await;
            if let Ok(received) = tokio::time::timeout(CANCEL_PERIOD, expected.received()).await {
                return answered(received.and_then(CallReply::read), effect);
            }
        }
        Err(failed(Cause::Cancelled, "The call was cancelled.", effect))
    }

    async fn tell_cancelled(&self, id: &str) {
        let body = ToolCancelRequest { tool_call_id: id.to_owned() };
        self.tell(topic::TOOL_CANCEL, message_type::TOOL_CANCEL_REQUEST, &body).await;
    }

    fn given_up(&self, is_lost: bool, effect: Effect) -> ToolFailure {
        if is_lost {
            let text = "The connection to the broker was lost, and no answer has come since.";
            return failed(Cause::ConnectionLost, text, effect);
        }
        let text = format!("No answer came within {} s. Check that the daemon runs.", self.max_timeout.as_secs());
        failed(Cause::DeadlineExceeded, &text, effect)
    }

    /// What repeating the call would do, as far as the daemon has said.
    fn effect(&self, call: &BackendCall) -> Effect {
        let list = self.listing.known(call.caller.session.as_ref());
        list.and_then(|list| list.tool(&call.tool).map(|tool| tool.effect)).unwrap_or_default()
    }
}

/// Waits until a connection has been lost more often than `before`.
pub(super) async fn lost(state: &mut watch::Receiver<BusState>, before: u64) {
    if state.wait_for(|state| state.reconnects > before).await.is_err() {
        // The bus is closed, so no caller waits.
        std::future::pending::<()>().await;
    }
}

fn answered(answer: Result<CallReply, ClientError>, effect: Effect) -> Result<ToolOutput, ToolFailure> {
    match answer {
        Ok(answer) => response(answer.content),
        Err(error) => Err(failed(Cause::InvalidResult, &format!("There is no result: {}", sentence(&error)), effect)),
    }
}

/// A failure of a call that may have run.
fn failed(cause: Cause, text: &str, effect: Effect) -> ToolFailure {
    let told = verdict(cause, effect, true);
    let text = match told.outcome {
        Some(Outcome::Unknown) => format!("{text} {OUTCOME_UNKNOWN}"),
        _ => text.to_owned(),
    };
    ToolFailure { verdict: Some(told), ..ToolFailure::new(cause, text) }
}

/// A failure of a call that the daemon never got.
fn not_sent(error: &ClientError, is_retryable: bool) -> ToolFailure {
    let told = Verdict { code: Code::ExecutionFailed, is_retryable, outcome: Some(Outcome::NotStarted) };
    let text = format!("The call was not made: {}", sentence(error));
    ToolFailure { verdict: Some(told), ..ToolFailure::new(Cause::ConnectFailed, text) }
}
