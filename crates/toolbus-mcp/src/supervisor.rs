//! The small process that stands between the daemon and a server that it started.
