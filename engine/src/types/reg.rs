//! Types that print names out of the catalogs: reg*, aclitem, enums.

use super::{
    digits::push_u32,
    nested::{Bad, Text, bytes, exactly, u32_at, u64_at},
};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Names by oid, shared by all columns of a type.
pub(super) type Names = Arc<FxHashMap<u32, Box<str>>>;

/// Oid of `regrole`, whose names are those that aclitems show.
pub(super) const REGROLE: u32 = 4096;

/// The reg type that an output function prints, and what it prints for oid 0.
pub(super) fn reg_type(output: u32) -> Option<(u32, u8)> {
    Some(match output {
        45 => (24, b'-'),
        2213 => (2202, b'-'),
        // regoper and regoperator.
        2215 => (2203, b'0'),
        2217 => (2204, b'0'),
        2219 => (2205, b'-'),
        2221 => (2206, b'-'),
        3737 => (3734, b'-'),
        3772 => (3769, b'-'),
        4085 => (4089, b'-'),
        4092 => (REGROLE, b'-'),
        4194 => (4191, b'-'),
        _ => return None,
    })
}

/// Appends the name of the object, or its oid when there is no such object (any more).
pub(super) fn write(payload: &[u8], names: &Names, none: u8, out: &mut Vec<u8>) -> Text {
    match u32::from_le_bytes(exactly(payload)?) {
        0 => out.push(none),
        oid => match names.get(&oid) {
            Some(name) => out.extend_from_slice(name.as_bytes()),
            None => push_u32(oid, out),
        },
    }
    Ok(())
}

/// Appends the label of an enum.
pub(super) fn write_enum(payload: &[u8], labels: &Names, out: &mut Vec<u8>) -> Text {
    let oid = u32::from_le_bytes(exactly(payload)?);
    let label = labels.get(&oid).ok_or(Bad { what: "pg_enum has no label with oid", number: Some(oid) })?;
    out.extend_from_slice(label.as_bytes());
    Ok(())
}

/// Letters of the privileges, lowest bit first (`src/include/utils/acl.h`).
const PRIVILEGES: &[u8] = b"arwdDxtXUCTcsAm";

/// Appends `grantee=privileges/grantor`. Up to PostgreSQL 15 privileges and grant options have 16 bits each, from 16 on
/// (`wide`) 32.
pub(super) fn write_acl(payload: &[u8], roles: &Names, wide: bool, out: &mut Vec<u8>) -> Text {
    let (privileges, options) = if wide {
        let bits = u64_at(&exactly::<16>(payload)?, 8)?;
        (bits as u32, (bits >> 32) as u32)
    } else {
        let bits = u32::from_le_bytes(bytes(&exactly::<12>(payload)?, 8)?);
        (bits & 0xffff, bits >> 16)
    };
    match u32_at(payload, 0)? {
        // PUBLIC has no name.
        0 => {}
        grantee => push_role(grantee, roles, out),
    }
    out.push(b'=');
    for (bit, &letter) in PRIVILEGES.iter().enumerate() {
        if privileges >> bit & 1 == 1 {
            out.push(letter);
        }
        if options >> bit & 1 == 1 {
            out.push(b'*');
        }
    }
    out.push(b'/');
    push_role(u32_at(payload, 4)?, roles, out);
    Ok(())
}

/// A role as aclitems show it, which is quoted for other reasons than names elsewhere: anything but ASCII letters,
/// digits and `_`.
fn push_role(oid: u32, roles: &Names, out: &mut Vec<u8>) {
    let Some(name) = roles.get(&oid) else { return push_u32(oid, out) };
    // As regrole prints it: in quotes, with inner quotes doubled, or bare.
    let quoted = name.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
    let inner = quoted.unwrap_or(name).as_bytes();
    if inner.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_') {
        out.extend_from_slice(inner);
    } else {
        // Inner quotes are doubled in both.
        out.push(b'"');
        out.extend_from_slice(inner);
        out.push(b'"');
    }
}
