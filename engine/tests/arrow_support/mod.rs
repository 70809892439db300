//! Arrow values as COPY prints them, written from the formats' definitions and not with heapscan's code.

use arrow_array::{
    Array, ArrayRef, RecordBatch,
    cast::AsArray,
    types::{
        Date32Type, Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
        Time64MicrosecondType, TimestampMicrosecondType, UInt32Type,
    },
};
use arrow_schema::{DataType, Field, TimeUnit};
use heapscan::arrow::METADATA_TYPE;
use std::fmt::Write;

/// The rows of a batch, each a list of fields; `None` is NULL.
pub(crate) fn rows(batch: &RecordBatch) -> Vec<Vec<Option<Vec<u8>>>> {
    let cell = |column: &ArrayRef, row| (!column.is_null(row)).then(|| text(column, row));
    (0..batch.num_rows()).map(|row| batch.columns().iter().map(|column| cell(column, row)).collect()).collect()
}

fn text(column: &ArrayRef, row: usize) -> Vec<u8> {
    match column.data_type() {
        DataType::Boolean => if column.as_boolean().value(row) { "t" } else { "f" }.into(),
        DataType::Int16 => column.as_primitive::<Int16Type>().value(row).to_string().into_bytes(),
        DataType::Int32 => column.as_primitive::<Int32Type>().value(row).to_string().into_bytes(),
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string().into_bytes(),
        DataType::UInt32 => column.as_primitive::<UInt32Type>().value(row).to_string().into_bytes(),
        DataType::Float32 => {
            let value = column.as_primitive::<Float32Type>().value(row);
            float(f64::from(value), &format!("{value:e}"), 6)
        }
        DataType::Float64 => {
            let value = column.as_primitive::<Float64Type>().value(row);
            float(value, &format!("{value:e}"), 15)
        }
        DataType::Decimal128(_, scale) => {
            decimal(&column.as_primitive::<Decimal128Type>().value(row).to_string(), *scale)
        }
        DataType::Decimal256(_, scale) => {
            decimal(&column.as_primitive::<Decimal256Type>().value(row).to_string(), *scale)
        }
        DataType::Date32 => date_column(column.as_primitive::<Date32Type>().value(row)),
        DataType::Time64(TimeUnit::Microsecond) => {
            time(column.as_primitive::<Time64MicrosecondType>().value(row)).into_bytes()
        }
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            let zone = zone.as_ref().map_or("", |zone| if **zone == *"UTC" { "+00" } else { "?" });
            timestamp(column.as_primitive::<TimestampMicrosecondType>().value(row), zone)
        }
        DataType::Utf8 => column.as_string::<i32>().value(row).as_bytes().to_vec(),
        DataType::Binary => [b"\\x".to_vec(), hex(column.as_binary::<i32>().value(row))].concat(),
        DataType::FixedSizeBinary(16) => {
            let digits = hex(column.as_fixed_size_binary().value(row));
            [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join(&b'-')
        }
        DataType::Dictionary(..) => {
            let dictionary = column.as_dictionary::<Int32Type>();
            text(dictionary.values(), dictionary.keys().value(row) as usize)
        }
        DataType::List(_) => list(column, row),
        other => panic!("a column of {other}"),
    }
}

/// `{...}` as array_out writes lists.
fn list(column: &ArrayRef, row: usize) -> Vec<u8> {
    let values = column.as_list::<i32>().value(row);
    let mut out = vec![b'{'];
    for i in 0..values.len() {
        if i > 0 {
            out.push(b',');
        }
        if values.is_null(i) {
            out.extend(b"NULL");
            continue;
        }
        let value = text(&values, i);
        let special = |c: &u8| b"\"\\{},".contains(c) || matches!(c, b' ' | b'\t'..=b'\r');
        if value.is_empty() || value.eq_ignore_ascii_case(b"null") || value.iter().any(special) {
            out.push(b'"');
            for c in value {
                if matches!(c, b'"' | b'\\') {
                    out.push(b'\\');
                }
                out.push(c);
            }
            out.push(b'"');
        } else {
            out.extend(value);
        }
    }
    out.push(b'}');
    out
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|b| format!("{b:02x}").into_bytes()).collect()
}

/// The shortest digits, fixed for exponents from -4 up to `limit`, as float8out writes them.
fn float(value: f64, scientific: &str, limit: i32) -> Vec<u8> {
    if value.is_nan() {
        return b"NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { b"Infinity".into() } else { b"-Infinity".into() };
    }
    let (mantissa, exponent) = scientific.split_once('e').expect("an exponent");
    let exponent: i32 = exponent.parse().expect("a number");
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    if !(-4..limit).contains(&exponent) {
        let e = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{mantissa}e{e}{:02}", exponent.abs()).into_bytes();
    }
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    let point = exponent + 1;
    let fixed = if point <= 0 {
        format!("0.{}{digits}", "0".repeat(-point as usize))
    } else if digits.len() <= point as usize {
        format!("{digits}{}", "0".repeat(point as usize - digits.len()))
    } else {
        format!("{}.{}", &digits[..point as usize], &digits[point as usize..])
    };
    format!("{sign}{}", if value == 0.0 { "0".to_owned() } else { fixed }).into_bytes()
}

/// An integer, shifted by `scale` digits.
fn decimal(integer: &str, scale: i8) -> Vec<u8> {
    let (sign, digits) = integer.strip_prefix('-').map_or(("", integer), |rest| ("-", rest));
    let text = match scale {
        ..=0 if digits == "0" => digits.to_owned(),
        ..=0 => format!("{digits}{}", "0".repeat(usize::from(scale.unsigned_abs()))),
        _ => {
            let scale = usize::from(scale.unsigned_abs());
            let digits = format!("{digits:0>width$}", width = scale + 1);
            let (whole, fraction) = digits.split_at(digits.len() - scale);
            format!("{whole}.{fraction}")
        }
    };
    format!("{sign}{text}").into_bytes()
}

/// Year (0 is 1 BC), month and day of a number of days since 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    // Years begin in March here, so that the leap day is their last one.
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let in_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * in_year + 2) / 153;
    let date = in_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, date)
}

/// The date, and what follows behind the time when it is before Christ.
fn date(days: i64) -> (String, &'static str) {
    let (year, month, day) = civil(days);
    let (year, suffix) = if year > 0 { (year, "") } else { (1 - year, " BC") };
    (format!("{year:04}-{month:02}-{day:02}"), suffix)
}

fn date_column(days: i32) -> Vec<u8> {
    match days {
        i32::MAX => b"infinity".into(),
        i32::MIN => b"-infinity".into(),
        days => {
            let (date, suffix) = date(days.into());
            (date + suffix).into_bytes()
        }
    }
}

fn time(micros: i64) -> String {
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let mut text = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction != 0 {
        write!(text, ".{fraction:06}").expect("a string");
        text.truncate(text.trim_end_matches('0').len());
    }
    text
}

fn timestamp(micros: i64, zone: &str) -> Vec<u8> {
    const DAY: i64 = 86_400_000_000;
    match micros {
        i64::MAX => b"infinity".into(),
        i64::MIN => b"-infinity".into(),
        micros => {
            let (date, suffix) = date(micros.div_euclid(DAY));
            format!("{date} {}{zone}{suffix}", time(micros.rem_euclid(DAY))).into_bytes()
        }
    }
}

/// What the lenient options replace, and the one text that differs from older servers'.
pub(crate) fn stands_for(have: &[u8], wanted: &[u8], field: &Field) -> bool {
    match field.data_type() {
        DataType::Decimal128(..) | DataType::Decimal256(..) => have == b"\\N" && wanted == b"NaN",
        // The server takes 9.999999999999999e+22 for 1e23, whose float it is too: the shortest of both is not its rule.
        DataType::Float64 => have == b"1e+23" && wanted == b"9.999999999999999e+22",
        // Unix microseconds end in 294247.
        DataType::Timestamp(..) => have == b"infinity" && wanted.starts_with(b"29427"),
        // Before PostgreSQL 15, bytes above 127 were printed as they are, which is no UTF-8.
        DataType::List(item) => list_stands_for(have, wanted, item),
        DataType::Utf8 if field.metadata()[METADATA_TYPE] == "char" => {
            matches!(wanted, [byte @ (128..)] if format!("\\\\{byte:03o}").as_bytes() == have)
        }
        _ => false,
    }
}

/// Values in lists: what policies replaced, and the delimiter of boxes.
fn list_stands_for(have: &[u8], wanted: &[u8], item: &Field) -> bool {
    let (have, wanted) = (String::from_utf8_lossy(have).into_owned(), String::from_utf8_lossy(wanted).into_owned());
    match item.data_type() {
        DataType::Decimal128(..) | DataType::Decimal256(..) => have == wanted.replace("NaN", "NULL"),
        DataType::Float64 => have == wanted.replace("9.999999999999999e+22", "1e+23"),
        DataType::Timestamp(..) => wanted.contains("29427") && have.contains("infinity"),
        // Boxes have commas, and arrays of them semicolons, so that the server quotes none.
        DataType::Utf8 if wanted.starts_with("{(") || wanted.contains(';') => {
            have.replace(['"', ',', ';'], "") == wanted.replace(['"', ',', ';'], "")
        }
        _ => false,
    }
}
