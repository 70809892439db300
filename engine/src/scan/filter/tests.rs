//! Parsing, and what is refused. What predicates yield is compared with servers in `tests/filters.rs`.

use super::{Literal, Predicate, col};
use crate::{Engine, EngineOptions, ErrorKind, RowFormat, Table};
use proptest::prelude::*;

/// As in the text, without the positions.
fn parsed(text: &str) -> String {
    let shown = format!("{:?}", Predicate::parse(text).expect(text));
    let mut out = String::new();
    let mut parts = shown.split("at: ");
    out.push_str(parts.next().unwrap_or(""));
    for part in parts {
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    out
}

fn made(predicate: &Predicate) -> String {
    format!("{predicate:?}").replace("at: 0", "")
}

#[test]
fn text_and_functions_make_the_same() {
    for (text, predicate) in [
        ("a > 5 and b = 'x' and c is null", col("a").gt(5).and(col("b").eq("x")).and(col("c").is_null())),
        ("a > 5 or b = 'x' and c", col("a").gt(5).or(col("b").eq("x").and(col("c").is_set()))),
        ("not a = 1 and b <> 2", (!col("a").eq(1)).and(col("b").ne(2))),
        ("(a <= 1 or a >= 2) and b < -0.5", col("a").le(1).or(col("a").ge(2)).and(col("b").lt(-0.5))),
        (
            "A IN (1, null) AND \"B c\" NOT LIKE 'x%'",
            col("a").is_in([Literal::from(1), Literal::null()]).and(col("B c").like("x%").not()),
        ),
        ("a between 1 and 2 and b", col("a").between(1, 2).and(col("b").is_set())),
        ("5 < a", col("a").gt(5)),
        ("a is not null", col("a").is_not_null()),
        ("a = - 5", col("a").eq(-5)),
    ] {
        // BETWEEN is an AND of its own in text.
        let flat = |s: String| s.replace("And([And([", "And([").replace("])", "");
        assert_eq!(flat(parsed(text)), flat(made(&predicate)), "{text}");
    }
}

#[test]
fn errors_tell_the_position() {
    for (text, position, what) in [
        ("", 1, "expression"),
        ("a >", 4, "expression"),
        ("a > 5 b", 7, "expected the end"),
        ("a > 5\n  and b = 3 and", 22, "expression"),
        ("a == 5", 3, "="),
        ("a + 1 > 5", 1, "one side of a comparison is a column"),
        ("a > b", 5, "not with another column"),
        ("1 = 1", 1, "one side"),
        ("lower(a) = 'x'", 1, "one side"),
        ("a ilike 'x'", 1, "only LIKE"),
        ("a in (select 1)", 1, "subqueries"),
        ("t.a = 1", 1, "without its table"),
        ("a = 'x' || 'y'", 5, "expected a constant"),
        ("a like 'x' escape 'yy'", 19, "ESCAPE"),
        ("a = 1::int::text", 5, "cast once"),
        ("a = 'abc", 5, ""),
        ("a = 5; drop table x", 6, "expected the end"),
        ("é = 1 und x", 7, "expected the end"),
    ] {
        let error = Predicate::parse(text).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::Usage, "{text}");
        let error = error.to_string();
        assert!(error.contains(&format!("character {position}:")) && error.contains(what), "{text}: {error}");
    }
    let deep = format!("{}a = 1{}", "(".repeat(5000), ")".repeat(5000));
    assert!(Predicate::parse(&deep).is_err());
    let long = vec!["a = 1"; 5000].join(" and ");
    assert!(Predicate::parse(&long).expect_err("too long").to_string().contains("2000 words"));
    let list = format!("a in ({})", vec!["1"; 20_000].join(", "));
    assert!(Predicate::parse(&list).is_ok());
}

fn accounts() -> (Engine, Table) {
    let snapshot = heapscan_fixtures::pgbench().and_then(|f| f.snapshot("clean")).expect("the pgbench fixture");
    let mut options = EngineOptions { shared_buffers: 1 << 20, ..EngineOptions::default() };
    options.io.method = "sync".parse().expect("a method");
    let engine = Engine::open(snapshot.data_dir(), options).expect("open");
    let table = engine.database(Some("pgbench")).and_then(|d| d.table("pgbench_accounts")).expect("table");
    (engine, table)
}

#[test]
fn what_does_not_fit_the_table_is_refused_by_name_type_and_position() {
    let (_engine, table) = accounts();
    for (text, kind, parts) in [
        ("nope = 1", ErrorKind::NotFound, &["character 1", "\"nope\"", "aid"][..]),
        ("aid = 'x'", ErrorKind::Usage, &["character 7", "column \"aid\" (int4)", "'x'"]),
        ("aid = '99999999999'", ErrorKind::Usage, &["out of range"]),
        ("aid = '1.5'", ErrorKind::Usage, &["not an integer"]),
        ("aid = true", ErrorKind::Usage, &["expected a number"]),
        ("aid like '1%'", ErrorKind::Usage, &["LIKE is for texts"]),
        ("aid = date '2020-01-01'", ErrorKind::Usage, &["type date"]),
        ("filler = 5", ErrorKind::Usage, &["character 10", "(bpchar)", "quoted"]),
        ("aid > 3 and filler like 'x\\'", ErrorKind::Usage, &["character 25", "escape"]),
    ] {
        let scan = table.scan().filter(Predicate::parse(text).expect(text));
        let error = scan.start().err().expect(text);
        assert_eq!(error.kind(), kind, "{text}: {error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
    }
}

#[test]
fn all_ways_of_reading_see_the_same_rows() {
    let (_engine, table) = accounts();
    let scan = || table.scan().filter(col("aid").gt(99_990)).filter(col("aid").ne(99_995)).columns(&["bid", "aid"]);
    let mut out = Vec::new();
    let stats = scan().write_rows(RowFormat::Csv, &mut out).expect("rows");
    assert_eq!((stats.rows, stats.filtered), (9, 99_991));
    assert_eq!(out.iter().filter(|&&b| b == b'\n').count(), 10);
    let mut ids = Vec::new();
    let mut rows = scan().start().expect("a scan");
    while let Some(mut page) = rows.next_page().expect("a page") {
        while let Some(row) = page.next_row().expect("a row") {
            ids.push(row.i32(1).expect("aid").expect("not null"));
        }
    }
    assert_eq!(ids, [99_991, 99_992, 99_993, 99_994, 99_996, 99_997, 99_998, 99_999, 100_000]);
    // Nothing can pass: no page is read.
    let nothing = table.scan().filter(col("aid").gt(i64::MAX)).write_rows(RowFormat::Text, &mut out).expect("rows");
    assert_eq!((nothing.rows, nothing.pages), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(parts in prop::collection::vec(prop::sample::select(vec![
        "a", "\"", "b", "'x'", "'", "5", "-", "(", ")", "and", "or", "not", "in", "between", "like", "is", "null", "=", "<", ">", "%",
        ",", "::", "int", "é", ".", "1e5", "escape", "true", "$$", "--", "/*", "E'\\", "case", "when", "select", "[", "{", "\n", "cast(",
    ]), 0..12)) {
        let _ = Predicate::parse(&parts.join(" "));
    }
}
