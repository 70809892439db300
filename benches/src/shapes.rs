//! Pages in memory by the shape of their tuples, and the kernels that go over them.

use heapscan::{
    heap::{DeformPlan, LinePointer, PageCheck, PageColumns, ValidPage, VerifyMode, checksum::page_checksum},
    schema::{Attribute, RowLayout, TypeCatalog, TypeInfo, TypeKind},
    types::TypeOutput,
};
use heapscan_fixtures::{page::PageBuilder, tuple::TupleBuilder};

/// Bytes of a page.
pub const BLOCK: usize = 8192;

/// Some pages of one shape.
pub struct Shape {
    /// What it is called.
    pub name: &'static str,
    /// Pages, one behind the other, with checksums.
    pub bytes: Vec<u8>,
    /// Rows on them.
    pub rows: u64,
    layout: RowLayout,
    projection: Vec<usize>,
}

type Fill = fn(i32, &mut TupleBuilder);
/// A name, length and alignment of each column, which ones are wanted, and what fills a row.
type Plan = (&'static str, Vec<(i16, u8)>, Vec<usize>, Fill);

/// `pages` pages of each shape: one narrow integer, the last of fifteen, NULLs, varlenas, and 20 mixed columns.
pub fn shapes(pages: u32) -> Vec<Shape> {
    const INT4: (i16, u8) = (4, 4);
    const TEXT: (i16, u8) = (-1, 4);
    let mixed: Vec<(i16, u8)> = [INT4, (8, 8), TEXT, (2, 2), (1, 1)].into_iter().cycle().take(20).collect();
    let all: [Plan; 5] = [
        ("narrow int", vec![INT4], vec![0], |i, t| {
            t.int4(i);
        }),
        ("last of 15 ints", vec![INT4; 15], vec![14], |i, t| {
            for column in 0..15 {
                t.int4(i + column);
            }
        }),
        ("nulls", vec![INT4; 8], vec![1, 7], |i, t| {
            for column in 0..8 {
                if (i + column) % 3 == 0 {
                    t.null()
                } else {
                    t.int4(i)
                };
            }
        }),
        ("varlenas", vec![INT4, TEXT, TEXT, INT4], vec![2, 3], |i, t| {
            let text = [b'x'; 40];
            t.int4(i).varlena(&text[..(i % 40).unsigned_abs() as usize]).varlena(&text[..7]).int4(i);
        }),
        ("20 mixed columns", mixed, (0..20).collect(), |i, t| {
            for round in 0..4 {
                t.int4(i).int8(i64::from(i) << 20).varlena(&b"some text of a row"[..4 + round]).int2(7).bool(true);
            }
        }),
    ];
    all.into_iter().map(|(name, columns, projection, fill)| make(name, &columns, projection, fill, pages)).collect()
}

fn make(name: &'static str, columns: &[(i16, u8)], projection: Vec<usize>, fill: Fill, pages: u32) -> Shape {
    let attributes = columns.iter().zip(1i16..).map(|(&(len, align), number)| Attribute {
        name: format!("c{number}"),
        number,
        type_oid: 0,
        typmod: -1,
        len,
        by_val: len > 0,
        align,
        storage: b'p',
        not_null: false,
        dropped: false,
        dimensions: 0,
        generated: 0,
        missing: None,
    });
    let layout = RowLayout { attributes: attributes.collect() };
    let (mut bytes, mut rows, mut tuple) = (Vec::new(), 0u64, TupleBuilder::new());
    for block in 0..pages {
        let mut page = PageBuilder::new(BLOCK, block);
        loop {
            tuple.clear();
            fill(rows as i32, &mut tuple);
            if page.add_tuple(&tuple).is_none() {
                break;
            }
            rows += 1;
        }
        bytes.extend(page.build(true));
    }
    Shape { name, bytes, rows, layout, projection }
}

impl Shape {
    fn blocks(&self) -> impl Iterator<Item = (&[u8], u32)> {
        self.bytes.chunks_exact(BLOCK).zip(0u32..)
    }

    /// The checksums of all pages, added up.
    pub fn checksum(&self) -> u64 {
        self.blocks().map(|(page, block)| u64::from(page_checksum(page, block))).sum()
    }

    /// Validates all pages, without their checksums, and counts the tuples.
    ///
    /// # Panics
    /// If a page has a fault; so for the others.
    pub fn validate(&self) -> u64 {
        self.blocks()
            .map(|(page, block)| u64::from(valid(page, block, VerifyMode::Computed(stored(page))).summary().tuples))
            .sum()
    }

    /// The pages as they are after validation, with their line pointers.
    pub fn pages(&self) -> Vec<(ValidPage<'_>, Vec<LinePointer>)> {
        let page = |(page, block)| {
            let page = valid(page, block, VerifyMode::Checksum);
            (page, page.line_pointers().collect())
        };
        self.blocks().map(page).collect()
    }

    /// How the wanted columns are found.
    pub fn plan(&self) -> DeformPlan {
        DeformPlan::new(&self.layout, &self.projection).expect("a plan")
    }
}

/// Takes all pages apart, and counts the values.
///
/// # Panics
/// If a tuple is damaged.
pub fn deform(plan: &DeformPlan, pages: &[(ValidPage<'_>, Vec<LinePointer>)], columns: &mut PageColumns) -> usize {
    let one = |(page, tuples): &(ValidPage<'_>, Vec<LinePointer>)| {
        plan.deform_page(page, tuples, columns).expect("whole");
        columns.rows() * plan.outputs()
    };
    pages.iter().map(one).sum()
}

fn stored(page: &[u8]) -> u16 {
    u16::from_le_bytes([page[8], page[9]])
}

fn valid(bytes: &[u8], block: u32, verify: VerifyMode) -> ValidPage<'_> {
    match ValidPage::check(bytes, block, verify) {
        Ok(PageCheck::Valid(page)) => page,
        other => panic!("block {block}: {other:?}"),
    }
}

/// What prints a built-in type, by oids of `pg_type` and `pg_proc`.
///
/// # Panics
/// If the type cannot be printed.
pub fn output(oid: u32, output_function: u32, len: i16) -> TypeOutput {
    let info = TypeInfo {
        oid,
        name: "x".to_owned(),
        namespace: "pg_catalog".to_owned(),
        len,
        by_val: false,
        align: 4,
        kind: TypeKind::Base,
        elem: 0,
        array: 0,
        delim: b',',
        base: 0,
        base_typmod: -1,
        relation: 0,
        output: output_function,
    };
    let mut catalog = TypeCatalog { major_version: 18, ..TypeCatalog::default() };
    catalog.types.insert(oid, info);
    TypeOutput::new(oid, -1, &catalog).expect("a built-in type")
}

/// Payloads to print: of `numeric`, `timestamp` and `double precision`, with what prints them.
pub fn printed(count: usize) -> [(&'static str, TypeOutput, Vec<Vec<u8>>); 3] {
    let number = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let numeric = |i: usize| {
        // 1234.56 and the like, in the short form: scale 2, weight 0.
        let digits = [0x8000u16 | 2 << 7, (number(i) >> 20) as u16 % 10_000, (number(i) >> 40) as u16 % 100 * 100];
        digits.iter().flat_map(|d| d.to_le_bytes()).collect()
    };
    let timestamp = |i: usize| ((number(i) >> 12) as i64).to_le_bytes().to_vec();
    let float = |i: usize| (number(i) as f64 / 1e6).to_le_bytes().to_vec();
    let all = |one: &dyn Fn(usize) -> Vec<u8>| (0..count).map(one).collect();
    [
        ("numeric", output(1700, 1702, -1), all(&numeric)),
        ("timestamp", output(1114, 1313, 8), all(&timestamp)),
        ("double precision", output(701, 215, 8), all(&float)),
    ]
}
