//! inet, cidr, macaddr and macaddr8.

use super::{
    digits::{push_hex, push_hex_number, push_u32},
    nested::{Bad, Text, bad},
};

/// Appends an inet or cidr: family, bits of the netmask, address. `cidr` always shows the netmask, inet only when it
/// is not that of a single host.
pub(super) fn write(payload: &[u8], cidr: bool, out: &mut Vec<u8>) -> Text {
    const FAMILY_IPV4: u8 = 2;
    const FAMILY_IPV6: u8 = 3;
    let (max, bits) = match payload {
        // Values written by old servers can be longer than they need to be.
        [FAMILY_IPV4, bits, a, b, c, d, ..] => {
            push_ipv4([*a, *b, *c, *d], out);
            (32, *bits)
        }
        [FAMILY_IPV6, bits, address @ ..] => {
            let address = address.first_chunk::<16>().ok_or(bad("an IPv6 address is too short"))?;
            push_ipv6(address, out);
            (128, *bits)
        }
        _ => return Err(bad("a network address is of no known family")),
    };
    if bits > max {
        return Err(bad("a netmask has too many bits"));
    }
    if cidr || bits != max {
        out.push(b'/');
        push_u32(bits.into(), out);
    }
    Ok(())
}

fn push_ipv4(address: [u8; 4], out: &mut Vec<u8>) {
    for (i, byte) in address.into_iter().enumerate() {
        if i > 0 {
            out.push(b'.');
        }
        push_u32(byte.into(), out);
    }
}

/// The longest run of at least two zero words (the first of equals) is `::`; an IPv4 address behind it is shown as one.
fn push_ipv6(address: &[u8; 16], out: &mut Vec<u8>) {
    let word = |i: usize| u16::from_be_bytes([address[2 * i], address[2 * i + 1]]);
    let (mut best, mut run) = (0..0, 0);
    for i in 0..8 {
        run = if word(i) == 0 { run + 1 } else { 0 };
        if run >= 2 && run > best.len() {
            best = i + 1 - run..i + 1;
        }
    }
    let ipv4 =
        best.start == 0 && (best.len() == 6 || best.len() == 7 && word(7) != 1 || best.len() == 5 && word(5) == 0xffff);
    let mut i = 0;
    while i < 8 {
        if i == best.start && !best.is_empty() {
            out.extend_from_slice(b"::");
            i = best.end;
            continue;
        }
        if i > 0 && i != best.end {
            out.push(b':');
        }
        if ipv4 && i == 6 {
            return push_ipv4([address[12], address[13], address[14], address[15]], out);
        }
        push_hex_number(word(i).into(), false, out);
        i += 1;
    }
}

/// Appends a macaddr (6 bytes) or macaddr8 (8 bytes).
pub(super) fn write_mac<const N: usize>(address: Result<[u8; N], Bad>, out: &mut Vec<u8>) -> Text {
    for (i, byte) in address?.into_iter().enumerate() {
        if i > 0 {
            out.push(b':');
        }
        push_hex(&[byte], out);
    }
    Ok(())
}
