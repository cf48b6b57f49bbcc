//! What a caller may use when its call enters, tools that are on their way included.

use super::call::Call;
use super::{Abort, Dispatcher};
use crate::caller::Caller;
use crate::deadline;
use crate::failure::{Cause, ToolFailure};
use crate::gates::find;
use crate::policy::EffectiveTools;
use crate::request::Lookup;

impl Dispatcher {
    /// What the caller may use. A tool that is not there yet, and may come, is waited for: as a permit is, or else, where the
    /// caller names its server, until the deadline. The call waits among those of its agent, so that an agent that asks for
    /// what nobody has takes no place of another.
    pub(super) async fn enter(&self, call: &Call) -> Result<EffectiveTools, Abort> {
        let (gates, request) = (&self.parts.gates, &call.request);
        let effective = gates.enter(&request.caller);
        self.note(&request.caller, &effective);
        let wanted = request.wanted();
        if find(&effective, wanted).is_some() {
            return Ok(effective);
        }
        let now = self.clock().now();
        let latest = match wanted.route {
            // The caller knows where its tool is: there is nothing else to try.
            Lookup::Server(_) => deadline::inner(call.deadline, now),
            Lookup::Name | Lookup::AnyServer => now + call.deadline.saturating_duration_since(now) / 2,
        };
        let arrival = self.parts.arrivals.expect(wanted, &effective, latest);
        let access = self.access();
        // The registry has tools before the catalogue does, and `expect` leaves out servers whose tools are registered.
        let is_latest = access.has_latest(&effective);
        if arrival.is_none() && is_latest {
            drop(arrival);
            return Ok(effective);
        }
        let _waiting = self.parts.permits.wait(effective.gate(), call.request.sharer(), call.body_size)?;
        if !is_latest {
            access.catch_up().await;
            let refreshed = gates.enter(&request.caller);
            if arrival.is_none() || find(&refreshed, wanted).is_some() {
                return Ok(refreshed);
            }
        }
        if let Some(arrival) = arrival {
            tokio::select! {
                biased;
                () = self.parts.shutdown.cancelled() => return Err(Abort::Requeued),
                () = arrival => {}
            }
        }
        access.catch_up().await;
        Ok(gates.enter(&request.caller))
    }

    /// What ends a call whose tool was not found.
    pub(super) fn not_found(&self, call: &Call, effective: &EffectiveTools, failure: ToolFailure) -> Abort {
        let wanted = call.request.wanted();
        let is_others = self.parts.settings.ignores_unknown_servers && failure.cause == Cause::UnknownServer;
        // Another bridge may have the tool now, which is more than that a server here may come to have it.
        if is_others && wanted.route == Lookup::AnyServer {
            return Abort::Ignored(failure);
        }
        if let Some(failure) = self.parts.arrivals.out_of_reach(wanted, effective) {
            return Abort::Failed(failure);
        }
        if is_others { Abort::Ignored(failure) } else { Abort::Failed(failure) }
    }

    /// Remembers who called, so that it is told of changes.
    fn note(&self, caller: &Caller, effective: &EffectiveTools) {
        if let Some(agent) = &caller.agent
            && effective.is_everybody()
        {
            self.parts.callers.note(agent, effective.catalogue());
        }
    }
}
