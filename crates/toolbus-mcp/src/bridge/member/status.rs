//! What an operator is told of a member.

use super::Member;
use crate::server::State;
use crate::spec::{Origin, TransportSpec};
use crate::status::{PhaseName, ServerStatus};

impl Member {
    pub(in crate::bridge) fn status(&self) -> ServerStatus {
        let spec = self.spec();
        let mut status = ServerStatus {
            name: spec.name.to_string(),
            transport: match &spec.transport {
                TransportSpec::Stdio(_) => "stdio".to_owned(),
                TransportSpec::Http(_) => "http?".to_owned(),
            },
            phase: PhaseName::Disabled,
            last_error: None,
            protocol_version: None,
            implementation: None,
            tools: Vec::new(),
            hidden: Vec::new(),
            pid: None,
            restarts: 0,
            ready_seconds: None,
            in_flight: 0,
            latency_us: None,
            stderr: Vec::new(),
            origin: match spec.origin {
                Origin::Configuration => "configuration".to_owned(),
                Origin::Registration => "registration".to_owned(),
            },
            toolset: self.placed.set.as_ref().map(|set| set.name.to_string()),
            sessions: self.placed.set.as_ref().and_then(|set| set.sessions.as_ref()).map_or(0, |set| set.sessions()),
        };
        let Some(main) = &self.main else { return status };
        {
            let known = self.known();
            status.tools = known.tools.iter().map(|tool| tool.name.to_string()).collect();
            status.hidden.clone_from(&known.hidden);
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
