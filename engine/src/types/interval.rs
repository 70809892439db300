//! interval in IntervalStyle postgres: `1 year 2 mons -3 days +04:05:06.7`.

use super::{
    datetime::push_fraction,
    digits::{push_i64, push_padded},
    nested::{Text, exactly},
};

/// Appends an interval: microseconds (8 bytes), days (4), months (4). `infinite`: the server knows infinite intervals
/// (PostgreSQL 17 and later).
pub(super) fn write(payload: &[u8], infinite: bool, out: &mut Vec<u8>) -> Text {
    let [t0, t1, t2, t3, t4, t5, t6, t7, d0, d1, d2, d3, m0, m1, m2, m3] = exactly::<16>(payload)?;
    let micros = i64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
    let days = i32::from_le_bytes([d0, d1, d2, d3]);
    let months = i32::from_le_bytes([m0, m1, m2, m3]);
    match (infinite, micros, days, months) {
        (true, i64::MAX, i32::MAX, i32::MAX) => out.extend_from_slice(b"infinity"),
        (true, i64::MIN, i32::MIN, i32::MIN) => out.extend_from_slice(b"-infinity"),
        _ => write_finite(micros, days, months, out),
    }
    Ok(())
}

fn write_finite(micros: i64, days: i32, months: i32, out: &mut Vec<u8>) {
    let start = out.len();
    // A positive part behind a negative one shows its sign.
    let mut negative_before = false;
    for (value, unit) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
        if value == 0 {
            continue;
        }
        if out.len() > start {
            out.push(b' ');
        }
        if negative_before && value > 0 {
            out.push(b'+');
        }
        push_i64(value.into(), out);
        out.push(b' ');
        out.extend_from_slice(unit.as_bytes());
        if value != 1 {
            out.push(b's');
        }
        negative_before = value < 0;
    }
    if out.len() > start && micros == 0 {
        return;
    }
    if out.len() > start {
        out.push(b' ');
    }
    if micros < 0 {
        out.push(b'-');
    } else if negative_before {
        out.push(b'+');
    }
    let micros = micros.unsigned_abs();
    let seconds = micros / 1_000_000;
    push_padded(seconds / 3600, 2, out);
    out.push(b':');
    push_padded(seconds / 60 % 60, 2, out);
    out.push(b':');
    push_padded(seconds % 60, 2, out);
    push_fraction((micros % 1_000_000) as u32, out);
}
