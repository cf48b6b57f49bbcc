//! The servers, for messages about them.

use std::time::Instant;

use futures_util::future::BoxFuture;
use toolbus_core::policy::EffectiveTools;

use super::Bridge;
use crate::bus_messages::{AboutServer, Servers};
use crate::spec::ServerName;

impl Servers for Bridge {
    fn within_reach(&self, effective: &EffectiveTools) -> Vec<ServerName> {
        let members = self.members().into_iter();
        members.filter(|(_, member)| member.is_within_reach(effective)).map(|(name, _)| name).collect()
    }

    fn asleep(&self, effective: &EffectiveTools) -> Vec<ServerName> {
        let members = self.members().into_iter();
        members
            .filter(|(_, member)| member.is_asleep() && member.is_within_reach(effective))
            .map(|(name, _)| name)
            .collect()
    }

    fn refresh(&self, server: &ServerName) {
        self.shared.member(server.as_str()).iter().for_each(|member| member.relist());
    }

    fn about(&self, server: &str) -> Option<AboutServer> {
        self.shared.member(server)?.about()
    }

    fn wake<'a>(&'a self, server: &'a ServerName, latest: Instant) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(member) = self.shared.member(server.as_str()).filter(|member| !member.is_known()) {
                let _ = tokio::time::timeout_at(latest.into(), member.arrival(true)).await;
            }
        })
    }
}
