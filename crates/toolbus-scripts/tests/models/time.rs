//! Dates, time zones, calendars and locales.

use insta::assert_snapshot;

use crate::fixture::result_at_both;

#[tokio::test]
async fn time_zones_of_the_world_are_known() {
    let script = r#"
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo, available_timezones

meeting = datetime(2026, 3, 27, 17, 30, tzinfo=ZoneInfo("Europe/Berlin"))
for zone in ("UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Kiritimati"):
    print(f"{zone:20} {meeting.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M %Z %z}")
# Clocks go forward in between.
later = meeting + timedelta(days=3)
print(later.isoformat(), later.astimezone(timezone.utc) - meeting.astimezone(timezone.utc))
print(len(available_timezones()) > 400)
try:
    ZoneInfo("Europe/Atlantis")
except Exception as error:
    print(type(error).__name__, error)
"#;
    assert_snapshot!(result_at_both(script).await, @"
    UTC                  2026-03-27 16:30 UTC +0000
    America/New_York     2026-03-27 12:30 EDT -0400
    Asia/Kolkata         2026-03-27 22:00 IST +0530
    Australia/Lord_Howe  2026-03-28 03:30 +11 +1100
    Pacific/Kiritimati   2026-03-28 06:30 +14 +1400
    2026-03-30T17:30:00+02:00 2 days, 23:00:00
    True
    ZoneInfoNotFoundError 'No time zone found with key Europe/Atlantis'
    ");
}

#[tokio::test]
async fn the_zone_of_a_script_is_the_one_it_sets() {
    let script = r#"
import os, time
from datetime import datetime

os.environ["TZ"] = "America/Sao_Paulo"
time.tzset()
print(datetime.fromtimestamp(0), time.strftime("%z", time.localtime(0)))
os.environ["TZ"] = "Asia/Tokyo"
time.tzset()
print(datetime.fromtimestamp(0).astimezone().isoformat(), time.tzname)
"#;
    assert_snapshot!(result_at_both(script).await, @"
    1969-12-31 21:00:00 -0300
    1970-01-01T09:00:00+09:00 ('JST', 'JST')
    ");
}

#[tokio::test]
async fn calendars_are_printed_and_dates_read() {
    let script = r#"
import calendar
from datetime import date, datetime, timedelta

print(calendar.month(2028, 2))
print(date(2026, 12, 31).isocalendar(), (date(2026, 3, 1) - date(2024, 2, 29)).days)
print(datetime.strptime("3 Feb 2026 4:05 PM", "%d %b %Y %I:%M %p").isoformat())
fridays = [date(2026, month, 13) for month in range(1, 13) if date(2026, month, 13).weekday() == 4]
print([day.strftime("%A %d %B") for day in fridays])
print(timedelta(hours=49, seconds=5), datetime.fromisoformat("2026-02-03T04:05:06+01:00").timestamp())
"#;
    assert_snapshot!(result_at_both(script).await, @"
       February 2028
    Mo Tu We Th Fr Sa Su
        1  2  3  4  5  6
     7  8  9 10 11 12 13
    14 15 16 17 18 19 20
    21 22 23 24 25 26 27
    28 29

    datetime.IsoCalendarDate(year=2026, week=53, weekday=4) 731
    2026-02-03T16:05:00
    ['Friday 13 February', 'Friday 13 March', 'Friday 13 November']
    2 days, 1:00:05 1770087906.0
    ");
}

#[tokio::test]
async fn a_locale_that_is_not_there_is_an_error_and_utf_8_is_the_default() {
    let script = r#"
import locale, sys

print(locale.setlocale(locale.LC_ALL, ""), sys.getdefaultencoding(), sys.stdout.encoding, sys.getfilesystemencoding())
print("Grüße 東京 🙂", f"{1234567.891:,.2f}")
locale.setlocale(locale.LC_ALL, "xx_YY.UTF-8")
"#;
    assert_snapshot!(result_at_both(script).await, @r#"
    isError: Script failed (exit 1):
    C.UTF-8 utf-8 utf-8 utf-8
    Grüße 東京 🙂 1,234,567.89
    stderr:
    Traceback (most recent call last):
      File "script.py", line 6, in <module>
        locale.setlocale(locale.LC_ALL, "xx_YY.UTF-8")
      [library]
    locale.Error: unsupported locale setting
    "#);
}
