//! One call of a tool elsewhere, from its request to its end: cancelled, given up, or without a reply after the loss of a
//! connection.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolbus_client::{
    CallReply, Client, ClientError, Expectation, Expected, Received, ReplyContent, Sender, SenderCheck, SignedRequest,
};
use toolbus_core::Clock;
use toolbus_core::bus::{BusState, PublishError};
use toolbus_core::failure::{Cause, ToolFailure, Verdict, verdict};
use toolbus_core::progress::{Progress, ProgressSink};
use toolbus_core::tool::{Effect, Program, ToolOutput};
use toolbus_protocol::{Code, Outcome, ScriptInvokeResponse, ToolCancelRequest, ToolProgress, message_type, topic};
use tracing::debug;

/// Longest wait for the broker before a call is sent.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Longest wait for the broker to confirm a call.
const PUBLISH_TIME: Duration = Duration::from_secs(10);
/// Longest wait for the broker to confirm a message that has no reply.
const NOTIFY_TIME: Duration = Duration::from_secs(1);
/// Time after the loss of a connection in which a reply may still arrive.
const LOSS_TIME: Duration = Duration::from_secs(30);
/// Time between two requests to cancel: the first may overtake its call.
const CANCEL_PERIOD: Duration = Duration::from_millis(500);
/// Requests to cancel.
const CANCELS: u32 = 4;
/// Requests to cancel a call whose caller is gone.
const UNHEARD_CANCELS: u32 = 2;

/// Text on what is known of a call that has no reply.
const OUTCOME_UNKNOWN: &str = "Whether it had its effect is not known: find out before calling again.";

/// A call that is to be made.
pub(crate) struct RemoteCall<'a> {
    /// The client that makes it.
    pub(crate) client: &'a Client,
    /// The request, signed.
    pub(crate) request: SignedRequest,
    /// The sender of the request.
    pub(crate) sender: &'a Sender,
    /// The id of the call in the request.
    pub(crate) id: &'a str,
    /// The only sender whose reply counts; absent: any that takes the call.
    pub(crate) from: Option<SenderCheck>,
    /// Effect of repeating the call, as far as is known.
    pub(crate) effect: Effect,
    /// Where progress is reported.
    pub(crate) progress: Option<ProgressSink>,
    /// Cancelled when the caller stops waiting.
    pub(crate) cancelled: &'a CancellationToken,
    /// When a reply is not waited for any longer.
    pub(crate) until: Instant,
}

/// Has the other daemon cancel a call that is dropped before its end: a caller that cancels waits for nothing.
struct CancelOnDrop<'a> {
    client: &'a Client,
    sender: &'a Sender,
    id: &'a str,
    is_over: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.is_over {
            return;
        }
        let (bus, message) = self.client.outgoing(&cancellation(self.client, self.sender, self.id));
        runtime.spawn(async move {
            for _ in 0..UNHEARD_CANCELS {
                if !matches!(tokio::time::timeout(NOTIFY_TIME, bus.publish(&message)).await, Ok(Ok(_))) {
                    debug!("the cancellation of a call was not told");
                }
                tokio::time::sleep(CANCEL_PERIOD).await;
            }
        });
    }
}

/// Waits until calls can be sent, at most for some seconds.
///
/// # Errors
///
/// If they cannot, or the call was cancelled meanwhile.
pub(crate) async fn connected(
    client: &Client,
    cancelled: &CancellationToken,
    until: Instant,
) -> Result<(), ToolFailure> {
    let patience = until.saturating_duration_since(Clock::SYSTEM.now()).min(CONNECT_TIME);
    match cancelled.run_until_cancelled(client.ready(patience)).await {
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => Err(not_sent(&error, true)),
        None => Err(ToolFailure::new(Cause::CancelledBeforeStart, "The call was cancelled.")),
    }
}

/// Publishes a message that has no reply, if the broker is connected.
pub(crate) async fn notify(client: &Client, message: &SignedRequest) {
    let topic = &message.topic;
    match tokio::time::timeout(NOTIFY_TIME, client.publish(message)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(topic, %error, "not told"),
        Err(_) => debug!(topic, "not told: the broker does not answer"),
    }
}

/// The request to cancel a call.
fn cancellation(client: &Client, sender: &Sender, id: &str) -> SignedRequest {
    let body = ToolCancelRequest { tool_call_id: id.to_owned() };
    sender.sign(client.tell(topic::TOOL_CANCEL, message_type::TOOL_CANCEL_REQUEST, &body))
}

impl RemoteCall<'_> {
    /// Makes the call, and waits for what becomes of it; `None` if there is no reply in time. Dropped before, it has the
    /// other daemon cancel the call.
    ///
    /// # Errors
    ///
    /// If the call failed or was cancelled, or the connection was lost and no reply has come since.
    pub(crate) async fn run(self) -> Result<Option<ToolOutput>, ToolFailure> {
        let mut given_up = CancelOnDrop { client: self.client, sender: self.sender, id: self.id, is_over: false };
        let ended = self.run_to_end().await;
        given_up.is_over = true;
        ended
    }

    async fn run_to_end(mut self) -> Result<Option<ToolOutput>, ToolFailure> {
        let mut losses = self.client.state();
        let before = losses.borrow().reconnects;
        let is_script = self.request.properties.message_type.as_deref() == Some(message_type::SCRIPT_INVOKE_REQUEST);
        let progress = self.progress.take().map(|sink| {
            Arc::new(move |ToolProgress { progress, total, message, .. }| {
                sink.report(Progress { progress, total, message });
            }) as _
        });
        let expectation = Expectation { progress, from: self.from.take(), replies: 1 };
        let mut expected = self.client.expect(&self.request, expectation);
        let is_unconfirmed = self.sent().await?;
        let mut is_lost = is_unconfirmed;
        let mut until = self.until;
        if is_lost {
            until = until.min(Clock::SYSTEM.now() + LOSS_TIME);
        }
        loop {
            tokio::select! {
                received = expected.received() => {
                    return read_reply(received, is_script, self.id, self.effect).map(Some);
                }
                () = self.cancelled.cancelled() => return self.cancel(&mut expected, is_script).await.map(Some),
                () = tokio::time::sleep_until(until.into()) => break,
                () = lost(&mut losses, before), if !is_lost => {
                    is_lost = true;
                    until = until.min(Clock::SYSTEM.now() + LOSS_TIME);
                }
            }
        }
        self.request_cancel().await;
        if is_lost {
            let text = match is_unconfirmed {
                true => "The broker did not confirm the request, and no answer has come since.",
                false => "The connection to the broker was lost, and no answer has come since.",
            };
            return Err(failed(Cause::ConnectionLost, text, self.effect));
        }
        Ok(None)
    }

    /// Publishes the call. Returns whether it is unknown if the broker has it.
    async fn sent(&self) -> Result<bool, ToolFailure> {
        let patience = self.until.saturating_duration_since(Clock::SYSTEM.now()).min(PUBLISH_TIME);
        match tokio::time::timeout(patience, self.client.publish(&self.request)).await {
            Ok(Ok(())) => Ok(false),
            Ok(Err(ClientError::Publish(PublishError::Unavailable(_) | PublishError::Rejected(_)))) | Err(_) => {
                Ok(true)
            }
            Ok(Err(error @ ClientError::Publish(PublishError::Refused(_)))) => Err(not_sent(&error, false)),
            Ok(Err(error)) => Err(not_sent(&error, true)),
        }
    }

    /// Requests the call's cancellation, and waits a moment for its reply.
    async fn cancel(&self, expected: &mut Expected, is_script: bool) -> Result<ToolOutput, ToolFailure> {
        for _ in 0..CANCELS {
            self.request_cancel().await;
            if let Ok(received) = tokio::time::timeout(CANCEL_PERIOD, expected.received()).await {
                return read_reply(received, is_script, self.id, self.effect);
            }
        }
        Err(failed(Cause::Cancelled, "The call was cancelled.", self.effect))
    }

    async fn request_cancel(&self) {
        notify(self.client, &cancellation(self.client, self.sender, self.id)).await;
    }
}

/// Waits until a connection has been lost more often than `before`.
pub(crate) async fn lost(state: &mut watch::Receiver<BusState>, before: u64) {
    if state.wait_for(|state| state.reconnects > before).await.is_err() {
        // The bus is closed, so no caller waits.
        std::future::pending::<()>().await;
    }
}

fn read_reply(
    received: Result<Received, ClientError>,
    is_script: bool,
    id: &str,
    effect: Effect,
) -> Result<ToolOutput, ToolFailure> {
    let invalid = |text: &str| Err(failed(Cause::InvalidResult, &format!("There is no result: {text}"), effect));
    if is_script {
        let kind = message_type::SCRIPT_INVOKE_RESPONSE;
        return match received.and_then(|received| received.read::<ScriptInvokeResponse>(kind)) {
            Ok(response) if response.tool_call_id == id => script_ended(response),
            Ok(_) => invalid("the answer is that of another call."),
            Err(ClientError::Tool(error)) => Err(error.into()),
            Err(error) => invalid(&sentence(&error)),
        };
    }
    match received.and_then(CallReply::read).map(|reply| reply.content) {
        Ok(ReplyContent::Result(result)) if result.tool_call_id != id => invalid("the answer is that of another call."),
        Ok(ReplyContent::Result(result)) => Ok(result.into()),
        Ok(ReplyContent::Error(error)) => Err(error.into()),
        Err(error) => invalid(&sentence(&error)),
    }
}

/// Returns what a script's end comes to.
fn script_ended(response: ScriptInvokeResponse) -> Result<ToolOutput, ToolFailure> {
    let is_success = response.is_success();
    let ScriptInvokeResponse { tool_call_id: _, output, stderr, exit_code, elapsed_ms } = response;
    let non_empty = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    // Peers recognise a timeout by these words.
    let is_late = |text: &String| text.to_ascii_lowercase().contains("timed out");
    if exit_code == ScriptInvokeResponse::NOT_RUN
        && let Some(text) = non_empty(&stderr).filter(is_late)
    {
        return Err(ToolFailure::new(Cause::DeadlineExceeded, text));
    }
    let written = if is_success { non_empty(&output) } else { non_empty(&output).or_else(|| non_empty(&stderr)) };
    let written = written.unwrap_or_else(|| "(no output)".to_owned());
    let result = match is_success {
        true => ToolOutput::text(written),
        false => ToolOutput::error(format!("Script failed (exit {exit_code}):\n{written}")),
    };
    let elapsed = Duration::from_millis(elapsed_ms);
    Ok(result.of_program(Program { stdout: output, stderr, exit_code, elapsed }))
}

/// An error as the end of a sentence.
pub(crate) fn sentence(error: &impl Display) -> String {
    let text = error.to_string();
    if text.ends_with('?') { text } else { text + "." }
}

/// A failure of a call that may have run.
pub(crate) fn failed(cause: Cause, text: &str, effect: Effect) -> ToolFailure {
    let verdict = verdict(cause, effect, true);
    let text = match verdict.outcome {
        Some(Outcome::Unknown) => format!("{text} {OUTCOME_UNKNOWN}"),
        _ => text.to_owned(),
    };
    ToolFailure { verdict: Some(verdict), ..ToolFailure::new(cause, text) }
}

/// A failure of a call that the daemon never got.
fn not_sent(error: &ClientError, is_retryable: bool) -> ToolFailure {
    let verdict = Verdict { code: Code::ExecutionFailed, is_retryable, outcome: Some(Outcome::NotStarted) };
    let text = format!("The call was not made: {}", sentence(error));
    ToolFailure { verdict: Some(verdict), ..ToolFailure::new(Cause::ConnectFailed, text) }
}
