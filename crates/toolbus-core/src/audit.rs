//! The record of refusals, calls and actions: caller, tool and status, and never the arguments.

use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use toolbus_protocol::{Code, Outcome};

use crate::caller::Caller;
use crate::events::Discard;
use crate::failure::{Cause, Status, error_type};
use crate::telemetry::CallEnd;
use crate::text::{excerpt, shown};
use crate::tool::ToolDescriptor;
use crate::{Clock, milliseconds};

/// Longest action of a record, in characters.
const MAX_ACTION: usize = 200;

/// Target of the log events that records are.
pub const TARGET: &str = "toolbus::audit";

/// Keeps records. Implementations neither block nor fail.
pub trait Audit: Send + Sync + 'static {
    /// Keeps a record of every refusal, and of every call of a tool that is not read-only.
    fn record(&self, record: AuditRecord);

    /// The hash of these arguments; `None` if no audit file is written.
    fn hash(&self, arguments: &Map<String, Value>) -> Option<ArgumentsHash>;
}

impl Audit for Discard {
    fn record(&self, _: AuditRecord) {}

    fn hash(&self, _: &Map<String, Value>) -> Option<ArgumentsHash> {
        None
    }
}

/// Event that an audit record describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditEvent {
    /// A call was refused: this delivery of it did not begin.
    Refused,
    /// A tool was called.
    Called,
    /// A client gave a wrong token.
    RefusedEntry,
    /// An operator did something, or tried to.
    Acted,
}

impl AuditEvent {
    /// Value of the field `event`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Called => "called",
            Self::RefusedEntry => "refused_entry",
            Self::Acted => "acted",
        }
    }
}

/// One record. Texts of outsiders are cut, and without control characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditRecord {
    /// When it ended, in milliseconds since 1970.
    pub time_unix_ms: u64,
    /// The event.
    pub event: AuditEvent,
    /// The agent; absent for an unknown caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Name that an unknown caller gives itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed: Option<String>,
    /// The sender's login at the broker, where the broker verifies it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// Whether the broker vouches for the agent.
    pub verified: bool,
    /// The binding that the request named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// The profile that the request named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The caller's session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The tool; absent when the caller has none of the requested name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<Arc<str>>,
    /// The requested name, where `tool` is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// Who registered the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Arc<str>>,
    /// The caller's id of the call; absent where there is no call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// Action of an operator, such as `switch tool get_weather off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Way in of the operator, such as `socket`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<&'static str>,
    /// The address that a refused entry, or an operator, came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpAddr>,
    /// Refused entries from this address that have no record of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<u64>,
    /// End of the call: the wire's code, `ok` or `error`.
    #[serde(serialize_with = "status")]
    pub status: Status,
    /// Why there is no result.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "cause")]
    pub cause: Option<Cause>,
    /// Known side effects, if the reply names them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// By which equal arguments are recognised; absent when they could not be read, or were not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments_hash: Option<ArgumentsHash>,
}

/// The call that a record is about.
#[derive(Debug, Clone, Copy)]
pub struct AuditedCall<'a> {
    /// Who called.
    pub caller: &'a Caller,
    /// The tool that was found.
    pub tool: Option<&'a ToolDescriptor>,
    /// The requested name.
    pub requested: &'a str,
    /// The caller's id of the call.
    pub call_id: &'a str,
}

impl AuditRecord {
    /// A record of now.
    #[must_use]
    pub fn new(event: AuditEvent, subject: &AuditedCall<'_>, end: CallEnd, outcome: Option<Outcome>) -> Self {
        let AuditedCall { caller, tool, requested, call_id } = *subject;
        let optional = |text: &Option<Arc<str>>| text.as_deref().map(shown);
        Self {
            time_unix_ms: now(),
            event,
            agent: caller.agent.as_ref().map(ToString::to_string),
            claimed: caller.agent.is_none().then(|| shown(&caller.name)),
            login: optional(&caller.login),
            verified: caller.verified,
            binding: optional(&caller.binding),
            profile: optional(&caller.profile),
            session: optional(&caller.session),
            tool: tool.map(|tool| Arc::clone(&tool.name)),
            asked: tool.is_none().then(|| shown(requested)),
            source: tool.map(|tool| Arc::clone(&tool.source)),
            call_id: Some(shown(call_id)),
            action: None,
            operator: None,
            remote: None,
            left_out: None,
            status: end.status,
            cause: end.cause,
            outcome,
            arguments_hash: None,
        }
    }

    /// A record of now, of an entry that was refused, and of so many that have no record of their own.
    #[must_use]
    pub fn refused_entry(remote: Option<IpAddr>, left_out: u64) -> Self {
        let status = Status::Refused(Code::AuthRequired);
        let left_out = (left_out > 0).then_some(left_out);
        Self { remote, left_out, ..Self::without_call(AuditEvent::RefusedEntry, status) }
    }

    /// A record of now, of an operator's action.
    #[must_use]
    pub fn acted(operator: &'static str, action: &str, remote: Option<IpAddr>, status: Status) -> Self {
        let action = Some(excerpt(action, MAX_ACTION));
        Self { action, operator: Some(operator), remote, ..Self::without_call(AuditEvent::Acted, status) }
    }

    fn without_call(event: AuditEvent, status: Status) -> Self {
        Self {
            time_unix_ms: now(),
            event,
            agent: None,
            claimed: None,
            login: None,
            verified: false,
            binding: None,
            profile: None,
            session: None,
            tool: None,
            asked: None,
            source: None,
            call_id: None,
            action: None,
            operator: None,
            remote: None,
            left_out: None,
            status,
            cause: None,
            outcome: None,
            arguments_hash: None,
        }
    }

    /// Adds the hash of the arguments.
    #[must_use]
    pub fn with_arguments(mut self, hash: Option<ArgumentsHash>) -> Self {
        self.arguments_hash = hash;
        self
    }
}

fn now() -> u64 {
    milliseconds(Clock::SYSTEM.since_epoch())
}

fn status<S: Serializer>(status: &Status, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(status.as_str())
}

fn cause<S: Serializer>(cause: &Option<Cause>, serializer: S) -> Result<S::Ok, S::Error> {
    cause.map(error_type).serialize(serializer)
}

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

    /// The hash of arguments: JSON without white space, the fields of every object sorted by the bytes of their names.
    /// Numbers are equal as they are written: 1 is not 1.0.
    #[must_use]
    pub fn hash(&self, arguments: &Map<String, Value>) -> ArgumentsHash {
        let mut code = Hasher(self.0.clone());
        // A code takes whatever is written to it.
        let _ = write_object(arguments, &mut code);
        let digits = code.0.finalize().into_bytes();
        ArgumentsHash(digits.iter().take(KEPT).map(|byte| format!("{byte:02x}")).collect())
    }
}

/// A code to which JSON can be written.
struct Hasher(Hmac<Sha256>);

impl Write for Hasher {
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
        Value::Object(fields) => write_object(fields, to),
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

fn write_object(fields: &Map<String, Value>, to: &mut impl Write) -> io::Result<()> {
    // The map itself keeps the order of the text, or does not, as any crate of the build chooses.
    let mut sorted: Vec<_> = fields.iter().collect();
    sorted.sort_unstable_by_key(|(name, _)| name.as_bytes());
    for (index, (name, value)) in sorted.into_iter().enumerate() {
        to.write_all(if index == 0 { b"{" } else { b"," })?;
        serde_json::to_writer(&mut *to, name)?;
        to.write_all(b":")?;
        write_value(value, to)?;
    }
    to.write_all(if fields.is_empty() { b"{}" } else { b"}" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::caller::AgentName;

    const REFUSED: CallEnd = CallEnd { status: Status::Refused(Code::ToolNotFound), cause: Some(Cause::UnknownTool) };

    fn written(record: &AuditRecord) -> String {
        let mut record = record.clone();
        record.time_unix_ms = 0;
        serde_json::to_string(&record).unwrap()
    }

    #[test]
    fn a_call_is_recorded_with_its_tool_and_its_status() {
        let caller =
            Caller { verified: true, session: Some("s1".into()), ..Caller::agent(AgentName::parse("ana").unwrap()) };
        let effect = crate::tool::Effect::Effectful;
        let tool = ToolDescriptor { effect, ..ToolDescriptor::new("notes.add", "rest", "rest") };
        let subject =
            AuditedCall { caller: &caller, tool: Some(&tool), requested: "notes_add_1a2b", call_id: "call_7" };
        let end = CallEnd { status: Status::Refused(Code::Timeout), cause: Some(Cause::DeadlineExceeded) };
        let hash = Keyed::new(b"key").hash(&Map::new());
        let record =
            AuditRecord::new(AuditEvent::Called, &subject, end, Some(Outcome::Unknown)).with_arguments(Some(hash));
        assert!(record.time_unix_ms > 1_700_000_000_000);
        insta::assert_snapshot!(written(&record), @r#"{"time_unix_ms":0,"event":"called","agent":"ana","verified":true,"session":"s1","tool":"notes.add","source":"rest","call_id":"call_7","status":"timeout","cause":"timeout","outcome":"unknown","arguments_hash":"a777724d943eb48dc69bca8a4a6d57a0"}"#);
    }

    #[test]
    fn a_refused_call_is_recorded_with_the_requested_name() {
        let caller = Caller::unknown();
        let subject = AuditedCall { caller: &caller, tool: None, requested: "wether", call_id: "1" };
        let record = AuditRecord::new(AuditEvent::Refused, &subject, REFUSED, None);
        insta::assert_snapshot!(written(&record), @r#"{"time_unix_ms":0,"event":"refused","claimed":"unknown","verified":false,"asked":"wether","call_id":"1","status":"tool_not_found","cause":"tool_not_found"}"#);
    }

    #[test]
    fn a_refused_entry_is_recorded_with_where_it_came_from() {
        let record = AuditRecord::refused_entry("192.0.2.7".parse().ok(), 3);
        insta::assert_snapshot!(written(&record), @r#"{"time_unix_ms":0,"event":"refused_entry","verified":false,"remote":"192.0.2.7","left_out":3,"status":"auth_required"}"#);
    }

    #[test]
    fn an_action_is_recorded_with_its_operator_and_on_one_line() {
        let record = AuditRecord::acted("socket", "switch tool a\nb off", None, Status::Ok);
        insta::assert_snapshot!(written(&record), @r#"{"time_unix_ms":0,"event":"acted","verified":false,"action":"switch tool a\\nb off","operator":"socket","status":"ok"}"#);
        let long = AuditRecord::acted("socket", &"x".repeat(10_000), None, Status::Error);
        assert!(written(&long).len() < 400);
    }

    #[test]
    fn texts_of_callers_are_cut_and_stay_on_one_line() {
        let hostile = format!("x\r\n\u{1b}[2J\u{2028}{}", "y".repeat(10_000));
        let text: Option<Arc<str>> = Some(hostile.as_str().into());
        let caller = Caller {
            name: hostile.as_str().into(),
            binding: text.clone(),
            profile: text.clone(),
            session: text,
            ..Caller::unknown()
        };
        let subject = AuditedCall { caller: &caller, tool: None, requested: &hostile, call_id: &hostile };
        let record = AuditRecord::new(AuditEvent::Refused, &subject, REFUSED, None);
        let texts =
            [record.claimed.as_ref(), record.binding.as_ref(), record.profile.as_ref(), record.session.as_ref()];
        for text in texts.into_iter().chain([record.asked.as_ref(), record.call_id.as_ref()]) {
            let text = text.unwrap();
            assert!(text.starts_with("x\\r\\n\\u{1b}[2J\\u{2028}yyy") && text.len() < 200, "{text}");
        }
    }

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
