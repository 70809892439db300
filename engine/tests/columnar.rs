//! `--format arrow` and `--format parquet`: read back here, and by pyarrow where it is installed, with the server's values.
#![cfg(feature = "tool")]

#[allow(dead_code, reason = "each test file uses a part of it")]
mod arrow_support;
mod tool_support;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, SchemaRef};
use heapscan_fixtures::{Snapshot, server};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};
use tool_support::{refusal, run, snapshot, stderr, text, tool};

const LENIENT: [&str; 4] = ["--infinity", "saturate", "--numeric-special", "null"];

fn write(data: &str, table: &str, format: &str, file: &Path, more: &[&str]) {
    let file = text(file);
    let args =
        [&["scan", data, table, "--format", format, "--output", &file, "--follow-tablespace-links"], more].concat();
    let output = run(&args);
    assert!(output.status.success(), "{table} {format}: {}", stderr(&output));
}

fn read(format: &str, file: &Path) -> (SchemaRef, Vec<RecordBatch>) {
    let open = || File::open(file).expect("the output");
    if format == "arrow" {
        let reader = arrow_ipc::reader::StreamReader::try_new(open(), None).expect("a stream");
        let schema = reader.schema();
        return (schema, reader.collect::<Result<_, _>>().expect("batches"));
    }
    let builder = ParquetRecordBatchReaderBuilder::try_new(open()).expect("a Parquet file");
    let schema = builder.schema().clone();
    (schema, builder.build().expect("a reader").collect::<Result<_, _>>().expect("batches"))
}

fn compare(table: &str, (schema, batches): &(SchemaRef, Vec<RecordBatch>), expected: &[u8]) {
    let mut lines = expected.split_inclusive(|&c| c == b'\n');
    for batch in batches {
        for row in arrow_support::rows(batch) {
            let line = lines.next().unwrap_or_else(|| panic!("{table}: a row too many"));
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let wanted: Vec<&[u8]> = line.split(|&c| c == b'\t').collect();
            assert_eq!(row.len(), wanted.len(), "{table}");
            for ((have, wanted), field) in row.iter().zip(wanted).zip(schema.fields()) {
                let mut escaped = Vec::new();
                match have {
                    Some(text) => heapscan::copy::escape_text(text, &mut escaped),
                    None => escaped.extend(b"\\N"),
                }
                let same = escaped == wanted || arrow_support::stands_for(&escaped, wanted, field);
                let show = String::from_utf8_lossy;
                assert!(same, "{table}, {}: {:?} is not {:?}", field.name(), show(&escaped), show(wanted));
            }
        }
    }
    assert!(lines.next().is_none(), "{table}: too few rows");
}

/// Tables of all types, and some of many columns.
fn chosen(snapshot: &Snapshot) -> Vec<(u32, String)> {
    let is_chosen = |name: &str| {
        name.starts_with("ty_")
            || ["fuzz_07", "fuzz_12", "fuzz_30", "to_plain", "sh_gen", "sz_empty", "mv"].contains(&name)
    };
    snapshot.user_tables().filter(|t| is_chosen(&t.name)).map(|t| (t.oid, t.name.clone())).collect()
}

#[test]
fn what_is_written_is_read_back() {
    let snapshot = snapshot("small-18", "clean");
    let data = text(&snapshot.data_dir());
    let folder = tempfile::tempdir().unwrap();
    let mut rows = 0;
    let tables = chosen(&snapshot);
    for (i, (oid, name)) in tables.iter().enumerate() {
        let expected = snapshot.oracle_without_ctid(*oid).unwrap();
        for (format, compressions) in [("arrow", ["none", "zstd", "none"]), ("parquet", ["zstd", "snappy", "none"])] {
            let file = folder.path().join(format!("{name}.{format}"));
            let more = [&LENIENT[..], &["--compression", compressions[i % 3], "--batch-rows", "11"]].concat();
            write(&data, &format!("oid:{oid}"), format, &file, &more);
            let read = read(format, &file);
            assert!(read.0.fields().iter().all(|f| f.metadata().contains_key("postgresql:type")), "{name} {format}");
            rows += read.1.iter().map(RecordBatch::num_rows).sum::<usize>();
            compare(name, &read, &expected);
        }
    }
    assert!(tables.len() > 80 && rows > 2000, "{} tables, {rows} rows", tables.len());
}

/// Parquet has no decimals of negative scale.
#[test]
fn negative_scales_in_parquet() {
    let snapshot = snapshot("small-18", "clean");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("numbers.parquet");
    write(&text(&snapshot.data_dir()), "ty_numeric_negscale", "parquet", &file, &LENIENT);
    let (schema, _) = read("parquet", &file);
    assert_eq!(*schema.field(1).data_type(), DataType::Decimal128(5, 0));
}

#[test]
fn what_is_refused() {
    let snapshot = snapshot("small-18", "clean");
    let data = text(&snapshot.data_dir());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kept");
    fs::write(&file, "as it was").unwrap();
    let output = text(&file);
    for (format, args, code, part) in [
        ("arrow", &["--agg", "count(*)"][..], 2, "aggregates"),
        ("parquet", &["--agg", "count(*)"], 2, "aggregates"),
        ("arrow", &["--compression", "snappy"], 2, "snappy"),
        ("parquet", &["--numeric", "decimal(99,1)"], 2, "decimal(99, 1)"),
        // The first row that cannot be had comes before anything is written.
        ("arrow", &["--columns", "v"], 1, "infinity"),
        ("parquet", &["--columns", "v"], 1, "infinity"),
    ] {
        let table = if part == "decimal(99, 1)" { "ty_numeric" } else { "ty_date" };
        let line =
            refusal(&run(&[&["scan", &data, table, "--format", format, "--output", &output], args].concat()), code);
        assert!(line.contains(part), "{line}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "as it was", "{format} {args:?}");
    }
    // A reader that has had enough.
    let mut child = tool(&["scan", &data, "sz_big", "--format", "arrow"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.wait_with_output().unwrap().status.success());
    // A full disk.
    for format in ["arrow", "parquet"] {
        let line = refusal(&run(&["scan", &data, "sz_big", "--format", format, "--output", "/dev/full"]), 1);
        assert!(line.contains("/dev/full") && line.contains("os error 28"), "{line}");
    }
}

/// The zone of the environment is nobody's: timestamps are UTC or have none.
#[test]
fn x6_time_zone_of_the_environment_does_not_matter() {
    let data = text(&snapshot("small-18", "clean").data_dir());
    for table in ["ty_timestamptz", "ty_timestamp", "ty_timetz", "ty_time", "ty_date"] {
        for format in ["text", "arrow", "parquet"] {
            let of = |zone: &str| {
                let args = [&["scan", &data, table, "--format", format], &LENIENT[..]].concat();
                let output = tool(&args).env("TZ", zone).output().unwrap();
                assert!(output.status.success() && output.stdout.len() > 100, "{}", stderr(&output));
                output.stdout
            };
            assert!(of("UTC") == of("Pacific/Chatham"), "{table} {format}");
        }
    }
}

/// X14: a table larger than what the writers may keep; the program's own account of its memory.
#[test]
fn x14_memory_is_bounded() {
    let snapshot = snapshot("small-18", "clean");
    let data = text(&snapshot.data_dir());
    for format in ["arrow", "parquet"] {
        let args = ["scan", &data, "sz_big", "--format", format, "--output", "/dev/null", "--stats", "json"];
        let output = run(&[&args[..], &["--shared-buffers", "4MB", "--arrays", "list"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let stats: serde_json::Value = serde_json::from_str(&stderr(&output)).unwrap();
        let peak = stats["max_rss_bytes"].as_u64().or(stats["max_rss"].as_u64()).expect("the peak of memory");
        assert!(peak < 160 << 20, "{format}: {peak} bytes");
    }
}

/// A Python with pyarrow: `$HEAPSCAN_PYTHON`, or the one of `target/pyarrow-venv`.
fn python() -> Option<PathBuf> {
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/pyarrow-venv/bin/python");
    let asked = std::env::var_os("HEAPSCAN_PYTHON").map(PathBuf::from);
    [asked, Some(venv)].into_iter().flatten().find(|python| {
        let probe = Command::new(python).args(["-c", "import pyarrow.parquet"]).output();
        probe.is_ok_and(|output| output.status.success())
    })
}

#[test]
fn pyarrow_reads_the_servers_values() {
    let Some(python) = python() else {
        return server::skip(
            "pyarrow",
            "no pyarrow: python3 -m venv target/pyarrow-venv && target/pyarrow-venv/bin/pip install pyarrow",
        );
    };
    let snapshot = snapshot("small-18", "clean");
    let data = text(&snapshot.data_dir());
    let folder = tempfile::tempdir().unwrap();
    let mut list = String::new();
    for (oid, name) in chosen(&snapshot) {
        let oracle = folder.path().join(format!("{name}.copy"));
        fs::write(&oracle, snapshot.oracle_without_ctid(oid).unwrap()).unwrap();
        for format in ["arrow", "parquet"] {
            let file = folder.path().join(format!("{name}.{format}"));
            write(&data, &format!("oid:{oid}"), format, &file, &LENIENT);
            list.push_str(&format!("{format}\t{}\t{}\n", file.display(), oracle.display()));
        }
    }
    let list_file = folder.path().join("list");
    fs::write(&list_file, list).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/arrow_support/check.py");
    let output = Command::new(python).arg(script).arg(list_file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", stderr(&output));
    let compared: u64 = said.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number");
    assert!(compared > 4000, "{said}");
}
