//! A server's tool as a tool of this daemon.
