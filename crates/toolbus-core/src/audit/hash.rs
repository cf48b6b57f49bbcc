//! What a record says of a call's arguments: equal ones are recognised, and nobody without the key can guess them.

use std::io::{self, Write};

use hmac::{Hmac, KeyInit, Mac};
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Block of SHA-256, in bytes: the length of key that HMAC works with.
const BLOCK: usize = 64;
/// Bytes of the code that are kept.
const KEPT: usize = 16;

/// HMAC-SHA-256 of arguments in their canonical form, as its first 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ArgumentsHash(String);

impl ArgumentsHash {
    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Makes hashes with one key.
#[derive(Clone)]
pub struct Keyed(Hmac<Sha256>);

impl Keyed {
    /// Takes a key of any length; 32 random bytes are as good as it gets.
    #[must_use]
    pub fn new(key: &[u8]) -> Self {
        // As HMAC has it: a long key is hashed, a short one is filled with zeros.
        let hashed: [u8; 32];
        let key = if key.len() > BLOCK {
            hashed = Sha256::digest(key).into();
            &hashed
        } else {
            key
        };
        let mut block = [0_u8; BLOCK];
        for (to, from) in block.iter_mut().zip(key) {
            *to = *from;
        }
        Self(Hmac::new(&block.into()))
    }

    /// The hash of arguments: JSON without white space, the members of every object sorted by the bytes of their names.
    /// Numbers are equal as they are written: 1 is not 1.0.
    #[must_use]
    pub fn hash(&self, arguments: &Map<String, Value>) -> ArgumentsHash {
        let mut code = Code(self.0.clone());
        // A code takes whatever is written to it.
        let _ = write_object(arguments, &mut code);
        let digits = code.0.finalize().into_bytes();
        ArgumentsHash(digits.iter().take(KEPT).map(|byte| format!("{byte:02x}")).collect())
    }
}

/// A code to which JSON can be written.
struct Code(Hmac<Sha256>);

impl Write for Code {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_value(value: &Value, to: &mut impl Write) -> io::Result<()> {
    match value {
        Value::Object(members) => write_object(members, to),
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                to.write_all(if index == 0 { b"[" } else { b"," })?;
                write_value(element, to)?;
            }
            to.write_all(if elements.is_empty() { b"[]" } else { b"]" })
        }
        scalar => Ok(serde_json::to_writer(to, scalar)?),
    }
}

fn write_object(members: &Map<String, Value>, to: &mut impl Write) -> io::Result<()> {
    // The map itself keeps the order of the text, or does not, as any crate of the build chooses.
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort_unstable_by_key(|(name, _)| name.as_bytes());
    for (index, (name, value)) in sorted.into_iter().enumerate() {
        to.write_all(if index == 0 { b"{" } else { b"," })?;
        serde_json::to_writer(&mut *to, name)?;
        to.write_all(b":")?;
        write_value(value, to)?;
    }
    to.write_all(if members.is_empty() { b"{}" } else { b"}" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hash(key: &[u8], arguments: &Value) -> ArgumentsHash {
        Keyed::new(key).hash(arguments.as_object().unwrap())
    }

    #[test]
    fn arguments_are_written_in_one_way() {
        let mut written = Vec::new();
        let value = json!({"z": [], "b": {"y": null, "x": [1, 1.0, "ü\n"]}, "a": {}, "B": true});
        write_value(&value, &mut written).unwrap();
        insta::assert_snapshot!(String::from_utf8(written).unwrap(), @r#"{"B":true,"a":{},"b":{"x":[1,1.0,"ü\n"],"y":null},"z":[]}"#);
    }

    #[test]
    fn equal_arguments_have_equal_hashes_in_any_order() {
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let one = read(r#"{"to": "ana", "cc": {"a": 1, "b": 2}}"#);
        let other = read(r#"{"cc": {"b": 2, "a": 1}, "to": "ana"}"#);
        assert_eq!(hash(b"key", &one), hash(b"key", &other));
    }

    #[test]
    fn other_arguments_and_other_keys_have_other_hashes() {
        let values =
            [json!({}), json!({"a": "b"}), json!({"a": ["b"]}), json!({"a": null}), json!({"a": 1}), json!({"a": 1.0})];
        let all = values.iter().flat_map(|value| [hash(b"key", value), hash(b"kez", value)]);
        let distinct: std::collections::HashSet<String> = all.map(|hash| hash.as_str().to_owned()).collect();
        assert_eq!(distinct.len(), 2 * values.len());
        assert!(distinct.iter().all(|hash| hash.len() == 2 * KEPT && hash.bytes().all(|b| b.is_ascii_hexdigit())));
    }

    /// Compared with the `hmac` module of Python.
    #[test]
    fn the_hash_is_that_of_hmac_sha_256_for_keys_of_any_length() {
        let table = [
            (b"key".as_slice(), "88a67f24bbcdaed0e6c997404bb79a74"),
            (&[b'k'; 64], "a7acd3fff15223e957d04cb8251d1e58"),
            (&[b'k'; 65], "693deec197e66b7639f43e56f0999412"),
        ];
        for (key, expected) in table {
            assert_eq!(hash(key, &json!({"a": 1})).as_str(), expected, "{} bytes", key.len());
        }
    }
}
