//! CSV and JSON of every fixture table, against the server's own answers: their COPY text is taken apart and put
//! together again by the rules of the other format.
#![cfg(feature = "tool")]

mod tool_support;

use heapscan::{Engine, EngineOptions, RowFormat};
use heapscan_fixtures::{Snapshot, TableOracle};
use serde_json::Value;
use tool_support::{snapshot, stdout, text};

/// A field of COPY's text format; `None` is NULL.
type Field = Option<Vec<u8>>;

/// The rows of an answer in COPY's text format (PostgreSQL documentation, COPY, "Text Format").
fn rows(copy: &[u8], columns: usize) -> Vec<Vec<Field>> {
    copy.split_inclusive(|&b| b == b'\n')
        .map(|line| match columns {
            0 => Vec::new(),
            _ => line.strip_suffix(b"\n").unwrap().split(|&b| b == b'\t').map(field).collect(),
        })
        .inspect(|row| assert_eq!(row.len(), columns, "the oracle's own columns"))
        .collect()
}

fn field(escaped: &[u8]) -> Field {
    if escaped == b"\\N" {
        return None;
    }
    let mut plain = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter();
    while let Some(&byte) = bytes.next() {
        plain.push(match (byte, byte == b'\\') {
            (_, false) => byte,
            _ => match bytes.next().expect("something follows a backslash") {
                b'b' => 8,
                b't' => b'\t',
                b'n' => b'\n',
                b'v' => 11,
                b'f' => 12,
                b'r' => b'\r',
                &other => other,
            },
        });
    }
    Some(plain)
}

/// A line of COPY's CSV format with its defaults (same page, "CSV Format").
fn csv(fields: &[Field]) -> Vec<u8> {
    let quoted = |text: &[u8]| {
        let mut out = b"\"".to_vec();
        for &byte in text {
            out.extend(if byte == b'"' { &b"\"\""[..] } else { std::slice::from_ref(&byte) });
        }
        out.push(b'"');
        out
    };
    let one = |field: &Field| match field {
        None => Vec::new(),
        Some(text) if text.is_empty() => quoted(text),
        // Alone on its line it would end the data.
        Some(text) if fields.len() == 1 && text == b"\\." => quoted(text),
        Some(text) if text.iter().any(|b| b",\"\r\n".contains(b)) => quoted(text),
        Some(text) => text.clone(),
    };
    let mut line = fields.iter().map(one).collect::<Vec<_>>().join(&b","[..]);
    line.push(b'\n');
    line
}

/// Names of the columns that a query shows, in order, and which of them the file holds.
fn names(snapshot: &Snapshot, table: &TableOracle) -> (Vec<String>, Vec<bool>) {
    let relation = snapshot.manifest().relations.iter().find(|r| r.oid == table.oid).expect("in the manifest");
    relation.columns.iter().filter(|c| !c.attisdropped).map(|c| (c.name.clone(), c.attgenerated != "v")).unzip()
}

/// Prints each table that heapscan prints at all, and has `check` compare it with the oracle.
fn each_table(name: &str, format: RowFormat, mut check: impl FnMut(&str, &[String], &[Vec<Field>], &[u8])) -> usize {
    let snapshot = snapshot(name, "clean");
    let options = EngineOptions { follow_tablespace_links: true, ..EngineOptions::default() };
    let engine = Engine::open(snapshot.data_dir(), options).unwrap();
    let database = engine.database(None).unwrap();
    let mut checked = 0;
    for table in snapshot.user_tables() {
        let mut printed = Vec::new();
        let relation = database.table(&format!("oid:{}", table.oid));
        if let Err(error) = relation.and_then(|t| t.scan().write_rows(format, &mut printed)) {
            panic!("{}: {error}", table.name);
        }
        let (names, stored) = names(&snapshot, table);
        let mut oracle = rows(&snapshot.oracle_without_ctid(table.oid).unwrap(), names.len());
        // Virtual generated columns are not in the file, and are left out.
        let kept =
            |list: Vec<Field>| list.into_iter().zip(&stored).filter(|(_, kept)| **kept).map(|(f, _)| f).collect();
        oracle = oracle.into_iter().map(kept).collect();
        let names: Vec<String> = names.into_iter().zip(&stored).filter(|(_, kept)| **kept).map(|(n, _)| n).collect();
        check(&table.name, &names, &oracle, &printed);
        checked += 1;
    }
    checked
}

#[test]
fn csv_is_that_of_copy() {
    for name in ["small-18", "small-12"] {
        let (mut quotes, mut breaks) = (0, 0);
        let checked = each_table(name, RowFormat::Csv, |table, names, oracle, printed| {
            let header: Vec<Field> = names.iter().map(|n| Some(n.clone().into_bytes())).collect();
            let mut expected = csv(&header);
            expected.extend(oracle.iter().flat_map(|row| csv(row)));
            quotes += usize::from(expected.windows(2).any(|w| w == b"\"\""));
            breaks += oracle.iter().flatten().flatten().filter(|text| text.contains(&b'\n')).count();
            assert!(printed == expected, "{name} {table}: {}", tool_support::first_difference(printed, &expected));
        });
        assert!(checked > 100, "{checked} tables");
        assert!(quotes > 10 && breaks > 10, "the tables have what is to be quoted: {quotes}, {breaks}");
    }
}

#[test]
fn json_lines_hold_the_texts_of_copy() {
    for name in ["small-18", "small-15"] {
        let mut kinds = [0; 5];
        let checked = each_table(name, RowFormat::Json, |table, names, oracle, printed| {
            let lines: Vec<&[u8]> = printed.split_inclusive(|&b| b == b'\n').collect();
            assert_eq!(lines.len(), oracle.len(), "{name} {table}");
            for (line, row) in lines.into_iter().zip(oracle) {
                json_line(&format!("{name} {table}"), line, names, row, &mut kinds);
            }
        });
        assert!(checked > 100, "{checked} tables");
        assert!(kinds.iter().all(|&n| n > 0), "each kind of value was met: {kinds:?}");
    }
}

fn json_line(what: &str, line: &[u8], names: &[String], row: &[Field], kinds: &mut [usize; 5]) {
    let line = std::str::from_utf8(line).unwrap_or_else(|e| panic!("{what}: {e}"));
    // serde_json keeps numbers as f64; those beyond it (numeric has 131072 digits) are compared as text below.
    let object: Value = match serde_json::from_str(line) {
        Ok(value) => value,
        Err(e) if e.to_string().contains("number out of range") => {
            for digits in
                row.iter().flatten().filter(|t| t.len() > 300 && t.iter().all(|b| b"-.0123456789".contains(b)))
            {
                assert!(line.contains(std::str::from_utf8(digits).unwrap()), "{what}");
            }
            return;
        }
        Err(e) => panic!("{what}: {e}: {line}"),
    };
    let object = object.as_object().unwrap();
    assert_eq!(object.len(), names.len(), "{what}: {line}");
    for (name, field) in names.iter().zip(row) {
        let text = field.as_ref().map(|bytes| String::from_utf8_lossy(bytes));
        let value = object.get(name).unwrap_or_else(|| panic!("{what}: no {name} in {line}"));
        let (kind, same) = match (value, text.as_deref()) {
            (Value::Null, text) => (0, text.is_none_or(|t| t == "null")),
            (Value::Bool(b), text) => (1, text == Some(if *b { "t" } else { "f" }) || text == Some(&b.to_string())),
            (Value::String(s), Some(text)) => {
                (2, s == text || serde_json::from_str(text).is_ok_and(|v: Value| v == *value))
            }
            (Value::Number(_), Some(text)) => (3, serde_json::from_str(text).is_ok_and(|v: Value| v == *value)),
            (_, Some(text)) => (4, serde_json::from_str(text).is_ok_and(|v: Value| v == *value)),
            (_, None) => (4, false),
        };
        kinds[kind] += 1;
        assert!(same, "{what}.{name}: {value} is not {text:?}");
    }
}

/// Through the program, where names of tables and columns need quotes.
#[test]
fn odd_names() {
    let snapshot = snapshot("small-18", "clean");
    let data = text(&snapshot.data_dir());
    let table = "\"Weird \"\"name\"\"; with, é\"";
    let oid = snapshot.table("public", "Weird \"name\"; with, é").unwrap().oid;
    assert_eq!(stdout(&["scan", &data, table]), snapshot.oracle_without_ctid(oid).unwrap());
    let csv = String::from_utf8(stdout(&["scan", &data, table, "--format", "csv"])).unwrap();
    assert_eq!(csv, "Column 1,select,é,\"a\"\"b\"\n1,x,2,t\n,,,\n");
    let columns = "\"a\"\"b\",\"Column 1\"";
    let json = String::from_utf8(stdout(&["scan", &data, table, "--format", "json", "--columns", columns])).unwrap();
    assert_eq!(json, "{\"a\\\"b\":true,\"Column 1\":1}\n{\"a\\\"b\":null,\"Column 1\":null}\n");
}
