//! Values as servers stored them, against the text that the same servers printed; and values that no server wrote.

use super::{
    TypeOutput,
    copy::{escape_text, json_value},
};
use crate::{
    error::ErrorKind,
    schema::{Attribute, OutputFunction, RowLayout, TypeCatalog, TypeInfo, TypeKind},
};
use proptest::prelude::*;

const MOOD: u32 = 50_000;
const COMP: u32 = 50_010;
const COMP_ARRAY: u32 = 50_011;
const COMP2: u32 = 50_020;
const COMP_ALT: u32 = 50_030;
const ROWSRC: u32 = 50_040;
const TEXTRANGE: u32 = 50_050;
const TEXTMULTIRANGE: u32 = 50_051;
const POSINT: u32 = 50_060;
const FOREIGN: u32 = 50_070;
const LOOP: u32 = 50_080;
const CC: u32 = 50_090;

fn attribute(catalog: &TypeCatalog, number: i16, type_oid: u32) -> Attribute {
    let info = &catalog.types[&type_oid];
    Attribute {
        name: format!("c{number}"),
        number,
        type_oid,
        typmod: -1,
        len: info.len,
        by_val: info.by_val,
        align: info.align,
        storage: b'x',
        not_null: false,
        dropped: false,
        dimensions: 0,
        generated: 0,
        missing: None,
    }
}

fn dropped(mut attribute: Attribute) -> Attribute {
    (attribute.dropped, attribute.type_oid) = (true, 0);
    attribute
}

fn info(oid: u32, name: &str, kind: TypeKind, len: i16, align: u8, output: u32) -> TypeInfo {
    TypeInfo {
        oid,
        name: name.to_owned(),
        namespace: "public".to_owned(),
        len,
        by_val: len > 0,
        align,
        kind,
        elem: 0,
        array: 0,
        delim: b',',
        base: 0,
        base_typmod: -1,
        relation: 0,
        output,
    }
}

/// The built-in types, and some such as users make.
fn catalog(major_version: u32) -> TypeCatalog {
    let mut catalog = TypeCatalog { major_version, ..TypeCatalog::default() };
    for line in include_str!("testdata/pg_type.tsv").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[oid, name, len, align, kind, elem, array, delim, output] = fields.as_slice() else {
            panic!("nine fields: {line}")
        };
        let align = match align {
            "c" => 1,
            "s" => 2,
            "i" => 4,
            _ => 8,
        };
        let kind = match kind {
            "r" => TypeKind::Range,
            "m" => TypeKind::Multirange,
            "p" => TypeKind::Pseudo,
            _ => TypeKind::Base,
        };
        let number = |text: &str| text.parse::<u32>().expect("number");
        let mut info = info(number(oid), name, kind, len.parse().expect("length"), align, number(output));
        (info.elem, info.array, info.delim) = (number(elem), number(array), delim.as_bytes()[0]);
        catalog.types.insert(info.oid, info);
    }
    for (range, subtype, multirange) in [
        (3904, 23, 4451),
        (3906, 1700, 4532),
        (3908, 1114, 4533),
        (3910, 1184, 4534),
        (3912, 1082, 4535),
        (3926, 20, 4536),
        (TEXTRANGE, 25, TEXTMULTIRANGE),
    ] {
        catalog.range_subtypes.insert(range, subtype);
        catalog.multirange_ranges.insert(multirange, range);
    }
    if major_version < 16 {
        let aclitem = catalog.types.get_mut(&1033).expect("aclitem");
        (aclitem.len, aclitem.align) = (12, 4);
    }
    users_types(&mut catalog);
    catalog.reg_names.insert((4096, 10), "postgres".to_owned());
    catalog.reg_names.insert((4096, 11), "\"sp ace\"".to_owned());
    catalog.reg_names.insert((4096, 12), "\"Up\"".to_owned());
    catalog.reg_names.insert((4096, 13), "\"we\"\"ird\"".to_owned());
    catalog.reg_names.insert((2205, 1259), "pg_class".to_owned());
    catalog
}

fn users_types(catalog: &mut TypeCatalog) {
    for (oid, label) in [(0x403a, "sad"), (0x403c, "okay"), (0x4040, "last one, \"quoted\" \\ and long")] {
        catalog.enum_labels.insert(oid, label.to_owned());
    }
    let mut add = |info: TypeInfo| catalog.types.insert(info.oid, info);
    add(info(MOOD, "mood", TypeKind::Enum, 4, 4, 3507));
    add(info(TEXTRANGE, "textrange", TypeKind::Range, -1, 4, 3835));
    add(info(TEXTMULTIRANGE, "textmultirange", TypeKind::Multirange, -1, 4, 4232));
    add(TypeInfo { base: 23, ..info(POSINT, "posint", TypeKind::Domain, 4, 4, 43) });
    add(info(FOREIGN, "hstore", TypeKind::Base, -1, 4, 17_301));
    add(TypeInfo { elem: COMP, ..info(COMP_ARRAY, "_comp", TypeKind::Base, -1, 8, 751) });
    for (oid, name) in
        [(COMP, "comp"), (COMP2, "comp2"), (COMP_ALT, "comp_alt"), (ROWSRC, "rowsrc"), (LOOP, "loop"), (CC, "cc")]
    {
        add(TypeInfo { relation: oid + 1000, ..info(oid, name, TypeKind::Composite, -1, 8, 2291) });
    }
    let a = |number, oid| attribute(catalog, number, oid);
    let layouts = [
        (COMP, vec![a(1, 23), a(2, 25), a(3, 1700), a(4, 16)]),
        (COMP2, vec![a(1, COMP), a(2, COMP_ARRAY), a(3, 18), a(4, 20)]),
        (COMP_ALT, vec![a(1, 23), dropped(a(2, 25)), a(3, 21), a(4, 25)]),
        (ROWSRC, vec![a(1, 23), dropped(a(2, 25)), a(3, 701), a(4, 16)]),
        (LOOP, vec![a(1, LOOP)]),
        (CC, vec![a(1, 25), a(2, 1009), a(3, 3904), a(4, 18)]),
    ];
    for (oid, attributes) in layouts {
        catalog.composites.insert(oid + 1000, RowLayout { attributes });
    }
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hexadecimal")).collect()
}

fn text(oid: u32, catalog: &TypeCatalog, payload: &[u8]) -> String {
    let output = TypeOutput::new(oid, -1, catalog).expect("supported");
    let mut out = b"before".to_vec();
    match output.write(payload, &mut out) {
        Ok(()) => String::from_utf8_lossy(&out[6..]).into_owned(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Value);
            assert_eq!(out, b"before", "a failed value leaves nothing behind");
            format!("error: {error}")
        }
    }
}

/// Lines of (major version, type, payload, COPY's text), stored and printed by servers of these versions.
#[test]
fn values_of_real_servers() {
    let catalogs = [12, 14, 15, 18].map(catalog);
    let mut seen = 0;
    for line in include_str!("testdata/values.tsv").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[major, name, payload, expected] = fields.as_slice() else { panic!("four fields: {line}") };
        let major: u32 = major.parse().expect("number");
        let catalog = catalogs.iter().find(|catalog| catalog.major_version == major).expect("a version");
        let oid = catalog.types.values().find(|info| info.name == name).expect("a type").oid;
        let mut got = Vec::new();
        escape_text(text(oid, catalog, &hex(payload)).as_bytes(), &mut got);
        assert_eq!(String::from_utf8_lossy(&got), expected, "{name} {payload}");
        seen += 1;
    }
    assert!(seen > 900, "{seen}");
}

#[test]
fn types_that_users_make() {
    let catalog = catalog(15);
    for (oid, payload, expected) in [
        (MOOD, "3a400000", "sad"),
        (MOOD, "40400000", r#"last one, "quoted" \ and long"#),
        (MOOD, "41400000", "error: value of type mood: pg_enum has no label with oid 16449"),
        (POSINT, "07000000", "7"),
        (COMP, "ffffffff43400000ffffffff00000400020018000100000005780f00810100881301", "(1,x,1.50,t)"),
        (COMP, "ffffffff43400000ffffffff0000040001001800", "(,,,)"),
        (COMP, "ffffffff43400000ffffffff0000040003001807fbffffff030700c0", r#"(-5,"",NaN,)"#),
        (
            COMP,
            "ffffffff43400000ffffffff000004000200180007000000\
             1f612022712220622c205c202863290b7b8a010000",
            r#"(7,"a ""q"" b, \\ (c)",0.00000000000000000001,f)"#,
        ),
        (
            COMP2,
            "ffffffff46400000ffffffff000004000200180047ffffffff43400000ffffffff00000400020018000100000005780f8080010088\
             13017b010000002000000043400000020000000100000001000000000000007c000000ffffffff43400000ffffffff0000040003001\
             80b020000000579000063000000000000006300000000000000",
            r#"("(1,x,1.5,t)","{""(2,y,,f)"",NULL}",c,99)"#,
        ),
        // A column was dropped and one added after the value was stored.
        (COMP_ALT, "ffffffff77430000ffffffff000003000200180001000000096f6e650b00", "(1,11,)"),
        (COMP_ALT, "ffffffff77430000ffffffff000004000300180d040000002c000b666f7572", "(4,44,four)"),
        // The dropped column's value is compressed inside the composite.
        (
            ROWSRC,
            "ffffffff7f430000ffffffff000003000200180003000000b2000000b80b0000fe720f01ff0f01ff0f01ff0f01ff0f01ff0f01ff0f\
         01ff0f0f01ff0f01ff0f01ff0f01fb000000000000f87f",
            "(3,NaN,)",
        ),
        (
            CC,
            "ffffffff65400000ffffffff0000040002001800055c6301000000200000001900000004000000010000000d000000000000001400\
             00005c000000200000006e756c6c100000001d400f000001000000050000000271",
            r#"("\\","{""\\\\"",NULL,""null"",""""}","[1,5)",q)"#,
        ),
        (TEXTRANGE, "5940000001", "empty"),
        (TEXTRANGE, "594000000961206209632c6406", r#"["a b","c,d"]"#),
        (TEXTRANGE, "594000001171756f7465225c0c", r#"(,"quote""\\"]"#),
        (TEXTRANGE, "594000000312", r#"["",)"#),
        (TEXTMULTIRANGE, "5740000000000000", "{}"),
        (TEXTMULTIRANGE, "57400000020000000400000002060000056105620963206405650000", r#"{[a,b),["c d",e]}"#),
    ] {
        assert_eq!(text(oid, &catalog, &hex(payload)), expected);
    }
}

#[test]
fn compressed_field_of_a_composite() {
    let mut catalog = catalog(15);
    let layout = catalog.composites.get_mut(&(ROWSRC + 1000)).expect("layout");
    (layout.attributes[1].dropped, layout.attributes[1].type_oid) = (false, 25);
    let payload = hex(
        "ffffffff7f430000ffffffff000003000200180003000000b2000000b80b0000fe720f01ff0f01ff0f01ff0f01ff0f01ff0f01ff0f\
         01ff0f0f01ff0f01ff0f01ff0f01fb000000000000f87f",
    );
    assert_eq!(text(ROWSRC, &catalog, &payload), format!("(3,{},NaN,)", "r".repeat(3000)));
    // A size that the bytes cannot have, and an unknown method.
    for (at, byte) in [(30, 0x3f), (31, 0x20), (31, 0x80)] {
        let mut damaged = payload.clone();
        damaged[at] = byte;
        assert!(text(ROWSRC, &catalog, &damaged).starts_with("error"), "{at} {byte}");
    }
}

#[test]
fn missing_values_inside_composites() {
    let mut catalog = catalog(15);
    let layout = catalog.composites.get_mut(&(COMP_ALT + 1000)).expect("layout");
    layout.attributes[3].missing = Some(vec![0x0b, b'a', b' ', b'"', b',']);
    let old = hex("ffffffff77430000ffffffff000003000200180001000000096f6e650b00");
    assert_eq!(text(COMP_ALT, &catalog, &old), r#"(1,11,"a "",")"#);
}

#[test]
fn names_of_the_catalogs() {
    let catalog = catalog(15);
    let wide = super::tests::catalog(18);
    for (catalog, oid, payload, expected) in [
        (&catalog, 2205, "eb040000", "pg_class"),
        (&catalog, 2205, "ec040000", "1260"),
        (&catalog, 2205, "00000000", "-"),
        (&catalog, 2203, "00000000", "0"),
        (&catalog, 2204, "00000000", "0"),
        (&catalog, 24, "00000000", "-"),
        (&catalog, 24, "01000000", "1"),
        (&catalog, 4096, "0b000000", "\"sp ace\""),
        (&catalog, 1033, "0a0000000a00000002000000", "postgres=r/postgres"),
        (&catalog, 1033, "000000000a0000007f000000", "=arwdDxt/postgres"),
        (&catalog, 1033, "0a0000000a00000007000700", "postgres=a*r*w*/postgres"),
        (&catalog, 1033, "0b0000000c00000002000000", "\"sp ace\"=r/Up"),
        (&catalog, 1033, "0d0000006300000000000000", "\"we\"\"ird\"=/99"),
        (&wide, 1033, "0a0000000a0000000200000000000000", "postgres=r/postgres"),
        (&wide, 1033, "0a0000000a0000000700000007000000", "postgres=a*r*w*/postgres"),
        (&wide, 1033, "0a0000000a0000000070000000400000", "postgres=sAm*/postgres"),
    ] {
        assert_eq!(text(oid, catalog, &hex(payload)), expected);
    }
}

#[test]
fn what_differs_between_versions() {
    // "char" above ASCII is a raw byte up to 14.
    let output = TypeOutput::new(18, -1, &catalog(14)).expect("supported");
    let mut out = Vec::new();
    output.write(&[0xff], &mut out).expect("a char");
    assert_eq!(out, [0xff]);
    assert_eq!(text(18, &catalog(15), &[0xff]), "\\377");
    assert_eq!(text(18, &catalog(15), &[0x80]), "\\200");
    assert_eq!(text(18, &catalog(15), &[0]), "");
    // Infinite intervals from 17 on.
    let infinity = hex("ffffffffffffff7fffffff7fffffff7f");
    assert_eq!(text(1186, &catalog(17), &infinity), "infinity");
    assert_eq!(text(1186, &catalog(15), &infinity), "178956970 years 7 mons 2147483647 days 2562047788:00:54.775807");
    assert_eq!(text(1186, &catalog(17), &hex("00000000000000800000008000000080")), "-infinity");
    // A number with a method: parentheses from 15 on.
    let path = hex("01000080020000001000000020000000008001001f00000000000000");
    assert_eq!(text(4072, &catalog(15), &path), "(1).type()");
    assert_eq!(text(4072, &catalog(14), &path), "1.type()");
}

#[test]
fn elements_that_a_cast_renamed() {
    // '{-1,2}'::int4[]::oid[]: the header still says int4.
    let array = hex("0100000000000000170000000200000001000000ffffffff02000000");
    assert_eq!(text(1028, &catalog(15), &array), "{-1,2}");
}

#[test]
fn statistics() {
    let catalog = catalog(15);
    let mut ndistinct = 0xa352_bfa4_u32.to_le_bytes().to_vec();
    ndistinct.extend(hex("01000000020000000000000000002440020000000100ffff000000000000f03f03000000010002000300"));
    assert_eq!(text(3361, &catalog, &ndistinct), r#"{"1, -1": 10, "1, 2, 3": 1}"#);
    ndistinct[0] ^= 1;
    assert!(text(3361, &catalog, &ndistinct).contains("not the statistics that the type says"));
    let mut dependencies = 0xb454_9a2c_u32.to_le_bytes().to_vec();
    dependencies.extend(hex("0100000002000000000000000000f03f020001000200555555555555d53f0300010002000300"));
    assert_eq!(text(3402, &catalog, &dependencies), r#"{"1 => 2": 1.000000, "1, 2 => 3": 0.333333}"#);
}

#[test]
fn statistics_of_any_type() {
    let catalog = catalog(15);
    assert_eq!(text(2277, &catalog, &hex("0100000000000000170000000200000001000000ffffffff02000000")), "{-1,2}");
    assert_eq!(
        text(2277, &catalog, &hex("0100000000000000190000000100000001000000280000006100")),
        "error: value of type anyarray: a nested value lies outside the value"
    );
    assert_eq!(
        text(2277, &catalog, &hex("0100000000000000ffff00000100000001000000")),
        "error: value of type anyarray: an array of elements that cannot be printed, type oid 65535"
    );
}

#[test]
fn of_unknown_extensions_the_bytes_are_printed() {
    let catalog = catalog(15);
    let output = TypeOutput::new(FOREIGN, -1, &catalog).expect("an output");
    assert!(output.is_raw());
    assert_eq!(text(FOREIGN, &catalog, &[0, 0xab]), "\\x00ab");
    let mut known = catalog.clone();
    let function = OutputFunction { name: "hstore_out".to_owned(), language: 13, library: "$libdir/hstore".to_owned() };
    known.output_functions.insert(known.types[&FOREIGN].output, function);
    assert!(!TypeOutput::new(FOREIGN, -1, &known).expect("an output").is_raw());
    assert_eq!(text(FOREIGN, &known, &[0, 0, 0, 0x80]), "");
}

#[test]
fn what_cannot_be_printed_is_said_by_name() {
    let catalog = catalog(15);
    for (oid, part) in [(99_999, "99999"), (LOOP, "public.loop"), (2281, "internal")] {
        let error = TypeOutput::new(oid, -1, &catalog).expect_err("unsupported");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn json_lines() {
    let catalog = catalog(15);
    for (oid, payload, expected) in [
        (16, "01", "true"),
        (16, "00", "false"),
        (23, "ffffffff", "-1"),
        (701, "000000000000f87f", "\"NaN\""),
        (701, "000000000000f07f", "\"Infinity\""),
        (701, "000000000000f83f", "1.5"),
        (1700, "00c0", "\"NaN\""),
        (1700, "008001008813", "1"),
        (25, "612262", "\"a\\\"b\""),
        (25, "0a", "\"\\n\""),
        (25, "ff", "\"\u{fffd}\""),
        (25, "c3a9", "\"é\""),
        (25, "", "\"\""),
        (114, "7b0a2261223a0d317d", "{ \"a\": 1}"),
        (17, "00ff", "\"\\\\x00ff\""),
        (1082, "00000000", "\"2000-01-01\""),
    ] {
        let output = TypeOutput::new(oid, -1, &catalog).expect("supported");
        let mut out = b"x".to_vec();
        json_value(&output, Some(&hex(payload)), &mut out).expect("a value");
        assert_eq!(String::from_utf8_lossy(&out[1..]), expected);
        let mut out = Vec::new();
        json_value(&output, None, &mut out).expect("NULL");
        assert_eq!(out, b"null");
    }
}

#[test]
fn a_deep_jsonb_needs_no_stack() {
    // Each level: array header with one entry, a container of all the rest.
    let mut payload = hex("00000040");
    for _ in 0..100_000 {
        let mut outer = 0x4000_0001_u32.to_le_bytes().to_vec();
        outer.extend((0x5000_0000_u32 | payload.len() as u32).to_le_bytes());
        if outer.len() + payload.len() > 400_000 {
            break;
        }
        outer.extend(payload);
        payload = outer;
    }
    let text = text(3802, &catalog(15), &payload);
    assert!(text.starts_with("[[[[") && text.ends_with("]]]]") && text.len() > 90_000, "{}", text.len());
}

/// All types of the catalog that can be printed, once for each set of rules.
fn outputs() -> Vec<(u32, TypeOutput)> {
    let catalogs = [catalog(12), catalog(18)];
    let mut outputs = Vec::new();
    for catalog in &catalogs {
        let mut oids: Vec<u32> = catalog.types.keys().copied().collect();
        oids.sort_unstable();
        outputs.extend(oids.into_iter().filter_map(|oid| Some((oid, TypeOutput::new(oid, -1, catalog).ok()?))));
    }
    outputs
}

/// Writes `payload` as every type: nothing may panic, and text must not be out of all proportion to the bytes.
fn write_all(outputs: &[(u32, TypeOutput)], payload: &[u8]) {
    let mut out = Vec::new();
    for (oid, output) in outputs {
        out.clear();
        if output.write(payload, &mut out).is_err() {
            assert!(out.is_empty());
        }
        // numeric writes up to 147,456 digits, whatever it has of them.
        assert!(out.len() <= 150_000 * (payload.len() / 8 + 1), "{oid}: {} bytes", out.len());
    }
}

#[test]
fn no_bytes_make_it_panic() {
    let outputs = outputs();
    assert!(outputs.len() > 300, "{}", outputs.len());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(1500));
    let byte = prop_oneof![4 => Just(0_u8), 2 => Just(1_u8), 1 => Just(0xff_u8), 1 => 0..8_u8, 3 => any::<u8>()];
    runner
        .run(&proptest::collection::vec(byte, 0..120), |payload| {
            write_all(&outputs, &payload);
            Ok(())
        })
        .expect("no panic");
}

#[test]
fn no_damage_to_real_values_makes_it_panic() {
    let outputs = outputs();
    let find = |name: &str| {
        let catalog = catalog(18);
        let oid = catalog.types.values().find(|info| info.name == name).expect("a type").oid;
        outputs.iter().rev().find(|(other, _)| *other == oid).expect("printable").clone()
    };
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let mut last: (String, Vec<(u32, TypeOutput)>) = Default::default();
    for line in include_str!("testdata/values.tsv").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        if last.0 != fields[1] {
            last = (fields[1].to_owned(), vec![find(fields[1])]);
        }
        let payload = hex(fields[2]);
        for _ in 0..60 {
            let mut damaged = payload.clone();
            for _ in 0..=random(3) {
                let at = random(damaged.len());
                if let Some(byte) = damaged.get_mut(at) {
                    *byte = [0, 0xff, *byte ^ 1 << random(8), random(256) as u8][random(4)];
                }
            }
            if random(4) == 0 {
                damaged.truncate(random(damaged.len()));
            }
            write_all(&last.1, &damaged);
        }
    }
}
