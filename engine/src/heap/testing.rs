//! Hand-made values, tuples and pages for the tests of this crate.

use super::{ToastPointer, checksum::page_checksum, infomask};

/// Block size of the pages made here.
pub(crate) const BLOCK_SIZE: usize = 8192;

/// A varlena with a 1-byte header.
pub(crate) fn short(payload: &[u8]) -> Vec<u8> {
    let mut value = vec![((payload.len() + 1) << 1 | 1) as u8];
    value.extend(payload);
    value
}

/// A varlena with a 4-byte header.
pub(crate) fn long(payload: &[u8]) -> Vec<u8> {
    let mut value = (((payload.len() + 4) << 2) as u32).to_le_bytes().to_vec();
    value.extend(payload);
    value
}

/// A varlena compressed in place by method number `id`.
pub(crate) fn compressed(id: u32, raw_size: u32, data: &[u8]) -> Vec<u8> {
    let mut value = (((data.len() + 8) << 2) as u32 | 2).to_le_bytes().to_vec();
    value.extend((id << 30 | raw_size).to_le_bytes());
    value.extend(data);
    value
}

/// A pointer to TOAST.
pub(crate) fn external(pointer: &ToastPointer) -> Vec<u8> {
    let mut value = vec![1, 18];
    value.extend(pointer.raw_size.to_le_bytes());
    value.extend(((pointer.method as u32) << 30 | pointer.external_size).to_le_bytes());
    value.extend(pointer.value_id.to_le_bytes());
    value.extend(pointer.toast_relation.to_le_bytes());
    value
}

/// What a tuple is made of.
#[derive(Clone, Debug)]
pub(crate) struct TupleSpec {
    pub(crate) xmin: u32,
    pub(crate) xmax: u32,
    pub(crate) field3: u32,
    pub(crate) infomask: u16,
    pub(crate) natts: u16,
    /// One `bool` an attribute: is it there? Empty: no bitmap.
    pub(crate) present: Vec<bool>,
    /// The values with their padding.
    pub(crate) data: Vec<u8>,
}

impl Default for TupleSpec {
    fn default() -> Self {
        Self {
            xmin: 2,
            xmax: 0,
            field3: 0,
            infomask: infomask::XMIN_FROZEN | infomask::XMAX_INVALID,
            natts: 0,
            present: Vec::new(),
            data: Vec::new(),
        }
    }
}

impl TupleSpec {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bitmap = vec![0u8; self.present.len().div_ceil(8)];
        for (i, _) in self.present.iter().enumerate().filter(|(_, present)| **present) {
            bitmap[i / 8] |= 1 << (i % 8);
        }
        let mask = self.infomask | if bitmap.is_empty() { 0 } else { infomask::HASNULL };
        let hoff = (23 + bitmap.len()).next_multiple_of(8);
        let mut bytes = Vec::new();
        bytes.extend(self.xmin.to_le_bytes());
        bytes.extend(self.xmax.to_le_bytes());
        bytes.extend(self.field3.to_le_bytes());
        bytes.extend([0, 0, 0, 0, 1, 0]);
        bytes.extend(self.natts.to_le_bytes());
        bytes.extend(mask.to_le_bytes());
        bytes.push(hoff as u8);
        bytes.extend(&bitmap);
        bytes.resize(hoff, 0);
        bytes.extend(&self.data);
        bytes
    }
}

/// A line pointer as it lies on the page.
pub(crate) fn line_pointer(offset: usize, flags: u32, length: usize) -> [u8; 4] {
    (offset as u32 | flags << 15 | (length as u32) << 17).to_le_bytes()
}

/// A page with these tuples at line pointers 1, 2, ..., without checksum.
pub(crate) fn page(tuples: &[Vec<u8>], flags: u16) -> Vec<u8> {
    let mut page = vec![0; BLOCK_SIZE];
    let mut upper = BLOCK_SIZE;
    for (i, tuple) in tuples.iter().enumerate() {
        upper = (upper - tuple.len()) & !7;
        page[upper..upper + tuple.len()].copy_from_slice(tuple);
        page[24 + 4 * i..28 + 4 * i].copy_from_slice(&line_pointer(upper, 1, tuple.len()));
    }
    put(&mut page, 10, flags);
    put(&mut page, 12, (24 + 4 * tuples.len()) as u16);
    put(&mut page, 14, upper as u16);
    put(&mut page, 16, BLOCK_SIZE as u16);
    put(&mut page, 18, BLOCK_SIZE as u16 | 4);
    page
}

/// Overwrites two bytes.
pub(crate) fn put(page: &mut [u8], at: usize, value: u16) {
    page[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Writes the checksum that the page has at `block`.
pub(crate) fn seal(page: &mut [u8], block: u32) {
    let checksum = page_checksum(page, block);
    put(page, 8, checksum);
}
