//! bit and varbit: a length in bits, then the bits, the first in the highest bit of the first byte.

use super::nested::{Text, bad, u32_at};

/// Appends `0` and `1` for each bit.
pub(super) fn write(payload: &[u8], out: &mut Vec<u8>) -> Text {
    let bits = u32_at(payload, 0)? as usize;
    let data = &payload[4..];
    if data.len() < bits.div_ceil(8) {
        return Err(bad("a bit string has fewer bits than it says"));
    }
    out.reserve(bits);
    let start = out.len();
    for byte in &data[..bits.div_ceil(8)] {
        out.extend((0..8).map(|bit| b'0' + (byte >> (7 - bit) & 1)));
    }
    out.truncate(start + bits);
    Ok(())
}
