//! What went wrong for others with heap files (columns, values, row versions, catalogs), each against the answers of the
//! server that wrote the files, with every IO method. Tests elsewhere whose names begin with `h` and a number are of the
//! same list: h1 block sizes, h2 segments, h4 zero pages, h5 torn pages, h6 LSNs, h7 checksum states, h8 bad pages, h9
//! encryption, h11 odd files, h13 tablespaces, h22 missing status, h25 unclean clusters, h26 files that shrink, h28 line
//! pointers, h29 machines, h30 versions, h31 kinds of relations.

mod method_support;

use heapscan::{Engine, ErrorKind, RowFormat};
use heapscan_fixtures::{checksum::page_checksum, corpus};
use method_support::{methods, options};

/// Scans tables and compares them with COPY's output.
fn as_the_server(fixture: &str, which: &str, tables: &[&str]) {
    let snapshot = corpus(fixture).and_then(|f| f.snapshot(which)).expect("fixture");
    for method in methods() {
        let mut options = options(method, 64);
        options.allow_unclean = which == "crash";
        let engine = Engine::open(snapshot.data_dir(), options).expect("open");
        let database = engine.database(None).expect("database");
        for name in tables {
            let oid = snapshot.table("public", name).unwrap_or_else(|e| panic!("{fixture}: {e}")).oid;
            let mut rows = Vec::new();
            let table = database.table(name).unwrap_or_else(|e| panic!("{fixture} {name}: {e}"));
            table.scan().write_rows(RowFormat::Text, &mut rows).unwrap_or_else(|e| panic!("{fixture} {name}: {e}"));
            assert!(rows == snapshot.oracle_without_ctid(oid).unwrap(), "{fixture} {which} {name} {method}");
        }
    }
}

#[test]
fn h14_rewritten_tables_and_catalogs_have_other_file_numbers() {
    let snapshot = corpus("small-18").and_then(|f| f.snapshot("clean")).unwrap();
    let rewritten = snapshot.manifest().relation("public", "rewritten").unwrap();
    assert_ne!(Some(rewritten.oid), rewritten.relfilenode);
    as_the_server("small-18", "clean", &["rewritten", "truncated", "mv"]);
    as_the_server("small-12", "clean", &["rewritten", "truncated"]);
}

#[test]
fn h15_dropped_columns_do_not_shift_others() {
    as_the_server("small-15", "clean", &["sh_drop_toast", "sh_dropall", "sh_1600_dropped"]);
}

#[test]
fn h16_columns_added_with_a_default_have_it_in_older_rows() {
    for fixture in ["small-12", "small-18"] {
        as_the_server(fixture, "clean", &["sh_missing", "sh_missing_full", "sh_addnull"]);
    }
}

#[test]
fn h17_alignment_and_short_headers() {
    as_the_server("small-14", "clean", &["al_pairs", "sh_varlena", "sh_varlena_plain", "sh_zeropad"]);
}

#[test]
fn h18_h19_compressed_values_inline_and_out_of_line() {
    let of = |prefix: &str| {
        let snapshot = corpus("small-15").and_then(|f| f.snapshot("clean")).unwrap();
        let names: Vec<String> =
            snapshot.user_tables().filter(|t| t.schema == "public").map(|t| t.name.clone()).collect();
        names.into_iter().filter(|name| name.starts_with(prefix) && !name.contains("big")).collect::<Vec<_>>()
    };
    let tables = of("to_");
    assert!(tables.len() > 10 && tables.iter().any(|t| t.contains("lz4")), "{tables:?}");
    as_the_server("small-15", "clean", &tables.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn h20_dead_and_reordered_chunks_are_not_mixed() {
    as_the_server("small-18", "crash", &["to_upd", "to_holes", "to_backward", "to_rewritten", "vis_toast_open"]);
}

#[test]
fn h23_multixacts_that_only_lock_do_not_delete() {
    for which in ["clean", "crash"] {
        as_the_server("small-12", which, &["vis_multi", "vis_multi_key", "vis_lock"]);
        as_the_server("small-18", which, &["vis_multi", "vis_multi_key", "vis_lock"]);
    }
}

#[test]
fn h24_frozen_rows_and_ids_beyond_the_wraparound() {
    for which in ["clean", "crash"] {
        let snapshot = corpus("wrap-15").and_then(|f| f.snapshot(which)).unwrap();
        let tables: Vec<String> =
            snapshot.user_tables().filter(|t| t.schema == "public").map(|t| t.name.clone()).collect();
        assert!(tables.len() >= 5);
        as_the_server("wrap-15", which, &tables.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

/// The heap file of a table with a column more: an error that says so, not values in the wrong columns.
#[test]
fn h32_a_heap_file_of_another_moment_than_its_catalog() {
    let snapshot = heapscan_fixtures::pgbench().and_then(|f| f.snapshot("clean")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let data = snapshot.copy_to(&folder.path().join("copy")).unwrap();
    let path = |table| data.join(&snapshot.table("public", table).unwrap().path);
    // Tellers have four columns, branches three.
    let page = std::fs::read(path("pgbench_tellers")).unwrap()[..8192].to_vec();
    assert_eq!(page_checksum(&page, 0).to_le_bytes(), page[8..10]);
    let mut branches = std::fs::read(path("pgbench_branches")).unwrap();
    branches[..8192].copy_from_slice(&page);
    std::fs::write(path("pgbench_branches"), branches).unwrap();
    for method in methods() {
        let engine = Engine::open(&data, options(method, 64)).unwrap();
        let table = engine.database(None).unwrap().table("pgbench_branches").unwrap();
        let error = table.scan().write_rows(RowFormat::Text, &mut Vec::new()).expect_err("refused");
        assert_eq!((error.kind(), error.block()), (ErrorKind::Schema, Some(0)), "{error}");
        assert!(error.to_string().contains("the relation has 3"), "{error}");
    }
}
