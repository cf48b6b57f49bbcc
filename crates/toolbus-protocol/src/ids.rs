use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A fresh message id: 32 lower-case hexadecimal digits.
#[must_use]
pub fn new_message_id() -> String {
    Uuid::new_v4().simple().to_string()
}

/// The message id of the answer to a request: the same for every repetition of that answer.
///
/// Derived from who asked, the call's id and the request's message id, so that a receiver can drop the second copy of
/// an answer that a crash made the daemon publish twice.
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
