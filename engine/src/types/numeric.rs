//! numeric: base-10000 digits behind a short or a long header (`src/backend/utils/adt/numeric.c`).

use super::{
    digits::quad,
    nested::{Bad, Text, bad, u16_at},
};

/// A numeric whose header was read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Numeric<'a> {
    /// Not a number.
    NaN,
    /// `Infinity` (from PostgreSQL 14 on).
    Infinity,
    /// `-Infinity`.
    NegativeInfinity,
    /// An ordinary number.
    Finite {
        /// Below zero.
        negative: bool,
        /// Exponent of the first digit, to the base of 10,000.
        weight: i16,
        /// How many decimal digits are shown behind the point.
        dscale: u16,
        /// Base-10000 digits, two bytes each.
        digits: &'a [u8],
    },
}

impl<'a> Numeric<'a> {
    /// Reads the header of `payload` (without varlena header).
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Bad> {
        let header = u16_at(payload, 0)?;
        let (negative, weight, dscale, digits) = match header & 0xc000 {
            0xc000 => {
                return match header & 0xf000 {
                    0xc000 => Ok(Self::NaN),
                    0xd000 => Ok(Self::Infinity),
                    0xf000 => Ok(Self::NegativeInfinity),
                    _ => Err(bad("a numeric has an unknown special form")),
                };
            }
            0x8000 => {
                // Seven bits with sign.
                let weight = ((header << 9) as i16) >> 9;
                (header & 0x2000 != 0, weight, (header & 0x1f80) >> 7, &payload[2..])
            }
            sign => {
                let weight = u16_at(payload, 2)? as i16;
                (sign != 0, weight, header & 0x3fff, &payload[4..])
            }
        };
        if !digits.len().is_multiple_of(2) {
            return Err(bad("a numeric ends in the middle of a digit"));
        }
        Ok(Self::Finite { negative, weight, dscale, digits })
    }

    /// Appends the text.
    pub(crate) fn write(self, out: &mut Vec<u8>) -> Text {
        match self {
            Self::NaN => out.extend_from_slice(b"NaN"),
            Self::Infinity => out.extend_from_slice(b"Infinity"),
            Self::NegativeInfinity => out.extend_from_slice(b"-Infinity"),
            Self::Finite { negative, weight, dscale, digits } => {
                return write_finite(negative, weight.into(), dscale.into(), digits, out);
            }
        }
        Ok(())
    }
}

/// The digit of weight `weight - at`, zero outside of the stored ones.
fn digit(digits: &[u8], at: i32) -> Result<u32, Bad> {
    let Ok(at) = usize::try_from(at) else { return Ok(0) };
    match digits.get(at * 2..at * 2 + 2) {
        Some(&[low, high]) => match u16::from_le_bytes([low, high]) {
            digit @ 0..=9999 => Ok(digit.into()),
            _ => Err(bad("a numeric has a digit above 9999")),
        },
        _ => Ok(0),
    }
}

fn write_finite(negative: bool, weight: i32, dscale: usize, digits: &[u8], out: &mut Vec<u8>) -> Text {
    if negative {
        out.push(b'-');
    }
    if weight < 0 {
        out.push(b'0');
    } else {
        let first = quad(digit(digits, 0)?);
        let zeros = first.iter().take(3).take_while(|&&c| c == b'0').count();
        out.extend_from_slice(&first[zeros..]);
        for at in 1..=weight {
            out.extend_from_slice(&quad(digit(digits, at)?));
        }
    }
    if dscale > 0 {
        out.push(b'.');
        let end = out.len() + dscale;
        let mut at = weight + 1;
        while out.len() < end {
            out.extend_from_slice(&quad(digit(digits, at)?));
            at += 1;
        }
        out.truncate(end);
    }
    Ok(())
}

/// Appends the text of the numeric in `payload`.
pub(super) fn write(payload: &[u8], out: &mut Vec<u8>) -> Text {
    Numeric::parse(payload)?.write(out)
}
