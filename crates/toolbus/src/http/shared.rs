//! State of a store that replicas share, and of the replicas.

use serde::{Deserialize, Serialize};

/// Announcement of a replica.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replica {
    /// `bus.name`.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Digest of its configuration.
    pub config_digest: String,
    /// Roles of the replica.
    pub roles: Vec<String>,
    /// When it started, in seconds since 1970.
    pub started: u64,
    /// Distinguishes it from another one of its name.
    pub id: String,
}

/// The state of a store that replicas share. By default there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedState {
    /// Whether the shared state has not been read since the start, so that no call may run.
    pub is_unread: bool,
    /// Reason why the store cannot be used now, if it cannot.
    pub away: Option<String>,
    /// Seconds by which the clock of this daemon is ahead of the server's, once that has been read.
    pub clock_skew: Option<i64>,
    /// All replicas, this one included, by name. Empty without a shared store.
    pub replicas: Vec<Replica>,
    /// The id of this one.
    pub own: String,
}

impl SharedState {
    /// Whether a replica does the same as this one, with another configuration.
    #[must_use]
    pub fn differs(&self, replica: &Replica) -> bool {
        let own = self.replicas.iter().find(|replica| replica.id == self.own);
        own.is_some_and(|own| own.roles == replica.roles && own.config_digest != replica.config_digest)
    }

    /// Counts the replicas with the configuration of this one, and those with another one.
    #[must_use]
    pub fn counts(&self) -> ReplicaCounts {
        let different = self.replicas.iter().filter(|replica| self.differs(replica)).count();
        ReplicaCounts { same: self.replicas.len() - different, different }
    }
}

/// Numbers of replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    /// Replicas with the configuration of this one, itself included, and those with other roles.
    pub same: usize,
    /// Replicas with the same roles and another configuration.
    pub different: usize,
}

/// A replica, for the status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaSummary {
    /// `bus.name`.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Digest of its configuration.
    pub config_digest: String,
    /// Roles of the replica.
    pub roles: Vec<String>,
    /// Seconds since its start, by the clocks of both machines.
    pub uptime_seconds: u64,
    /// Whether the replica has the same roles as the reporting daemon, with another configuration.
    pub differs: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(id: &str, digest: &str, role: &str) -> Replica {
        Replica {
            name: id.to_owned(),
            version: "1".to_owned(),
            config_digest: digest.to_owned(),
            roles: vec![role.to_owned()],
            started: 0,
            id: id.to_owned(),
        }
    }

    #[test]
    fn a_replica_with_the_same_roles_and_another_configuration_differs() {
        let replicas = vec![replica("a", "x", "invoke"), replica("b", "y", "invoke"), replica("c", "y", "mcp")];
        let state = SharedState { replicas: replicas.clone(), own: "a".to_owned(), ..SharedState::default() };
        assert_eq!(replicas.iter().map(|replica| state.differs(replica)).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(state.counts(), ReplicaCounts { same: 2, different: 1 });
        let alone = SharedState { own: "z".to_owned(), ..state };
        assert_eq!(alone.counts().different, 0, "nothing is known of itself");
    }
}
