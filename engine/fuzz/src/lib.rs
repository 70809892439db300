//! What the fuzzers do with a run of bytes. `engine/tests/fuzz_smoke.rs` takes the same functions as an ordinary test.
//!
//! A body must not panic, whatever the bytes: errors are fine. Where two ways lead to one answer, it compares them.

use heapscan::{
    cluster::{ControlFile, FileName, FilenodeMap},
    heap::{
        ChunkSource, CompressionMethod, Datum, DeformPlan, Detoaster, NoToast, PageCheck, PageColumns, ValidPage,
        Varlena, VerifyMode, decompress,
    },
    schema::{Attribute, RowLayout, TypeCatalog, TypeInfo, TypeKind},
    types::TypeOutput,
};
use std::sync::OnceLock;

/// What is done with a run of bytes.
pub type Body = fn(&[u8]);

/// All targets, by the names of the fuzzers.
pub const TARGETS: [(&str, Body); 11] = [
    ("page", page),
    ("tuple", tuple),
    ("varlena", varlena),
    ("decompress", decompression),
    ("numeric", numeric),
    ("jsonb", jsonb),
    ("array", array),
    ("types", types),
    ("control_file", control_file),
    ("map_file", map_file),
    ("file_names", file_names),
];

/// Attribute lengths and alignments that types have.
const SHAPES: [(i16, u8); 16] = [
    (1, 1),
    (2, 2),
    (4, 4),
    (8, 8),
    (-1, 4),
    (-1, 8),
    (-2, 1),
    (6, 1),
    (16, 1),
    (64, 1),
    (12, 8),
    (16, 8),
    (-1, 1),
    (6, 2),
    (24, 8),
    (32, 8),
];

fn attribute(number: usize, (len, align): (i16, u8)) -> Attribute {
    Attribute {
        name: format!("c{number}"),
        number: number as i16,
        type_oid: 25,
        typmod: -1,
        len,
        by_val: matches!(len, 1 | 2 | 4 | 8) && len as u8 == align,
        align,
        storage: b'x',
        not_null: false,
        dropped: false,
        dimensions: 0,
        generated: 0,
        missing: None,
    }
}

fn layout(shapes: impl Iterator<Item = (i16, u8)>) -> RowLayout {
    RowLayout { attributes: shapes.enumerate().map(|(i, shape)| attribute(i + 1, shape)).collect() }
}

/// A block of any size: checked, and if it passes taken apart by some layouts.
pub fn page(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else { return };
    let size = 4096usize << (choice & 3);
    let mut block = rest[..rest.len().min(size)].to_vec();
    block.resize(size, 0);
    let layouts = [
        layout([(4, 4), (4, 4), (4, 4), (-1, 1)].into_iter()),
        layout([(8, 8), (-1, 4), (-1, 4), (2, 2), (-2, 1), (-1, 8)].into_iter()),
        layout(SHAPES.into_iter()),
    ];
    let _ = ValidPage::check(&block, 7, VerifyMode::Checksum);
    match ValidPage::check(&block, 7, VerifyMode::Structure) {
        Ok(PageCheck::Valid(page)) => {
            for tuple in page.tuples() {
                let _ = (tuple.xmin(), tuple.xmax(), tuple.ctid(), tuple.natts(), tuple.null_bitmap(), tuple.data());
                assert!(page.tuple_at(tuple.number()).is_some());
            }
            assert!(ValidPage::from_checked(&block, 7).is_some());
            layouts.iter().for_each(|layout| deform(&page, layout));
        }
        Ok(PageCheck::New) => assert!(block.iter().all(|&byte| byte == 0)),
        Err(fault) => drop(fault.into_error(std::path::Path::new("base/1/2"), 7).to_string()),
    }
}

/// Takes the tuples apart row by row and at once; both give the same values, or both an error.
fn deform(page: &ValidPage<'_>, layout: &RowLayout) {
    let projection: Vec<usize> = (0..layout.attributes.len()).collect();
    let Ok(plan) = DeformPlan::new(layout, &projection) else { return };
    let rows: Vec<_> = page.line_pointers().collect();
    let mut columns = PageColumns::default();
    let whole = plan.deform_page(page, &rows, &mut columns);
    let mut values = Vec::new();
    let mut detoaster = Detoaster::new(NoToast);
    let mut failed = false;
    for (row, pointer) in rows.iter().enumerate() {
        let tuple = page.tuple(*pointer);
        values.clear();
        if plan.deform(&tuple, &mut values).is_err() {
            failed = true;
            continue;
        }
        for (column, value) in values.iter().enumerate() {
            let bytes = match *value {
                Datum::Null => None,
                Datum::Fixed(bytes) | Datum::CString(bytes) => Some(bytes),
                Datum::Varlena(raw) => {
                    let _ = detoaster.payload(raw);
                    Some(raw)
                }
            };
            if whole.is_ok() {
                let slot = columns.column(column)[row];
                let at_once = (!slot.is_null() && !slot.is_missing()).then(|| page.value(slot));
                assert_eq!(at_once, bytes, "column {column} of row {row}");
            }
        }
    }
    assert!(whole.is_err() || !failed, "a page that comes apart has a row that does not");
}

/// A tuple of a random schema: the first bytes choose columns and header, the others are the tuple's.
pub fn tuple(data: &[u8]) {
    let [columns, flags, present, hoff, rest @ ..] = data else { return };
    let count = usize::from(*columns % 40);
    let Some((shapes, body)) = rest.split_at_checked(count) else { return };
    let layout = layout(shapes.iter().map(|s| SHAPES[usize::from(s % 16)]));
    let body = &body[..body.len().min(7000)];
    let has_nulls = flags & 1 == 1;
    let natts = usize::from(*present).min(count + 1);
    let honest = (23 + if has_nulls { natts.div_ceil(8) } else { 0 }).next_multiple_of(8);
    let hoff = if flags & 2 == 2 { usize::from(*hoff) } else { honest };
    let mut bytes = vec![0u8; 23];
    bytes[0..4].copy_from_slice(&2u32.to_le_bytes());
    bytes[12..18].copy_from_slice(&[0, 0, 0, 0, 1, 0]);
    bytes[18..20].copy_from_slice(&(natts as u16).to_le_bytes());
    // Frozen, not deleted; with or without NULLs, varlenas and toasted values as the flags say.
    let infomask = 0x0b00 | u16::from(flags & 1) | u16::from(flags >> 1 & 6);
    bytes[20..22].copy_from_slice(&infomask.to_le_bytes());
    bytes[22] = hoff as u8;
    bytes.extend_from_slice(body);
    let mut block = vec![0u8; 8192];
    let start = (8192 - bytes.len()) & !7;
    block[start..start + bytes.len()].copy_from_slice(&bytes);
    block[12..14].copy_from_slice(&28u16.to_le_bytes());
    block[14..16].copy_from_slice(&(start as u16).to_le_bytes());
    block[16..20].copy_from_slice(&[0, 0x20, 4, 0x20]);
    let pointer = start as u32 | 1 << 15 | (bytes.len() as u32) << 17;
    block[24..28].copy_from_slice(&pointer.to_le_bytes());
    if let Ok(PageCheck::Valid(page)) = ValidPage::check(&block, 0, VerifyMode::Structure) {
        deform(&page, &layout);
    }
}

/// Chunks that are cut from the fuzzer's bytes.
struct Chunks<'a>(&'a [u8]);

impl ChunkSource for Chunks<'_> {
    fn chunks(
        &self,
        relation: u32,
        _: u32,
        visit: &mut dyn FnMut(i32, &[u8]) -> heapscan::Result<()>,
    ) -> heapscan::Result<()> {
        let size = (relation % 2000).max(1) as usize;
        self.0.chunks(size).zip(0..).try_for_each(|(chunk, sequence)| visit(sequence, chunk))
    }
}

/// A value with its header; what it holds out of line are the bytes themselves.
pub fn varlena(data: &[u8]) {
    if let Ok((_, size)) = Varlena::parse(data) {
        assert!(size <= data.len());
    }
    let mut detoaster = Detoaster::new(Chunks(data.get(18..).unwrap_or_default()));
    let first = detoaster.payload(data).map(<[u8]>::to_vec);
    assert_eq!(first.ok(), detoaster.payload(data).map(<[u8]>::to_vec).ok());
}

/// pglz and lz4.
pub fn decompression(data: &[u8]) {
    let Some((size, stream)) = data.split_first_chunk::<3>() else { return };
    let size = u32::from_le_bytes([size[0], size[1], size[2], 0]);
    let mut out = Vec::new();
    for method in [CompressionMethod::Pglz, CompressionMethod::Lz4] {
        if decompress(method, stream, size, &mut out).is_ok() {
            assert_eq!(out.len(), size as usize);
        }
    }
}

/// A stock server's types, as `pg_type` has them.
fn catalog() -> &'static TypeCatalog {
    static CATALOG: OnceLock<TypeCatalog> = OnceLock::new();
    CATALOG.get_or_init(|| {
        let mut catalog = TypeCatalog { major_version: 18, ..TypeCatalog::default() };
        for line in include_str!("../../src/types/testdata/pg_type.tsv").lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let number = |i: usize| fields[i].parse::<u32>().unwrap_or(0);
            let len = fields[2].parse().unwrap_or(-1);
            let info = TypeInfo {
                oid: number(0),
                name: fields[1].to_owned(),
                namespace: "pg_catalog".to_owned(),
                len,
                by_val: matches!(len, 1 | 2 | 4 | 8),
                align: match fields[3] {
                    "c" => 1,
                    "s" => 2,
                    "i" => 4,
                    _ => 8,
                },
                kind: match fields[4] {
                    "r" => TypeKind::Range,
                    "m" => TypeKind::Multirange,
                    "p" => TypeKind::Pseudo,
                    _ => TypeKind::Base,
                },
                elem: number(5),
                array: number(6),
                delim: fields[7].bytes().next().unwrap_or(b','),
                base: 0,
                base_typmod: -1,
                relation: 0,
                output: number(8),
            };
            catalog.types.insert(info.oid, info);
        }
        for (range, subtype, multirange) in [
            (3904, 23, 4451),
            (3906, 1700, 4532),
            (3908, 1114, 4533),
            (3910, 1184, 4534),
            (3912, 1082, 4535),
            (3926, 20, 4536),
        ] {
            catalog.range_subtypes.insert(range, subtype);
            catalog.multirange_ranges.insert(multirange, range);
        }
        let composite = TypeInfo {
            oid: 50_000,
            name: "comp".to_owned(),
            kind: TypeKind::Composite,
            relation: 50_001,
            output: 2291,
            ..catalog.types[&2249].clone()
        };
        catalog.types.insert(50_000, composite);
        let mut fields = layout([(4, 4), (-1, 4), (-1, 4), (8, 8)].into_iter());
        for (field, oid) in fields.attributes.iter_mut().zip([23, 25, 1700, 701]) {
            field.type_oid = oid;
        }
        catalog.composites.insert(50_001, fields);
        catalog
    })
}

/// The outputs of all types that can be columns, resolved once, in the order of the oids, so that a seed stays one.
fn outputs() -> &'static [(u32, TypeOutput)] {
    static OUTPUTS: OnceLock<Vec<(u32, TypeOutput)>> = OnceLock::new();
    OUTPUTS.get_or_init(|| {
        let mut oids: Vec<u32> = catalog().types.keys().copied().collect();
        oids.sort_unstable();
        oids.into_iter().filter_map(|oid| Some((oid, TypeOutput::new(oid, -1, catalog()).ok()?))).collect()
    })
}

/// The number that the target `types` has for a type.
pub fn type_number(oid: u32) -> Option<u8> {
    outputs().iter().position(|(known, _)| *known == oid).and_then(|i| u8::try_from(i).ok())
}

fn print(oid: u32, payload: &[u8]) {
    let Some((_, output)) = outputs().iter().find(|(known, _)| *known == oid) else { return };
    print_with(output, payload);
}

fn print_with(output: &TypeOutput, payload: &[u8]) {
    let mut out = b"before".to_vec();
    match output.write(payload, &mut out) {
        Ok(()) => {
            assert!(out.starts_with(b"before"));
            if out.len() < 1 << 16 {
                let mut escaped = Vec::new();
                heapscan::copy::escape_text(&out, &mut escaped);
                assert!(!escaped.contains(&b'\n') && !escaped.contains(&b'\t'));
            }
        }
        Err(error) => {
            assert_eq!(out, b"before", "{error}");
        }
    }
}

/// A numeric.
pub fn numeric(data: &[u8]) {
    print(1700, data);
}

/// A jsonb, and a jsonpath.
pub fn jsonb(data: &[u8]) {
    print(3802, data);
    print(4072, data);
}

/// Arrays: of integers, text, numerics, timestamps, boxes (another delimiter), ranges.
pub fn array(data: &[u8]) {
    for oid in [1007, 1009, 1231, 1115, 1020, 3905, 1002, 30] {
        print(oid, data);
    }
}

/// A value of any type: the first byte says of which.
pub fn types(data: &[u8]) {
    let Some((&number, payload)) = data.split_first() else { return };
    match outputs().get(usize::from(number)) {
        Some((_, output)) => print_with(output, payload),
        None => print(50_000, payload),
    }
}

/// `pg_control`, as it is and with its checksum made right.
pub fn control_file(data: &[u8]) {
    let _ = ControlFile::parse(data).map_err(|e| e.to_string());
    for at in [288, 292] {
        let mut fixed = data.to_vec();
        if let Some((content, [a, b, c, d, ..])) = fixed.split_at_mut_checked(at) {
            [*a, *b, *c, *d] = crc32c::crc32c(content).to_le_bytes();
            let _ = ControlFile::parse(&fixed).map_err(|e| e.to_string());
        }
    }
}

/// `pg_filenode.map`, as it is and with its checksum made right.
pub fn map_file(data: &[u8]) {
    for (major, slots) in [(15, 62), (18, 64)] {
        let _ = FilenodeMap::parse(data, major);
        let mut fixed = data.to_vec();
        if let Some((content, [a, b, c, d, ..])) = fixed.split_at_mut_checked(8 + slots * 8) {
            [*a, *b, *c, *d] = crc32c::crc32c(content).to_le_bytes();
            if let Ok(map) = FilenodeMap::parse(&fixed, major) {
                assert!(map.mappings().len() <= slots);
                map.mappings().iter().for_each(|(oid, _)| assert!(map.filenode(*oid).is_ok()));
            }
        }
    }
}

/// Names of files, and of relations as users write them.
pub fn file_names(data: &[u8]) {
    let name = String::from_utf8_lossy(data);
    if let FileName::Relation { filenode, segment, .. } = FileName::parse(&name) {
        assert!(filenode > 0 && name.starts_with(&filenode.to_string()));
        assert!(segment == 0 || name.ends_with(&format!(".{segment}")));
    }
    let _ = name.parse::<heapscan::cluster::RelationName>();
}
