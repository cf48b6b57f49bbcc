//! Actions of operators, recorded in the audit with who did it.

use std::net::IpAddr;

use toolbus_core::audit::AuditRecord;
use toolbus_core::failure::Status;

use super::view::{ApiError, Approval, Approved, BreakerReset, McpRestart, Switching};
use super::{Admin, ReloadReport};

/// Way in of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operator {
    through: &'static str,
    remote: Option<IpAddr>,
}

impl Operator {
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

    /// A record of now of what this operator did, or tried to.
    pub(in crate::http) fn record(self, action: &str, is_done: bool) -> AuditRecord {
        let status = if is_done { Status::Ok } else { Status::Error };
        AuditRecord::acted(self.through, action, self.remote, status)
    }
}

/// The actions of one operator, each of which leaves a record.
pub struct Acting<'a> {
    admin: &'a Admin,
    operator: Operator,
}

impl Admin {
    /// Lets an operator act.
    #[must_use]
    pub const fn by(&self, operator: Operator) -> Acting<'_> {
        Acting { admin: self, operator }
    }
}

impl Acting<'_> {
    /// Switches something off or on again: see [`Admin::switch`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn switch(&self, kind: &str, name: &str, off: bool) -> Result<Switching, ApiError> {
        let done = self.admin.switch(kind, name, off).await;
        let state = if off { "off" } else { "on" };
        self.record(&format!("switch {kind} {name} {state}"), done.is_ok());
        done
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

    /// Lets through what a name means: see [`Admin::approve_pin`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn approve_pin(&self, name: &str, approval: Approval) -> Result<Approved, ApiError> {
        let of = approval.source.as_deref().map(|source| format!(" of {source}")).unwrap_or_default();
        let done = self.admin.approve_pin(name, approval).await;
        self.record(&format!("approve pin {name}{of}"), done.is_ok());
        done
    }

    /// Has the configuration reloaded, and waits for the report.
    ///
    /// # Errors
    ///
    /// If there is no daemon, too many reloads wait, or the daemon ends first.
    pub async fn reload(&self) -> Result<ReloadReport, ApiError> {
        let done = match &self.admin.daemon {
            Some(daemon) => daemon.reload().await,
            None => Err(ApiError::not_found("there is no daemon")),
        };
        self.record("reload", done.as_ref().is_ok_and(|report| report.applied));
        done
    }

    fn record(&self, action: &str, is_done: bool) {
        self.admin.audit.record(self.operator.record(action, is_done));
    }
}
