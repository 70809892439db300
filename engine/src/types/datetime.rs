//! date, time, timestamp and their kin in DateStyle ISO and TimeZone UTC.

use super::{
    digits::{pair, push_padded},
    nested::{Bad, Text, bad},
};

/// Julian day of 2000-01-01, the zero of PostgreSQL's dates.
const EPOCH_JULIAN: i64 = 2_451_545;
/// First day after the last date: 5874898-01-01.
const DATE_END: i64 = 2_147_483_494 - EPOCH_JULIAN;
/// First microsecond after the last timestamp: 294277-01-01.
const TIMESTAMP_END: i64 = 9_223_371_331_200_000_000;
/// 4714-11-24 00:00:00 BC.
const TIMESTAMP_MIN: i64 = -211_813_488_000_000_000;

const DAY: i64 = 86_400_000_000;

/// Year (0 is 1 BC), month and day of a day counted from 2000-01-01. The calendar repeats after 400 years; years here
/// begin in March, so that the leap day is the last.
fn civil(days: i64) -> (i64, u8, u8) {
    // Days since 0000-03-01.
    let days = days + 730_425;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month as u8, day as u8)
}

/// Appends `YYYY-MM-DD`; true when the year is BC, which is said at the end of the whole.
fn push_date(days: i64, out: &mut Vec<u8>) -> bool {
    let (year, month, day) = civil(days);
    let bc = year <= 0;
    push_padded(if bc { 1 - year } else { year } as u64, 4, out);
    let ([m1, m2], [d1, d2]) = (pair(month.into()), pair(day.into()));
    out.extend_from_slice(&[b'-', m1, m2, b'-', d1, d2]);
    bc
}

/// Appends `.ffffff` without trailing zeros, or nothing for zero.
pub(super) fn push_fraction(micros: u32, out: &mut Vec<u8>) {
    if micros != 0 {
        out.push(b'.');
        push_padded(micros.into(), 6, out);
        while out.last() == Some(&b'0') {
            out.pop();
        }
    }
}

/// Appends `HH:MM:SS[.ffffff]` of microseconds of the day (24:00:00 included).
fn push_time(micros: i64, out: &mut Vec<u8>) {
    let seconds = (micros / 1_000_000) as usize;
    let ([h1, h2], [m1, m2], [s1, s2]) = (pair(seconds / 3600), pair(seconds / 60 % 60), pair(seconds % 60));
    out.extend_from_slice(&[h1, h2, b':', m1, m2, b':', s1, s2]);
    push_fraction((micros % 1_000_000) as u32, out);
}

/// Appends a date: days since 2000-01-01.
pub(super) fn date(days: i32, out: &mut Vec<u8>) -> Text {
    match days {
        i32::MAX => out.extend_from_slice(b"infinity"),
        i32::MIN => out.extend_from_slice(b"-infinity"),
        _ if i64::from(days) < -EPOCH_JULIAN || i64::from(days) >= DATE_END => return Err(bad("date out of range")),
        _ => {
            if push_date(days.into(), out) {
                out.extend_from_slice(b" BC");
            }
        }
    }
    Ok(())
}

/// Appends a timestamp, or with `zone` a timestamptz: microseconds since 2000-01-01 00:00:00 (UTC).
pub(super) fn timestamp(micros: i64, zone: bool, out: &mut Vec<u8>) -> Text {
    match micros {
        i64::MAX => out.extend_from_slice(b"infinity"),
        i64::MIN => out.extend_from_slice(b"-infinity"),
        _ if !(TIMESTAMP_MIN..TIMESTAMP_END).contains(&micros) => return Err(bad("timestamp out of range")),
        _ => {
            let bc = push_date(micros.div_euclid(DAY), out);
            out.push(b' ');
            push_time(micros.rem_euclid(DAY), out);
            if zone {
                out.extend_from_slice(b"+00");
            }
            if bc {
                out.extend_from_slice(b" BC");
            }
        }
    }
    Ok(())
}

fn check_time(micros: i64) -> Result<i64, Bad> {
    if (0..=DAY).contains(&micros) { Ok(micros) } else { Err(bad("time out of range")) }
}

/// Appends a time: microseconds since midnight.
pub(super) fn time(micros: i64, out: &mut Vec<u8>) -> Text {
    push_time(check_time(micros)?, out);
    Ok(())
}

/// Appends a timetz; `zone` in seconds *west* of Greenwich, so its sign is the opposite of what is shown.
pub(super) fn timetz(micros: i64, zone: i32, out: &mut Vec<u8>) -> Text {
    let zone_abs = zone.unsigned_abs() as usize;
    if zone_abs >= 16 * 3600 {
        return Err(bad("time zone out of range"));
    }
    push_time(check_time(micros)?, out);
    out.push(if zone <= 0 { b'+' } else { b'-' });
    let (hours, minutes, seconds) = (zone_abs / 3600, zone_abs / 60 % 60, zone_abs % 60);
    out.extend_from_slice(&pair(hours));
    if minutes != 0 || seconds != 0 {
        out.push(b':');
        out.extend_from_slice(&pair(minutes));
    }
    if seconds != 0 {
        out.push(b':');
        out.extend_from_slice(&pair(seconds));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(f: impl FnOnce(&mut Vec<u8>) -> Text) -> String {
        let mut out = Vec::new();
        match f(&mut out) {
            Ok(()) => String::from_utf8(out).expect("ASCII"),
            Err(bad) => bad.what.to_owned(),
        }
    }

    #[test]
    fn dates() {
        for (days, expected) in [
            (0, "2000-01-01"),
            (59, "2000-02-29"),
            (-1, "1999-12-31"),
            (36_583, "2100-02-28"),
            (36_584, "2100-03-01"),
            (-730_119, "0001-01-01"),
            (-730_120, "0001-12-31 BC"),
            (-2_451_545, "4714-11-24 BC"),
            (2_145_031_948, "5874897-12-31"),
            (i32::MAX, "infinity"),
            (i32::MIN, "-infinity"),
            (2_145_031_949, "date out of range"),
            (-2_451_546, "date out of range"),
        ] {
            assert_eq!(text(|out| date(days, out)), expected);
        }
    }

    #[test]
    fn the_calendar_has_no_gaps() {
        let mut last = civil(-2_451_545);
        for days in -2_451_544..1_000_000 {
            let next = civil(days);
            let same_month = (last.0, last.1, last.2 + 1);
            let next_month = if last.1 == 12 { (last.0 + 1, 1, 1) } else { (last.0, last.1 + 1, 1) };
            assert!(next == same_month && next.2 <= 31 || next == next_month && last.2 >= 28, "{last:?} {next:?}");
            last = next;
        }
    }

    #[test]
    fn timestamps() {
        for (micros, expected) in [
            (0, "2000-01-01 00:00:00"),
            (-1, "1999-12-31 23:59:59.999999"),
            (100_000, "2000-01-01 00:00:00.1"),
            (i64::MAX, "infinity"),
            (i64::MIN, "-infinity"),
            (TIMESTAMP_END - 1, "294276-12-31 23:59:59.999999"),
            (TIMESTAMP_MIN, "4714-11-24 00:00:00 BC"),
            (TIMESTAMP_END, "timestamp out of range"),
            (TIMESTAMP_MIN - 1, "timestamp out of range"),
        ] {
            assert_eq!(text(|out| timestamp(micros, false, out)), expected);
        }
        assert_eq!(text(|out| timestamp(0, true, out)), "2000-01-01 00:00:00+00");
        assert_eq!(text(|out| timestamp(TIMESTAMP_MIN, true, out)), "4714-11-24 00:00:00+00 BC");
        assert_eq!(text(|out| timestamp(i64::MIN, true, out)), "-infinity");
    }

    #[test]
    fn times() {
        assert_eq!(text(|out| time(0, out)), "00:00:00");
        assert_eq!(text(|out| time(DAY, out)), "24:00:00");
        assert_eq!(text(|out| time(DAY - 1, out)), "23:59:59.999999");
        assert_eq!(text(|out| time(DAY + 1, out)), "time out of range");
        assert_eq!(text(|out| time(-1, out)), "time out of range");
        for (zone, expected) in [
            (0, "01:00:00+00"),
            (-3600, "01:00:00+01"),
            (3600, "01:00:00-01"),
            (-(5 * 3600 + 45 * 60), "01:00:00+05:45"),
            (57_599, "01:00:00-15:59:59"),
            (-1, "01:00:00+00:00:01"),
            (57_600, "time zone out of range"),
            (i32::MIN, "time zone out of range"),
        ] {
            assert_eq!(text(|out| timetz(3_600_000_000, zone, out)), expected);
        }
    }
}
