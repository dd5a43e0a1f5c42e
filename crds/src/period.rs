//! Budget periods: calendar hours, days and months in UTC. Pure.

use jiff::tz::TimeZone;
use jiff::{Timestamp, Unit};
use serde::{Deserialize, Serialize};

/// How often a namespace's budget begins anew.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Period {
    #[default]
    Hour,
    Day,
    Month,
}

impl Period {
    pub const ALL: [Period; 3] = [Period::Hour, Period::Day, Period::Month];

    /// As in YAML.
    pub fn as_str(self) -> &'static str {
        match self {
            Period::Hour => "Hour",
            Period::Day => "Day",
            Period::Month => "Month",
        }
    }
}

impl std::fmt::Display for Period {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Period::Hour => "hour",
            Period::Day => "day",
            Period::Month => "month",
        })
    }
}

/// One such hour, day or month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub period: Period,
    pub start: Timestamp,
    /// The first moment of the next one.
    pub end: Timestamp,
}

impl Window {
    /// The one that a moment belongs to.
    pub fn at(period: Period, now: Timestamp) -> Window {
        let now = now.to_zoned(TimeZone::UTC);
        let (unit, length) = match period {
            Period::Hour => (Unit::Hour, jiff::Span::new().hours(1)),
            Period::Day | Period::Month => (Unit::Day, jiff::Span::new().days(1)),
        };
        let floor = jiff::ZonedRound::new().smallest(unit).mode(jiff::RoundMode::Trunc);
        let (start, length) = match (now.round(floor), period) {
            (Ok(day), Period::Month) => (day.first_of_month(), jiff::Span::new().months(1)),
            (floored, _) => (floored, length),
        };
        // Only at the end of time is there no beginning or no end.
        let start = start.unwrap_or(now);
        let end = start.checked_add(length).map_or(Timestamp::MAX, |end| end.timestamp());
        Window { period, start: start.timestamp(), end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_calendar_hours_days_and_months_in_utc() {
        for (period, now, start, end) in [
            (Period::Hour, "2026-11-30T17:56:29.5Z", "2026-11-30T17:00:00Z", "2026-11-30T18:00:00Z"),
            (Period::Hour, "2026-12-31T23:59:59Z", "2026-12-31T23:00:00Z", "2027-01-01T00:00:00Z"),
            (Period::Day, "2026-11-30T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z"),
            (Period::Day, "2026-11-30T23:59:59.999Z", "2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z"),
            // Summer time is nobody's business here.
            (Period::Day, "2026-03-29T01:30:00Z", "2026-03-29T00:00:00Z", "2026-03-30T00:00:00Z"),
            (Period::Month, "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
            (Period::Month, "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ] {
            let at = |text: &str| text.parse::<Timestamp>().expect("a time");
            assert_eq!(Window::at(period, at(now)), Window { period, start: at(start), end: at(end) }, "{period} {now}");
        }
    }
}
