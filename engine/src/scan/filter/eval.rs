//! Filters on pages: 64 rows at a time, each test a word of bits.

use super::{
    Comparison,
    bind::name_of,
    bytes::{BytesTest, Trim},
    number::{NumericKey, float_key},
};
use crate::{
    Error, ErrorKind, Result,
    heap::{Datum, DeformPlan, Detoaster, LinePointer, PageColumns, UniformRows, ValidPage, Varlena},
    scan::{TableContext, locate, row::payload, toast::PoolChunks},
    visibility::VisibleSet,
};
use std::sync::Arc;

/// How the bytes of a value become an integer whose order is that of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Int2,
    Int4,
    Int8,
    /// `oid`, and the labels of enums.
    Oid,
    Bool,
    Byte,
    Float4,
    Float8,
}

/// What is asked of one value. NULL never passes, except `Null`.
#[derive(Clone, Debug)]
pub(super) enum Test {
    Null,
    NotNull,
    /// The key is in (or with `outside` not in) the range, whose ends belong to it.
    Range {
        key: Key,
        low: i64,
        high: i64,
        outside: bool,
    },
    /// The key is one of (or none of) these, which are sorted.
    Set {
        key: Key,
        values: Vec<i64>,
        outside: bool,
    },
    /// As `Range`, for uuid.
    Wide {
        low: u128,
        high: u128,
        outside: bool,
    },
    Bytes(Trim, BytesTest),
    Numeric(Comparison, NumericKey),
}

#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// Index into the filter's columns.
    pub(super) column: usize,
    pub(super) test: Test,
}

#[derive(Clone, Debug)]
pub(super) enum Node {
    Always,
    Never,
    Leaf(Leaf),
    All(Vec<Node>),
    Any(Vec<Node>),
    /// The rows for which the node does not hold.
    Except(Box<Node>),
}

impl Node {
    /// All of `nodes`; ranges of one column become one.
    pub(super) fn all(nodes: Vec<Self>) -> Self {
        let mut parts: Vec<Self> = Vec::with_capacity(nodes.len());
        for node in nodes {
            match node {
                Self::Always => {}
                Self::Never => return Self::Never,
                Self::All(inner) => parts.extend(inner),
                node if !parts.iter_mut().any(|part| part.narrow(&node)) => parts.push(node),
                _ => {}
            }
        }
        match parts.len() {
            0 => Self::Always,
            1 => parts.remove(0),
            _ => Self::All(parts),
        }
    }

    /// One of `nodes`.
    pub(super) fn any(nodes: Vec<Self>) -> Self {
        let mut parts = Vec::with_capacity(nodes.len());
        for node in nodes {
            match node {
                Self::Never => {}
                Self::Always => return Self::Always,
                Self::Any(inner) => parts.extend(inner),
                node => parts.push(node),
            }
        }
        match parts.len() {
            0 => Self::Never,
            1 => parts.remove(0),
            _ => Self::Any(parts),
        }
    }

    /// Takes in `other`, which must hold too, if both are ranges of one column. A range that is empty then passes nothing.
    fn narrow(&mut self, other: &Self) -> bool {
        let (
            Self::Leaf(Leaf { column, test: Test::Range { low, high, outside: false, .. } }),
            Self::Leaf(Leaf { column: same, test: Test::Range { low: from, high: to, outside: false, .. } }),
        ) = (self, other)
        else {
            return false;
        };
        // An empty range cannot be told by its width; two of them stay.
        if column != same || (*from).max(*low) > (*to).min(*high) {
            return false;
        }
        (*low, *high) = ((*from).max(*low), (*to).min(*high));
        true
    }

    fn each_leaf(&self, visit: &mut impl FnMut(&Leaf)) {
        match self {
            Self::Always | Self::Never => {}
            Self::Leaf(leaf) => visit(leaf),
            Self::All(nodes) | Self::Any(nodes) => nodes.iter().for_each(|node| node.each_leaf(visit)),
            Self::Except(node) => node.each_leaf(visit),
        }
    }
}

/// A filter of one scan.
pub(crate) struct PageFilter {
    context: Arc<TableContext>,
    plan: DeformPlan,
    /// What all must hold.
    parts: Vec<Node>,
    /// The columns' attributes in the table that was named, and in the part of it that is scanned.
    named: Vec<usize>,
    attributes: Vec<usize>,
    slots: PageColumns,
    detoaster: Detoaster<PoolChunks>,
    /// A bit for each row.
    bits: Vec<u64>,
}

impl PageFilter {
    pub(super) fn new(context: &Arc<TableContext>, node: Node, attributes: Vec<usize>) -> Result<Self> {
        let plan = DeformPlan::new(&context.info.layout, &attributes)?;
        let mut parts = match node {
            Node::Always => Vec::new(),
            Node::All(parts) => parts,
            node => vec![node],
        };
        // What is cheap comes first.
        let cost = |node: &Node| {
            let mut cost = 0u64;
            node.each_leaf(&mut |leaf| {
                cost += match leaf.test {
                    Test::Null | Test::NotNull => 1,
                    Test::Range { .. } => 2,
                    Test::Set { .. } | Test::Wide { .. } => 5,
                    Test::Numeric(..) => 20,
                    Test::Bytes(_, BytesTest::Like(..)) => 50,
                    Test::Bytes(..) => 15,
                };
            });
            cost
        };
        parts.sort_by_key(cost);
        let detoaster = Detoaster::new(PoolChunks(Arc::clone(&context.toast)));
        let context = Arc::clone(context);
        let named = attributes.clone();
        Ok(Self { context, plan, parts, named, attributes, slots: PageColumns::default(), detoaster, bits: Vec::new() })
    }

    /// Goes on in a partition or child, whose attributes `map` has for those of the table that was named. The types are
    /// the same there.
    pub(crate) fn move_to(&mut self, context: &Arc<TableContext>, map: &[usize]) -> Result<()> {
        self.attributes = self.named.iter().map(|&index| map.get(index).copied().unwrap_or(index)).collect();
        self.plan = DeformPlan::new(&context.info.layout, &self.attributes)?;
        self.context = Arc::clone(context);
        Ok(())
    }

    /// Whether no row can pass: nothing need be read.
    pub(crate) fn is_never(&self) -> bool {
        matches!(self.parts[..], [Node::Never])
    }

    /// Takes the rows that do not pass out of `visible`, and tells how many that were.
    ///
    /// # Errors
    /// `Corrupt`, `Value` and `Schema`, naming block, row and column, if a value that is compared is damaged.
    pub(crate) fn apply(&mut self, page: &ValidPage<'_>, visible: &mut VisibleSet) -> Result<usize> {
        let before = visible.len();
        // Those whose columns lie at the same place in all tuples, and the rest.
        let ready = |node: &Node| {
            let mut ready = true;
            node.each_leaf(&mut |leaf| ready &= self.is_in_place(leaf, page));
            ready
        };
        let count = self.parts.iter().filter(|node| ready(node)).count();
        if count > 0 {
            self.in_place(page, visible, count == self.parts.len());
        }
        if count < self.parts.len() && visible.len() > 0 {
            visible.list(page);
            self.by_slots(page, visible)?;
        }
        Ok(before - visible.len())
    }

    /// As [`apply`](Self::apply), row by row, for a page on which that failed: rows that cannot be judged are told to
    /// `failed`, and do not pass.
    #[cold]
    pub(crate) fn apply_known(
        &mut self,
        page: &ValidPage<'_>,
        visible: &mut VisibleSet,
        mut failed: impl FnMut(Error, u16) -> Result<()>,
    ) -> Result<usize> {
        visible.list(page);
        let (before, mut lost, mut stop) = (visible.len(), 0, None);
        visible.retain(|pointer| {
            let mut alone = VisibleSet::of(*pointer);
            match self.apply(page, &mut alone) {
                Ok(_) => return alone.len() > 0,
                Err(error) => {
                    lost += 1;
                    stop = stop.take().or(failed(error, pointer.number).err());
                }
            }
            false
        });
        stop.map_or(Ok(before - lost - visible.len()), Err)
    }

    /// Whether the test of `leaf` needs nothing but bytes that lie at the same place in all tuples of the page.
    fn is_in_place(&self, leaf: &Leaf, page: &ValidPage<'_>) -> bool {
        match leaf.test {
            Test::Null | Test::NotNull => self.plan.present_on_page(leaf.column, page.summary()),
            _ => self.plan.fixed_on_page(leaf.column, page.summary()).is_some(),
        }
    }

    fn in_place(&mut self, page: &ValidPage<'_>, visible: &mut VisibleSet, all: bool) {
        let uniform = page.uniform_rows().filter(|_| visible.is_unlisted());
        let rows = match uniform {
            Some(rows) => Rows::Uniform(rows),
            None => {
                visible.list(page);
                Rows::Listed(page, visible.tuples())
            }
        };
        let count = rows.len();
        self.bits.clear();
        for first in (0..count).step_by(64) {
            let mut bits = ones(count - first);
            for node in &self.parts {
                let mut ready = all;
                if !all {
                    ready = true;
                    node.each_leaf(&mut |leaf| ready &= self.is_in_place(leaf, page));
                }
                if ready && bits != 0 {
                    bits = InPlace { plan: &self.plan, page, rows: &rows, first }.node(node, bits);
                }
            }
            self.bits.push(bits);
        }
        match uniform {
            // All of them stay unlisted.
            Some(_) if self.bits.iter().map(|bits| bits.count_ones() as usize).sum::<usize>() == count => {}
            Some(rows) => visible.choose(&self.bits, |row| rows.line_pointer(row)),
            None => visible.retain_bits(&self.bits),
        }
    }

    /// What is left is taken apart.
    fn by_slots(&mut self, page: &ValidPage<'_>, visible: &mut VisibleSet) -> Result<()> {
        let context = Arc::clone(&self.context);
        let located = |error| locate(error, &context, page.block());
        self.plan.deform_page(page, visible.tuples(), &mut self.slots).map_err(located)?;
        let mut slots = BySlots {
            plan: &self.plan,
            page,
            slots: &self.slots,
            detoaster: &mut self.detoaster,
            tuples: visible.tuples(),
            attributes: &self.attributes,
            context: &context,
        };
        let count = visible.tuples().len();
        self.bits.clear();
        for first in (0..count).step_by(64) {
            let mut bits = ones(count - first);
            for node in &self.parts {
                if bits != 0 {
                    bits = slots.node(node, first, bits).map_err(located)?;
                }
            }
            self.bits.push(bits);
        }
        visible.retain_bits(&self.bits);
        Ok(())
    }
}

/// A bit for each of `count` rows, 64 at most.
#[inline]
fn ones(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// The rows of a page.
enum Rows<'p> {
    Uniform(UniformRows<'p>),
    Listed(&'p ValidPage<'p>, &'p [LinePointer]),
}

impl Rows<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Uniform(rows) => rows.len(),
            Self::Listed(_, tuples) => tuples.len(),
        }
    }
}

/// 64 rows of a page, from `first` on, whose columns lie at the same place in all tuples.
struct InPlace<'e> {
    plan: &'e DeformPlan,
    page: &'e ValidPage<'e>,
    rows: &'e Rows<'e>,
    first: usize,
}

impl InPlace<'_> {
    /// Which of the rows `bits` pass.
    fn node(&self, node: &Node, bits: u64) -> u64 {
        match node {
            Node::Always => bits,
            Node::Never => 0,
            Node::Leaf(leaf) => self.leaf(leaf, bits),
            Node::All(nodes) => nodes.iter().fold(bits, |left, node| if left == 0 { 0 } else { self.node(node, left) }),
            Node::Any(nodes) => nodes.iter().fold(0, |found, node| found | self.node(node, bits & !found)),
            Node::Except(node) => bits & !self.node(node, bits),
        }
    }

    fn leaf(&self, leaf: &Leaf, bits: u64) -> u64 {
        let Some(fixed) = self.plan.fixed_on_page(leaf.column, self.page.summary()) else {
            // A column that is there in all rows.
            return if matches!(leaf.test, Test::Null) { 0 } else { bits };
        };
        let at = fixed.offset;
        match &leaf.test {
            Test::Null => 0,
            Test::NotNull => bits,
            &Test::Range { key, low, high, outside } => {
                let width = high.wrapping_sub(low).cast_unsigned();
                let inside = move |key: i64| (key.wrapping_sub(low).cast_unsigned() <= width) != outside;
                self.keyed(key, at, bits, inside)
            }
            Test::Set { key, values, outside } => {
                self.keyed(*key, at, bits, |key| values.binary_search(&key).is_ok() != *outside)
            }
            &Test::Wide { low, high, outside } => {
                self.each(at, bits, move |bytes| (low..=high).contains(&u128::from_be_bytes(bytes)) != outside)
            }
            // Of fixed length only: names.
            Test::Bytes(trim, test) => self.bytes(at, fixed.length, bits, |value| test.holds(*trim, value)),
            Test::Numeric(..) => 0,
        }
    }

    #[inline(always)]
    fn keyed(&self, key: Key, at: usize, bits: u64, test: impl Fn(i64) -> bool) -> u64 {
        match key {
            Key::Int2 => self.each(at, bits, |b| test(i16::from_le_bytes(b).into())),
            Key::Int4 => self.each(at, bits, |b| test(i32::from_le_bytes(b).into())),
            Key::Int8 => self.each(at, bits, |b| test(i64::from_le_bytes(b))),
            Key::Oid => self.each(at, bits, |b| test(u32::from_le_bytes(b).into())),
            Key::Bool => self.each(at, bits, |[b]| test((b != 0).into())),
            Key::Byte => self.each(at, bits, |[b]| test(b.into())),
            Key::Float4 => self.each(at, bits, |b| test(float_key(f32::from_le_bytes(b).into()))),
            Key::Float8 => self.each(at, bits, |b| test(float_key(f64::from_le_bytes(b)))),
        }
    }

    /// Tests the `N` bytes that lie `at` behind `t_hoff`: of all rows if many are asked for, which needs no branches.
    #[inline(always)]
    fn each<const N: usize>(&self, at: usize, bits: u64, test: impl Fn([u8; N]) -> bool) -> u64 {
        const MANY: u32 = 12;
        let mut passed = 0;
        match self.rows {
            Rows::Uniform(rows) if bits.count_ones() >= MANY => {
                let count = (rows.len() - self.first).min(64);
                let Some(fields) = rows.fields_of(at, self.first, count) else { return 0 };
                for (row, bytes) in fields.enumerate() {
                    passed |= u64::from(test(bytes)) << row;
                }
                passed & bits
            }
            _ => {
                let mut left = bits;
                while left != 0 {
                    let row = left.trailing_zeros() as usize;
                    left &= left - 1;
                    let pass = self.value(row, at, N).first_chunk().is_some_and(|bytes| test(*bytes));
                    passed |= u64::from(pass) << row;
                }
                passed
            }
        }
    }

    fn bytes(&self, at: usize, length: usize, bits: u64, test: impl Fn(&[u8]) -> bool) -> u64 {
        let (mut left, mut passed) = (bits, 0);
        while left != 0 {
            let row = left.trailing_zeros() as usize;
            left &= left - 1;
            passed |= u64::from(test(self.value(row, at, length))) << row;
        }
        passed
    }

    /// The bytes of a row's value; the page's summary has told that they are there.
    #[inline(always)]
    fn value(&self, row: usize, at: usize, length: usize) -> &[u8] {
        let row = self.first + row;
        let data = match self.rows {
            Rows::Uniform(rows) => rows.data(row),
            Rows::Listed(page, tuples) => match tuples.get(row) {
                Some(pointer) => page.tuple(*pointer).data(),
                None => &[],
            },
        };
        data.get(at..at + length).unwrap_or(&[])
    }
}

/// Rows of a page that were taken apart.
struct BySlots<'e> {
    plan: &'e DeformPlan,
    page: &'e ValidPage<'e>,
    slots: &'e PageColumns,
    detoaster: &'e mut Detoaster<PoolChunks>,
    tuples: &'e [LinePointer],
    attributes: &'e [usize],
    context: &'e TableContext,
}

impl BySlots<'_> {
    fn node(&mut self, node: &Node, first: usize, bits: u64) -> Result<u64> {
        match node {
            Node::Always => Ok(bits),
            Node::Never => Ok(0),
            Node::Leaf(leaf) => self.leaf(leaf, first, bits),
            Node::All(nodes) => nodes.iter().try_fold(bits, |left, node| match left {
                0 => Ok(0),
                left => self.node(node, first, left),
            }),
            Node::Any(nodes) => {
                nodes.iter().try_fold(0, |found, node| Ok(found | self.node(node, first, bits & !found)?))
            }
            Node::Except(node) => Ok(bits & !self.node(node, first, bits)?),
        }
    }

    fn leaf(&mut self, leaf: &Leaf, first: usize, bits: u64) -> Result<u64> {
        let column = self.slots.column(leaf.column);
        let missing = self.plan.missing(leaf.column);
        let varlena = self.plan.is_varlena(leaf.column);
        let (mut left, mut passed) = (bits, 0);
        while left != 0 {
            let row = left.trailing_zeros() as usize;
            left &= left - 1;
            let slot = column[first + row];
            let datum = if slot.is_null() {
                Datum::Null
            } else if slot.is_missing() {
                missing
            } else if varlena {
                Datum::Varlena(self.page.value(slot))
            } else {
                Datum::Fixed(self.page.value(slot))
            };
            let pass = passes(&leaf.test, datum, self.detoaster).map_err(|error| self.at(leaf, first + row, error))?;
            passed |= u64::from(pass) << row;
        }
        Ok(passed)
    }

    #[cold]
    fn at(&self, leaf: &Leaf, row: usize, error: Error) -> Error {
        let number = self.tuples.get(row).map_or(0, |pointer| pointer.number);
        let attribute = self.attributes.get(leaf.column).copied().unwrap_or(usize::MAX);
        let column = name_of(&self.context.info.layout.attributes, attribute);
        error.in_context(format_args!("row ({},{number}), column {column}", self.page.block()))
    }
}

/// Whether one value passes.
#[inline]
fn passes(test: &Test, datum: Datum<'_>, detoaster: &mut Detoaster<PoolChunks>) -> Result<bool> {
    match test {
        Test::Null => return Ok(datum == Datum::Null),
        Test::NotNull => return Ok(datum != Datum::Null),
        _ => {}
    }
    if let (Test::Bytes(trim, test), Datum::Varlena(raw)) = (test, datum)
        && let Some(length) = hidden_length(raw)?
        && let Some(known) = test.by_length(*trim, length)
    {
        return Ok(known);
    }
    let Some(bytes) = payload(datum, detoaster)? else { return Ok(false) };
    Ok(match test {
        Test::Null | Test::NotNull => false,
        &Test::Range { key, low, high, outside } => (low..=high).contains(&key_of(key, bytes)?) != outside,
        Test::Set { key, values, outside } => values.binary_search(&key_of(*key, bytes)?).is_ok() != *outside,
        &Test::Wide { low, high, outside } => (low..=high).contains(&u128::from_be_bytes(array(bytes)?)) != outside,
        Test::Bytes(trim, test) => test.holds(*trim, bytes),
        Test::Numeric(op, constant) => {
            let order = constant.order_of(bytes);
            op.holds(order.ok_or_else(|| Error::new(ErrorKind::Value, "numeric value is damaged"))?)
        }
    })
}

/// The length of a value that would have to be decompressed or fetched.
#[inline]
fn hidden_length(raw: &[u8]) -> Result<Option<usize>> {
    Ok(match Varlena::parse(raw)?.0 {
        Varlena::Plain(_) => None,
        Varlena::Compressed { raw_size, .. } => Some(raw_size as usize),
        Varlena::External(pointer) => Some((pointer.raw_size as usize).saturating_sub(4)),
    })
}

fn key_of(key: Key, bytes: &[u8]) -> Result<i64> {
    Ok(match key {
        Key::Int2 => i16::from_le_bytes(array(bytes)?).into(),
        Key::Int4 => i32::from_le_bytes(array(bytes)?).into(),
        Key::Int8 => i64::from_le_bytes(array(bytes)?),
        Key::Oid => u32::from_le_bytes(array(bytes)?).into(),
        Key::Bool => (array::<1>(bytes)? != [0]).into(),
        Key::Byte => array::<1>(bytes)?[0].into(),
        Key::Float4 => float_key(f32::from_le_bytes(array(bytes)?).into()),
        Key::Float8 => float_key(f64::from_le_bytes(array(bytes)?)),
    })
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
    bytes.try_into().map_err(|_| Error::new(ErrorKind::Value, format!("{} bytes where {N} belong", bytes.len())))
}
