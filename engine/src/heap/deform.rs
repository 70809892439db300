//! Taking a tuple apart into the columns that somebody wants.

use super::{LinePointer, PageColumns, PageSummary, TupleRef, ValidPage, varlena};
use crate::{
    Error, ErrorKind, Result,
    schema::{Attribute, RowLayout},
};
use std::ops::Range;

/// One column of one row, as it lies in the tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datum<'a> {
    /// NULL.
    Null,
    /// A value of fixed length: `attlen` bytes, little-endian, not aligned.
    Fixed(&'a [u8]),
    /// A varlena with its header; see [`Varlena::parse`](super::Varlena::parse).
    Varlena(&'a [u8]),
    /// A C string without the zero byte.
    CString(&'a [u8]),
}

/// Where a column lies in every tuple that has no NULL in it or before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedColumn {
    /// Index of the attribute, from 0.
    pub attribute: usize,
    /// Bytes from `t_hoff`.
    pub offset: usize,
    /// Bytes of the value.
    pub length: usize,
}

/// Indices of a projection from here on name outputs that no attribute has: they are NULL for the caller to fill in.
pub(crate) const UNSTORED: usize = 1 << 16;

/// Marks a column that is only stepped over.
const SKIP: u32 = u32::MAX;

/// What the walk needs of an attribute.
#[derive(Clone, Copy, Debug)]
struct Step {
    len: i16,
    /// Alignment less 1.
    align_mask: u8,
    /// Index of the attribute, from 0.
    attribute: u16,
    /// Index into the output, or [`SKIP`].
    out: u32,
}

impl Step {
    #[inline(always)]
    fn attribute(&self) -> usize {
        usize::from(self.attribute)
    }
}

/// How to take the tuples of a relation apart, for one projection. Made once a scan.
#[derive(Clone, Debug)]
pub struct DeformPlan {
    /// The attributes up to the last wanted one, with the wanted ones' names and missing values.
    attributes: Vec<Attribute>,
    steps: Vec<Step>,
    /// Number of attributes of the relation.
    relation_natts: usize,
    /// `ends[i]`: offset behind attribute `i - 1`, before aligning attribute `i`, when all before are of fixed length
    /// and there. One longer than the number of such attributes.
    ends: Vec<usize>,
    /// The wanted ones among those, in order of attribute, with their index in the output.
    fixed: Vec<(FixedColumn, u32)>,
    outputs: usize,
    /// Outputs that repeat another one: (from, to).
    repeats: Vec<(u32, u32)>,
    projection: Vec<usize>,
}

impl DeformPlan {
    /// A plan that yields the attributes `projection` (indices into `layout.attributes`, in any order, also twice).
    ///
    /// # Errors
    /// `Usage` if there is no such attribute, `Corrupt` if an attribute's length or alignment cannot be.
    pub fn new(layout: &RowLayout, projection: &[usize]) -> Result<Self> {
        let relation_natts = layout.attributes.len();
        if let Some(bad) = projection.iter().find(|&&i| i >= relation_natts && i < UNSTORED) {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("column index {bad} is beyond the {relation_natts} columns of the relation"),
            ));
        }
        let walked = projection.iter().filter(|&&i| i < UNSTORED).max().map_or(0, |last| last + 1);
        let attributes = layout.attributes[..walked].to_vec();
        let mut steps = (0u16..).zip(&attributes).map(|(i, a)| step(i, a)).collect::<Result<Vec<_>>>()?;
        let mut repeats = Vec::new();
        for (out, &attribute) in (0u32..).zip(projection) {
            if attribute >= UNSTORED {
                continue;
            }
            match steps[attribute].out {
                SKIP => steps[attribute].out = out,
                first => repeats.push((first, out)),
            }
        }
        let (ends, fixed) = fixed_prefix(&steps);
        let projection = projection.to_vec();
        Ok(Self { attributes, steps, relation_natts, ends, fixed, outputs: projection.len(), repeats, projection })
    }

    /// Number of values that [`deform`](Self::deform) yields.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Where the output `column` (index into the projection) lies in every tuple that has no NULL up to it: known if
    /// only attributes of fixed length lie before it and it is one itself.
    pub fn fixed_offset(&self, column: usize) -> Option<FixedColumn> {
        let attribute = *self.projection.get(column)?;
        self.fixed.iter().map(|(fixed, _)| *fixed).find(|fixed| fixed.attribute == attribute)
    }

    /// [`fixed_offset`](Self::fixed_offset), if it holds for all tuples of a page with this summary, and the value
    /// lies within each of them: a column loop over the page needs no further test.
    pub fn fixed_on_page(&self, column: usize, summary: &PageSummary) -> Option<FixedColumn> {
        let fixed = self.fixed_offset(column)?;
        let holds = !summary.has_nulls()
            && usize::from(summary.natts_min) > fixed.attribute
            && usize::from(summary.natts_max) <= self.relation_natts
            && usize::from(summary.data_min) >= fixed.offset + fixed.length;
        holds.then_some(fixed)
    }

    /// Whether the output `column` is there, and not NULL, in all tuples of a page with this summary.
    pub(crate) fn present_on_page(&self, column: usize, summary: &PageSummary) -> bool {
        self.projection.get(column).is_some_and(|&attribute| {
            !summary.has_nulls()
                && usize::from(summary.natts_min) > attribute
                && usize::from(summary.natts_max) <= self.relation_natts
        })
    }

    /// Whether values of the output `column` have a varlena header.
    pub(crate) fn is_varlena(&self, column: usize) -> bool {
        self.projection.get(column).and_then(|&a| self.steps.get(a)).is_some_and(|step| step.len == -1)
    }

    /// Where the header of the varlena column `column` begins in every tuple of a page with this summary, counted from
    /// `t_hoff`: known if only attributes of fixed length lie before it. A four-byte header may be padded: its first byte
    /// is then zero.
    pub fn first_varlena_on_page(&self, column: usize, summary: &PageSummary) -> Option<usize> {
        let attribute = *self.projection.get(column)?;
        let first = self.ends.len() - 1;
        let holds = attribute == first
            && self.steps.get(attribute)?.len == -1
            && !summary.has_nulls()
            && usize::from(summary.natts_min) > attribute
            && usize::from(summary.natts_max) <= self.relation_natts
            && usize::from(summary.data_min) > self.ends[first];
        holds.then_some(self.ends[first])
    }

    /// Takes `tuple` apart: `out` then has one value for each column of the projection, in its order.
    ///
    /// Attributes that the tuple is too old for take their missing value, else NULL.
    ///
    /// # Errors
    /// `Schema` if the tuple has more attributes than the relation; `Corrupt` naming the attribute if a value
    /// does not end within the tuple.
    #[inline]
    pub fn deform<'a>(&'a self, tuple: &TupleRef<'a>, out: &mut Vec<Datum<'a>>) -> Result<()> {
        out.clear();
        out.resize(self.outputs, Datum::Null);
        let natts = tuple.natts();
        if natts > self.relation_natts {
            return Err(self.too_many(tuple));
        }
        let data = tuple.data();
        self.locate(tuple, |step, found| {
            out[step.out as usize] = match (found, step.len) {
                (None, _) => missing(&self.attributes[step.attribute()]),
                (Some(at), -1) => Datum::Varlena(&data[at]),
                (Some(at), -2) => Datum::CString(&data[at]),
                (Some(at), _) => Datum::Fixed(&data[at]),
            };
        })?;
        for &(from, to) in &self.repeats {
            out[to as usize] = out[from as usize];
        }
        Ok(())
    }

    /// Takes the tuples at `rows` of `page` apart into columns of places on the page, replacing what is in `out`.
    ///
    /// # Errors
    /// As [`deform`](Self::deform).
    ///
    /// # Panics
    /// If `rows` are not line pointers of this page.
    pub fn deform_page(&self, page: &ValidPage<'_>, rows: &[LinePointer], out: &mut PageColumns) -> Result<()> {
        out.reset(self.outputs, rows.len());
        if let Some(first_walked) = self.fixed_columns(page.summary(), rows, out) {
            if first_walked < self.steps.len() {
                for (row, pointer) in rows.iter().enumerate() {
                    let tuple = page.tuple(*pointer);
                    let base = usize::from(pointer.offset) + tuple.hoff();
                    self.walk(&tuple, tuple.natts(), first_walked, None, &mut |step, found| {
                        out.set(step.out as usize, row, found.map(|at| base + at.start..base + at.end));
                    })?;
                }
            }
        } else {
            for (row, pointer) in rows.iter().enumerate() {
                let tuple = page.tuple(*pointer);
                if tuple.natts() > self.relation_natts {
                    return Err(self.too_many(&tuple));
                }
                let base = usize::from(pointer.offset) + tuple.hoff();
                self.locate(&tuple, |step, found| {
                    out.set(step.out as usize, row, found.map(|at| base + at.start..base + at.end));
                })?;
            }
        }
        for &(from, to) in &self.repeats {
            out.repeat(from as usize, to as usize);
        }
        Ok(())
    }

    /// Fills in the columns whose place is the same in all tuples of the page, if the page is so uniform that all of
    /// the fixed prefix is; then tells the first attribute that is left to walk.
    fn fixed_columns(&self, summary: &PageSummary, rows: &[LinePointer], out: &mut PageColumns) -> Option<usize> {
        let prefix = self.ends.len() - 1;
        let uniform = !summary.has_nulls()
            && summary.hoff != 0
            && usize::from(summary.natts_min) >= prefix
            && usize::from(summary.natts_max) <= self.relation_natts
            && usize::from(summary.data_min) >= self.ends[prefix];
        if !uniform {
            return None;
        }
        for (fixed, output) in &self.fixed {
            out.set_fixed(*output as usize, rows, usize::from(summary.hoff) + fixed.offset, fixed.length);
        }
        Some(prefix)
    }

    /// The value that rows older than output `column` have in it.
    pub fn missing(&self, column: usize) -> Datum<'_> {
        let attribute = self.projection.get(column).and_then(|&attribute| self.attributes.get(attribute));
        attribute.map_or(Datum::Null, missing)
    }

    /// Tells `sink` where each wanted attribute that is not NULL lies, from `t_hoff` on; `None` is missing.
    #[inline(always)]
    fn locate(&self, tuple: &TupleRef<'_>, mut sink: impl FnMut(&Step, Option<Range<usize>>)) -> Result<()> {
        let natts = tuple.natts();
        let bitmap = tuple.null_bitmap();
        let present = bitmap.map_or(natts, |bitmap| leading_present(bitmap, natts));
        let direct = present.min(self.ends.len() - 1);
        let size = tuple.data().len();
        for (fixed, _) in &self.fixed {
            if fixed.attribute >= direct {
                break;
            }
            if fixed.offset + fixed.length > size {
                return Err(self.outside(tuple, fixed.attribute, fixed.offset));
            }
            sink(&self.steps[fixed.attribute], Some(fixed.offset..fixed.offset + fixed.length));
        }
        if direct < self.steps.len() {
            self.walk(tuple, natts, direct, bitmap, &mut sink)?;
        }
        Ok(())
    }

    /// The attributes from `first` on, whose offsets depend on those before.
    #[inline(always)]
    fn walk(
        &self,
        tuple: &TupleRef<'_>,
        natts: usize,
        first: usize,
        bitmap: Option<&[u8]>,
        sink: &mut impl FnMut(&Step, Option<Range<usize>>),
    ) -> Result<()> {
        let data = tuple.data();
        let stored = natts.min(self.steps.len());
        let mut at = self.ends[first];
        for step in self.steps.get(first..stored).unwrap_or(&[]) {
            if bitmap.is_some_and(|bitmap| is_null(bitmap, step.attribute())) {
                continue;
            }
            let (start, end, next) = match step.len {
                -1 => varlena_at(data, at, step),
                -2 => cstring_at(data, at, step),
                length => fixed_at(data, at, step, length),
            }
            .map_err(|reason| self.broken(tuple, step.attribute(), at, reason))?;
            at = next;
            if step.out != SKIP {
                sink(step, Some(start..end));
            }
        }
        for step in self.steps.get(stored.max(first)..).unwrap_or(&[]) {
            if step.out != SKIP {
                sink(step, None);
            }
        }
        Ok(())
    }

    #[cold]
    fn too_many(&self, tuple: &TupleRef<'_>) -> Error {
        Error::new(
            ErrorKind::Schema,
            format!(
                "tuple {} has {} attributes, the relation has {}: the schema is older than the file",
                tuple.number(),
                tuple.natts(),
                self.relation_natts
            ),
        )
        .with_block(tuple.block())
    }

    #[cold]
    fn outside(&self, tuple: &TupleRef<'_>, attribute: usize, at: usize) -> Error {
        self.broken(tuple, attribute, at, "value ends behind the tuple")
    }

    #[cold]
    fn broken(&self, tuple: &TupleRef<'_>, attribute: usize, at: usize, reason: &str) -> Error {
        let name = self.attributes.get(attribute).map_or("", |a| a.name.as_str());
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "tuple {}: attribute {} \"{name}\" at byte {} of {}: {reason}",
                tuple.number(),
                attribute + 1,
                tuple.hoff() + at,
                tuple.bytes().len()
            ),
        )
        .with_block(tuple.block())
    }
}

fn step(index: u16, attribute: &Attribute) -> Result<Step> {
    let sane =
        (attribute.len > 0 || attribute.len == -1 || attribute.len == -2) && matches!(attribute.align, 1 | 2 | 4 | 8);
    if !sane {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "attribute {} \"{}\" of length {} and alignment {} cannot be",
                attribute.number, attribute.name, attribute.len, attribute.align
            ),
        ));
    }
    Ok(Step { len: attribute.len, align_mask: attribute.align - 1, attribute: index, out: SKIP })
}

/// Offsets as far as they do not depend on values.
fn fixed_prefix(steps: &[Step]) -> (Vec<usize>, Vec<(FixedColumn, u32)>) {
    let (mut ends, mut fixed) = (vec![0], Vec::new());
    let mut end = 0;
    for (attribute, step) in steps.iter().enumerate() {
        let Ok(length) = usize::try_from(step.len) else { break };
        let offset = align(end, step);
        end = offset + length;
        ends.push(end);
        if step.out != SKIP {
            fixed.push((FixedColumn { attribute, offset, length }, step.out));
        }
    }
    (ends, fixed)
}

#[inline(always)]
fn align(at: usize, step: &Step) -> usize {
    let mask = usize::from(step.align_mask);
    (at + mask) & !mask
}

/// Start and end of a value, and where the next one may begin.
type Parsed = std::result::Result<(usize, usize, usize), &'static str>;

#[inline(always)]
fn fixed_at(data: &[u8], at: usize, step: &Step, length: i16) -> Parsed {
    let start = align(at, step);
    let end = start + usize::from(length.unsigned_abs());
    if end <= data.len() { Ok((start, end, end)) } else { Err("value ends behind the tuple") }
}

/// Padding is zero, and no varlena header that may lie unaligned begins with a zero byte: so one byte tells whether
/// the value begins here. `attstorage` does not tell: SET STORAGE changes it without touching older rows.
#[inline(always)]
fn varlena_at(data: &[u8], at: usize, step: &Step) -> Parsed {
    let start = match data.get(at) {
        Some(0) => align(at, step),
        Some(_) => at,
        None => return Err("value begins behind the tuple"),
    };
    let length = varlena::total_length(data.get(start..).unwrap_or(&[]))?;
    Ok((start, start + length, start + length))
}

fn cstring_at(data: &[u8], at: usize, step: &Step) -> Parsed {
    let start = align(at, step);
    match data.get(start..).unwrap_or(&[]).iter().position(|&b| b == 0) {
        Some(length) => Ok((start, start + length, start + length + 1)),
        None => Err("C string does not end within the tuple"),
    }
}

fn missing(attribute: &Attribute) -> Datum<'_> {
    match (&attribute.missing, attribute.len) {
        (None, _) => Datum::Null,
        (Some(value), -1) => Datum::Varlena(value),
        (Some(value), -2) => Datum::CString(value.strip_suffix(&[0]).unwrap_or(value)),
        (Some(value), _) => Datum::Fixed(value),
    }
}

/// Whether `attribute` is NULL. Behind the bitmap everything is.
#[inline(always)]
fn is_null(bitmap: &[u8], attribute: usize) -> bool {
    bitmap.get(attribute / 8).is_none_or(|byte| byte >> (attribute % 8) & 1 == 0)
}

/// Number of attributes before the first NULL.
#[inline]
fn leading_present(bitmap: &[u8], natts: usize) -> usize {
    let mut present = 0;
    for byte in bitmap {
        present += byte.trailing_ones() as usize;
        if *byte != 0xff {
            break;
        }
    }
    present.min(natts)
}
