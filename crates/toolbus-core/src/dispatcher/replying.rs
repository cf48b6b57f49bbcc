//! Builds the replies of calls, and writes the one line of each failure to the log.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::call::Call;
use super::log::{Log, LoggedCall};
use crate::Clock;
use crate::failure::{Cause, ToolFailure};
use crate::policy::PolicyHandle;
use crate::reply::{Reply, ReplyContext};
use crate::request::Request;
use crate::tool::ToolOutput;

/// Builds the replies of this daemon's calls.
pub(super) struct ReplyBuilder {
    /// Name of this daemon.
    pub(super) source: Arc<str>,
    pub(super) clock: Clock,
    pub(super) policy: PolicyHandle,
    /// Cancelled when the time to finish calls is over.
    pub(super) shutdown: CancellationToken,
    pub(super) log: Log,
}

impl ReplyBuilder {
    /// Builds the reply of a tool that ran; that of a failure, if its result is too large.
    pub(super) async fn result(&self, call: &mut Call, output: ToolOutput) -> Reply {
        let built = match output.is_large() {
            false => self.context(call).result(output, call.run()),
            true => {
                let (source, clock, run) = (Arc::clone(&self.source), self.clock, call.run());
                let Request { envelope, caller, call_id, tool_name, dialect, .. } = &call.request;
                let (envelope, tool_name, dialect) = (envelope.clone(), tool_name.clone(), *dialect);
                let (caller, call_id) = (Arc::clone(caller), Arc::clone(call_id));
                let encode = move || {
                    let context = ReplyContext {
                        source: &source,
                        clock,
                        envelope: &envelope,
                        caller: &caller,
                        call_id: &call_id,
                        tool_name: &tool_name,
                        dialect,
                    };
                    context.result(output, run)
                };
                call.finish_in_turn(self.policy.turns(), encode).await.and_then(|built| built)
            }
        };
        match built {
            Ok(mut reply) => {
                call.executed(&reply.end);
                call.trace(&mut reply);
                reply
            }
            Err(too_large) => self.failure(call, &too_large),
        }
    }

    /// Builds the reply of a call that failed.
    pub(super) fn failure(&self, call: &mut Call, failure: &ToolFailure) -> Reply {
        let mut reply = self.refusal(call, failure, call.timing.ran.is_some());
        call.executed(&reply.end);
        call.trace(&mut reply);
        reply
    }

    /// Builds the reply of a request of which an earlier delivery may have begun.
    pub(super) fn failure_of_copy(&self, call: &mut Call, failure: &ToolFailure) -> Arc<Reply> {
        let mut reply = self.refusal(call, failure, true);
        call.trace(&mut reply);
        Arc::new(reply)
    }

    /// Builds the reply of a request that must not be run once more.
    pub(super) fn unrepeated(&self, call: &mut Call, cause: Cause, text: &str) -> Arc<Reply> {
        let reply = self.failure_of_copy(call, &ToolFailure::new(cause, text));
        // It was not resolved, and is counted under the tool that it is for all the same.
        if call.execution.tool.is_none() {
            call.execution.tool = call.wanted(&self.policy);
        }
        reply
    }

    /// Writes the one line of a failure to the log.
    pub(super) fn log_failure(&self, call: &Call, failure: &ToolFailure) {
        let subject =
            LoggedCall { tool: call.execution.tool.as_deref(), request: &call.request, trace_id: call.span.trace_id() };
        self.log.failure(&subject, failure, self.shutdown.is_cancelled());
    }

    fn refusal(&self, call: &Call, failure: &ToolFailure, started: bool) -> Reply {
        let verdict = call.verdict(failure, started);
        self.log_failure(call, failure);
        self.context(call).error(failure, verdict, call.run())
    }

    fn context<'a>(&'a self, call: &'a Call) -> ReplyContext<'a> {
        let Request { envelope, caller, call_id, tool_name, dialect, .. } = &call.request;
        ReplyContext {
            source: &self.source,
            clock: self.clock,
            envelope,
            caller,
            call_id,
            tool_name,
            dialect: *dialect,
        }
    }
}
