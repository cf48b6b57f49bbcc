//! Use of what only the changed copy of lapin has; without the feature `changed-lapin`, what stands in for it with the
//! published crate.

use bytes::Bytes;
use lapin::message::Delivery;
use lapin::{Channel, Error};

/// Bounds the bodies that a channel's consumers keep, in bytes.
#[cfg(feature = "changed-lapin")]
pub(super) fn bound_bodies(channel: &Channel, max: usize) {
    channel.set_max_body(max);
}

/// The published crate reads each body whole: [`body_of`] cuts it then.
#[cfg(not(feature = "changed-lapin"))]
pub(super) fn bound_bodies(_: &Channel, _: usize) {}

/// The body of a delivery, or the beginning of one that is larger than `max`, and the length of the whole, in bytes.
pub(super) fn body_of(delivery: &mut Delivery, max: usize) -> (Bytes, usize) {
    let mut body = Bytes::from(std::mem::take(&mut delivery.data));
    #[cfg(feature = "changed-lapin")]
    let size = usize::try_from(delivery.size).unwrap_or(usize::MAX);
    #[cfg(not(feature = "changed-lapin"))]
    let size = body.len();
    body.truncate(max);
    (body, size)
}

/// The error that ended a channel, where lapin reports it.
#[cfg(feature = "changed-lapin")]
pub(super) fn error_of(channel: &Channel) -> Option<Error> {
    channel.status().error()
}

/// The published crate does not report it.
#[cfg(not(feature = "changed-lapin"))]
pub(super) fn error_of(_: &Channel) -> Option<Error> {
    None
}
