//! What an operator is told of a member.

use super::Member;
use crate::server::State;
use crate::status::{PhaseName, ServerStatus};

impl Member {
    pub(in crate::bridge) fn status(&self) -> ServerStatus {
        let mut status = ServerStatus::untried(self.spec(), PhaseName::Disabled);
        if let Some(set) = &self.placed.set {
            status.toolset = Some(set.name.to_string());
            status.sessions = set.sessions.as_ref().map_or(0, |set| set.sessions());
        }
        let Some(main) = &self.main else { return status };
        {
            let known = self.known();
            status.tools = known.tools.iter().map(|tool| tool.name.to_string()).collect();
            status.hidden.clone_from(&known.hidden);
            known.vetted.tell(&mut status);
            status.implementation.clone_from(&known.implementation);
        }
        // Of several, one that is there tells most.
        let server = self.servers().find(|server| matches!(server.state(), State::Ready(_))).unwrap_or(main);
        server.dialer().transport_name().clone_into(&mut status.transport);
        let state = server.state();
        status.phase = state.phase();
        status.last_error = self.last_error();
        status.restarts = self.servers().map(|server| server.restarts()).sum();
        status.stderr = server.stderr();
        status.in_flight = self.servers().map(|server| server.in_flight()).sum();
        if let State::Ready(ready) = &state {
            let connection = &ready.link.connection;
            status.pid = ready.link.pid();
            status.protocol_version = Some(connection.about().protocol_version.clone());
            status.ready_seconds = Some(ready.since.elapsed().as_secs());
            status.latency_us =
                connection.last_latency().map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        }
        status
    }
}
