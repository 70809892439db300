//! Databases whose encoding is not UTF-8: Arrow text is what the server converts it to for a client that asks for UTF-8,
//! for each character of each encoding that has one.
#![cfg(all(feature = "arrow", feature = "tool"))]

use arrow_array::{Array, cast::AsArray};
use heapscan::{
    Engine, EngineOptions, ErrorKind,
    arrow::{BatchOptions, METADATA_CONVERSION, TextPolicy},
};
use heapscan_fixtures::{
    generate::{self, PgbenchOptions, TEMPLATE_VERSIONS},
    server::{self, Server},
};
use std::{fs, os::unix::fs::PermissionsExt};

const SINGLE: [&str; 27] = [
    "LATIN1",
    "LATIN2",
    "LATIN3",
    "LATIN4",
    "LATIN5",
    "LATIN6",
    "LATIN7",
    "LATIN8",
    "LATIN9",
    "LATIN10",
    "WIN1256",
    "WIN1258",
    "WIN866",
    "WIN874",
    "KOI8R",
    "KOI8U",
    "WIN1250",
    "WIN1251",
    "WIN1252",
    "WIN1253",
    "WIN1254",
    "WIN1255",
    "WIN1257",
    "ISO_8859_5",
    "ISO_8859_6",
    "ISO_8859_7",
    "ISO_8859_8",
];
const MULTIPLE: [&str; 3] = ["EUC_JP", "EUC_KR", "EUC_CN"];

/// Fills `chars` with all characters that the server can convert, each with its UTF-8.
fn script(encoding: &str) -> String {
    let codes = if MULTIPLE.contains(&encoding) {
        "SELECT set_byte(set_byte('\\x0000'::bytea, 0, a), 1, b) FROM generate_series(161, 254) a, generate_series(161, 254) b"
    } else {
        "SELECT set_byte('\\x00'::bytea, 0, a) FROM generate_series(128, 255) a"
    };
    format!(
        "CREATE TABLE chars (utf8 bytea, v text, l text[]);
         DO $$ DECLARE code bytea; t text; u bytea; BEGIN
           FOR code IN {codes} LOOP
             BEGIN
               t := convert_from(code, '{encoding}');
               u := convert_to(t, 'UTF8');
               INSERT INTO chars VALUES (u, t, ARRAY[t, 'x']);
             EXCEPTION WHEN OTHERS THEN NULL;
             END;
           END LOOP;
         END $$;
         INSERT INTO chars VALUES ('abc', 'abc', '{{}}')"
    )
}

#[test]
fn x10_text_of_other_encodings_is_converted_as_the_server_does() {
    let installed = TEMPLATE_VERSIONS.into_iter().filter_map(|major| Some((major, server::find_bin(major)?))).next();
    let Some((major, bin)) = installed else {
        return server::skip("postgres", "no PostgreSQL 15 or 18 is installed; HEAPSCAN_PGBIN can name its folder");
    };
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let options = PgbenchOptions { scale: 1, postgres: major, ..PgbenchOptions::default() };
    let made = generate::pgbench(&folder.path().join("cluster"), options).unwrap();
    let server = Server::start(&bin, &made.data_dir).unwrap();
    let others = ["SQL_ASCII", "EUC_TW"];
    for encoding in SINGLE.iter().chain(&MULTIPLE).chain(&others) {
        let name = encoding.to_lowercase();
        let create = format!("CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0");
        server.sql(&made.database, &create).unwrap();
        match others.contains(encoding) {
            false => server.sql(&name, &script(encoding)).unwrap(),
            true => server
                .sql(&name, "CREATE TABLE chars (v text); INSERT INTO chars VALUES ('plain'), (E'\\xc4\\xa1')")
                .unwrap(),
        };
    }
    server.stop().unwrap();

    let engine = Engine::open(&made.data_dir, EngineOptions::default()).unwrap();
    let lists = BatchOptions { arrays: heapscan::arrow::ArrayPolicy::List, ..BatchOptions::default() };
    let mut problems = Vec::new();
    for encoding in SINGLE.iter().chain(&MULTIPLE) {
        let table = engine.database(Some(&encoding.to_lowercase())).and_then(|d| d.table("chars")).unwrap();
        let mut batches = table.scan().batches(lists.clone()).unwrap();
        let conversion = batches.schema().field(1).metadata()[METADATA_CONVERSION].clone();
        assert_eq!(conversion, format!("exact, from {encoding}"));
        let mut rows = 0;
        let mut differ = Vec::new();
        for batch in &mut batches {
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => {
                    differ.push(error.to_string());
                    break;
                }
            };
            let (utf8, text, list) =
                (batch.column(0).as_binary::<i32>(), batch.column(1).as_string::<i32>(), batch.column(2));
            for row in 0..batch.num_rows() {
                rows += 1;
                if text.value(row).as_bytes() != utf8.value(row) {
                    let wanted = String::from_utf8_lossy(utf8.value(row)).into_owned();
                    differ.push(format!("{:?} is not {wanted:?}", text.value(row)));
                }
                let values = list.as_list::<i32>().value(row);
                assert!(values.is_empty() || values.as_string::<i32>().value(0) == text.value(row));
            }
        }
        if !differ.is_empty() || rows < 30 {
            let shown = &differ[..differ.len().min(12)];
            problems.push(format!("{encoding}: {} of {rows} differ: {}", differ.len(), shown.join("; ")));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));

    // No conversion: ASCII is taken, the rest is an error that names the place, or bytes on request.
    for encoding in others {
        let table = engine.database(Some(&encoding.to_lowercase())).and_then(|d| d.table("chars")).unwrap();
        let error = table.scan().batches(BatchOptions::default()).unwrap().find_map(Result::err).expect("not ASCII");
        assert_eq!(error.kind(), ErrorKind::Value);
        assert!(error.to_string().contains("row (0,2), column v") && error.to_string().contains(encoding), "{error}");
        let bytes = BatchOptions { text: TextPolicy::Binary, ..BatchOptions::default() };
        let batch = table.scan().batches(bytes).unwrap().next().unwrap().unwrap();
        assert_eq!(batch.column(0).as_binary::<i32>().value(1), b"\xc4\xa1");
    }
}
