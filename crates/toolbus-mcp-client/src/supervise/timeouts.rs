//! How patient the keepers of servers are.

use std::time::Duration;

/// The times that rule the life of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    /// Longest time from a start to the end of the handshake. Package runners fetch what they run first.
    pub(crate) connect: Duration,
    /// A server that has been ready for so long has recovered from whatever was wrong.
    pub(crate) stable: Duration,
    /// Changes of a list that come close together are one.
    pub(crate) debounce: Duration,
    /// Time between two looks at a server that nobody uses.
    pub(crate) ping_period: Duration,
    /// Longest wait for a server's answer to a ping.
    pub(crate) ping_time: Duration,
    /// Wait before a process that was given up is tried again, if nobody calls it.
    pub(crate) parked: Duration,
    /// Least time after a failure until a call has a server tried again that was given up.
    pub(crate) retry: Duration,
    /// How long calls that do not name a server wait for one whose tools have never been known, from when it is tried.
    pub(crate) arrival: Duration,
    /// Time without a call after which a lazy server is stopped.
    pub(crate) idle: Duration,
}

impl Timeouts {
    /// What is right for servers that people write.
    pub(crate) const DEFAULT: Self = Self {
        connect: Duration::from_secs(60),
        stable: Duration::from_secs(60),
        debounce: Duration::from_millis(200),
        ping_period: Duration::from_secs(30),
        ping_time: Duration::from_secs(10),
        parked: Duration::from_secs(5 * 60),
        retry: Duration::from_secs(5),
        arrival: Duration::from_secs(5),
        idle: Duration::from_secs(5 * 60),
    };
}
