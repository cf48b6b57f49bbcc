//! Replies: how one is built, delivered to the broker, and kept by the ledger.

mod build;
mod deliver;
mod replier;
pub(crate) mod stored;

pub(crate) use self::build::{MAX_REPLY, Reply, ReplyContext, Run, destination, whole_milliseconds};
pub(crate) use self::deliver::{DeadLetter, NotDelivered, Replies};
pub(crate) use self::replier::{REPLY_GRACE, Replier, ReplyPath};
