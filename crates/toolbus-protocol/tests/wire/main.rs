//! The wire as peers and plain clients write it, and as they read it from us.

#[cfg(test)]
mod amqp;
#[cfg(test)]
mod any_bytes;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod liberal;
#[cfg(test)]
mod listing;
#[cfg(test)]
mod mcp;
#[cfg(test)]
mod peers;
#[cfg(test)]
mod random;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod writing;

/// A message as it is written; it must read as what it was.
#[cfg(test)]
fn round_trip<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(message: &T) -> String {
    let text = serde_json::to_string(message).unwrap();
    assert_eq!(serde_json::from_str::<T>(&text).unwrap(), *message);
    text
}
