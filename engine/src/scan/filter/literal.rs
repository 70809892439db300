//! Quoted constants: from the text to the value of a type, in the forms that cannot be misunderstood.

/// Days from 2000-01-01 to 1970-01-01, and what a day has.
const DAY: i64 = 86_400_000_000;
/// 4714-11-24 BC and 5874898-01-01 as days from 2000-01-01.
const DATE_MIN: i64 = -2_451_545;
const DATE_END: i64 = 2_147_483_494 - 2_451_545;
/// 294277-01-01 in microseconds.
const TIMESTAMP_END: i64 = 9_223_371_331_200_000_000;

/// What is wrong with a constant, for a sentence that begins with it.
pub(super) type Wrong = &'static str;

/// A date: `YYYY-MM-DD`, with `BC` behind it, `infinity`, `-infinity`, `epoch`.
pub(super) fn date(text: &str) -> Result<i32, Wrong> {
    match special(text) {
        Some(Special::Infinity) => return Ok(i32::MAX),
        Some(Special::NegativeInfinity) => return Ok(i32::MIN),
        Some(Special::Epoch) => return Ok(-10_957),
        None => {}
    }
    let (text, bc) = without_bc(text);
    i32::try_from(day(text, bc)?).map_err(|_| "date out of range")
}

/// A timestamp: a date, and a time behind a blank or `T`; for `zone` with `Z` or an offset such as `+02` or `-03:30`
/// (without one it is UTC). Microseconds since 2000-01-01.
pub(super) fn timestamp(text: &str, zone: bool) -> Result<i64, Wrong> {
    match special(text) {
        Some(Special::Infinity) => return Ok(i64::MAX),
        Some(Special::NegativeInfinity) => return Ok(i64::MIN),
        Some(Special::Epoch) => return Ok(-10_957 * DAY),
        None => {}
    }
    let (text, bc) = without_bc(text);
    let (date, time) = match text.find([' ', 'T', 't']) {
        Some(at) => (&text[..at], text[at + 1..].trim_start()),
        None => (text, "00:00"),
    };
    let days = day(date, bc)?;
    let (time, offset) = if zone { split_zone(time)? } else { (time, 0) };
    let micros = days.checked_mul(DAY).and_then(|d| d.checked_add(time_of_day(time)?.checked_sub(offset)?));
    micros.filter(|m| (DATE_MIN * DAY..TIMESTAMP_END).contains(m)).ok_or(if time_of_day(time).is_some() {
        "timestamp out of range"
    } else {
        "expected YYYY-MM-DD HH:MM:SS.ffffff"
    })
}

/// A time: `HH:MM`, `HH:MM:SS`, `HH:MM:SS.ffffff`. Microseconds.
pub(super) fn time(text: &str) -> Result<i64, Wrong> {
    time_of_day(text.trim()).ok_or("expected HH:MM:SS.ffffff")
}

enum Special {
    Infinity,
    NegativeInfinity,
    Epoch,
}

fn special(text: &str) -> Option<Special> {
    match text.trim().to_ascii_lowercase().as_str() {
        "infinity" | "+infinity" => Some(Special::Infinity),
        "-infinity" => Some(Special::NegativeInfinity),
        "epoch" => Some(Special::Epoch),
        _ => None,
    }
}

fn without_bc(text: &str) -> (&str, bool) {
    let text = text.trim();
    match text.len().checked_sub(3).and_then(|at| text.split_at_checked(at)) {
        Some((before, end)) if end.eq_ignore_ascii_case(" bc") => (before.trim_end(), true),
        _ => (text, false),
    }
}

/// The number in `text`, which must have from `least` to `most` digits and nothing else.
fn digits(text: &str, least: usize, most: usize) -> Option<i64> {
    let plain = (least..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Days from 2000-01-01.
fn day(text: &str, bc: bool) -> Result<i64, Wrong> {
    const FORM: Wrong = "expected YYYY-MM-DD";
    let mut parts = text.splitn(3, '-');
    let mut part = |least, most| parts.next().and_then(|p| digits(p, least, most)).ok_or(FORM);
    // Fewer digits of a year could be a month or a day, which depends on the server's DateStyle.
    let (year, month, day) = (part(4, 7)?, part(1, 2)?, part(1, 2)?);
    const OUT: Wrong = "date out of range";
    if year == 0 || !(1..=12).contains(&month) || day == 0 {
        return Err(OUT);
    }
    let year = if bc { 1 - year } else { year };
    let leap = year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    if day > lengths[(month - 1) as usize] {
        return Err(OUT);
    }
    // Years that begin in March, so that the leap day is the last.
    let (march_year, march_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (march_year.div_euclid(400), march_year.rem_euclid(400));
    let of_year = (153 * march_month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 730_425;
    if (DATE_MIN..DATE_END).contains(&days) { Ok(days) } else { Err(OUT) }
}

/// Microseconds of the day; 24:00:00 is its end.
fn time_of_day(text: &str) -> Option<i64> {
    let mut parts = text.trim_end().splitn(3, ':');
    let hours = digits(parts.next()?, 1, 2)?;
    let minutes = digits(parts.next()?, 2, 2)?;
    let (seconds, micros) = match parts.next() {
        None => (0, 0),
        Some(seconds) => match seconds.split_once('.') {
            None => (digits(seconds, 2, 2)?, 0),
            Some((whole, fraction)) => {
                let value = if fraction.is_empty() { 0 } else { digits(fraction, 1, 6)? };
                (digits(whole, 2, 2)?, value * 10i64.pow(6 - fraction.len() as u32))
            }
        },
    };
    let total = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros;
    (hours <= 24 && minutes < 60 && seconds < 60 && total <= DAY).then_some(total)
}

/// The time without its zone, and the zone in microseconds east of Greenwich.
fn split_zone(text: &str) -> Result<(&str, i64), Wrong> {
    if let Some(time) = text.strip_suffix(['Z', 'z']) {
        return Ok((time.trim_end(), 0));
    }
    let Some(at) = text.find(['+', '-']) else { return Ok((text, 0)) };
    const FORM: Wrong = "expected a time zone such as +02 or -03:30 (names of zones are not known)";
    let mut parts = text[at + 1..].splitn(3, ':');
    let hours = parts.next().and_then(|p| digits(p, 1, 2)).ok_or(FORM)?;
    let mut next = || parts.next().map_or(Some(0), |p| digits(p, 2, 2)).filter(|&n| n < 60).ok_or(FORM);
    let seconds = hours * 3600 + next()? * 60 + next()?;
    if hours > 15 {
        return Err(FORM);
    }
    let sign = if text.as_bytes()[at] == b'-' { -1 } else { 1 };
    Ok((text[..at].trim_end(), sign * seconds * 1_000_000))
}

/// A `boolean` as the server reads it: any beginning of its words that is clear.
pub(super) fn boolean(text: &str) -> Result<bool, Wrong> {
    let text = text.trim().to_ascii_lowercase();
    let begins = |word: &str| !text.is_empty() && word.starts_with(&text);
    match text.as_str() {
        "on" | "1" => Ok(true),
        "off" | "of" | "0" => Ok(false),
        _ if begins("true") || begins("yes") => Ok(true),
        _ if begins("false") || begins("no") => Ok(false),
        _ => Err("expected true or false"),
    }
}

/// A `uuid`: 32 hexadecimal digits, hyphens behind any four of them, braces around all.
pub(super) fn uuid(text: &str) -> Result<u128, Wrong> {
    const FORM: Wrong = "expected 32 hexadecimal digits in groups with hyphens";
    let inner = match text.strip_prefix('{') {
        Some(rest) => rest.strip_suffix('}').ok_or(FORM)?,
        None => text,
    };
    let (mut value, mut count) = (0u128, 0);
    let mut hyphen_allowed = false;
    for character in inner.chars() {
        match character.to_digit(16) {
            Some(digit) if count < 32 => {
                value = value << 4 | u128::from(digit);
                count += 1;
                hyphen_allowed = count % 4 == 0 && count < 32;
            }
            None if character == '-' && hyphen_allowed => hyphen_allowed = false,
            _ => return Err(FORM),
        }
    }
    if count == 32 { Ok(value) } else { Err(FORM) }
}

/// A `bytea`: `\x` and hexadecimal digits, or bytes with `\\` and `\ooo`.
pub(super) fn bytea(text: &str) -> Result<Vec<u8>, Wrong> {
    if let Some(hex) = text.strip_prefix("\\x") {
        let mut digits = Vec::with_capacity(hex.len());
        for character in hex.chars().filter(|c| !c.is_ascii_whitespace()) {
            digits.push(character.to_digit(16).ok_or("not a hexadecimal digit")? as u8);
        }
        if digits.len() % 2 != 0 {
            return Err("odd number of hexadecimal digits");
        }
        return Ok(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    loop {
        rest = match rest {
            [] => return Ok(out),
            [b'\\', b'\\', rest @ ..] => {
                out.push(b'\\');
                rest
            }
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..] => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest
            }
            [b'\\', ..] => return Err("expected \\\\ or a backslash with three octal digits"),
            [byte, rest @ ..] => {
                out.push(*byte);
                rest
            }
        };
    }
}

/// A float, `NaN`, `Infinity`; as the server, refuses what is too large or too small to be told from zero.
pub(super) fn float8(text: &str) -> Result<f64, Wrong> {
    let value: f64 = plain_float(text)?.parse().map_err(|_| "not a number")?;
    in_range(text, value, value == 0.0)
}

/// As [`float8`], rounded to `real`.
pub(super) fn float4(text: &str) -> Result<f64, Wrong> {
    let value: f32 = plain_float(text)?.parse().map_err(|_| "not a number")?;
    in_range(text, f64::from(value), value == 0.0)
}

fn plain_float(text: &str) -> Result<&str, Wrong> {
    let text = text.trim();
    let unsigned = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let word = matches!(unsigned.as_str(), "nan" | "inf" | "infinity");
    let plain = unsigned.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'+' | b'-'));
    if word || plain { Ok(text) } else { Err("not a number") }
}

fn in_range(text: &str, value: f64, is_zero: bool) -> Result<f64, Wrong> {
    let mantissa = text.split(['e', 'E']).next().unwrap_or("");
    let has_digit = |wanted: fn(&u8) -> bool| mantissa.bytes().any(|b| wanted(&b));
    let too_large = value.is_infinite() && has_digit(u8::is_ascii_digit);
    let too_small = is_zero && has_digit(|b| (b'1'..=b'9').contains(b));
    if too_large || too_small { Err("out of range") } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_times() {
        for (text, days) in [
            ("2000-01-01", 0),
            ("2000-02-29", 59),
            ("1999-12-31", -1),
            ("0001-01-01", -730_119),
            ("0001-12-31 BC", -730_120),
            ("4714-11-24 bc", -2_451_545),
            ("5874897-12-31", 2_145_031_948),
            ("epoch", -10_957),
            ("infinity", i32::MAX),
        ] {
            assert_eq!(date(text), Ok(days), "{text}");
        }
        for text in ["", "2000", "01-02-03", "2001-02-29", "2000-13-01", "0000-01-01", "5874898-01-01", "2000-1-1x"] {
            assert!(date(text).is_err(), "{text}");
        }
        for (text, micros) in [
            ("2000-01-01", 0),
            ("2000-01-01 00:00:00.000001", 1),
            ("2000-01-01T01:02", 3_720_000_000),
            ("1999-12-31 24:00", 0),
            ("294276-12-31 23:59:59.999999", TIMESTAMP_END - 1),
        ] {
            assert_eq!(timestamp(text, false), Ok(micros), "{text}");
        }
        assert_eq!(timestamp("2000-01-01 02:00+02", true), Ok(0));
        assert_eq!(timestamp("1999-12-31 20:30:00 -03:30", true), Ok(0));
        assert_eq!(timestamp("2000-01-01 00:00Z", true), Ok(0));
        for text in ["2000-01-01 25:00", "2000-01-01 00:00+02", "2000-01-01 1", "294277-01-01", "x"] {
            assert!(timestamp(text, false).is_err(), "{text}");
        }
        assert!(timestamp("2000-01-01 00:00 Europe/Berlin", true).is_err());
        assert_eq!(time("23:59:59.5"), Ok(86_399_500_000));
        assert!(time("24:00:01").is_err() && time("1").is_err());
    }

    #[test]
    fn other_types() {
        assert_eq!(uuid("{A0EEBC99-9C0B4EF8-BB6D6BB9-BD380A11}"), uuid("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"));
        assert!(uuid("a0eebc99").is_err() && uuid("a0-eebc999c0b4ef8bb6d6bb9bd380a11").is_err());
        assert_eq!(bytea("\\x00fF"), Ok(vec![0, 255]));
        assert_eq!(bytea("a\\\\b\\001"), Ok(b"a\\b\x01".to_vec()));
        assert!(bytea("\\x0").is_err() && bytea("\\9").is_err());
        assert_eq!((boolean("T"), boolean("off"), boolean("1")), (Ok(true), Ok(false), Ok(true)));
        assert!(boolean("o").is_err() && boolean("").is_err());
        assert_eq!(float8(" -1.5e3 "), Ok(-1500.0));
        assert!(float8("NaN").is_ok_and(f64::is_nan));
        assert!(float8("1e999").is_err() && float8("1e-999").is_err() && float8("0e-999").is_ok());
        assert!(float4("1e39").is_err() && float8("abc").is_err() && float8("").is_err());
    }
}
