//! `tool.meta.mcp.refresh`: an agent asks to be told again which servers there are.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use toolbus_core::caller::Caller;
use toolbus_core::policy::PolicyHandle;
use toolbus_core::{ControlError, ControlHandler, ControlReply, ControlRequest, NotifyHandle};
use toolbus_protocol::{McpMetadataRefreshRequest, message_type};

use super::RememberedAgents;
use crate::servers::ServerControl;
use crate::spec::ServerName;

/// Time between two requests that make a server list its tools again.
const PAUSE: Duration = Duration::from_secs(5);

/// Answers by telling the agent, where it is told of servers anyway, what there is for it now. What its servers list
/// thereafter follows as a change.
pub struct RefreshHandler {
    access: PolicyHandle,
    notify: NotifyHandle,
    servers: Arc<dyn ServerControl>,
    asked: Mutex<Pauses>,
    remembered: RememberedAgents,
}

/// When which server was asked to list its tools again, of those whose pause is not over.
#[derive(Default)]
struct Pauses(BTreeMap<ServerName, Instant>);

impl RefreshHandler {
    /// Has agents told through `notify`, and those of `servers` asked whose tools they could use by `access`. Who asked is
    /// remembered in `remembered`.
    #[must_use]
    pub fn new(
        access: PolicyHandle,
        notify: NotifyHandle,
        servers: Arc<dyn ServerControl>,
        remembered: RememberedAgents,
    ) -> Self {
        Self { access, notify, servers, asked: Mutex::default(), remembered }
    }

    /// Has every agent told that asked before the last restart, and is not told at the start anyway.
    pub async fn tell_again(&self) {
        let configured = self.access.configured_agents();
        let agents = self.remembered.agents().await.into_iter().filter(|agent| !configured.contains(agent));
        let tell = async |agent| self.notify.tell(&Caller { has_section: false, ..Caller::agent(agent) }).await;
        join_all(agents.map(tell)).await;
    }

    /// Remembers an agent that could use some server and that nobody has configured.
    async fn remember(&self, caller: &Caller) {
        if let Some(agent) = &caller.agent
            && !caller.has_section
            && !self.servers.within_reach(&self.access.effective(caller)).is_empty()
        {
            self.remembered.note(agent).await;
        }
    }

    /// Asks one server, or all, as far as the caller could use their tools and they were not asked just now.
    fn ask(&self, caller: &Caller, server: Option<&str>) {
        let mut servers = self.servers.within_reach(&self.access.effective(caller));
        if let Some(server) = server {
            let Ok(server) = ServerName::parse(server) else { return };
            servers.retain(|known| *known == server);
        }
        let due = self.asked.lock().unwrap_or_else(PoisonError::into_inner).due(servers, Instant::now());
        due.iter().for_each(|server| self.servers.refresh(server));
    }
}

impl ControlHandler for RefreshHandler {
    fn message_type(&self) -> Option<&'static str> {
        Some(message_type::MCP_METADATA_REFRESH_REQUEST)
    }

    fn answer<'a>(&'a self, asked: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>> {
        Box::pin(async move {
            let request = McpMetadataRefreshRequest::parse(&asked.body)?;
            if asked.caller.agent.is_none() {
                return Err(ControlError::NoAgent);
            }
            self.ask(&asked.caller, request.server_name.as_deref());
            self.notify.tell(&asked.caller).await;
            self.remember(&asked.caller).await;
            Ok(None)
        })
    }
}

impl Pauses {
    /// Those of the servers whose pause is over; it begins again.
    fn due(&mut self, mut servers: Vec<ServerName>, now: Instant) -> Vec<ServerName> {
        self.0.retain(|_, last| now.saturating_duration_since(*last) < PAUSE);
        servers.retain(|server| match self.0.entry(server.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(now);
                true
            }
        });
        servers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(pauses: &mut Pauses, servers: &[&str], now: Instant) -> Vec<String> {
        let servers = servers.iter().map(|name| ServerName::parse(name).unwrap()).collect();
        pauses.due(servers, now).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_server_is_asked_again_after_a_pause_and_each_has_its_own() {
        let (mut pauses, now) = (Pauses::default(), Instant::now());
        assert_eq!(due(&mut pauses, &["A", "b"], now), ["A", "b"]);
        assert_eq!(due(&mut pauses, &["a", "c"], now + PAUSE / 2), ["c"]);
        assert_eq!(due(&mut pauses, &["a", "b", "c"], now + PAUSE), ["a", "b"]);
        assert_eq!(due(&mut pauses, &["c"], now + PAUSE + PAUSE / 2), ["c"]);
    }

    #[test]
    fn nothing_is_remembered_of_a_server_whose_pause_is_over() {
        let (mut pauses, now) = (Pauses::default(), Instant::now());
        due(&mut pauses, &["a", "b"], now);
        due(&mut pauses, &["c"], now + PAUSE);
        assert_eq!(pauses.0.len(), 1);
    }
}
