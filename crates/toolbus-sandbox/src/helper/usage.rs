//! What processes have used.
#![allow(unsafe_code, reason = "there is no safe interface to getrusage")]

use std::mem::MaybeUninit;

use crate::outcome::Usage;

/// What all children that have ended have used, with their own.
pub(super) fn of_children() -> Usage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to memory of the right size, and zeroes are a valid value of it.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let microseconds = |time: libc::timeval| u64::try_from(time.tv_sec * 1_000_000 + time.tv_usec).unwrap_or_default();
    Usage {
        cpu_us: microseconds(usage.ru_utime) + microseconds(usage.ru_stime),
        peak_memory: u64::try_from(usage.ru_maxrss).unwrap_or_default() * 1024,
    }
}
