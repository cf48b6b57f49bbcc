use jiff::tz::{TimeZone, TimeZoneDatabase};
use toolbus_core::failure::ToolFailure;

use crate::arguments::{invalid, shown};
use crate::nearest::nearest;

/// Names suggested for one that does not exist.
const SUGGESTIONS: usize = 3;

/// The IANA time zones: the system's, or else those built in.
pub(super) struct Zones {
    database: TimeZoneDatabase,
}

impl Zones {
    pub(super) fn new() -> Self {
        Self { database: TimeZoneDatabase::from_env() }
    }

    /// The zone of that name, in any case; `argument` is named when there is none.
    pub(super) fn get(&self, argument: &str, name: &str) -> Result<TimeZone, ToolFailure> {
        // The database has its own names only: a path never reaches the file system.
        self.database.get(name).map_err(|error| {
            let near = nearest(name, self.database.available().map(|zone| zone.to_string()), SUGGESTIONS);
            let hint = if near.is_empty() {
                "Use an IANA name such as `Europe/Berlin`.".to_owned()
            } else {
                format!("Did you mean `{}`?", near.join("`, `"))
            };
            invalid(format!("Argument `{argument}`: there is no time zone {}. {hint}", shown(name))).with_detail(error)
        })
    }
}
