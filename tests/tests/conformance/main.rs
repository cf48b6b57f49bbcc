//! The public conformance suite, against the bridge as a client and the door as a server. What is known not to pass is
//! listed with reasons; the list is wrong as soon as it names a scenario that passes, or does not name one that does not.

mod bridge;
mod door;
mod list;
