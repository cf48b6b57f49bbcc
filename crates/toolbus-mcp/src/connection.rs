//! One connection to a server, from its handshake to its end.
