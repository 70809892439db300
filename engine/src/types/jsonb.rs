//! jsonb: a tree of containers (`src/include/utils/jsonb.h`) to its canonical text.

use super::{
    copy::escape_json,
    nested::{Bad, SmallStack, Text, align_up, bad, check_size, u32_at, varlena},
    numeric,
};

const COUNT_MASK: u32 = 0x0fff_ffff;
const SCALAR: u32 = 0x1000_0000;
const OBJECT: u32 = 0x2000_0000;
const ARRAY: u32 = 0x4000_0000;

const ENTRY_TYPE: u32 = 0x7000_0000;
const ENTRY_NUMERIC: u32 = 0x1000_0000;
const ENTRY_FALSE: u32 = 0x2000_0000;
const ENTRY_TRUE: u32 = 0x3000_0000;
const ENTRY_NULL: u32 = 0x4000_0000;
const ENTRY_CONTAINER: u32 = 0x5000_0000;
/// The entry holds where its value ends, not how long it is.
const ENTRY_HAS_OFFSET: u32 = 0x8000_0000;

/// A container that is being written. Positions are those in the payload.
#[derive(Clone, Copy)]
struct Container {
    /// Elements, or pairs of an object.
    count: usize,
    /// How many were written.
    done: usize,
    object: bool,
    scalar: bool,
    /// Where the entries begin.
    entries: usize,
    /// Where the values begin; entries count from here.
    base: usize,
    /// End of the container.
    end: usize,
    /// Where the next key begins, from `base`.
    key: usize,
    /// Where the next value or element begins, from `base`.
    value: usize,
}

impl Container {
    /// Reads the header of the container in `payload[at..end]`.
    fn open(payload: &[u8], at: usize, end: usize) -> Result<Self, Bad> {
        let header = u32_at(&payload[..end], at)?;
        let (count, object) = ((header & COUNT_MASK) as usize, header & OBJECT != 0);
        if object == (header & ARRAY != 0) {
            return Err(bad("a jsonb container is neither array nor object"));
        }
        let entries = at + 4;
        let base = entries.saturating_add(count * if object { 8 } else { 4 });
        if base > end {
            return Err(bad("a jsonb container is larger than the value"));
        }
        let scalar = header & SCALAR != 0;
        if scalar && (object || count != 1) {
            return Err(bad("a jsonb scalar is not alone"));
        }
        let mut container = Self { count, done: 0, object, scalar, entries, base, end, key: 0, value: 0 };
        if object {
            // Values lie behind all keys.
            for key in 0..count {
                container.value = container.entry(payload, key, container.value)?.1;
            }
        }
        Ok(container)
    }

    /// Entry `index`, whose value begins at `start`, and where its value ends.
    fn entry(&self, payload: &[u8], index: usize, start: usize) -> Result<(u32, usize), Bad> {
        let entry = u32_at(payload, self.entries + index * 4)?;
        let length = (entry & COUNT_MASK) as usize;
        let end = if entry & ENTRY_HAS_OFFSET != 0 { length } else { start + length };
        if end < start || end > self.end - self.base {
            return Err(bad("a jsonb entry lies outside its container"));
        }
        Ok((entry, end))
    }
}

/// Appends the text.
pub(super) fn write(payload: &[u8], out: &mut Vec<u8>) -> Text {
    // Depth is limited by the payload only (a level takes at least eight bytes), so no recursion.
    let mut stack = SmallStack::<Container, 8>::new();
    let text = out.len();
    let mut current = begin(payload, 0, payload.len(), out)?;
    loop {
        if current.done == current.count {
            match (current.scalar, current.object) {
                (true, _) => {}
                (_, true) => out.push(b'}'),
                (_, false) => out.push(b']'),
            }
            match stack.pop() {
                Some(outer) => current = outer,
                None => return Ok(()),
            }
            continue;
        }
        if current.done > 0 {
            out.extend_from_slice(b", ");
        }
        check_size(out, text)?;
        if let Some((at, end)) = item(payload, &mut current, out)? {
            stack.push(current);
            current = begin(payload, at, end, out)?;
        }
    }
}

fn begin(payload: &[u8], at: usize, end: usize, out: &mut Vec<u8>) -> Result<Container, Bad> {
    let container = Container::open(payload, at, end)?;
    match (container.scalar, container.object) {
        (true, _) => {}
        (_, true) => out.push(b'{'),
        (_, false) => out.push(b'['),
    }
    Ok(container)
}

/// Appends the next element or pair; a container is not entered, but returned.
fn item(payload: &[u8], container: &mut Container, out: &mut Vec<u8>) -> Result<Option<(usize, usize)>, Bad> {
    let mut index = container.done;
    container.done += 1;
    if container.object {
        let (entry, end) = container.entry(payload, index, container.key)?;
        if entry & ENTRY_TYPE != 0 {
            return Err(bad("a jsonb key is not a string"));
        }
        string(&payload[container.base + container.key..container.base + end], out);
        out.extend_from_slice(b": ");
        container.key = end;
        index += container.count;
    }
    let start = container.value;
    let (entry, end) = container.entry(payload, index, start)?;
    container.value = end;
    let (start, end) = (container.base + start, container.base + end);
    match entry & ENTRY_TYPE {
        0 => string(&payload[start..end], out),
        ENTRY_NUMERIC => numeric::write(varlena(&payload[..end], align_up(start, 4))?.0, out)?,
        ENTRY_FALSE => out.extend_from_slice(b"false"),
        ENTRY_TRUE => out.extend_from_slice(b"true"),
        ENTRY_NULL => out.extend_from_slice(b"null"),
        ENTRY_CONTAINER => return Ok(Some((align_up(start, 4), end))),
        _ => return Err(bad("a jsonb entry is of no known type")),
    }
    Ok(None)
}

fn string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    escape_json(text, out);
    out.push(b'"');
}
