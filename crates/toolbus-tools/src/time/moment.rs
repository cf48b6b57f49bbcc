use jiff::Zoned;
use serde::Serialize;

/// A moment as a model reads it.
#[derive(Debug, Serialize)]
pub(super) struct Moment {
    /// Local time with offset (RFC 3339), to the second.
    datetime: String,
    timezone: String,
    utc_offset: String,
    weekday: String,
    is_dst: bool,
}

impl Moment {
    pub(super) fn of(moment: &Zoned) -> Self {
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
