//! The messages that agents and bridges exchange about servers.
