//! Cron expressions, in a time zone.

use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use toolbus_core::text::shown;

/// Times that are looked at for the shortest time between two.
const GAPS: usize = 60;

/// The fields of an expression, with the values that each takes.
const FIELDS: [(&str, &str); 6] = [
    ("second", "0 to 59, a list, a range or a step"),
    ("minute", "0 to 59, a list, a range or a step"),
    ("hour", "0 to 23, a list, a range or a step"),
    ("day of the month", "1 to 31 or L, a list, a range or a step"),
    ("month", "1 to 12 or JAN to DEC, a list, a range or a step"),
    ("day of the week", "0 to 7 or SUN to SAT, a list, a range or a step"),
];

/// A cron expression in a time zone. Times are seconds since 1970.
#[derive(Debug, Clone)]
pub(crate) struct CronExpression {
    cron: croner::Cron,
    zone: TimeZone,
}

/// A text that is no cron expression, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CronError(String);

impl CronExpression {
    /// Reads an expression of five fields, or of six with seconds first. A time must match both day of the month and day of
    /// the week.
    ///
    /// # Errors
    ///
    /// If `text` is something else.
    pub(crate) fn parse(text: &str, zone: TimeZone) -> Result<Self, CronError> {
        parsed(text).map(|cron| Self { cron, zone }).ok_or_else(|| CronError(problem(text)))
    }

    /// The first time after `seconds`; `None` if there is none.
    pub(crate) fn next_after(&self, seconds: u64) -> Option<u64> {
        self.cron.find_next_occurrence(&self.local(seconds)?, false).ok().and_then(|time| seconds_of(&time))
    }

    /// The last time that is not after `seconds`; `None` if there is none.
    pub(crate) fn last_until(&self, seconds: u64) -> Option<u64> {
        self.cron.find_previous_occurrence(&self.local(seconds)?, true).ok().and_then(|time| seconds_of(&time))
    }

    /// The shortest time between two of the next times after `seconds`, in seconds; `None` if there are no two.
    pub(crate) fn shortest_gap(&self, seconds: u64) -> Option<u64> {
        let times = std::iter::successors(self.next_after(seconds), |time| self.next_after(*time));
        let times: Vec<u64> = times.take(GAPS).collect();
        times.windows(2).filter_map(|pair| pair.last()?.checked_sub(*pair.first()?)).min()
    }

    fn local(&self, seconds: u64) -> Option<Zoned> {
        Some(Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?.to_zoned(self.zone.clone()))
    }
}

fn parsed(text: &str) -> Option<croner::Cron> {
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).dom_and_dow(true).build();
    parser.parse(text).ok()
}

/// Returns the mistake in a text that is no expression: the library's own words mean nothing to a model.
fn problem(text: &str) -> String {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let Some(first) = FIELDS.len().checked_sub(fields.len()).filter(|first| *first < 2) else {
        return "it needs five fields (minute hour day-of-month month day-of-week), or six with seconds first"
            .to_owned();
    };
    for (index, (field, (name, values))) in fields.iter().zip(FIELDS.iter().skip(first)).enumerate() {
        let alone: Vec<&str> = (0..fields.len()).map(|other| if other == index { *field } else { "*" }).collect();
        if parsed(&alone.join(" ")).is_none() {
            return format!("the {name} `{}` is not {values}", shown(field));
        }
    }
    "its fields do not fit together".to_owned()
}

fn seconds_of(time: &Zoned) -> Option<u64> {
    u64::try_from(time.timestamp().as_second()).ok()
}

/// A time as people read it, in a zone.
pub(crate) fn shown_in(zone: &TimeZone, seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    let time = time.unwrap_or(Timestamp::MAX).to_zoned(zone.clone());
    time.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// The name of a zone as people and [`TimeZone::get`] read it.
pub(crate) fn zone_name(zone: &TimeZone) -> &str {
    zone.iana_name().unwrap_or("UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn berlin() -> TimeZone {
        TimeZone::get("Europe/Berlin").unwrap()
    }

    fn seconds(time: &str) -> u64 {
        u64::try_from(time.parse::<Timestamp>().unwrap().as_second()).unwrap()
    }

    /// The times after `from`, with their offsets.
    fn times(text: &str, from: &str, number: usize) -> Vec<String> {
        let cron = CronExpression::parse(text, berlin()).unwrap();
        let times = std::iter::successors(cron.next_after(seconds(from)), |time| cron.next_after(*time));
        times.take(number).map(|time| cron.local(time).unwrap().strftime("%m-%d %H:%M:%S %:z").to_string()).collect()
    }

    /// The day of the first time after `from`.
    fn day(text: &str, from: &str) -> Option<String> {
        let cron = CronExpression::parse(text, berlin()).unwrap();
        cron.next_after(seconds(from)).map(|time| cron.local(time).unwrap().strftime("%Y-%m-%d").to_string())
    }

    #[test]
    fn a_time_skipped_by_a_clock_change_comes_later_and_a_repeated_one_once() {
        let in_spring = times("30 2 * * *", "2026-03-28T23:00:00Z", 2);
        assert_eq!(in_spring, ["03-29 03:00:00 +02:00", "03-30 02:30:00 +02:00"]);
        let in_autumn = times("30 2 * * *", "2026-10-24T22:00:00Z", 2);
        assert_eq!(in_autumn, ["10-25 02:30:00 +02:00", "10-26 02:30:00 +01:00"]);
        let hourly = times("0 * * * *", "2026-10-24T23:30:00Z", 3);
        assert_eq!(hourly, ["10-25 02:00:00 +02:00", "10-25 02:00:00 +01:00", "10-25 03:00:00 +01:00"]);
        let in_the_gap = times("0 * * * *", "2026-03-28T23:30:00Z", 3);
        assert_eq!(in_the_gap, ["03-29 01:00:00 +01:00", "03-29 03:00:00 +02:00", "03-29 04:00:00 +02:00"]);
    }

    #[test]
    fn a_day_that_is_over_this_year_comes_in_the_next_one() {
        assert_eq!(day("30 14 19 3 *", "2026-03-20T12:00:00Z"), Some("2027-03-19".to_owned()));
        assert_eq!(day("0 12 20 3 *", "2026-03-20T11:00:00Z"), Some("2027-03-20".to_owned()), "now is over");
    }

    #[test]
    fn the_leap_day_comes_in_leap_years_alone() {
        assert_eq!(day("0 0 29 2 *", "2026-03-20T12:00:00Z"), Some("2028-02-29".to_owned()));
        assert_eq!(day("0 0 29 2 *", "2096-03-01T00:00:00Z"), Some("2104-02-29".to_owned()), "2100 is none");
        assert_eq!(day("0 0 L 2 *", "2027-02-01T00:00:00Z"), Some("2027-02-28".to_owned()));
    }

    #[test]
    fn five_fields_have_no_seconds_and_six_begin_with_them() {
        assert_eq!(times("0 9 * * MON-FRI", "2026-03-20T12:00:00Z", 1), ["03-23 09:00:00 +01:00"]);
        assert_eq!(times("30 0 9 * * *", "2026-03-20T12:00:00Z", 1), ["03-21 09:00:30 +01:00"]);
        assert_eq!(times("@daily", "2026-03-20T12:00:00Z", 1), ["03-21 00:00:00 +01:00"]);
        assert_eq!(times("0 0 L * *", "2026-03-20T12:00:00Z", 1), ["03-31 00:00:00 +02:00"]);
        assert_eq!(times("0 0 13 * FRI", "2026-03-20T12:00:00Z", 1), ["11-13 00:00:00 +01:00"]);
        assert_eq!(times("0 0 29 2 *", "2026-03-20T12:00:00Z", 1), ["02-29 00:00:00 +01:00"]);
    }

    #[test]
    fn an_invalid_expression_is_refused() {
        let refused =
            ["", "* * *", "61 * * * *", "*/0 * * * *", "@reboot", "0 9 * * 1-", "* * * * * * *", "0 0 * * * 2030"];
        for text in refused {
            assert!(CronExpression::parse(text, berlin()).is_err(), "{text}");
        }
        let error = |text| CronExpression::parse(text, berlin()).unwrap_err().to_string();
        let fields = "it needs five fields (minute hour day-of-month month day-of-week), or six with seconds first";
        assert_eq!((error("* * *"), error("@reboot")), (fields.to_owned(), fields.to_owned()));
        assert_eq!(
            error("0 0 9 * * FOO"),
            "the day of the week `FOO` is not 0 to 7 or SUN to SAT, a list, a range or a step"
        );
        assert_eq!(error("0 25 * * *"), "the hour `25` is not 0 to 23, a list, a range or a step");
    }

    #[test]
    fn an_expression_may_have_no_time_and_then_has_no_gap() {
        for text in ["0 0 30 2 *", "0 0 31 4,6 *"] {
            let cron = CronExpression::parse(text, berlin()).unwrap();
            assert_eq!(
                (cron.next_after(seconds("2026-03-20T12:00:00Z")), cron.shortest_gap(0)),
                (None, None),
                "{text}"
            );
        }
    }

    #[test]
    fn the_shortest_gap_is_that_of_any_two_times() {
        for (text, gap) in [("*/10 * * * * *", 10), ("0,1 0 9 * * *", 1), ("0 9 * * *", 23 * 60 * 60)] {
            let cron = CronExpression::parse(text, berlin()).unwrap();
            assert_eq!(cron.shortest_gap(seconds("2026-03-20T12:00:00Z")), Some(gap), "{text}");
        }
    }

    #[test]
    fn the_last_time_is_the_one_before_the_next() {
        for (text, now) in [
            ("*/5 * * * *", "2026-03-20T12:00:00Z"),
            ("30 2 * * *", "2026-03-29T12:00:00Z"),
            ("30 2 * * *", "2026-10-25T00:45:00Z"),
            ("0 * * * *", "2026-10-25T01:00:00Z"),
        ] {
            let cron = CronExpression::parse(text, berlin()).unwrap();
            let last = cron.last_until(seconds(now)).unwrap();
            assert!(last <= seconds(now), "{text} {now}");
            assert_eq!(cron.next_after(last - 1), Some(last), "{text} {now}");
            assert!(cron.next_after(last).is_none_or(|next| next > seconds(now)), "{text} {now}");
        }
    }
}
