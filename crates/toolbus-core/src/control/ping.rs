//! `tool.ping`: the daemon is there, and says how it is.

use toolbus_protocol::{Pong, message_type};

use super::{ControlReply, ControlRequest, ControlService};

impl ControlService {
    /// What the daemon says of itself, and how many tools the sender may use.
    pub(super) fn ping(&self, asked: &ControlRequest) -> ControlReply {
        let about = &self.parts.about;
        let pong = Pong {
            name: about.name.clone(),
            version: about.version.clone(),
            config_digest: about.config_digest.borrow().clone(),
            roles: about.roles.clone(),
            uptime_seconds: about.started.elapsed().as_secs(),
            in_flight: self.parts.dispatcher.load().in_flight() as u64,
            tools: self.parts.dispatcher.access().effective(&asked.caller).names().count() as u64,
        };
        ControlReply { persistent: false, ..ControlReply::new(message_type::PONG, &pong) }
    }
}
