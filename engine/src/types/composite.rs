//! Composite values: a whole heap tuple whose header was turned into that of a value
//! (`DatumTupleFields` in `src/include/access/htup_details.h`).

use super::{
    Form,
    nested::{Bad, Physical, Stored, Text, bad, check_size, is_space, quote_tail, u16_at},
};

/// The varlena header is the tuple header's first word and is not part of the payload.
const STRIPPED: usize = 4;
const INFOMASK2: usize = 18 - STRIPPED;
const INFOMASK: usize = 20 - STRIPPED;
const HOFF: usize = 22 - STRIPPED;
const BITMAP: usize = 23 - STRIPPED;
const HEAP_HASNULL: u16 = 1;
const NATTS_MASK: u16 = 0x07ff;

/// A column of a composite type.
#[derive(Clone, Debug)]
pub(super) struct Field {
    /// `None` for a dropped column: stored, but not shown.
    pub(super) form: Option<Form>,
    pub(super) physical: Physical,
    /// Value of tuples that are older than the column, with its varlena header.
    pub(super) missing: Option<Box<[u8]>>,
}

/// How the values of one composite type are printed.
#[derive(Clone, Debug)]
pub(super) struct RecordForm {
    pub(super) fields: Vec<Field>,
}

impl RecordForm {
    /// Appends `(a,b,...)`.
    pub(super) fn write(&self, payload: &[u8], out: &mut Vec<u8>) -> Text {
        // ALTER TYPE does not touch stored values: their own number of columns counts.
        let stored = usize::from(u16_at(payload, INFOMASK2)? & NATTS_MASK);
        let has_null = u16_at(payload, INFOMASK)? & HEAP_HASNULL != 0;
        let hoff = usize::from(*payload.get(HOFF).ok_or(bad("a composite value is too short"))?);
        let bitmap_len = if has_null { stored.div_ceil(8) } else { 0 };
        let data_at = hoff.checked_sub(STRIPPED).filter(|&at| at >= BITMAP + bitmap_len && at <= payload.len());
        let data = &payload[data_at.ok_or(bad("a composite value has an impossible header size"))?..];
        let bitmap = has_null.then(|| &payload[BITMAP..BITMAP + bitmap_len]);
        let (mut at, text) = (0, out.len());
        out.push(b'(');
        let mut first = true;
        for (i, field) in self.fields.iter().enumerate() {
            let value = if i >= stored {
                field.missing_value()?
            } else if bitmap.is_some_and(|bits| bits[i / 8] >> (i % 8) & 1 == 0) {
                None
            } else {
                let (value, end) = field.physical.stored(data, at, 0)?;
                at = end;
                Some(value)
            };
            let Some(form) = &field.form else { continue };
            if !first {
                out.push(b',');
            }
            first = false;
            if let Some(value) = value {
                // Allocates only if something is decompressed.
                write_field(form, value.payload(&mut Vec::new())?, out)?;
                check_size(out, text)?;
            }
        }
        out.push(b')');
        Ok(())
    }
}

impl Field {
    fn missing_value(&self) -> Result<Option<Stored<'_>>, Bad> {
        // `missing` lies as in a tuple, at offset 0.
        self.missing.as_deref().map(|bytes| self.physical.stored(bytes, 0, 0).map(|(value, _)| value)).transpose()
    }
}

fn write_field(form: &Form, value: &[u8], out: &mut Vec<u8>) -> Text {
    let start = out.len();
    form.write(value, out)?;
    if !form.is_plain() && needs_quotes(&out[start..]) {
        quote_tail(out, start, |byte| matches!(byte, b'"' | b'\\').then_some(byte));
    }
    Ok(())
}

fn needs_quotes(text: &[u8]) -> bool {
    let special = |&byte: &u8| matches!(byte, b'"' | b'\\' | b'(' | b')' | b',') || is_space(byte);
    text.is_empty() || text.iter().any(special)
}
