//! Daemons that are measured beside the one that only replies.

use crate::args::MeasureArgs;
use crate::broker::ledger::own_folder;
use crate::broker::load::{AGENT, LoadTarget};

use super::topic;

/// Names of the sides.
pub(super) const SQLITE: &str = "recorded, SQLite";
const REDIS: &str = "recorded, Redis";
pub(super) const REMOTE: &str = "passed on";

/// A further daemon, and what is called there.
pub(super) struct OtherDaemon {
    pub(super) name: &'static str,
    pub(super) id: String,
    pub(super) target: LoadTarget,
    /// Variables, which may have a password.
    pub(super) environment: Vec<(&'static str, String)>,
    /// Further sections of its configuration.
    pub(super) sections: String,
}

impl OtherDaemon {
    /// Daemons that are to be measured. `id` is that of the daemon that only replies.
    pub(super) fn of(args: &MeasureArgs, id: &str) -> Vec<Self> {
        let sqlite = args.ledger.as_ref().map(|folder| {
            let store = own_folder(folder, id).join("store.db");
            Self::recording(SQLITE, format!("{id}-sqlite"), format!("sqlite:{}", store.display()))
        });
        let redis = args.redis.clone().map(|store| Self::recording(REDIS, format!("{id}-redis"), store));
        let remote = args.remote.then(|| Self::passing_on(format!("{id}-front"), &topic(id)));
        sqlite.into_iter().chain(redis).chain(remote).collect()
    }

    /// A daemon that records its calls in a store.
    fn recording(name: &'static str, id: String, store: String) -> Self {
        let environment = vec![("TOOLBUS__STORE__URL", store), ("TOOLBUS__TOOLS__ECHO_EFFECT", "effectful".to_owned())];
        let target = LoadTarget { is_recorded: true, ..LoadTarget::echo(topic(&id)) };
        Self { name, id, target, environment, sections: String::new() }
    }

    /// A daemon that passes its calls on to the daemon that takes them from a topic.
    fn passing_on(id: String, topic_of_other: &str) -> Self {
        let sections = format!(
            r#"
[identity]
trust_headers = true
[agents.{AGENT}]
toolsets = ["other"]
[toolsets.other]
kind = "remote"
topic = "{topic_of_other}"
[toolsets.other.tools.echo]
description = "Answers with its text"
parameters = '{{"type": "object", "properties": {{"text": {{"type": "string"}}}}}}'
effect = "read-only"
"#
        );
        let target = LoadTarget { tool: "other.echo", ..LoadTarget::echo(topic(&id)) };
        Self { name: REMOTE, id, target, environment: Vec::new(), sections }
    }
}
