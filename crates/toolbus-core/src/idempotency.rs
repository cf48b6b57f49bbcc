//! Idempotency: a request is run once, however often it comes, and gets one reply.

mod key;
pub mod ledger;
mod recorder;
mod replay;

pub(crate) use self::key::{CallIdentity, IdentityKind, LocalIdentity, LocalKeys, RequestIdentity};
pub(crate) use self::recorder::{NotBegun, Recorder};
pub(crate) use self::replay::{Replay, Seen, Slot};
