//! Ids and jitter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A source of ids and jitter, as a value that is handed to what decides by it.
///
/// [`Random::SYSTEM`] cannot be guessed. One of [`Random::seeded`] gives the same sequence for the same seed, in tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Random(Option<&'static AtomicU64>);

impl Random {
    /// The source of the system.
    pub const SYSTEM: Self = Self(None);

    /// A sequence for tests. It is never freed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(Some(Box::leak(Box::new(AtomicU64::new(seed)))))
    }

    /// The next 128 bits.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the only reader of system randomness")]
    pub fn bits(self) -> u128 {
        match self.0 {
            None => Uuid::new_v4().as_u128(),
            Some(state) => (u128::from(split_mix(state)) << 64) | u128::from(split_mix(state)),
        }
    }

    /// A fresh id: 32 lower-case hexadecimal digits, a UUID of version 4.
    #[must_use]
    pub fn id(self) -> String {
        uuid::Builder::from_random_bytes(self.bits().to_be_bytes()).into_uuid().simple().to_string()
    }

    /// A time below `most`, so that waits of many do not end together.
    #[must_use]
    pub fn below(self, most: Duration) -> Duration {
        #[expect(clippy::cast_possible_truncation, reason = "the lowest 32 bits are as random as all")]
        let fraction = f64::from(self.bits() as u32) / (f64::from(u32::MAX) + 1.0);
        most.mul_f64(fraction)
    }
}

/// The next number of `SplitMix64`.
fn split_mix(state: &AtomicU64) -> u64 {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut bits = state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// A fresh message id of the system: 32 lower-case hexadecimal digits.
#[must_use]
pub fn new_message_id() -> String {
    Random::SYSTEM.id()
}

/// The message id of the reply to a request: the same for every repetition of that reply.
///
/// Derived from the caller, the call's id and the request's message id, so that a receiver can drop the second copy of
/// a reply that a crash made the daemon publish twice.
#[must_use]
pub fn derived_message_id(caller: &str, tool_call_id: &str, request_message_id: &str) -> String {
    let mut hash = Sha256::new();
    for part in [caller, tool_call_id, request_message_id] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    let digest = hash.finalize();
    let mut bytes = [0_u8; 16];
    for (to, from) in bytes.iter_mut().zip(digest) {
        *to = from;
    }
    Uuid::from_bytes(bytes).simple().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_sequence_of_ids_that_differ() {
        let [one, same] = [7, 7].map(Random::seeded);
        let ids: Vec<String> = (0..3).map(|_| one.id()).collect();
        assert_eq!(ids, (0..3).map(|_| same.id()).collect::<Vec<_>>());
        assert!(ids[0] != ids[1] && ids[1] != ids[2], "{ids:?}");
        assert_ne!(Random::seeded(8).id(), ids[0]);
    }

    #[test]
    fn ids_are_uuids_of_version_4_whatever_their_source() {
        for random in [Random::SYSTEM, Random::seeded(1)] {
            let id = random.id();
            assert!(id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{id}");
            assert_eq!(Uuid::parse_str(&id).unwrap().get_version_num(), 4, "{id}");
        }
    }

    #[test]
    fn a_time_is_below_the_most() {
        let (random, most) = (Random::seeded(3), Duration::from_secs(2));
        assert!((0..100).all(|_| random.below(most) < most));
        assert_eq!(random.below(Duration::ZERO), Duration::ZERO);
    }
}
