//! Child processes that end with the daemon, whatever ends it.
