//! Every table of the fixture clusters as Arrow batches, turned back into COPY's text: what the server printed. And what
//! the options promise.
#![cfg(feature = "arrow")]

mod arrow_support;

use arrow_array::{Array, RecordBatch, cast::AsArray};
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};
use heapscan::{
    Database, Engine, EngineOptions, ErrorKind, MethodChoice, MethodName,
    arrow::{
        BatchOptions, Batches, InfinityPolicy, IntervalPolicy, METADATA_CONVERSION, METADATA_OID, METADATA_TABLE,
        METADATA_TYPE, METADATA_TYPMOD, NumericPolicy, SpecialNumericPolicy, TextPolicy, TimestampUnit,
    },
};
use heapscan_fixtures::{Snapshot, corpus};

fn snapshot(name: &str) -> Snapshot {
    corpus(name).and_then(|f| f.snapshot("clean")).expect("fixture")
}

fn engine(snapshot: &Snapshot, options: EngineOptions) -> Engine {
    let options = EngineOptions { follow_tablespace_links: true, ..options };
    Engine::open(snapshot.data_dir(), options).expect("open")
}

fn database(name: &str) -> Database {
    engine(&snapshot(name), EngineOptions::default()).database(None).expect("database")
}

/// Nothing in the fixtures is an error with these.
fn lenient() -> BatchOptions {
    BatchOptions {
        infinity: InfinityPolicy::Saturate,
        numeric_special: SpecialNumericPolicy::Null,
        ..BatchOptions::default()
    }
}

fn table_batches(database: &Database, table: &str, options: BatchOptions) -> heapscan::Result<Vec<RecordBatch>> {
    database.table(table)?.scan().batches(options)?.collect()
}

/// Bytes of values of variable length, which are what makes batches large.
fn value_bytes(batch: &RecordBatch) -> usize {
    let of = |column: &dyn Array| match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().values().len(),
        DataType::Binary => column.as_binary::<i32>().values().len(),
        _ => 0,
    };
    batch.columns().iter().map(|column| of(column)).sum()
}

/// Compares all batches with the server's lines.
fn compare(batches: &mut Batches, options: &BatchOptions, expected: &[u8]) -> Result<(), String> {
    let fields = batches.schema();
    let mut lines = expected.split_inclusive(|&c| c == b'\n');
    let (mut rows, mut count) = (0, 0);
    for batch in &mut *batches {
        let batch = batch.map_err(|e| e.to_string())?;
        assert_eq!(batch.schema(), fields);
        assert!(batch.num_rows() > 0, "an empty batch");
        assert!(batch.num_rows() <= options.max_rows, "{} rows", batch.num_rows());
        assert!(batch.num_rows() == 1 || value_bytes(&batch) <= options.max_bytes, "{} bytes", value_bytes(&batch));
        count += 1;
        for row in arrow_support::rows(&batch) {
            rows += 1;
            let line = lines.next().ok_or_else(|| format!("row {rows} is one too many"))?;
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let wanted: Vec<&[u8]> = if row.is_empty() { Vec::new() } else { line.split(|&c| c == b'\t').collect() };
            if wanted.len() != row.len() {
                return Err(format!("row {rows} has {} fields of {}", row.len(), wanted.len()));
            }
            for ((have, wanted), field) in row.iter().zip(wanted).zip(fields.fields()) {
                let mut escaped = Vec::new();
                match have {
                    Some(text) => heapscan::copy::escape_text(text, &mut escaped),
                    None => escaped.extend(b"\\N"),
                }
                if escaped != wanted && !stands_for(&escaped, wanted, field) {
                    let show = |text: &[u8]| String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned();
                    let (have, wanted) = (show(&escaped), show(wanted));
                    return Err(format!("row {rows}, {}: {have:?} is not {wanted:?}", field.name()));
                }
            }
        }
    }
    if lines.next().is_some() {
        return Err(format!("only {rows} rows"));
    }
    assert_eq!((batches.stats().scan.rows, batches.stats().batches), (rows, count));
    Ok(())
}

/// What the lenient options replace, and the one text that differs from older servers'.
fn stands_for(have: &[u8], wanted: &[u8], field: &Field) -> bool {
    match field.data_type() {
        DataType::Decimal128(..) | DataType::Decimal256(..) => have == b"\\N" && wanted == b"NaN",
        // The server takes 9.999999999999999e+22 for 1e23, whose float it is too: the shortest of both is not its rule.
        DataType::Float64 => have == b"1e+23" && wanted == b"9.999999999999999e+22",
        // Unix microseconds end in 294247.
        DataType::Timestamp(..) => have == b"infinity" && wanted.starts_with(b"29427"),
        // Before PostgreSQL 15, bytes above 127 were printed as they are, which is no UTF-8.
        DataType::Utf8 if field.metadata()[METADATA_TYPE] == "char" => {
            matches!(wanted, [byte @ (128..)] if format!("\\\\{byte:03o}").as_bytes() == have)
        }
        _ => false,
    }
}

fn every_table(name: &str) {
    let snapshot = snapshot(name);
    let database = engine(&snapshot, EngineOptions::default()).database(None).expect("database");
    let (mut problems, mut compared) = (Vec::new(), 0);
    let small = BatchOptions { max_rows: 7, max_bytes: 3000, ..lenient() };
    for oracle in snapshot.user_tables() {
        // Virtual columns are computed, the file does not hold them; of extension types only the bytes are known.
        if matches!(oracle.name.as_str(), "sh_genvirtual" | "ext_types") {
            continue;
        }
        let expected = snapshot.oracle_without_ctid(oracle.oid).expect("oracle");
        for options in [lenient(), small.clone()] {
            let result = database
                .table(&format!("oid:{}", oracle.oid))
                .and_then(|table| table.scan().batches(options.clone()))
                .map_err(|e| e.to_string())
                .and_then(|mut batches| compare(&mut batches, &options, &expected));
            match result {
                Ok(()) => compared += 1,
                Err(problem) => problems.push(format!("{}.{}: {problem}", oracle.schema, oracle.name)),
            }
        }
    }
    assert!(problems.is_empty(), "{} differ:\n{}", problems.len(), problems.join("\n"));
    assert!(compared > 600, "only {compared} were compared");
}

#[test]
fn every_table_of_18() {
    every_table("corpus-small-18");
}

#[test]
fn every_table_of_15() {
    every_table("corpus-small-15");
}

#[test]
fn every_table_of_12() {
    every_table("corpus-small-12");
}
