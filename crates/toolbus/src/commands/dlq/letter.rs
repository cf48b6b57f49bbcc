//! View of one dead letter.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use toolbus_broker::rabbitmq::DeadLetter;
use toolbus_core::text::shortened;

use super::super::one_line;
use crate::dead_letters::Letter;

/// Longest text of a letter's own in a table, in characters.
const MAX_TEXT: usize = 40;

/// A letter with its headers, properties and body.
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

impl WholeLetter {
    /// A letter that was read from `dead`.
    pub(super) fn new(letter: Letter, dead: &DeadLetter) -> Self {
        let text = || Value::String(String::from_utf8_lossy(dead.body()).into_owned());
        Self {
            letter,
            headers: dead.properties.headers.iter().cloned().collect(),
            correlation_id: dead.properties.correlation_id.clone(),
            timestamp: dead.properties.timestamp,
            body: serde_json::from_slice(dead.body()).unwrap_or_else(|_| text()),
        }
    }

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
    fn an_age_is_shown_in_its_largest_unit() {
        assert_eq!([5, 65, 7_300, 200_000].map(age), ["5s", "1m", "2h", "2d"]);
    }
}
