//! Aggregates by a loop over the page, for columns that lie at the same place in all tuples of it.

use super::accumulator::{Accumulator, Load, is_less};
use crate::{
    heap::{DeformPlan, LinePointer, UniformRows, ValidPage},
    visibility::VisibleSet,
};

/// The rows of a page that count.
pub(super) enum PageRows<'p> {
    /// All of a uniform page.
    Uniform(UniformRows<'p>),
    /// Those at these line pointers.
    Listed(&'p ValidPage<'p>, &'p [LinePointer]),
}

impl<'p> PageRows<'p> {
    /// Lists the rows only if that is needed.
    pub(super) fn new(page: &'p ValidPage<'p>, visible: &'p mut VisibleSet) -> Self {
        if visible.is_unlisted()
            && let Some(rows) = page.uniform_rows()
        {
            return Self::Uniform(rows);
        }
        visible.list(page);
        Self::Listed(page, visible.tuples())
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Uniform(rows) => rows.len(),
            Self::Listed(_, tuples) => tuples.len(),
        }
    }

    /// Calls `take` with the `N` bytes that lie `offset` behind `t_hoff`, row by row in their order. The summary of the
    /// page must say that all tuples are long enough.
    #[inline(always)]
    pub(super) fn each<const N: usize>(&self, offset: usize, mut take: impl FnMut([u8; N])) {
        match self {
            Self::Uniform(rows) => rows.fields(offset).into_iter().flatten().for_each(take),
            Self::Listed(page, tuples) => {
                for pointer in *tuples {
                    if let Some(bytes) = page.tuple(*pointer).data().get(offset..).and_then(|b| b.first_chunk()) {
                        take(*bytes);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn sum<const N: usize>(&self, offset: usize, load: impl Fn([u8; N]) -> i64) -> i128 {
        // A page has less than 2^11 rows, and the values less than 2^33.
        let mut total = 0;
        self.each(offset, |bytes| total += load(bytes));
        i128::from(total)
    }
}

/// Takes one column by a loop over the page. `false`: it does not lie at the same place in all tuples, or the loop is not
/// offered; nothing was taken then.
pub(super) fn take_column(
    page: &ValidPage<'_>,
    rows: &PageRows<'_>,
    plan: &DeformPlan,
    place: usize,
    accumulator: &mut Accumulator,
) -> bool {
    if rows.len() == 0 {
        return true;
    }
    if let Some(fixed) = plan.fixed_on_page(place, page.summary()) {
        return take_fixed(rows, fixed.offset, fixed.length, accumulator);
    }
    let Some(at) = plan.first_varlena_on_page(place, page.summary()) else { return false };
    // Only for lengths: for others the value must be looked at whole, which finds damage.
    let Accumulator::Lengths { sum, any } = accumulator else { return false };
    let total = match rows {
        PageRows::Uniform(rows) => lengths_of_uniform(rows, at),
        PageRows::Listed(page, tuples) => lengths_of_listed(page, tuples, at),
    };
    let Some(total) = total else { return false };
    *sum += i128::from(total);
    *any = true;
    true
}

/// Takes the values of `length` bytes at `offset`.
fn take_fixed(rows: &PageRows<'_>, offset: usize, length: usize, accumulator: &mut Accumulator) -> bool {
    match accumulator {
        Accumulator::Count(count) => *count += rows.len() as u64,
        Accumulator::Int { load, sum, any, .. } => {
            match (load, length) {
                (Load::Int2, 2) => *sum += rows.sum(offset, |b| i16::from_le_bytes(b).into()),
                (Load::Int4, 4) => *sum += rows.sum(offset, |b| i32::from_le_bytes(b).into()),
                (Load::Oid, 4) => *sum += rows.sum(offset, |b| u32::from_le_bytes(b).into()),
                (Load::Int8, 8) => rows.each(offset, |b| *sum += i128::from(i64::from_le_bytes(b))),
                _ => return false,
            }
            *any = true;
        }
        // One sum, in the order of the rows: the server's result depends on it.
        Accumulator::Float4 { sum, any } if length == 4 => {
            rows.each(offset, |b| *sum += f32::from_le_bytes(b));
            *any = true;
        }
        Accumulator::Float8 { sum, any } if length == 8 => {
            rows.each(offset, |b| *sum += f64::from_le_bytes(b));
            *any = true;
        }
        Accumulator::Floats { load: Load::Float4, values } if length == 4 => {
            rows.each(offset, |b| values.push(f32::from_le_bytes(b).into()));
        }
        Accumulator::Floats { load: Load::Float8, values } if length == 8 => {
            rows.each(offset, |b| values.push(f64::from_le_bytes(b)));
        }
        Accumulator::ExtremeInt { load, want_max, best } => {
            let max = *want_max;
            let found = match (load, length) {
                (Load::Int2, 2) => extreme(rows, offset, max, |b| i16::from_le_bytes(b).into()),
                (Load::Int4, 4) => extreme(rows, offset, max, |b| i32::from_le_bytes(b).into()),
                (Load::Oid, 4) => extreme(rows, offset, max, |b| u32::from_le_bytes(b).into()),
                (Load::Int8, 8) => extreme(rows, offset, max, i64::from_le_bytes),
                _ => return false,
            };
            *best = Some(best.map_or(found, |b| if max { b.max(found) } else { b.min(found) }));
        }
        Accumulator::ExtremeFloat { load, want_max, best } => {
            let mut take = |value: f64| match *best {
                Some(b) if is_less(b, value) != *want_max => {}
                _ => *best = Some(value),
            };
            match (load, length) {
                (Load::Float4, 4) => rows.each(offset, |b| take(f32::from_le_bytes(b).into())),
                (Load::Float8, 8) => rows.each(offset, |b| take(f64::from_le_bytes(b))),
                _ => return false,
            }
        }
        _ => return false,
    }
    true
}

/// The largest or smallest value; there is at least one.
#[inline(always)]
fn extreme<const N: usize>(rows: &PageRows<'_>, offset: usize, max: bool, load: impl Fn([u8; N]) -> i64) -> i64 {
    if max {
        let mut best = i64::MIN;
        rows.each(offset, |bytes| best = best.max(load(bytes)));
        best
    } else {
        let mut best = i64::MAX;
        rows.each(offset, |bytes| best = best.min(load(bytes)));
        best
    }
}

/// The lengths of a varlena column whose header lies `at` bytes into the values of every tuple; `None` if one is not a
/// plain value with a short header.
#[inline]
fn lengths_of_uniform(rows: &UniformRows<'_>, at: usize) -> Option<i64> {
    let (mut total, mut all, mut least, mut most) = (0u64, 0xffu8, 0xffu8, 0u8);
    for [header] in rows.fields::<1>(at)? {
        total += u64::from(header >> 1);
        all &= header;
        least = least.min(header);
        most = most.max(header);
    }
    // 0x01 is an out-of-line pointer, an even byte a four-byte header or its padding.
    let plain = all & 1 == 1 && least > 1 && usize::from(most >> 1) <= rows.data_length() - at;
    plain.then_some(total as i64 - rows.len() as i64)
}

/// As [`lengths_of_uniform`].
#[inline]
fn lengths_of_listed(page: &ValidPage<'_>, tuples: &[LinePointer], at: usize) -> Option<i64> {
    let mut total = 0i64;
    for pointer in tuples {
        let data = page.tuple(*pointer).data();
        let header = *data.get(at)?;
        let length = usize::from(header >> 1);
        if header & 1 == 0 || header == 1 || data.len() - at < length {
            return None;
        }
        total += length as i64 - 1;
    }
    Some(total)
}
