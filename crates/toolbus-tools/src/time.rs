//! `current_time` and `convert_time`: time in any IANA time zone.

use std::sync::Arc;

use jiff::civil::{DateTime, Time};
use jiff::fmt::temporal::Pieces;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, Zoned};
use serde::Serialize;
use serde_json::{Value, json};
use toolbus_core::Clock;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};

use crate::arguments::{self, shown};
use crate::nearest::nearest;

/// Guide to the use of the time tools, for models.
pub const GUIDE: &str = include_str!("time/guide.md");

/// The tools `current_time` and `convert_time`, of source `time`.
#[must_use]
pub fn tools(clock: Clock) -> Vec<Tool> {
    let zones = Arc::new(Zones::new(clock));
    let current = CurrentTime { clock, zones: Arc::clone(&zones) };
    vec![Tool::new(current_time(), current), Tool::new(convert_time(), ConvertTime { clock, zones })]
}

fn current_time() -> ToolDescriptor {
    descriptor(
        "current_time",
        "The present date and time in a time zone, as JSON with `datetime` (RFC 3339), `timezone`, `utc_offset`, \
         `weekday` and `is_dst`.",
        json!({
            "type": "object",
            "properties": { "timezone": zone("Time zone to tell the time in; default `UTC`") },
            "additionalProperties": false,
        }),
    )
}

fn convert_time() -> ToolDescriptor {
    descriptor(
        "convert_time",
        "Converts a local date and time from one time zone to another, as JSON with `source` and `target`; daylight \
         saving time is taken into account, and a `note` says when the local time does not exist or occurs twice.",
        json!({
            "type": "object",
            "properties": {
                "datetime": {
                    "type": "string",
                    "description": "Local time without offset, such as `2026-03-29T14:30:00`; `14:30` means today",
                },
                "from_timezone": zone("Time zone of `datetime`"),
                "to_timezone": zone("Time zone to convert to"),
            },
            "required": ["datetime", "from_timezone", "to_timezone"],
            "additionalProperties": false,
        }),
    )
}

fn zone(purpose: &str) -> Value {
    json!({ "type": "string", "description": format!("{purpose}. An IANA name such as `Europe/Berlin`") })
}

fn descriptor(name: &str, description: &str, parameters: Value) -> ToolDescriptor {
    ToolDescriptor::local(name, "time", description, Effect::ReadOnly, parameters)
}

struct CurrentTime {
    clock: Clock,
    zones: Arc<Zones>,
}

impl Executor for CurrentTime {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let name = arguments::optional_text(&call.arguments, "timezone")?.unwrap_or("UTC");
        let zone = self.zones.get("timezone", name)?;
        output(&LocalTime::of(&present(self.clock).to_zoned(zone)))
    }
}

/// The present time.
fn present(clock: Clock) -> Timestamp {
    Timestamp::try_from(clock.wall()).unwrap_or(Timestamp::MAX)
}

/// The result as JSON text.
fn output(result: &impl Serialize) -> Result<ToolOutput, ToolFailure> {
    serde_json::to_string(result)
        .map(ToolOutput::text)
        .map_err(|error| ToolFailure::new(Cause::Failed, "the result could not be written").with_detail(error))
}

/// A moment as a model reads it.
#[derive(Debug, Serialize)]
struct LocalTime {
    /// Local time with offset (RFC 3339), to the second.
    datetime: String,
    timezone: String,
    utc_offset: String,
    weekday: String,
    is_dst: bool,
}

impl LocalTime {
    fn of(moment: &Zoned) -> Self {
        let zone = moment.time_zone();
        Self {
            datetime: moment.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
            timezone: zone.iana_name().unwrap_or("UTC").to_owned(),
            utc_offset: moment.strftime("%:z").to_string(),
            weekday: moment.strftime("%A").to_string(),
            is_dst: zone.to_offset_info(moment.timestamp()).dst().is_dst(),
        }
    }
}

/// Longest abbreviation of a zone, such as `AEDT`.
const ABBREVIATION: usize = 5;
/// Names suggested for one that does not exist.
const SUGGESTIONS: usize = 3;

/// The IANA time zones: the system's, or else those built in.
struct Zones {
    clock: Clock,
    database: TimeZoneDatabase,
}

impl Zones {
    fn new(clock: Clock) -> Self {
        Self { clock, database: TimeZoneDatabase::from_env() }
    }

    /// Returns what to write instead. A zone that is hours off would be taken and believed, so an abbreviation, which
    /// several zones have, has none; and of names that are alike all are as far from UTC now as the likest.
    fn hint(&self, name: &str) -> String {
        let name = name.trim();
        if let Some(fixed) = of_offset(name) {
            return format!("Did you mean `{fixed}`? Names of fixed offsets have the sign the other way round.");
        }
        let is_last = |zone: String| zone.rsplit('/').next().is_some_and(|last| last.eq_ignore_ascii_case(name));
        let is_capital = name.bytes().all(|byte| byte.is_ascii_uppercase());
        let is_short = name.len() <= ABBREVIATION && name.bytes().all(|byte| byte.is_ascii_alphabetic());
        if is_short
            && (is_capital || name.len() < ABBREVIATION)
            && !self.database.available().any(|zone| is_last(zone.to_string()))
        {
            return "If it is an abbreviation, name a place instead, such as `America/New_York` or `Asia/Kolkata`."
                .to_owned();
        }
        let region = name.split_once('/').map(|(region, _)| region.to_ascii_lowercase());
        let is_city = |zone: &String| {
            zone.split_once('/').is_some_and(|(of_zone, _)| {
                of_zone != "Etc" && region.as_ref().is_none_or(|region| of_zone.eq_ignore_ascii_case(region))
            })
        };
        let cities = self.database.available().map(|zone| zone.to_string()).filter(is_city);
        let mut near = nearest(name, cities, SUGGESTIONS);
        let now = present(self.clock);
        let offset = |zone: &String| self.database.get(zone).ok().map(|zone| zone.to_offset(now));
        let likest = near.first().and_then(offset);
        near.retain(|zone| offset(zone) == likest);
        if near.is_empty() {
            "Use an IANA name such as `Europe/Berlin`.".to_owned()
        } else {
            format!("Did you mean `{}`?", near.join("`, `"))
        }
    }

    /// The zone of a name, in any case.
    ///
    /// # Errors
    ///
    /// If no zone has the name; the text names `argument`.
    fn get(&self, argument: &str, name: &str) -> Result<TimeZone, ToolFailure> {
        // The database has its own names only: a path never reaches the file system.
        self.database.get(name).map_err(|error| {
            let hint = self.hint(name);
            ToolFailure::invalid(format!("Argument `{argument}`: there is no time zone {}. {hint}", shown(name)))
                .with_detail(error)
        })
    }
}

/// The zone of an offset in whole hours, such as `UTC+2` or `+02:00`.
fn of_offset(name: &str) -> Option<String> {
    let start = name.get(..3).filter(|start| start.eq_ignore_ascii_case("utc") || start.eq_ignore_ascii_case("gmt"));
    let offset = start.map_or(name, |start| name.get(start.len()..).unwrap_or_default()).trim();
    let (sign, hours) = offset.strip_prefix('+').map(|hours| ('-', hours)).or_else(|| {
        let hours = offset.strip_prefix(['-', '\u{2212}'])?;
        Some(('+', hours))
    })?;
    let hours: u8 = hours.strip_suffix(":00").unwrap_or(hours).parse().ok()?;
    let most = if sign == '-' { 14 } else { 12 };
    (1..=most).contains(&hours).then(|| format!("Etc/GMT{sign}{hours}"))
}

/// The tool `convert_time`.
struct ConvertTime {
    clock: Clock,
    zones: Arc<Zones>,
}

#[derive(Serialize)]
struct Conversion {
    source: LocalTime,
    target: LocalTime,
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
            ToolFailure::invalid(format!("Argument `datetime`: {local} is out of the range of what can be converted."))
                .with_detail(error)
        })?;
        let target = source.with_time_zone(to);
        output(&Conversion { source: LocalTime::of(&source), target: LocalTime::of(&target), note })
    }
}

impl ConvertTime {
    /// Reads a local time; one without a date is today's in `zone`.
    fn local(&self, text: &str, zone: &TimeZone) -> Result<DateTime, ToolFailure> {
        if let Some(time) = time_of_day(text) {
            return Ok(present(self.clock).to_zoned(zone.clone()).date().to_datetime(time));
        }
        let pieces = Pieces::parse(text).map_err(|error| {
            ToolFailure::invalid(format!(
                "Argument `datetime`: {} is not a time. Write it as `2026-03-29T14:30:00` or `14:30`.",
                shown(text)
            ))
            .with_detail(error)
        })?;
        if pieces.offset().is_some() || pieces.time_zone_annotation().is_some() {
            return Err(ToolFailure::invalid(format!(
                "Argument `datetime`: {} has an offset or time zone of its own. Leave it out, and name the zone in \
                 `from_timezone` (for a time ending in `Z`, that is `UTC`).",
                shown(text)
            )));
        }
        let time = pieces
            .time()
            .ok_or_else(|| ToolFailure::invalid(format!("Argument `datetime`: {} has no time of day.", shown(text))))?;
        Ok(pieces.date().to_datetime(time))
    }
}

/// Reads a time without a date. The library's own parser would take the time out of longer texts.
fn time_of_day(text: &str) -> Option<Time> {
    text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.')).then(|| text.parse().ok()).flatten()
}

/// Returns a note on a local time that does not exist or exists twice.
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
    use toolbus_core::tool::{Effect, Tool};

    use jiff::Timestamp;
    use toolbus_core::Clock;

    use super::tools;
    use crate::testing::run;

    /// A clock that stands at a time.
    fn at(time: &str) -> Clock {
        let clock = Clock::manual();
        let begun = Timestamp::try_from(clock.wall()).unwrap();
        clock.advance(time.parse::<Timestamp>().unwrap().duration_since(begun).unsigned_abs());
        clock
    }

    fn tool() -> Tool {
        tools(at("2026-07-01T12:00:00.75Z")).remove(0)
    }

    async fn current(arguments: Value) -> Value {
        serde_json::from_str(&run(&tool(), arguments).await.unwrap().content.unwrap()).unwrap()
    }

    #[tokio::test]
    async fn without_a_zone_the_time_is_in_utc() {
        let expected = json!({
            "datetime": "2026-07-01T12:00:00+00:00", "timezone": "UTC", "utc_offset": "+00:00",
            "weekday": "Wednesday", "is_dst": false,
        });
        assert_eq!(current(json!({})).await, expected);
        assert_eq!(current(json!({"timezone": null})).await, expected);
    }

    #[tokio::test]
    async fn the_time_is_in_the_requested_zone() {
        let expected = json!({
            "datetime": "2026-07-01T14:00:00+02:00", "timezone": "Europe/Berlin", "utc_offset": "+02:00",
            "weekday": "Wednesday", "is_dst": true,
        });
        assert_eq!(current(json!({"timezone": "europe/berlin"})).await, expected);
        assert_eq!(current(json!({"timezone": "Asia/Kolkata"})).await["utc_offset"], "+05:30");
    }

    #[tokio::test]
    async fn an_unknown_zone_is_refused_with_the_nearest_names() {
        for (wanted, near) in [("Europe/Berln", "`Europe/Berlin`"), ("Tokyo", "`Asia/Tokyo`")] {
            let failure = run(&tool(), json!({"timezone": wanted})).await.unwrap_err();
            assert_eq!(failure.cause, Cause::InvalidArguments);
            assert!(failure.message.contains(near) && failure.message.contains(wanted), "{}", failure.message);
        }
    }

    #[tokio::test]
    async fn no_zone_is_suggested_that_is_hours_off() {
        let table = [
            ("UTC+2", "`Etc/GMT-2`"),
            ("GMT-05", "`Etc/GMT+5`"),
            ("+02:00", "`Etc/GMT-2`"),
            ("PST", "abbreviation"),
            ("IST", "abbreviation"),
            ("AEDT", "abbreviation"),
            ("pdt", "abbreviation"),
            ("UTC+05:30", "such as `Europe/Berlin`"),
            ("new york", "`America/New_York`"),
        ];
        for (wanted, hint) in table {
            let failure = run(&tool(), json!({"timezone": wanted})).await.unwrap_err();
            assert!(failure.message.contains(hint), "{wanted}: {}", failure.message);
        }
        // As far from UTC as the likest.
        for wanted in ["America/Los_Angls", "Europe/Lond", "Australia/Sidney", "Asia/Kolkatta"] {
            let message = run(&tool(), json!({"timezone": wanted})).await.unwrap_err().message;
            let (_, named) = message.split_once("Did you mean `").unwrap();
            let mut offsets = Vec::new();
            for zone in named.trim_end_matches("`?").split("`, `") {
                offsets.push(current(json!({"timezone": zone})).await["utc_offset"].clone());
            }
            offsets.dedup();
            assert_eq!(offsets.len(), 1, "{message}");
        }
    }

    #[tokio::test]
    async fn a_zone_name_is_never_a_path() {
        for wanted in ["../../etc/passwd", "/etc/localtime", "", "Europe/Berlin\0"] {
            let failure = run(&tool(), json!({"timezone": wanted})).await.unwrap_err();
            assert_eq!(failure.cause, Cause::InvalidArguments, "{wanted}");
        }
    }

    #[test]
    fn the_tools_are_local_and_change_nothing() {
        for tool in tools(Clock::SYSTEM) {
            let descriptor = &tool.descriptor;
            assert_eq!((&*descriptor.source, descriptor.provider), ("time", "local"));
            assert_eq!(descriptor.effect, Effect::ReadOnly);
            assert_eq!(descriptor.parameters.as_ref().unwrap()["additionalProperties"], false);
        }
    }

    async fn convert(datetime: &str, from: &str, to: &str) -> Result<Value, ToolFailure> {
        let tool = tools(at("2026-07-01T23:30:00Z")).remove(1);
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
    async fn a_nonexistent_time_is_moved_forward_with_a_note() {
        let result = convert("2026-03-29 02:30", "Europe/Berlin", "UTC").await.unwrap();
        assert_eq!(result["source"]["datetime"], "2026-03-29T03:30:00+02:00");
        let note = result["note"].as_str().unwrap();
        assert!(note.contains("does not exist") && note.contains("+01 to +02"), "{note}");
    }

    #[tokio::test]
    async fn of_a_time_that_occurs_twice_the_earlier_is_taken_with_a_note() {
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
