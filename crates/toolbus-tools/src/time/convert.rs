use std::sync::Arc;

use jiff::civil::{DateTime, Time};
use jiff::fmt::temporal::Pieces;
use jiff::tz::{AmbiguousOffset, TimeZone};
use serde::Serialize;
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{Executor, ToolCall, ToolOutput};

use super::{Clock, Moment, Zones, answer};
use crate::arguments::{self, invalid, shown};

/// The tool `convert_time`.
pub(super) struct ConvertTime {
    pub(super) clock: Clock,
    pub(super) zones: Arc<Zones>,
}

#[derive(Serialize)]
struct Conversion {
    source: Moment,
    target: Moment,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Executor for ConvertTime {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let from = self.zones.get("from_timezone", arguments::text(&call.arguments, "from_timezone")?)?;
        let to = self.zones.get("to_timezone", arguments::text(&call.arguments, "to_timezone")?)?;
        let local = self.local(arguments::text(&call.arguments, "datetime")?, &from)?;

        let ambiguous = from.to_ambiguous_zoned(local);
        let note = note(local, ambiguous.offset(), &from);
        let source = ambiguous.compatible().map_err(|error| {
            invalid(format!("Argument `datetime`: {local} is out of the range of what can be converted."))
                .with_detail(error)
        })?;
        let target = source.with_time_zone(to);
        answer(&Conversion { source: Moment::of(&source), target: Moment::of(&target), note })
    }
}

impl ConvertTime {
    /// Reads a local time; one without a date is today's in `zone`.
    fn local(&self, text: &str, zone: &TimeZone) -> Result<DateTime, ToolFailure> {
        if let Some(time) = time_of_day(text) {
            return Ok((self.clock)().to_zoned(zone.clone()).date().to_datetime(time));
        }
        let pieces = Pieces::parse(text).map_err(|error| {
            invalid(format!(
                "Argument `datetime`: {} is not a time. Write it as `2026-03-29T14:30:00` or `14:30`.",
                shown(text)
            ))
            .with_detail(error)
        })?;
        if pieces.offset().is_some() || pieces.time_zone_annotation().is_some() {
            return Err(invalid(format!(
                "Argument `datetime`: {} has an offset or time zone of its own. Leave it out, and name the zone in \
                 `from_timezone` (for a time ending in `Z`, that is `UTC`).",
                shown(text)
            )));
        }
        let time = pieces
            .time()
            .ok_or_else(|| invalid(format!("Argument `datetime`: {} has no time of day.", shown(text))))?;
        Ok(pieces.date().to_datetime(time))
    }
}

/// Reads a time without a date. The library's own parser would take the time out of longer texts.
fn time_of_day(text: &str) -> Option<Time> {
    text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.')).then(|| text.parse().ok()).flatten()
}

/// Says what was done about a local time that does not exist or exists twice.
fn note(local: DateTime, offset: AmbiguousOffset, zone: &TimeZone) -> Option<String> {
    let zone = zone.iana_name().unwrap_or("UTC");
    match offset {
        AmbiguousOffset::Unambiguous { .. } => None,
        AmbiguousOffset::Gap { before, after } => Some(format!(
            "{local} does not exist in {zone}: clocks go from offset {before} to {after} there. \
             It was moved forward by that difference."
        )),
        AmbiguousOffset::Fold { before, after } => Some(format!(
            "{local} occurs twice in {zone}: clocks go from offset {before} to {after} there. \
             The earlier one, {before}, was taken."
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use toolbus_core::failure::{Cause, ToolFailure};

    use crate::testing::run;
    use crate::time::tools_at;

    async fn convert(datetime: &str, from: &str, to: &str) -> Result<Value, ToolFailure> {
        let tool = tools_at(|| "2026-07-01T23:30:00Z".parse().unwrap()).remove(1);
        let arguments = json!({"datetime": datetime, "from_timezone": from, "to_timezone": to});
        let content = run(&tool, arguments).await?.content.unwrap();
        Ok(serde_json::from_str(&content).unwrap())
    }

    #[tokio::test]
    async fn a_local_time_is_converted() {
        let result = convert("2026-11-20T23:30", "America/New_York", "Asia/Kolkata").await.unwrap();
        let expected = json!({
            "source": {
                "datetime": "2026-11-20T23:30:00-05:00", "timezone": "America/New_York", "utc_offset": "-05:00",
                "weekday": "Friday", "is_dst": false,
            },
            "target": {
                "datetime": "2026-11-21T10:00:00+05:30", "timezone": "Asia/Kolkata", "utc_offset": "+05:30",
                "weekday": "Saturday", "is_dst": false,
            },
        });
        assert_eq!(result, expected);
    }

    #[tokio::test]
    async fn a_time_without_a_date_is_today_in_its_own_zone() {
        let result = convert("14:30", "Asia/Tokyo", "UTC").await.unwrap();
        assert_eq!(result["source"]["datetime"], "2026-07-02T14:30:00+09:00");
    }

    #[tokio::test]
    async fn a_time_that_does_not_exist_is_moved_forward_and_that_is_said() {
        let result = convert("2026-03-29 02:30", "Europe/Berlin", "UTC").await.unwrap();
        assert_eq!(result["source"]["datetime"], "2026-03-29T03:30:00+02:00");
        let note = result["note"].as_str().unwrap();
        assert!(note.contains("does not exist") && note.contains("+01 to +02"), "{note}");
    }

    #[tokio::test]
    async fn of_a_time_that_occurs_twice_the_earlier_is_taken_and_that_is_said() {
        let result = convert("2026-10-25T02:30:00", "Europe/Berlin", "UTC").await.unwrap();
        assert_eq!(result["target"]["datetime"], "2026-10-25T00:30:00+00:00");
        let note = result["note"].as_str().unwrap();
        assert!(note.contains("occurs twice") && note.contains("earlier one, +02"), "{note}");
    }

    #[tokio::test]
    async fn a_time_that_cannot_be_used_is_refused_with_what_to_do() {
        let table = [
            ("tomorrow", "Write it as"),
            ("2026-02-30T10:00", "Write it as"),
            ("2026-03-29", "no time of day"),
            ("10:00+02:00", "Write it as"),
            ("25:00", "Write it as"),
            ("2026-03-29T10:00:00Z", "`UTC`"),
            ("2026-03-29T10:00:00+02:00", "Leave it out"),
            ("2026-03-29T10:00:00[Asia/Tokyo]", "Leave it out"),
            ("9999-12-31T23:59:59", "out of the range"),
        ];
        for (datetime, expected) in table {
            let failure = convert(datetime, "America/New_York", "UTC").await.unwrap_err();
            assert_eq!(failure.cause, Cause::InvalidArguments, "{datetime}");
            assert!(failure.message.contains(expected), "{datetime}: {}", failure.message);
        }
    }

    #[tokio::test]
    async fn the_zone_that_is_unknown_is_named() {
        let failure = convert("10:00", "UTC", "Asia/Tokio").await.unwrap_err();
        assert!(failure.message.starts_with("Argument `to_timezone`"), "{}", failure.message);
        assert!(failure.message.contains("`Asia/Tokyo`"), "{}", failure.message);
    }
}
