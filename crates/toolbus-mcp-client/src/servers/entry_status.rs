//! What an operator is told of a entry.

use std::sync::Weak;

use super::entry::ServerEntry;
use crate::status::{PhaseName, ServerStatus, ShadowedTool};
use crate::supervise::State;

/// Most tools that are named of those whose names others have.
const MAX_TOLD: usize = 200;

impl ServerEntry {
    pub(super) fn status(&self) -> ServerStatus {
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
        self.tell_shadowed(&mut status);
        // Of several, one that is there tells most.
        let server = self.servers().find(|server| matches!(server.state(), State::Ready(_))).unwrap_or(main);
        server.connector().transport_name().clone_into(&mut status.transport);
        let state = server.state();
        status.phase = state.phase();
        status.last_error = self.last_error();
        status.restarts = self.servers().map(|server| server.restarts()).sum();
        status.stderr = server.stderr();
        status.in_flight = self.servers().map(|server| server.in_flight()).sum();
        if let State::Ready(ready) = &state {
            let connection = &ready.connected.connection;
            status.pid = ready.connected.pid();
            status.protocol_version = Some(connection.server_info().protocol_version.clone());
            status.ready_seconds = Some(ready.since.elapsed().as_secs());
            status.latency_us =
                connection.last_latency().map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        }
        status
    }

    fn tell_shadowed(&self, status: &mut ServerStatus) {
        let Some(shared) = self.shared.get().and_then(Weak::upgrade) else { return };
        let snapshot = shared.registry.snapshot();
        let mut clashes: Vec<_> =
            snapshot.clashes().filter(|clash| clash.shadowed == *self.spec().name.source()).collect();
        clashes.sort();
        status.shadowed_total = clashes.len();
        let shadowed = clashes.into_iter().take(MAX_TOLD);
        status.shadowed = shadowed
            .map(|clash| ShadowedTool { name: clash.name.to_string(), owner: clash.kept.to_string() })
            .collect();
    }
}
