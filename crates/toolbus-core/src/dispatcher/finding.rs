//! Step 4: the tool that a caller means, waited for if it is pending.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Abort;
use super::call::Call;
use crate::Clock;
use crate::caller::Caller;
use crate::deadline;
use crate::failure::Cause;
use crate::gates::permit::Permits;
use crate::gates::{Gates, find};
use crate::notify::RecentCallers;
use crate::pending_tools::PendingTools;
use crate::policy::{AllowedTool, EffectiveTools};
use crate::request::Lookup;

/// Finds the tools of calls.
pub(super) struct ToolFinder {
    pub(super) gates: Arc<Gates>,
    pub(super) pending: Arc<dyn PendingTools>,
    pub(super) permits: Arc<Permits>,
    pub(super) callers: RecentCallers,
    pub(super) clock: Clock,
    /// Cancelled when the time to finish calls is over.
    pub(super) shutdown: CancellationToken,
    /// Whether requests for MCP servers that this daemon does not have are left to other bridges.
    pub(super) ignores_unknown_servers: bool,
}

impl ToolFinder {
    /// Returns the caller's effective tools. A tool that is not there yet, and may come, is waited for: as a permit is,
    /// or else, where the caller names its server, until the deadline. The call waits among those of its agent, so that
    /// an agent that calls an unclaimed tool takes no slot of another.
    pub(super) async fn enter(&self, call: &Call, cancel: &CancellationToken) -> Result<EffectiveTools, Abort> {
        let (gates, request) = (&self.gates, &call.request);
        let effective = gates.enter(&request.caller);
        self.note(&request.caller, &effective);
        let wanted = request.wanted();
        if find(&effective, wanted).is_some() {
            return Ok(effective);
        }
        let now = self.clock.now();
        let latest = match wanted.route {
            // The caller knows where its tool is: there is nothing else to try.
            Lookup::Server(_) => deadline::inner(call.timing.deadline, now),
            Lookup::Name | Lookup::AnyServer => now + call.timing.deadline.saturating_duration_since(now) / 2,
        };
        let arrival = self.pending.expect(wanted, &effective, latest);
        let policy = gates.policy();
        // The registry has tools before the catalogue does, and `expect` leaves out servers whose tools are registered.
        let is_latest = policy.has_latest(&effective);
        if arrival.is_none() && is_latest {
            drop(arrival);
            return Ok(effective);
        }
        let _waiting = self.permits.wait(effective.gate(), call.request.sharer(), call.delivery.body_size)?;
        if !is_latest {
            policy.catch_up().await;
            let refreshed = gates.enter(&request.caller);
            if arrival.is_none() || find(&refreshed, wanted).is_some() {
                return Ok(refreshed);
            }
        }
        if let Some(arrival) = arrival {
            call.before_start(cancel, &self.shutdown, arrival).await?;
        }
        policy.catch_up().await;
        Ok(gates.enter(&request.caller))
    }

    /// Returns the tool of a call, out of what its caller may use.
    pub(super) fn resolve<'a>(&self, call: &Call, effective: &'a EffectiveTools) -> Result<AllowedTool<'a>, Abort> {
        let wanted = call.request.wanted();
        self.gates.resolve(effective, &call.request.caller, wanted).map_err(|failure| {
            let is_others = self.ignores_unknown_servers && failure.cause == Cause::UnknownServer;
            // Another bridge may have the tool now, which is more than that a server here may come to have it.
            if is_others && wanted.route == Lookup::AnyServer {
                return Abort::Ignored(failure);
            }
            match self.pending.out_of_reach(wanted, effective) {
                Some(out_of_reach) => Abort::Failed(out_of_reach),
                None if is_others => Abort::Ignored(failure),
                None => Abort::Failed(failure),
            }
        })
    }

    /// Remembers the caller, so that it is notified of changes.
    fn note(&self, caller: &Caller, effective: &EffectiveTools) {
        if let Some(agent) = &caller.agent
            && effective.has_no_section()
        {
            self.callers.note(agent, effective.catalogue());
        }
    }
}
