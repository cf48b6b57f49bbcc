//! Actions of operators, recorded in the audit with their operator.

use std::net::IpAddr;
use std::sync::Arc;

use toolbus_core::audit::AuditRecord;
use toolbus_core::failure::Status;
use toolbus_protocol::new_message_id;

use super::calls::OperatorCalls;
use super::view::{ApiError, Approval, Approved, BreakerReset, CallOutcome, CallRequest, McpRestart, Switching};
use super::{Admin, DEFAULT_SECTION, LetterAction, ReloadReport};
use crate::dead_letters::Letter;
use crate::http::slots::ConnectionState;

/// Way in of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Actor {
    through: &'static str,
    remote: Option<IpAddr>,
}

impl Actor {
    /// An operator on the Unix socket.
    pub const SOCKET: Self = Self { through: "socket", remote: None };

    /// An operator with `http.admin_token`, over HTTP from this address.
    pub(in crate::http) const fn over_http(remote: Option<IpAddr>) -> Self {
        Self { through: "admin_token over HTTP", remote }
    }

    /// An operator on a page of the console, with the token of this name.
    pub(in crate::http) const fn on_console(is_admin: bool, remote: Option<IpAddr>) -> Self {
        Self { through: if is_admin { "admin_token on the console" } else { "read_token on the console" }, remote }
    }

    /// A record of an action of this operator, or of its attempt, at this time.
    pub(in crate::http) fn record(self, action: &str, is_done: bool) -> AuditRecord {
        let status = if is_done { Status::Ok } else { Status::Error };
        AuditRecord::acted(self.through, action, self.remote, status)
    }
}

/// The actions of one operator, each of which leaves a record.
pub struct Acting<'a> {
    admin: &'a Admin,
    operator: Actor,
}

impl Admin {
    /// Lets an operator act.
    #[must_use]
    pub const fn by(&self, operator: Actor) -> Acting<'_> {
        Acting { admin: self, operator }
    }
}

/// An action in progress. Dropped before it ends, because the client has disconnected, it is recorded as one whose end is
/// not known: the daemon may complete it all the same.
struct UnfinishedAction<'a> {
    acting: &'a Acting<'a>,
    action: String,
    /// Success, once that is known.
    end: Option<bool>,
}

impl UnfinishedAction<'_> {
    fn ends<T>(mut self, done: Result<T, ApiError>) -> Result<T, ApiError> {
        self.end = Some(done.is_ok());
        done
    }
}

impl Drop for UnfinishedAction<'_> {
    fn drop(&mut self) {
        match self.end {
            Some(is_done) => self.acting.record(&self.action, is_done),
            None => self.acting.record(&format!("{} (its end is not known)", self.action), false),
        }
    }
}

impl Acting<'_> {
    /// Switches something off or on again: see [`Admin::switch`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn switch(&self, kind: &str, name: &str, off: bool) -> Result<Switching, ApiError> {
        let state = if off { "off" } else { "on" };
        let pending = self.begin(format!("switch {kind} {name} {state}"));
        pending.ends(self.admin.switch(kind, name, off).await)
    }

    /// Has a tool or server get calls again: see [`Admin::reset_breaker`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn reset_breaker(&self, name: String) -> Result<BreakerReset, ApiError> {
        let action = format!("reset breaker {name}");
        let done = self.admin.reset_breaker(name);
        self.record(&action, done.is_ok());
        done
    }

    /// Begins to restart an MCP server: see [`Admin::restart_server`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn restart_server(&self, name: &str) -> Result<McpRestart, ApiError> {
        let done = self.admin.restart_server(name);
        self.record(&format!("restart mcp {name}"), done.is_ok());
        done
    }

    /// Approves the tools that a name means: see [`Admin::approve_pin`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn approve_pin(&self, name: &str, approval: Approval) -> Result<Approved, ApiError> {
        let of = approval.source.as_deref().map(|source| format!(" of {source}")).unwrap_or_default();
        let pending = self.begin(format!("approve pin {name}{of}"));
        pending.ends(self.admin.approve_pin(name, approval).await)
    }

    /// Has the configuration reloaded, and waits for the report.
    ///
    /// # Errors
    ///
    /// If there is no daemon, too many reloads wait, or the daemon ends first.
    pub async fn reload(&self) -> Result<ReloadReport, ApiError> {
        let mut pending = self.begin("reload".to_owned());
        let done = match &self.admin.daemon {
            Some(daemon) => daemon.reload().await,
            None => Err(ApiError::not_found("there is no daemon")),
        };
        pending.end = Some(done.as_ref().is_ok_and(|report| report.applied));
        done
    }

    /// Makes a call as an agent: see [`OperatorCalls::call`].
    ///
    /// # Errors
    ///
    /// As there.
    pub(in crate::http) async fn call(
        &self,
        calls: &OperatorCalls,
        request: CallRequest,
        connection: Option<&ConnectionState>,
    ) -> Result<CallOutcome, ApiError> {
        let id = new_message_id();
        let agent = request.agent.as_deref().unwrap_or(DEFAULT_SECTION);
        let pending = self.begin(format!("call {} as {agent}, call id {id}", request.tool));
        pending.ends(calls.call(id, request, connection).await)
    }

    /// Cancels calls of an agent with an id: see [`OperatorCalls::cancel`].
    ///
    /// # Errors
    ///
    /// As there.
    pub(in crate::http) fn cancel(&self, calls: &OperatorCalls, agent: &str, id: &str) -> Result<(), ApiError> {
        let done = calls.cancel(agent, id);
        self.record(&format!("cancel call id {id} of {agent}"), done.is_ok());
        done
    }

    /// Removes a scheduled task: see [`Admin::cancel_schedule`].
    ///
    /// # Errors
    ///
    /// As there.
    pub(in crate::http) async fn cancel_schedule(&self, share: &str, id: &str) -> Result<(), ApiError> {
        let mut pending = self.begin(format!("cancel scheduled task {id} of {share}"));
        let done = self.admin.cancel_schedule(share, id).await;
        if let Ok(task) = &done {
            pending.action = format!("cancel scheduled task {} of {}", task.name, task.agent);
        }
        pending.ends(done).map(drop)
    }

    /// Replays or drops dead letters, each of which has a record of its own: see [`Admin::act_on_letters`].
    ///
    /// # Errors
    ///
    /// As there, and if a letter is left.
    pub(in crate::http) async fn act_on_letters(
        &self,
        action: LetterAction,
        queue: &str,
        names: Vec<String>,
    ) -> Result<(), ApiError> {
        let from = if queue.is_empty() { "all queues" } else { queue };
        let mut pending = self.begin(format!("{} {} dead letters of {from}", action.as_str(), names.len()));
        let (audit, operator) = (Arc::clone(&self.admin.audit), self.operator);
        let record = move |letter: &Letter, is_gone| {
            let id = letter.id.as_deref().unwrap_or_default();
            let action = format!("{} dead letter of {}: {id}", action.as_str(), letter.queue);
            audit.record(operator.record(&action, is_gone));
        };
        let done = match self.admin.act_on_letters(action, queue, names, record).await {
            Ok(outcome) => {
                pending.action = format!("{}, of which {} are gone", pending.action, outcome.done);
                outcome.checked(action)
            }
            Err(error) => Err(error),
        };
        pending.ends(done).map(drop)
    }

    const fn begin(&self, action: String) -> UnfinishedAction<'_> {
        UnfinishedAction { acting: self, action, end: None }
    }

    fn record(&self, action: &str, is_done: bool) {
        self.admin.audit.record(self.operator.record(action, is_done));
    }
}
