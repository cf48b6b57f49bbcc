//! `tool.meta.mcp.refresh`: an agent asks to be told again which servers there are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use toolbus_core::{Answerer, Asked, Asking, Said, Unusable};
use toolbus_protocol::{McpMetadataRefreshRequest, message_type};

use super::Servers;
use crate::spec::ServerName;

/// Time between two requests that make a server list its tools again.
const PAUSE: Duration = Duration::from_secs(5);
/// Servers for which that is remembered.
const MAX_REMEMBERED: usize = 256;

/// Answers by telling the agent, where it is told of servers anyway, what there is for it now. What its servers list
/// thereafter follows as a change.
pub struct Refresh {
    asking: Asking,
    servers: Arc<dyn Servers>,
    asked: Mutex<Pauses>,
}

/// When which server, or all, was last asked to list its tools again.
#[derive(Default)]
struct Pauses(HashMap<Option<Arc<str>>, Instant>);

impl Refresh {
    /// Has agents told through `asking`, and `servers` asked.
    #[must_use]
    pub fn new(asking: Asking, servers: Arc<dyn Servers>) -> Self {
        Self { asking, servers, asked: Mutex::default() }
    }

    /// Asks one server, or all, unless that was done just now or there can be no such server.
    fn ask(&self, server: Option<&str>) {
        let name = match server.map(ServerName::parse) {
            None => None,
            Some(Ok(name)) => Some(name),
            Some(Err(_)) => return,
        };
        let key = name.as_ref().map(|name| Arc::clone(name.folded()));
        let is_due = self.asked.lock().unwrap_or_else(PoisonError::into_inner).is_due(key, Instant::now());
        if is_due {
            self.servers.refresh(name.as_ref().map(|name| &**name.as_str()));
        }
    }
}

impl Answerer for Refresh {
    fn message_type(&self) -> Option<&'static str> {
        Some(message_type::MCP_METADATA_REFRESH_REQUEST)
    }

    fn answer<'a>(&'a self, asked: &'a Asked) -> BoxFuture<'a, Result<Option<Said>, Unusable>> {
        Box::pin(async move {
            let request = McpMetadataRefreshRequest::parse(&asked.body)?;
            if asked.caller.agent.is_none() {
                return Err(Unusable::NoAgent);
            }
            self.ask(request.server_name.as_deref());
            self.asking.tell(&asked.caller).await;
            Ok(None)
        })
    }
}

impl Pauses {
    /// Whether the pause is over; it begins again if so.
    fn is_due(&mut self, server: Option<Arc<str>>, now: Instant) -> bool {
        let is_over = |last: &Instant| now.saturating_duration_since(*last) >= PAUSE;
        if self.0.get(&server).is_some_and(|last| !is_over(last)) {
            return false;
        }
        if self.0.len() >= MAX_REMEMBERED {
            self.0.retain(|_, last| !is_over(last));
        }
        let has_room = self.0.len() < MAX_REMEMBERED;
        if has_room {
            self.0.insert(server, now);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_again_after_a_pause_and_each_has_its_own() {
        let (mut pauses, now) = (Pauses::default(), Instant::now());
        assert!(pauses.is_due(None, now));
        assert!(pauses.is_due(Some("a".into()), now));
        assert!(!pauses.is_due(None, now + PAUSE / 2));
        assert!(pauses.is_due(None, now + PAUSE));
        assert!(!pauses.is_due(None, now + PAUSE + PAUSE / 2));
    }

    #[test]
    fn whoever_makes_up_servers_gets_no_more_than_the_room_that_there_is() {
        let (mut pauses, now) = (Pauses::default(), Instant::now());
        let due =
            |pauses: &mut Pauses, now| (0..10_000).filter(|n| pauses.is_due(Some(n.to_string().into()), now)).count();
        assert_eq!(due(&mut pauses, now), MAX_REMEMBERED);
        assert_eq!(due(&mut pauses, now + PAUSE), MAX_REMEMBERED);
        assert_eq!(pauses.0.len(), MAX_REMEMBERED);
    }
}
