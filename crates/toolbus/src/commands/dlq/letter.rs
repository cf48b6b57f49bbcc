//! View of one dead letter.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolbus_broker::rabbitmq::DeadLetter;
use toolbus_core::telemetry::DeadReason;
use toolbus_core::text::shortened;
use toolbus_protocol::{Envelope, Properties};

use super::super::one_line;

/// Longest text of a letter's own in a table, in characters.
const MAX_TEXT: usize = 40;

/// Features that tell dead letters apart, without possible secrets.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Letter {
    /// The queue that it came from.
    pub(super) queue: String,
    /// Message id.
    pub(super) id: Option<String>,
    /// The caller's id of the call.
    pub(super) call_id: Option<String>,
    /// Why it is dead.
    pub(super) reason: String,
    /// Since when, in seconds since 1970.
    pub(super) since: Option<u64>,
    /// The topic that it came on, if it is a request.
    pub(super) topic: Option<String>,
    /// Type of the message.
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    /// The agent that sent the request.
    pub(super) agent: Option<String>,
    /// The tool that was asked for.
    pub(super) tool: Option<String>,
    /// Where its reply should go.
    pub(super) reply_to: Option<String>,
    /// Size of its body.
    pub(super) bytes: usize,
}

/// A letter with all that it says.
#[derive(Debug, Serialize)]
pub(super) struct WholeLetter {
    #[serde(flatten)]
    letter: Letter,
    headers: BTreeMap<String, String>,
    #[serde(rename = "correlationId")]
    correlation_id: Option<String>,
    timestamp: Option<u64>,
    /// As JSON, or else as text.
    body: Value,
}

/// The names in a body.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BodyNames {
    tool_name: Option<String>,
    tool_call_id: Option<String>,
}

impl Letter {
    /// Reads what tells it from others.
    pub(super) fn read(queue: &str, dead: &DeadLetter) -> Self {
        let Properties { message_id, message_type, .. } = &dead.properties;
        let envelope = Envelope::read(&dead.properties);
        let is_reply = dead.reason == DeadReason::Undeliverable.as_str();
        let agent = if is_reply { envelope.destination } else { envelope.source };
        let names: BodyNames = serde_json::from_slice(dead.body()).unwrap_or_default();
        Self {
            queue: queue.to_owned(),
            id: message_id.clone(),
            call_id: names.tool_call_id,
            reason: dead.reason.clone(),
            since: dead.since,
            topic: dead.topic.clone(),
            kind: message_type.clone(),
            agent,
            tool: names.tool_name,
            reply_to: dead
                .reply_to
                .clone()
                .or_else(|| dead.properties.reply_to.clone())
                .filter(|address| !address.is_empty()),
            bytes: dead.body().len(),
        }
    }

    /// With all that it says.
    pub(super) fn whole(self, dead: &DeadLetter) -> WholeLetter {
        let text = || Value::String(String::from_utf8_lossy(dead.body()).into_owned());
        WholeLetter {
            letter: self,
            headers: dead.properties.headers.iter().cloned().collect(),
            correlation_id: dead.properties.correlation_id.clone(),
            timestamp: dead.properties.timestamp,
            body: serde_json::from_slice(dead.body()).unwrap_or_else(|_| text()),
        }
    }
}

impl WholeLetter {
    /// For people: one line for each property and header, then the body.
    pub(super) fn in_words(&self) -> String {
        let Letter { queue, id, call_id, reason, since, topic, kind, agent, tool, reply_to, bytes } = &self.letter;
        let time = |seconds: &Option<u64>| {
            let seconds = i64::try_from((*seconds)?).ok()?;
            Some(jiff::Timestamp::from_second(seconds).ok()?.to_string())
        };
        let properties = [
            ("queue", Some(queue.clone())),
            ("id", id.clone()),
            ("call id", call_id.clone()),
            ("reason", Some(reason.clone())),
            ("dead since", time(since)),
            ("topic", topic.clone()),
            ("type", kind.clone()),
            ("agent", agent.clone()),
            ("tool", tool.clone()),
            ("reply to", reply_to.clone()),
            ("correlation", self.correlation_id.clone()),
            ("timestamp", time(&self.timestamp)),
            ("bytes", Some(bytes.to_string())),
        ];
        let lines = properties.into_iter().filter_map(|(name, value)| Some(format!("{name:<12}{}", one_line(&value?))));
        let headers =
            self.headers.iter().map(|(name, value)| format!("header      {}: {}", one_line(name), one_line(value)));
        let body = match &self.body {
            Value::String(text) => text.clone(),
            body => format!("{body:#}"),
        };
        lines.chain(headers).chain([body]).collect::<Vec<_>>().join("\n")
    }
}

/// A text of the letter's own, as a table shows it.
pub(super) fn brief(text: &str) -> String {
    one_line(&shortened(text, MAX_TEXT))
}

/// An age in its largest whole unit.
pub(super) fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_letter_is_shown_without_control_characters_and_its_body_as_json() {
        let letter = Letter {
            queue: "toolbus.invoke".into(),
            id: Some("m\u{1b}[2J".into()),
            reason: "expired".into(),
            bytes: 12,
            ..Letter::default()
        };
        let headers = [("rb-source".to_owned(), "ana\nbytes  0".to_owned())].into();
        let body = json!({"toolName": "pay"});
        let whole = WholeLetter { letter, headers, correlation_id: None, timestamp: Some(7), body };
        insta::assert_snapshot!(whole.in_words(), @r#"
        queue       toolbus.invoke
        id          m\u{1b}[2J
        reason      expired
        timestamp   1970-01-01T00:00:07Z
        bytes       12
        header      rb-source: ana bytes  0
        {
          "toolName": "pay"
        }
        "#);
    }

    #[test]
    fn an_age_is_told_in_its_largest_unit() {
        assert_eq!([5, 65, 7_300, 200_000].map(age), ["5s", "1m", "2h", "2d"]);
    }
}
