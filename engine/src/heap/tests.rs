//! Pages and tuples made by hand: one test a rule, and damage of all kinds.

use super::{testing::*, *};
use crate::{
    ErrorKind,
    schema::{Attribute, RowLayout},
};
use proptest::prelude::*;

fn attribute(name: &str, len: i16, align: u8) -> Attribute {
    Attribute {
        name: name.to_owned(),
        number: 0,
        type_oid: 23,
        typmod: -1,
        len,
        by_val: false,
        align,
        storage: b'p',
        not_null: false,
        dropped: false,
        dimensions: 0,
        generated: 0,
        missing: None,
    }
}

fn layout(columns: &[(i16, u8)]) -> RowLayout {
    let attributes = (1i16..)
        .zip(columns)
        .map(|(number, (len, align))| Attribute { number, ..attribute(&format!("c{number}"), *len, *align) })
        .collect();
    RowLayout { attributes }
}

fn valid(bytes: &[u8]) -> ValidPage<'_> {
    match ValidPage::check(bytes, 0, VerifyMode::Structure) {
        Ok(PageCheck::Valid(page)) => page,
        other => panic!("{other:?}"),
    }
}

fn fault(bytes: &[u8]) -> PageFault {
    ValidPage::check(bytes, 0, VerifyMode::Structure).expect_err("a fault")
}

fn row(natts: u16, data: &[u8]) -> Vec<u8> {
    TupleSpec { natts, data: data.to_vec(), ..TupleSpec::default() }.bytes()
}

#[test]
fn h4_new_pages_are_all_zero_and_nothing_else() {
    let mut page = vec![0; BLOCK_SIZE];
    for mode in [VerifyMode::Checksum, VerifyMode::Structure] {
        assert!(matches!(ValidPage::check(&page, 7, mode), Ok(PageCheck::New)));
    }
    for at in [0, 9, 12, 5000, BLOCK_SIZE - 1] {
        page[at] = 1;
        assert_eq!(fault(&page), PageFault::NewNotZero { at });
        page[at] = 0;
    }
}

#[test]
fn checksums_are_of_the_page_and_its_block() {
    let mut bytes = page(&[row(1, &[1, 0, 0, 0])], 0);
    seal(&mut bytes, 131_073);
    assert!(ValidPage::check(&bytes, 131_073, VerifyMode::Checksum).is_ok());
    for block in [0, 1, 131_072] {
        let found = ValidPage::check(&bytes, block, VerifyMode::Checksum).unwrap_err();
        assert!(matches!(found, PageFault::Checksum { .. }), "{found:?}");
        let error = found.into_error("base/5/16384".as_ref(), block);
        assert_eq!((error.kind(), error.block()), (ErrorKind::Checksum, Some(block)));
        assert!(ValidPage::check(&bytes, block, VerifyMode::Structure).is_ok());
    }
    let known = VerifyMode::Computed(checksum::page_checksum(&bytes, 131_073));
    assert!(ValidPage::check(&bytes, 131_073, known).is_ok());
    bytes[8] ^= 1;
    assert!(ValidPage::check(&bytes, 131_073, known).is_err());
    bytes[8] ^= 1;
    bytes[4000] ^= 0x80;
    assert!(ValidPage::check(&bytes, 131_073, VerifyMode::Checksum).is_err());
}

#[test]
fn headers_that_cannot_be() {
    let good = page(&[row(1, &[1, 0, 0, 0])], 0);
    let with = |at, value| {
        let mut bytes = good.clone();
        put(&mut bytes, at, value);
        fault(&bytes)
    };
    assert!(matches!(with(10, 8), PageFault::Flags { flags: 8 }));
    for (at, value) in [(12, 20), (12, 26), (12, 8180), (14, 24), (14, 8193), (16, 8184 + 1), (16, 8200), (16, 0)] {
        assert!(matches!(with(at, value), PageFault::Bounds { .. }), "{at} {value}: {:?}", with(at, value));
    }
    assert!(matches!(with(18, 8192 | 3), PageFault::Layout { .. }));
    assert!(matches!(with(18, 16_384 | 4), PageFault::Layout { .. }));
    let swapped = with(18, (8192u16 | 4).swap_bytes());
    assert_eq!(swapped, PageFault::ByteOrder);
    assert_eq!(swapped.into_error("x".as_ref(), 0).kind(), ErrorKind::Unsupported);
    for size in [0, 23, 512, 8191, 65_536] {
        let fault = ValidPage::check(&vec![1; size], 0, VerifyMode::Structure).unwrap_err();
        assert_eq!(fault, PageFault::Size { bytes: size });
    }
}

#[test]
fn only_sequences_have_a_special_space() {
    let mut bytes = page(&[], 0);
    put(&mut bytes, 14, 8184);
    put(&mut bytes, 16, 8184);
    assert_eq!(fault(&bytes), PageFault::Special { special: 8184 });
    put(&mut bytes, 8184, 0x1717);
    assert_eq!(valid(&bytes).tuples().count(), 0);
    put(&mut bytes, 14, 8176);
    put(&mut bytes, 16, 8176);
    assert_eq!(fault(&bytes), PageFault::Special { special: 8176 });
}

#[test]
fn line_pointers_that_lead_to_no_tuple() {
    let good = page(&[row(1, &[1, 0, 0, 0]), row(1, &[2, 0, 0, 0])], 0);
    let upper = usize::from(load::u16(&good, 14));
    let cases: [(usize, u32, usize, &str); 6] = [
        (0, 1, 28, "begins before"),
        (upper - 8, 1, 28, "begins before"),
        (upper + 4, 1, 28, "not aligned"),
        (upper, 1, 23, "shorter than a tuple header"),
        (upper, 1, BLOCK_SIZE, "ends behind"),
        (8184, 1, 28, "ends behind"),
    ];
    for (offset, flags, length, reason) in cases {
        let mut bytes = good.clone();
        bytes[28..32].copy_from_slice(&line_pointer(offset, flags, length));
        let found = fault(&bytes);
        assert!(matches!(found, PageFault::LinePointer { number: 2, .. }), "{found:?}");
        assert!(found.to_string().contains(reason), "{found}");
    }
    for target in [0, 3, 32_767] {
        let mut bytes = good.clone();
        bytes[28..32].copy_from_slice(&line_pointer(target, 2, 0));
        assert!(fault(&bytes).to_string().contains("redirects"), "{target}");
    }
}

#[test]
fn tuple_headers_that_cannot_be() {
    let build = |change: fn(&mut Vec<u8>)| {
        let mut spec = TupleSpec { natts: 9, present: vec![true; 9], data: vec![0; 40], ..TupleSpec::default() };
        spec.present[8] = false;
        let mut tuple = spec.bytes();
        change(&mut tuple);
        page(&[row(1, &[1, 0, 0, 0]), tuple], 0)
    };
    assert_eq!(valid(&build(|_| ())).tuples().count(), 2);
    type Damage = (fn(&mut Vec<u8>), &'static str);
    let damage: [Damage; 6] = [
        (|t| t[22] = 0, "header length"),
        (|t| t[22] = 16, "header length"),
        (|t| t[22] = 33, "header length"),
        (|t| t[22] = 24, "NULL bitmap"),
        (|t| t[22] = 80, "longer than the tuple"),
        (|t| put(t, 18, 1665), "more attributes"),
    ];
    for (change, reason) in damage {
        let found = fault(&build(change));
        assert!(matches!(found, PageFault::TupleHeader { number: 2, .. }), "{found:?}");
        assert!(found.to_string().contains(reason), "{found}");
    }
}

#[test]
fn only_normal_line_pointers_are_tuples() {
    let mut bytes = page(&[row(1, &[1, 0, 0, 0]), row(1, &[2, 0, 0, 0]), row(1, &[3, 0, 0, 0])], 4);
    put(&mut bytes, 12, 24 + 4 * 6);
    bytes[24..28].copy_from_slice(&line_pointer(3, 2, 0));
    bytes[36..40].copy_from_slice(&line_pointer(0, 3, 0));
    bytes[40..44].copy_from_slice(&line_pointer(0, 0, 0));
    // Where the first row lay, whose line pointer now redirects.
    let third = line_pointer(BLOCK_SIZE - 32, 1, 28);
    bytes[44..48].copy_from_slice(&third);
    let page = valid(&bytes);
    assert!(page.all_visible());
    assert_eq!(page.line_pointer_count(), 6);
    let numbers: Vec<u16> = page.tuples().map(|t| t.number()).collect();
    assert_eq!(numbers, [2, 3, 6]);
    assert_eq!(page.tuple_at(6).unwrap().data(), [1, 0, 0, 0]);
    for none in [0, 1, 4, 5, 7] {
        assert!(page.tuple_at(none).is_none(), "{none}");
    }
    let again = ValidPage::from_checked(&bytes, 0).unwrap();
    assert!(again.tuples().map(|t| t.number()).eq([2, 3, 6]));
}

#[test]
fn header_fields_and_summary() {
    let first = TupleSpec { xmin: 77, xmax: 0x0102_0304, field3: 9, natts: 2, data: vec![7; 8], ..Default::default() };
    let second = TupleSpec { natts: 3, present: vec![true, false, true], data: vec![0; 5], ..Default::default() };
    let bytes = page(&[first.bytes(), second.bytes()], 0);
    let page = valid(&bytes);
    let tuple = page.tuple_at(1).unwrap();
    assert_eq!((tuple.xmin(), tuple.xmax(), tuple.field3()), (77, 0x0102_0304, 9));
    assert_eq!((tuple.natts(), tuple.hoff(), tuple.ctid(), tuple.null_bitmap()), (2, 24, (0, 1), None));
    assert_eq!(page.tuple_at(2).unwrap().null_bitmap(), Some(&[0b101][..]));
    let summary = page.summary();
    assert_eq!((summary.tuples, summary.natts_min, summary.natts_max, summary.data_min), (2, 2, 3, 5));
    assert!(summary.has_nulls());
    assert_eq!(summary.infomask_all & infomask::HASNULL, 0);
}

/// The values of the only tuple on a page.
fn deform_one(layout: &RowLayout, projection: &[usize], tuple: Vec<u8>) -> crate::Result<Vec<String>> {
    let bytes = page(&[tuple], 0);
    let page = valid(&bytes);
    let plan = DeformPlan::new(layout, projection)?;
    let mut out = Vec::new();
    plan.deform(&page.tuple_at(1).unwrap(), &mut out)?;
    Ok(out.iter().map(|datum| format!("{datum:?}")).collect())
}

#[test]
fn h17_alignment_padding_and_short_headers() {
    // bool, int8, text, int2, text, text, int4
    let layout = layout(&[(1, 1), (8, 8), (-1, 4), (2, 2), (-1, 4), (-1, 4), (4, 4)]);
    let mut data = vec![1, 0, 0, 0, 0, 0, 0, 0];
    data.extend(5u64.to_le_bytes());
    data.extend(short(b"ab")); // 16..19
    data.extend([0, 9, 0]); // int2 at 20
    data.extend(short(b"")); // 22, unaligned
    data.push(0);
    data.extend(long(b"wxyz")); // 24..32, aligned after a pad byte
    data.extend(6u32.to_le_bytes());
    let want = [
        "Fixed([1])",
        "Fixed([5, 0, 0, 0, 0, 0, 0, 0])",
        "Varlena([7, 97, 98])",
        "Fixed([9, 0])",
        "Varlena([3])",
        "Varlena([32, 0, 0, 0, 119, 120, 121, 122])",
        "Fixed([6, 0, 0, 0])",
    ];
    let all: Vec<usize> = (0..7).collect();
    assert_eq!(deform_one(&layout, &all, row(7, &data)).unwrap(), want);
    // Any order, columns twice, and stopping early.
    let got = deform_one(&layout, &[6, 0, 3, 0], row(7, &data)).unwrap();
    assert_eq!(got, [want[6], want[0], want[3], want[0]]);
    assert_eq!(deform_one(&layout, &[1], row(7, &data[..16])).unwrap(), [want[1]]);
    assert!(deform_one(&layout, &[], row(7, &[])).unwrap().is_empty());
}

#[test]
fn storage_plain_does_not_forbid_short_headers() {
    // A column set to PLAIN after rows were written has both kinds.
    let mut layout = layout(&[(1, 1), (-1, 4)]);
    layout.attributes[1].storage = b'p';
    let mut data = vec![1];
    data.extend(short(b"x"));
    assert_eq!(deform_one(&layout, &[1], row(2, &data)).unwrap(), ["Varlena([5, 120])"]);
    let mut data = vec![1, 0, 0, 0];
    data.extend(long(b"x"));
    assert_eq!(deform_one(&layout, &[1], row(2, &data)).unwrap(), ["Varlena([20, 0, 0, 0, 120])"]);
}

#[test]
fn nulls_take_no_space_whatever_their_place() {
    let columns = layout(&[(4, 4), (2, 2), (8, 8), (-1, 4), (1, 1)]);
    for pattern in 0u32..32 {
        let present: Vec<bool> = (0..5).map(|i| pattern >> i & 1 == 1).collect();
        let (mut data, mut want) = (Vec::<u8>::new(), Vec::new());
        for (i, value) in [vec![1u8; 4], vec![2; 2], vec![3; 8], short(b"q"), vec![5]].iter().enumerate() {
            if !present[i] {
                want.push("Null".to_owned());
                continue;
            }
            let (len, align) = [(4, 4), (2, 2), (8, 8), (-1, 1), (1, 1)][i];
            data.resize(data.len().next_multiple_of(align), 0);
            data.extend(value);
            want.push(format!("{}({value:?})", if len < 0 { "Varlena" } else { "Fixed" }));
        }
        let tuple = TupleSpec { natts: 5, present, data, ..TupleSpec::default() }.bytes();
        assert_eq!(deform_one(&columns, &[0, 1, 2, 3, 4], tuple.clone()).unwrap(), want, "{pattern:05b}");
        for (i, want) in want.into_iter().enumerate() {
            assert_eq!(deform_one(&columns, &[i], tuple.clone()).unwrap(), [want], "{pattern:05b} {i}");
        }
    }
}

#[test]
fn h16_rows_older_than_their_columns() {
    let mut columns = layout(&[(4, 4), (4, 4), (-1, 4), (4, 4)]);
    columns.attributes[1].missing = Some(42u32.to_le_bytes().to_vec());
    columns.attributes[2].missing = Some(long(b"m"));
    let got = deform_one(&columns, &[3, 2, 1, 0], row(1, &[1, 0, 0, 0])).unwrap();
    assert_eq!(got, ["Null", "Varlena([20, 0, 0, 0, 109])", "Fixed([42, 0, 0, 0])", "Fixed([1, 0, 0, 0])"]);
    // A NULL that was stored stays one.
    let stored = TupleSpec { natts: 2, present: vec![true, false], data: vec![1, 0, 0, 0], ..Default::default() };
    assert_eq!(deform_one(&columns, &[1], stored.bytes()).unwrap(), ["Null"]);
}

#[test]
fn h15_dropped_columns_are_stepped_over() {
    let mut columns = layout(&[(1, 1), (8, 8), (-1, 4), (2, 2)]);
    columns.attributes[1].dropped = true;
    columns.attributes[2].dropped = true;
    let mut data = vec![1, 0, 0, 0, 0, 0, 0, 0];
    data.extend([9; 8]);
    data.extend(short(b"gone!"));
    data.extend([7, 0]);
    assert_eq!(deform_one(&columns, &[0, 3], row(4, &data)).unwrap(), ["Fixed([1])", "Fixed([7, 0])"]);
}

#[test]
fn c_strings_end_at_their_zero() {
    let columns = layout(&[(-2, 1), (4, 4)]);
    let data = [b'a', b'b', 0, 0, 5, 0, 0, 0];
    assert_eq!(deform_one(&columns, &[0, 1], row(2, &data)).unwrap(), ["CString([97, 98])", "Fixed([5, 0, 0, 0])"]);
    assert!(deform_one(&columns, &[0], row(2, b"ab")).is_err());
}

#[test]
fn values_that_leave_their_tuple_are_errors_with_a_name() {
    let columns = layout(&[(4, 4), (-1, 4), (8, 8)]);
    let mut long_lie = vec![1, 0, 0, 0];
    long_lie.extend(400u32.to_le_bytes());
    let cases: [(&[u8], usize, &str); 5] = [
        (&[1, 0], 0, "attribute 1 \"c1\""),
        (&[1, 0, 0, 0], 1, "attribute 2 \"c2\""),
        (&long_lie, 2, "attribute 2 \"c2\""),
        (&[1, 0, 0, 0, 0x15, 1], 1, "attribute 2 \"c2\""),
        (&[1, 0, 0, 0, 3, 0, 0, 0, 1], 2, "attribute 3 \"c3\""),
    ];
    for (data, column, name) in cases {
        let error = deform_one(&columns, &[column], row(3, data)).unwrap_err();
        assert_eq!((error.kind(), error.block()), (ErrorKind::Corrupt, Some(0)));
        assert!(error.to_string().contains(name), "{error}");
    }
    let error = deform_one(&columns, &[0], row(4, &[0; 32])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
}

#[test]
fn plans_refuse_what_cannot_be() {
    assert_eq!(DeformPlan::new(&layout(&[(4, 4)]), &[1]).unwrap_err().kind(), ErrorKind::Usage);
    for (len, align) in [(0, 4), (-3, 4), (4, 3), (4, 0)] {
        assert_eq!(DeformPlan::new(&layout(&[(len, align)]), &[0]).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn fixed_offsets_hold_only_where_they_do() {
    let columns = layout(&[(4, 4), (1, 1), (8, 8), (-1, 4), (4, 4)]);
    let plan = DeformPlan::new(&columns, &[2, 3, 4, 0]).unwrap();
    let at = FixedColumn { attribute: 2, offset: 8, length: 8 };
    assert_eq!(plan.fixed_offset(0), Some(at));
    assert_eq!(plan.fixed_offset(1), None);
    assert_eq!(plan.fixed_offset(2), None);
    assert_eq!(plan.fixed_offset(3).map(|f| f.offset), Some(0));
    assert_eq!(plan.fixed_offset(4), None);
    let holds = |tuples: &[Vec<u8>]| plan.fixed_on_page(0, valid(&page(tuples, 0)).summary());
    let whole = row(5, &[3; 24]);
    assert_eq!(holds(&[whole.clone(), whole.clone()]), Some(at));
    assert_eq!(holds(&[whole.clone(), row(2, &[3; 24])]), None);
    assert_eq!(holds(&[whole.clone(), row(3, &[3; 15])]), None);
    assert_eq!(holds(&[whole.clone(), row(6, &[3; 24])]), None);
    let null = TupleSpec { natts: 3, present: vec![false, true, true], data: vec![0; 24], ..Default::default() };
    assert_eq!(holds(&[whole, null.bytes()]), None);
    assert_eq!(plan.fixed_on_page(0, ValidPage::from_checked(&page(&[], 0), 0).unwrap().summary()), None);
}

/// What [`DeformPlan::deform_page`] says must be what [`DeformPlan::deform`] says of each row.
fn both_forms_agree(plan: &DeformPlan, page: &ValidPage<'_>, rows: &[LinePointer]) -> bool {
    let (mut columns, mut out) = (PageColumns::default(), Vec::new());
    let whole = plan.deform_page(page, rows, &mut columns);
    for (row, pointer) in rows.iter().enumerate() {
        let tuple = page.tuple(*pointer);
        if plan.deform(&tuple, &mut out).is_err() {
            return whole.is_err();
        }
        for (column, datum) in out.iter().enumerate().filter(|_| whole.is_ok()) {
            let slot = columns.column(column)[row];
            let place = match slot {
                _ if slot.is_missing() => plan.missing(column),
                _ if slot.is_null() => Datum::Null,
                _ => match datum {
                    Datum::Varlena(_) => Datum::Varlena(page.value(slot)),
                    Datum::CString(_) => Datum::CString(page.value(slot)),
                    _ => Datum::Fixed(page.value(slot)),
                },
            };
            if place != *datum {
                return false;
            }
        }
    }
    whole.is_ok() && columns.rows() == rows.len()
}

#[test]
fn columns_of_uniform_and_of_mixed_pages() {
    let mut columns = layout(&[(4, 4), (1, 1), (-1, 4), (8, 8)]);
    columns.attributes[3].missing = Some(vec![8; 8]);
    let value = |i: u8| {
        let mut data = vec![i, 0, 0, 0, i];
        data.extend(short(&vec![i; usize::from(i)]));
        data.resize(data.len().next_multiple_of(8), 0);
        data.extend([i; 8]);
        data
    };
    let whole: Vec<_> = (0..9).map(|i| row(4, &value(i))).collect();
    let old = row(2, &[1, 0, 0, 0, 1]);
    let null = TupleSpec { natts: 4, present: vec![true, false, false, true], data: vec![7; 16], ..Default::default() };
    let pages = [
        page(&whole, 0),
        page(&[whole[3].clone(), old.clone()], 0),
        page(&[null.bytes(), whole[2].clone(), old], 0),
        page(&[], 0),
    ];
    for projection in [&[0usize, 1, 2, 3][..], &[3], &[1, 0, 1], &[2, 0], &[]] {
        let plan = DeformPlan::new(&columns, projection).unwrap();
        for bytes in &pages {
            let page = valid(bytes);
            let rows: Vec<_> = page.line_pointers().collect();
            assert!(both_forms_agree(&plan, &page, &rows), "{projection:?}");
            assert!(both_forms_agree(&plan, &page, &rows[rows.len() / 2..]), "{projection:?}");
            assert!(both_forms_agree(&plan, &ValidPage::from_checked(bytes, 0).unwrap(), &rows), "{projection:?}");
        }
    }
    let newer = page(&[whole[0].clone(), row(5, &value(3))], 0);
    let (newer, plan) = (valid(&newer), DeformPlan::new(&columns, &[0]).unwrap());
    let rows: Vec<_> = newer.line_pointers().collect();
    assert_eq!(plan.deform_page(&newer, &rows, &mut PageColumns::default()).unwrap_err().kind(), ErrorKind::Schema);
    // A dead row of a newer schema does not spoil the others.
    assert!(plan.deform_page(&newer, &rows[..1], &mut PageColumns::default()).is_ok());
}

fn chunk(value_id: u32, seq: i32, payload: &[u8]) -> Vec<u8> {
    let mut data = value_id.to_le_bytes().to_vec();
    data.extend(seq.to_le_bytes());
    data.extend(long(payload));
    row(3, &data)
}

#[test]
fn chunk_maps_sort_what_lies_anywhere() {
    let pages = [
        page(&[chunk(9, 1, b"b"), chunk(7, 0, b"x"), chunk(9, 0, b"dead")], 0),
        page(&[chunk(9, 2, b"c"), chunk(9, 0, b"a")], 0),
    ];
    let (mut first, mut second) = (ChunkMapBuilder::new(5), ChunkMapBuilder::new(5));
    first.add_page(&valid(&pages[0]), |t| Ok(t.number() != 3)).unwrap();
    let PageCheck::Valid(page) = ValidPage::check(&pages[1], 1, VerifyMode::Structure).unwrap() else { panic!() };
    second.add_page(&page, |_| Ok(true)).unwrap();
    first.merge(second).unwrap();
    let map = first.finish();
    assert_eq!(map.len(), 4);
    let at = |seq, block, number| ChunkLocation { seq, block, number };
    assert_eq!(map.chunks(9).collect::<Vec<_>>(), [at(0, 1, 2), at(1, 0, 1), at(2, 1, 1)]);
    assert_eq!(map.chunks(7).collect::<Vec<_>>(), [at(0, 0, 2)]);
    assert_eq!(map.chunks(8).len(), 0);
    let parsed = Chunk::parse(&valid(&pages[0]).tuple_at(1).unwrap()).unwrap();
    assert_eq!(parsed, Chunk { value_id: 9, seq: 1, data: b"b" });
}

#[test]
fn chunk_maps_have_a_limit_and_refuse_other_tuples() {
    let bytes = page(&[chunk(1, 0, b"a"), chunk(1, 1, b"b")], 0);
    let error = ChunkMapBuilder::new(1).add_page(&valid(&bytes), |_| Ok(true)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    for other in [row(2, &[0; 16]), row(3, &[0; 8]), row(3, &[0; 12])] {
        let bytes = page(&[other], 0);
        let error = ChunkMapBuilder::new(9).add_page(&valid(&bytes), |_| Ok(true)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

/// Rows of all sorts: the seeds of the damage below.
fn mixed_page() -> Vec<u8> {
    let mut tuples = Vec::new();
    for i in 0..12u8 {
        let mut data = vec![i, 0, 0, 0];
        data.extend(short(&vec![i; usize::from(i)]));
        data.resize(data.len().next_multiple_of(4), 0);
        data.extend(long(&[i; 9]));
        data.resize(data.len().next_multiple_of(8), 0);
        data.extend([i; 8]);
        tuples.push(row(4, &data));
        let present = vec![i % 2 == 0, i % 3 == 0, false, i % 5 == 0];
        tuples.push(TupleSpec { natts: 4, present, data, xmax: 5, infomask: 0, ..TupleSpec::default() }.bytes());
    }
    page(&tuples, 0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Whatever the damage: no panic, and what passes the check decodes or says what is wrong.
    #[test]
    fn damaged_pages_never_panic(
        flips in prop::collection::vec((0usize..BLOCK_SIZE, any::<u8>()), 1..6),
        near in prop::collection::vec((0usize..130, any::<u8>()), 0..4),
        tail in prop::collection::vec((7000usize..BLOCK_SIZE, any::<u8>()), 0..8),
    ) {
        let mut bytes = mixed_page();
        for (at, value) in flips.into_iter().chain(near).chain(tail) {
            bytes[at] = value;
        }
        let columns = layout(&[(4, 4), (-1, 4), (-1, 4), (8, 8), (-2, 1)]);
        let plan = DeformPlan::new(&columns, &[0, 1, 2, 3, 4]).unwrap();
        if let Ok(PageCheck::Valid(page)) = ValidPage::check(&bytes, 0, VerifyMode::Structure) {
            let rows: Vec<_> = page.line_pointers().collect();
            prop_assert_eq!(rows.len(), usize::from(page.summary().tuples));
            prop_assert!(both_forms_agree(&plan, &page, &rows));
            let mut out = Vec::new();
            let mut detoaster = Detoaster::new(NoToast);
            for tuple in page.tuples() {
                if plan.deform(&tuple, &mut out).is_ok() {
                    for datum in &out {
                        if let Datum::Varlena(raw) = datum {
                            let _ = detoaster.payload(raw);
                        }
                    }
                }
                for column in 0..plan.outputs() {
                    if let Some(fixed) = plan.fixed_on_page(column, page.summary()) {
                        prop_assert!(tuple.data().len() >= fixed.offset + fixed.length);
                    }
                }
                let _ = Chunk::parse(&tuple);
            }
        }
    }

    /// The pass that finds no reason and the one that looks for it agree.
    #[test]
    fn h28_every_bad_line_pointer_has_a_reason(word in any::<u32>(), hoff in any::<u8>(), natts in any::<u16>()) {
        let mut bytes = mixed_page();
        bytes[28..32].copy_from_slice(&word.to_le_bytes());
        let at = (word & 0x7fff) as usize;
        if at > 2000 && at + 24 < BLOCK_SIZE {
            bytes[at + 22] = hoff;
            put(&mut bytes, at + 18, natts);
        }
        if let Err(found) = ValidPage::check(&bytes, 0, VerifyMode::Structure) {
            let named = matches!(found, PageFault::LinePointer { .. } | PageFault::TupleHeader { .. });
            prop_assert!(named, "{:?}", found);
        }
    }
}

/// Of a server no two tuples share bytes, whatever their order and however many line pointers are unused.
#[test]
fn tuples_that_share_bytes() {
    let rows: Vec<_> = (0..200u16).map(|n| row(1, &n.to_le_bytes())).collect();
    let page = page(&rows, 0);
    assert_eq!(valid(&page).tuples().count(), 200);
    for (number, other) in [(1usize, 2usize), (2, 1), (7, 200), (200, 7)] {
        let mut damaged = page.clone();
        let (at, from) = (24 + (number - 1) * 4, 24 + (other - 1) * 4);
        damaged.copy_within(from..from + 4, at);
        let PageFault::LinePointer { number: named, reason, .. } = fault(&damaged) else { panic!("a line pointer") };
        assert_eq!(usize::from(named), number.max(other));
        assert!(reason.contains("shares bytes"), "{reason}");
    }
    // One byte into the next 8 bytes is too much; up to there is padding.
    let word = |number: usize| u32::from_le_bytes(page[24 + (number - 1) * 4..][..4].try_into().unwrap());
    for (length, shared) in [(26, false), (32, false), (33, true)] {
        let mut damaged = page.clone();
        let changed = word(2) & 0x1_ffff | length << 17;
        damaged[28..32].copy_from_slice(&changed.to_le_bytes());
        assert_eq!(ValidPage::check(&damaged, 0, VerifyMode::Structure).is_err(), shared, "{length}");
    }
}
