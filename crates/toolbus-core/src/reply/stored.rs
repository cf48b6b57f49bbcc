//! The form in which the ledger keeps a reply: a version, the length of a head, the head as JSON, the body as it is.
//!
//! Daemons of other versions read it. A later one may add fields to the head, which earlier ones ignore; any other
//! change needs a new version, which earlier ones treat as a reply that was not kept.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use toolbus_protocol::{Code, Outcome, Properties};

use crate::failure::Status;
use crate::reply::Reply;
use crate::telemetry::CallEnd;

/// The version that is written.
const VERSION: u8 = 1;
/// Bytes before the head: the version and the head's length.
const PREFIX: usize = 5;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    /// Whether the body follows; it was too large otherwise.
    is_kept: bool,
    call_id: Arc<str>,
    message_id: Option<String>,
    message_type: Option<String>,
    correlation_id: Option<String>,
    timestamp: Option<u64>,
    headers: Vec<(String, String)>,
    /// `ok`, `error` or a code.
    status: String,
    #[serde(default)]
    outcome: Option<Outcome>,
}

/// Writes a reply; without its body if that is larger than `max_body`.
pub(crate) fn write(reply: &Reply, max_body: usize) -> Bytes {
    let Properties { message_id, message_type, correlation_id, timestamp, headers, .. } = &*reply.properties;
    let is_kept = reply.body.len() <= max_body;
    let head = Head {
        is_kept,
        call_id: Arc::clone(&reply.call_id),
        message_id: message_id.clone(),
        message_type: message_type.clone(),
        correlation_id: correlation_id.clone(),
        timestamp: *timestamp,
        headers: headers.clone(),
        status: reply.end.status.as_str().to_owned(),
        outcome: reply.outcome,
    };
    // Strings, numbers and enums, which cannot fail.
    let head = serde_json::to_vec(&head).unwrap_or_default();
    let body: &[u8] = if is_kept { &reply.body } else { &[] };
    let length = u32::try_from(head.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(PREFIX + head.len() + body.len());
    bytes.push(VERSION);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(body);
    bytes.into()
}

/// Reads a reply; `None` if its body was not kept, or if this version cannot read it.
pub(crate) fn read(stored: &Bytes) -> Option<Reply> {
    let (prefix, rest) = stored.split_at_checked(PREFIX)?;
    let [VERSION, length @ ..] = prefix else { return None };
    let length = usize::try_from(u32::from_be_bytes(length.try_into().ok()?)).ok()?;
    let (head, body) = rest.split_at_checked(length)?;
    let head: Head = serde_json::from_slice(head).ok().filter(|head: &Head| head.is_kept)?;
    let properties = Properties {
        content_type: Some("application/json".to_owned()),
        message_id: head.message_id,
        message_type: head.message_type,
        correlation_id: head.correlation_id,
        reply_to: Some(String::new()),
        timestamp: head.timestamp,
        user_id: None,
        expiration: None,
        persistent: true,
        headers: head.headers,
    };
    Some(Reply {
        properties: properties.into(),
        body: stored.slice_ref(body),
        end: CallEnd { status: status(&head.status)?, cause: None },
        outcome: head.outcome,
        call_id: head.call_id,
    })
}

fn status(text: &str) -> Option<Status> {
    let refused = Code::ALL.into_iter().map(Status::Refused);
    [Status::Ok, Status::Error].into_iter().chain(refused).find(|status| status.as_str() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(body: &'static [u8]) -> Reply {
        let properties = Properties {
            content_type: Some("application/json".to_owned()),
            message_id: Some("m".to_owned()),
            message_type: Some("RockBot.Tools.ToolError".to_owned()),
            correlation_id: Some("c".to_owned()),
            reply_to: Some(String::new()),
            timestamp: Some(7),
            persistent: true,
            headers: vec![("rb-source".to_owned(), "toolbus".to_owned())],
            ..Properties::default()
        };
        Reply {
            properties: properties.into(),
            body: Bytes::from_static(body),
            end: CallEnd { status: Status::Refused(Code::Timeout), cause: None },
            outcome: Some(Outcome::Unknown),
            call_id: "call_1".into(),
        }
    }

    #[test]
    fn a_stored_reply_is_read_as_it_was_written() {
        let (given, read) = (reply(b"{}"), read(&write(&reply(b"{}"), 2)).unwrap());
        assert_eq!((&given.properties, &given.body), (&read.properties, &read.body));
        assert_eq!((given.end, given.outcome, given.call_id), (read.end, read.outcome, read.call_id));
    }

    #[test]
    fn the_stored_form_of_a_reply_is_stable() {
        let written = write(&reply(b"{}"), 2);
        assert_eq!(written.get(..1), Some([1].as_slice()));
        let text = String::from_utf8(written.get(5..).unwrap().to_vec()).unwrap();
        insta::assert_snapshot!(text, @r#"{"isKept":true,"callId":"call_1","messageId":"m","messageType":"RockBot.Tools.ToolError","correlationId":"c","timestamp":7,"headers":[["rb-source","toolbus"]],"status":"timeout","outcome":"unknown"}{}"#);
    }

    #[test]
    fn a_reply_that_is_too_large_damaged_or_of_a_later_version_is_not_read() {
        let written = write(&reply(b"{}"), 2);
        assert!(read(&write(&reply(b"{}"), 1)).is_none());
        for end in 0..written.len() - 2 {
            assert!(read(&written.slice(..end)).is_none(), "{end}");
        }
        let later: Bytes = [&[2], &written[1..]].concat().into();
        assert!(read(&later).is_none());
        assert!(read(&Bytes::from_static(&[1, 0xff, 0xff, 0xff, 0xff])).is_none());
    }

    #[test]
    fn a_head_with_more_fields_is_read() {
        let text = String::from_utf8(write(&reply(b""), 2).get(5..).unwrap().to_vec()).unwrap();
        let head = text.replacen('{', r#"{"added":[1],"#, 1);
        let length = u32::try_from(head.len()).unwrap().to_be_bytes();
        let stored: Bytes = [&[1], length.as_slice(), head.as_bytes()].concat().into();
        assert_eq!(read(&stored).unwrap().properties.message_id.as_deref(), Some("m"));
    }
}
