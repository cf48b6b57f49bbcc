//! `current_time` and `convert_time`: time in any IANA time zone.

mod convert;
mod moment;
mod zones;

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};

use self::convert::ConvertTime;
use self::moment::Moment;
use self::zones::Zones;
use crate::arguments;

/// Tells the present moment.
type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The tools `current_time` and `convert_time`, of source `time`, by the system's clock.
#[must_use]
pub fn tools() -> Vec<Tool> {
    tools_at(Timestamp::now)
}

/// The same tools, by a clock of one's own.
#[must_use]
pub fn tools_at(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Vec<Tool> {
    let clock: Clock = Arc::new(clock);
    let zones = Arc::new(Zones::new());
    let current = CurrentTime { clock: Arc::clone(&clock), zones: Arc::clone(&zones) };
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
    ToolDescriptor {
        description: description.to_owned(),
        parameters: Some(Arc::new(parameters)),
        effect: Effect::ReadOnly,
        ..ToolDescriptor::new(name, "time", "local")
    }
}

struct CurrentTime {
    clock: Clock,
    zones: Arc<Zones>,
}

impl Executor for CurrentTime {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let name = arguments::optional_text(&call.arguments, "timezone")?.unwrap_or("UTC");
        let zone = self.zones.get("timezone", name)?;
        answer(&Moment::of(&(self.clock)().to_zoned(zone)))
    }
}

/// The result as JSON text.
fn answer(result: &impl Serialize) -> Result<ToolOutput, ToolFailure> {
    serde_json::to_string(result)
        .map(ToolOutput::text)
        .map_err(|error| ToolFailure::new(Cause::Failed, "the result could not be written").with_detail(error))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use toolbus_core::failure::Cause;
    use toolbus_core::tool::{Effect, Tool};

    use super::tools_at;
    use crate::testing::run;

    fn tool() -> Tool {
        tools_at(|| "2026-07-01T12:00:00.75Z".parse().unwrap()).remove(0)
    }

    async fn current(arguments: Value) -> Value {
        serde_json::from_str(&run(&tool(), arguments).await.unwrap().content.unwrap()).unwrap()
    }

    #[tokio::test]
    async fn without_a_zone_the_time_is_told_in_utc() {
        let expected = json!({
            "datetime": "2026-07-01T12:00:00+00:00", "timezone": "UTC", "utc_offset": "+00:00",
            "weekday": "Wednesday", "is_dst": false,
        });
        assert_eq!(current(json!({})).await, expected);
        assert_eq!(current(json!({"timezone": null})).await, expected);
    }

    #[tokio::test]
    async fn the_time_is_told_in_the_zone_asked_for() {
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
    async fn a_zone_name_is_never_a_path() {
        for wanted in ["../../etc/passwd", "/etc/localtime", "", "Europe/Berlin\0"] {
            let failure = run(&tool(), json!({"timezone": wanted})).await.unwrap_err();
            assert_eq!(failure.cause, Cause::InvalidArguments, "{wanted}");
        }
    }

    #[test]
    fn the_tools_are_local_and_change_nothing() {
        for tool in super::tools() {
            let descriptor = &tool.descriptor;
            assert_eq!((&*descriptor.source, descriptor.provider), ("time", "local"));
            assert_eq!(descriptor.effect, Effect::ReadOnly);
            assert_eq!(descriptor.parameters.as_ref().unwrap()["additionalProperties"], false);
        }
    }
}
