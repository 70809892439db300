//! Every table of the fixture clusters as Arrow batches, turned back into COPY's text: what the server printed. And what
//! the options promise.
#![cfg(feature = "arrow")]

mod arrow_support;

use arrow_array::{
    Array, RecordBatch,
    cast::AsArray,
    types::{Date32Type, Float64Type, IntervalMonthDayNanoType, TimestampNanosecondType},
};
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};
use heapscan::{
    Database, Engine, EngineOptions, ErrorKind, MethodChoice, MethodName,
    arrow::{
        ArrayPolicy, BatchOptions, Batches, InfinityPolicy, IntervalPolicy, METADATA_CONVERSION, METADATA_OID,
        METADATA_TABLE, METADATA_TYPE, METADATA_TYPMOD, NumericPolicy, SpecialNumericPolicy, TextPolicy, TimestampUnit,
    },
};
use heapscan_fixtures::{Snapshot, corpus};
use std::io::Write;

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
                if escaped != wanted && !arrow_support::stands_for(&escaped, wanted, field) {
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

fn every_table(name: &str) {
    let snapshot = snapshot(name);
    let database = engine(&snapshot, EngineOptions::default()).database(None).expect("database");
    let (mut problems, mut compared) = (Vec::new(), 0);
    let small = BatchOptions { max_rows: 7, max_bytes: 3000, ..lenient() };
    for oracle in snapshot.user_tables() {
        let mut expected = snapshot.oracle_without_ctid(oracle.oid).expect("oracle");
        if oracle.name == "sh_genvirtual" {
            // Of a, v, t, z, w the file holds a and z; the others are computed.
            let line = |line: &[u8]| {
                let fields: Vec<_> = line.split(|&c| c == b'\t').collect();
                [fields[0], b"\t", fields[3], b"\n"].concat()
            };
            expected = expected.trim_ascii_end().split(|&c| c == b'\n').flat_map(line).collect();
        }
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

/// An io_method that this machine refuses is skipped visibly, unless HEAPSCAN_REQUIRE names it.
fn is_usable(method: MethodName) -> bool {
    let usable = heapscan::probe_methods();
    let status = usable.iter().find(|s| s.name == method.as_str()).expect("each method has a status");
    if !status.usable {
        let reason = status.reason.as_deref().unwrap_or("no reason given");
        let required = std::env::var("HEAPSCAN_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|r| r == method.as_str()), "{method} is required: {reason}");
        let _ = writeln!(std::io::stderr(), "SKIP {method}: {reason}");
    }
    status.usable
}

/// The smallest pool: batches hold on to no more than one of its frames.
#[test]
fn every_method_with_sixteen_frames() {
    let snapshot = snapshot("corpus-small-18");
    let oracle = snapshot.table("public", "sz_big").expect("table");
    let expected = snapshot.oracle_without_ctid(oracle.oid).expect("oracle");
    let options = BatchOptions { max_rows: 1000, ..lenient() };
    for method in MethodName::ALL.into_iter().filter(|&method| is_usable(method)) {
        let mut how = EngineOptions { shared_buffers: 16 * 8192, ..EngineOptions::default() };
        how.io.method = MethodChoice::Named(method);
        let engine = engine(&snapshot, how);
        assert_eq!(engine.method().used, method.as_str());
        let table = engine.database(None).and_then(|d| d.table("sz_big")).expect("table");
        let mut batches = table.scan().batches(options.clone()).expect("batches");
        compare(&mut batches, &options, &expected).unwrap_or_else(|e| panic!("{method}: {e}"));
    }
}

/// Type, nullable, and of the metadata: type name, typmod, conversion.
fn described(database: &Database, table: &str, options: &BatchOptions) -> Vec<String> {
    let scan = database.table(table).expect("table").scan();
    let schema = scan.arrow_schema(options).expect("schema");
    assert_eq!(scan.batches(options.clone()).expect("batches").schema(), schema);
    let name = schema.metadata()[METADATA_TABLE].clone();
    assert_eq!(name, format!("public.{table}"));
    let describe = |field: &std::sync::Arc<Field>| {
        let of = |key: &str| field.metadata()[key].clone();
        assert!(of(METADATA_OID).parse::<u32>().is_ok());
        let not_null = if field.is_nullable() { "" } else { " not null" };
        let (data_type, type_name) = (field.data_type(), of(METADATA_TYPE));
        let (typmod, conversion) = (of(METADATA_TYPMOD), of(METADATA_CONVERSION));
        format!("{} {data_type:?}{not_null} <- {type_name} {typmod}: {conversion}", field.name())
    };
    schema.fields().iter().map(describe).collect()
}

#[test]
fn x11_type_identity_is_in_the_metadata() {
    let database = database("corpus-small-18");
    let default = BatchOptions::default();
    let of = |table: &str| described(&database, table, &default);
    assert_eq!(
        of("ty_numeric_mod"),
        [
            "id Int32 <- int4 -1: exact",
            "a Decimal128(10, 2) <- numeric 655366: exact; NaN and infinities are errors",
            "b Decimal128(38, 0) <- numeric 2490372: exact; NaN and infinities are errors",
            "c Utf8 <- numeric 65536504: numeric text",
        ]
    );
    let negative = of("ty_numeric_negscale");
    assert_eq!(negative[1], "a Decimal128(3, -2) <- numeric 198658: exact; NaN and infinities are errors");
    assert_eq!(negative[2], "b Decimal128(4, 4) <- numeric 131080: exact; NaN and infinities are errors");
    assert_eq!(
        of("seq_a"),
        [
            "last_value Int64 not null <- int8 -1: exact",
            "log_cnt Int64 not null <- int8 -1: exact",
            "is_called Boolean not null <- bool -1: exact",
        ]
    );
    for (table, wanted) in [
        ("ty_oid", "v UInt32 <- oid -1: exact"),
        ("ty_bpchar", "v Utf8 <- bpchar 14: exact"),
        ("ty_name", "v Utf8 <- name -1: exact"),
        ("ty_jsonb", "v Utf8 <- jsonb -1: text"),
        ("ty_bytea", "v Binary <- bytea -1: exact"),
        ("ty_uuid", "v FixedSizeBinary(16) <- uuid -1: exact"),
        ("ty_mood", "v Dictionary(Int32, Utf8) <- mood -1: enum label"),
        ("ty_posint", "v Int32 <- posint -1: exact"),
        ("ty_dposint", "v Int32 <- dposint -1: exact"),
        ("ty_time", "v Time64(Microsecond) <- time -1: exact"),
        ("ty_timetz", "v Utf8 <- timetz -1: text"),
        ("ty_date", "v Date32 <- date -1: days since 1970-01-01; infinities are errors"),
        (
            "ty_timestamptz",
            "v Timestamp(Microsecond, Some(\"UTC\")) <- timestamptz -1: microseconds since 1970-01-01; infinities are errors",
        ),
        ("ta_int4", "v Utf8 <- _int4 -1: text"),
    ] {
        assert!(of(table).contains(&wanted.to_owned()), "{:?} lacks {wanted}", of(table));
    }
    assert_eq!(of("ext_types")[1], "h Utf8 <- hstore -1: text");
    let lists = BatchOptions { arrays: ArrayPolicy::List, ..BatchOptions::default() };
    let list = |item: &str| format!("v List({item}) <- ");
    for (table, item, rest) in [
        ("ta_int4", "Int32", "_int4 -1: list; exact"),
        ("ta_text", "Utf8", "_text -1: list; exact"),
        ("ta_uuid", "FixedSizeBinary(16)", "_uuid -1: list; exact"),
    ] {
        let have = described(&database, table, &lists)[1].replace(" nullable", "");
        assert!(have.starts_with("v List(") && have.contains(item) && have.ends_with(rest), "{} {have}", list(item));
    }

    let other = BatchOptions {
        all_nullable: true,
        timestamp_unit: TimestampUnit::Nanosecond,
        interval: IntervalPolicy::MonthDayNano,
        text: TextPolicy::Binary,
        ..lenient()
    };
    assert_eq!(described(&database, "seq_a", &other)[0], "last_value Int64 <- int8 -1: exact");
    let schema = database.table("ty_timestamp").expect("table").scan().arrow_schema(&other).expect("schema");
    assert_eq!(*schema.field(1).data_type(), DataType::Timestamp(TimeUnit::Nanosecond, None));
    let schema = database.table("ty_interval").expect("table").scan().arrow_schema(&other).expect("schema");
    assert_eq!(*schema.field(1).data_type(), DataType::Interval(IntervalUnit::MonthDayNano));
    assert_eq!(described(&database, "ty_text", &other)[1], "v Binary <- text -1: exact, in the database's encoding");
    // What has only ASCII text stays text.
    assert!(described(&database, "ty_numeric", &other)[1].starts_with("v Utf8"));
}

#[test]
fn x12_empty_tables_have_a_schema_and_no_batch() {
    let database = database("corpus-small-18");
    for table in ["sz_empty", "sz_all_zero", "sz_all_deleted"] {
        let mut batches = database.table(table).expect("table").scan().batches(BatchOptions::default()).expect("scan");
        assert!(!batches.schema().fields().is_empty());
        assert!(batches.next().is_none() && batches.next().is_none());
        assert_eq!((batches.stats().batches, batches.stats().scan.rows), (0, 0));
    }
}

#[test]
fn limits_and_scans_without_columns() {
    let database = database("corpus-small-18");
    let scan = database.table("sz_big").expect("table").scan();
    let sizes =
        |batches: Batches| batches.map(|b| b.map(|b| b.num_rows())).collect::<Result<Vec<_>, _>>().expect("rows");
    let options = BatchOptions { max_rows: 4, ..BatchOptions::default() };
    assert_eq!(sizes(scan.clone().limit(10).batches(options.clone()).expect("batches")), [4, 4, 2]);
    assert_eq!(sizes(scan.clone().limit(0).batches(options).expect("batches")), [0; 0]);

    let none: [&str; 0] = [];
    let mut batches = scan.clone().columns(&none).batches(BatchOptions::default()).expect("batches");
    let sizes: Vec<usize> = (&mut batches).map(|b| b.expect("batch").num_rows()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 51_200);
    assert!(sizes.iter().all(|&rows| rows <= 8192));
    assert_eq!(batches.stats().scan.rows, 51_200);

    // A column twice, in another order.
    let twice = scan.clone().columns(&["id", "id"]).limit(3).batches(BatchOptions::default()).expect("batches");
    let batch = twice.last().expect("a batch").expect("rows");
    assert_eq!((batch.num_columns(), batch.column(0)), (2, batch.column(1)));

    for options in [
        BatchOptions { max_rows: 0, ..BatchOptions::default() },
        BatchOptions { max_bytes: 0, ..BatchOptions::default() },
        BatchOptions { max_bytes: 1 << 31, ..BatchOptions::default() },
    ] {
        assert_eq!(scan.clone().batches(options).expect_err("no such batches").kind(), ErrorKind::Usage);
    }
}

/// Arrays as lists, up to the first row of each table with an array that is none; that row is the error.
#[test]
fn arrays_as_lists() {
    let snapshot = snapshot("corpus-small-18");
    let database = database("corpus-small-18");
    let (mut lists, mut refused) = (0, 0);
    for oracle in snapshot.user_tables().filter(|t| t.name.starts_with("ta_")) {
        let expected = snapshot.oracle_without_ctid(oracle.oid).expect("oracle");
        let is_list = |line: &[u8]| {
            let value = line.split(|&c| c == b'\t').nth(1).unwrap_or_default();
            !value.starts_with(b"{{") && !value.starts_with(b"[")
        };
        let lines: Vec<&[u8]> = expected.split_inclusive(|&c| c == b'\n').collect();
        let good = lines.iter().take_while(|line| is_list(line)).count();
        for max_rows in [8192, 2] {
            let options = BatchOptions { arrays: ArrayPolicy::List, max_rows, ..lenient() };
            let table = database.table(&format!("oid:{}", oracle.oid)).expect("table");
            let mut batches = table.scan().limit(good as u64).batches(options.clone()).expect("batches");
            if !matches!(batches.schema().field(1).data_type(), DataType::List(_)) {
                continue;
            }
            lists += good;
            compare(&mut batches, &options, &lines[..good].concat()).unwrap_or_else(|e| panic!("{}: {e}", oracle.name));
            if good < lines.len() {
                let error = table.scan().batches(options).expect("batches").find_map(Result::err).expect("no list");
                assert_eq!(error.kind(), ErrorKind::Value);
                assert!(error.to_string().contains("column v: an array of several dimensions"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(lists > 300 && refused > 40, "{lists} lists, {refused} refused");
}

#[test]
fn x4_infinite_timestamps_and_dates() {
    let database = database("corpus-small-18");
    let by = |table, infinity| table_batches(&database, table, BatchOptions { infinity, ..BatchOptions::default() });
    for table in ["ty_date", "ty_timestamp", "ty_timestamptz"] {
        let error = by(table, InfinityPolicy::Error).expect_err("an infinity");
        assert_eq!(error.kind(), ErrorKind::Value);
        let text = error.to_string();
        assert!(text.contains("row (0,1), column v: infinity") && text.contains("BatchOptions::infinity"), "{text}");
    }
    for (table, replaced) in [("ty_date", 2), ("ty_timestamp", 3), ("ty_timestamptz", 3)] {
        for (infinity, nulls) in [(InfinityPolicy::Null, replaced + 1), (InfinityPolicy::Saturate, 1)] {
            let options = BatchOptions { infinity, ..BatchOptions::default() };
            let mut batches = database.table(table).expect("table").scan().batches(options).expect("batches");
            let batch = batches.next().expect("a batch").expect("rows");
            assert_eq!(batch.column(1).null_count() as u64, nulls, "{table} {infinity:?}");
            assert_eq!(batches.stats().replaced, replaced, "{table} {infinity:?}");
        }
    }
    let dates = by("ty_date", InfinityPolicy::Saturate).expect("dates");
    let dates = dates[0].column(1).as_primitive::<Date32Type>();
    assert_eq!((dates.value(0), dates.value(1)), (i32::MAX, i32::MIN));
}

/// Rows that did not fit after all are converted again with the next batch, and counted once.
#[test]
fn replaced_values_are_counted_once_however_batches_are_cut() {
    let snapshot = snapshot("corpus-small-18");
    let database = database("corpus-small-18");
    let mut most = 0;
    for oracle in snapshot.user_tables().filter(|oracle| oracle.name.starts_with("fuzz_")) {
        let counted = [(8192, 16 << 20), (8192, 6000), (3, 900)].map(|(max_rows, max_bytes)| {
            let options = BatchOptions { max_rows, max_bytes, ..lenient() };
            let mut batches = database.table(&oracle.name).expect("table").scan().batches(options).expect("batches");
            assert_eq!((&mut batches).filter(Result::is_err).count(), 0);
            batches.stats().replaced
        });
        assert!(counted.iter().all(|&n| n == counted[0]), "{}: {counted:?}", oracle.name);
        most = most.max(counted[0]);
    }
    assert!(most > 0, "nothing was replaced");
}

#[test]
fn x5_range_and_unit() {
    let database = database("corpus-small-18");
    let options = BatchOptions { timestamp_unit: TimestampUnit::Nanosecond, ..BatchOptions::default() };
    let options = BatchOptions { infinity: InfinityPolicy::Null, ..options };
    let batch = table_batches(&database, "ty_timestamp", options).expect("batches").remove(0);
    let values: Vec<_> = batch.column(1).as_primitive::<TimestampNanosecondType>().iter().collect();
    let billion = 1_000_000_000;
    let wanted = [
        None,
        None,
        None,
        None,
        None,
        Some(0),
        Some(946_684_800 * billion - 1000),
        Some(946_684_800 * billion),
        Some(946_684_800 * billion + 1000),
        Some(1_709_210_096 * billion + billion / 2),
        None,
        None,
        None,
        None,
    ];
    assert_eq!(values, wanted);
}

#[test]
fn x1_numeric_without_precision() {
    let (snapshot, database) = (snapshot("corpus-small-18"), database("corpus-small-18"));
    let by = |table, numeric| table_batches(&database, table, BatchOptions { numeric, ..BatchOptions::default() });
    let message = |result: heapscan::Result<_>| {
        let error = result.map(|_: Vec<RecordBatch>| ()).expect_err("a value that does not fit");
        assert_eq!(error.kind(), ErrorKind::Value);
        error.to_string()
    };
    // 0.00010000 fits, whatever zeros it shows; 0.00001 is the first that does not.
    let text = message(by("ty_numeric", NumericPolicy::Decimal { precision: 38, scale: 4 }));
    assert!(text.contains("row (0,9), column v: 0.00001 has more digits behind the point"), "{text}");
    let text = message(by("ty_numeric", NumericPolicy::Decimal { precision: 30, scale: 20 }));
    assert!(text.contains("row (0,16), column v: 12345678901234567890.123456789 has more digits than"), "{text}");
    let text = message(by("ty_numeric", NumericPolicy::Decimal { precision: 76, scale: 40 }));
    assert!(text.contains("row (0,20), column v: NaN is no decimal"), "{text}");
    let text = message(by("ty_numeric_huge", NumericPolicy::LossyFloat64));
    assert!(text.contains("beyond the range of a float64"), "{text}");

    // Floats are the nearest ones to what the server printed.
    let oracle = snapshot.table("public", "ty_numeric").expect("table");
    let expected = snapshot.oracle_without_ctid(oracle.oid).expect("oracle");
    let lines = String::from_utf8(expected).expect("text");
    let batches = by("ty_numeric", NumericPolicy::LossyFloat64).expect("floats");
    let floats = batches[0].column(1).as_primitive::<Float64Type>();
    assert_eq!(floats.len(), lines.lines().count());
    for (have, line) in floats.iter().zip(lines.lines()) {
        let wanted = line.split_once('\t').expect("two fields").1;
        assert_eq!(have.map(|f| f.to_string()), wanted.parse::<f64>().ok().map(|f| f.to_string()));
    }
}

#[test]
fn x1_numeric_by_column() {
    let database = database("corpus-small-18");
    let with = |table, name: &str, policy| {
        let numeric_columns = vec![(name.to_owned(), policy)];
        table_batches(&database, table, BatchOptions { numeric_columns, ..lenient() })
    };
    let batch =
        with("ty_numeric_mod", "a", NumericPolicy::Decimal { precision: 60, scale: 4 }).expect("rows").remove(0);
    assert_eq!(*batch.column(1).data_type(), DataType::Decimal256(60, 4));
    assert_eq!(arrow_support::rows(&batch)[0][1].as_deref(), Some(&b"12345678.9100"[..]));
    let batch = with("ty_numeric_mod", "a", NumericPolicy::Text).expect("rows").remove(0);
    assert_eq!(arrow_support::rows(&batch)[0][1].as_deref(), Some(&b"12345678.91"[..]));

    let kind = |result: heapscan::Result<Vec<RecordBatch>>| result.expect_err("refused").kind();
    assert_eq!(kind(with("ty_numeric_mod", "nope", NumericPolicy::Text)), ErrorKind::NotFound);
    assert_eq!(kind(with("ty_numeric_mod", "id", NumericPolicy::Text)), ErrorKind::Usage);
    for (precision, scale) in [(0, 0), (77, 0), (10, 11)] {
        let policy = NumericPolicy::Decimal { precision, scale };
        assert_eq!(kind(with("ty_numeric_mod", "a", policy)), ErrorKind::Usage);
    }
    // NaN in a decimal: counted when it becomes NULL.
    let numeric_columns = vec![("v".to_owned(), NumericPolicy::Decimal { precision: 76, scale: 20 })];
    let options = BatchOptions { numeric_columns, ..lenient() };
    let mut batches = database.table("ty_numeric").expect("table").scan().limit(20).batches(options).expect("batches");
    let batch = batches.next().expect("a batch").expect("rows");
    assert_eq!((batch.column(1).null_count(), batch.column(1).is_null(19), batches.stats().replaced), (1, true, 1));
}

#[test]
fn x2_nan_and_infinities_of_numeric() {
    let database = database("corpus-small-18");
    let numeric = NumericPolicy::Decimal { precision: 76, scale: 20 };
    // Scalar and in arrays: an error, or NULL and counted; never a number.
    for (table, arrays) in [("ty_numeric", ArrayPolicy::Text), ("ta_numeric", ArrayPolicy::List)] {
        let options = BatchOptions { numeric, arrays, ..BatchOptions::default() };
        let text = |error: heapscan::Error| error.to_string();
        let error = table_batches(&database, table, options.clone()).map_err(text).expect_err("NaN");
        assert!(error.contains("NaN is no decimal") && error.contains("column v"), "{error}");
    }
    // The policy for NaN lets no other value pass: what comes after it in the array has more digits than the decimal.
    let options = BatchOptions { numeric, arrays: ArrayPolicy::List, ..lenient() };
    let mut batches = database.table("ta_numeric").expect("table").scan().limit(3).batches(options).expect("batches");
    let error = batches.find_map(Result::err).expect("63 digits behind the point").to_string();
    assert!(error.contains("more digits behind the point") && error.contains("column v"), "{error}");
}

#[test]
fn x3_digits_of_numeric() {
    for name in ["corpus-small-18", "corpus-small-15", "corpus-small-12"] {
        let (snapshot, database) = (snapshot(name), database(name));
        let mut tables = 0;
        for oracle in snapshot.user_tables().filter(|t| t.name.starts_with("ty_numeric")) {
            let expected = snapshot.oracle_without_ctid(oracle.oid).expect("oracle");
            let mut batches = database.table(&oracle.name).expect("table").scan().batches(lenient()).expect("batches");
            compare(&mut batches, &lenient(), &expected).unwrap_or_else(|e| panic!("{name} {}: {e}", oracle.name));
            tables += 1;
        }
        assert!(tables >= 3, "{name}: {tables} tables");
    }
}

/// jsonb to text, enums to labels, domains to what they are over, uuid to 16 bytes: as the server prints them.
#[test]
fn x10_jsonb_enum_domain_uuid() {
    let (snapshot, database) = (snapshot("corpus-small-18"), database("corpus-small-18"));
    for table in ["ty_jsonb", "ty_json", "ty_mood", "ty_posint", "ty_dposint", "ty_uuid"] {
        let oracle = snapshot.table("public", table).expect("table");
        let expected = snapshot.oracle_without_ctid(oracle.oid).expect("oracle");
        let mut batches = database.table(table).expect("table").scan().batches(lenient()).expect("batches");
        compare(&mut batches, &lenient(), &expected).unwrap_or_else(|e| panic!("{table}: {e}"));
    }
}

/// 32-bit offsets limit a batch, not a value: batches are cut by bytes, and a value that is larger is alone.
#[test]
fn x13_batches_are_cut_by_bytes() {
    let (snapshot, database) = (snapshot("corpus-small-18"), database("corpus-small-18"));
    let options = BatchOptions { max_bytes: 64 << 10, ..lenient() };
    let mut largest = 0;
    for oracle in snapshot.user_tables().filter(|t| t.name.starts_with("to_")) {
        let table = database.table(&format!("oid:{}", oracle.oid)).expect("table");
        for batch in table.scan().batches(options.clone()).expect("batches") {
            let batch = batch.expect("rows");
            let bytes = value_bytes(&batch);
            assert!(bytes <= options.max_bytes || batch.num_rows() == 1, "{}: {bytes}", oracle.name);
            largest = largest.max(bytes);
        }
    }
    assert!(largest >= 10_000_000, "{largest}");
}

#[test]
fn rows_before_an_error_come_first_and_nothing_after_it() {
    let database = database("corpus-small-18");
    let numeric = NumericPolicy::Decimal { precision: 76, scale: 40 };
    let options = BatchOptions { numeric, max_rows: 6, ..BatchOptions::default() };
    let mut batches = database.table("ty_numeric").expect("table").scan().batches(options).expect("batches");
    for _ in 0..3 {
        assert_eq!(batches.next().expect("a batch").expect("rows").num_rows(), 6);
    }
    let error = batches.next().expect("an error").expect_err("NaN");
    assert!(error.to_string().contains("NaN") && error.block() == Some(0) && error.path().is_some(), "{error}");
    assert!(batches.next().is_none() && batches.next().is_none());
}

#[test]
fn intervals_by_policy() {
    let database = database("corpus-small-18");
    let scan = database.table("ty_interval").expect("table").scan();
    let options = BatchOptions { interval: IntervalPolicy::MonthDayNano, ..BatchOptions::default() };
    let batch = scan.clone().limit(13).batches(options.clone()).expect("batches").last().expect("rows").expect("rows");
    let values = batch.column(1).as_primitive::<IntervalMonthDayNanoType>();
    let value = |row| {
        let value = values.value(row);
        (value.months, value.days, value.nanoseconds)
    };
    assert_eq!(value(2), (-10, 0, 0));
    assert_eq!(value(5), (0, 1, -1000));
    assert_eq!(value(9), (0, i32::MIN, 0));
    assert_eq!(value(12), (14, 3, (4 * 3600 + 5 * 60 + 6) * 1_000_000_000 + 789_000_000));
    // Row 22 has 2562047788 hours.
    let error = scan.batches(options).expect("batches").last().expect("an error").expect_err("too long");
    assert!(error.to_string().contains("row (0,22), column v: the interval's time part"), "{error}");
}

#[test]
fn x8_one_unknown_type_does_not_spoil_the_table() {
    let database = database("corpus-small-18");
    let batch = table_batches(&database, "ext_types", BatchOptions::default()).expect("rows").remove(0);
    // Those of contrib with a simple form are printed as the server does.
    assert_eq!(batch.column(1).as_string::<i32>().value(0), r#""a"=>"1", "b"=>NULL"#);
    assert_eq!(batch.column(2).as_string::<i32>().value(0), "MiXed");
    let strict = BatchOptions { strict: true, ..BatchOptions::default() };
    assert_eq!(table_batches(&database, "ext_types", strict).expect("rows").len(), 1);
}

#[test]
fn text_as_bytes() {
    let database = database("corpus-small-18");
    let text = table_batches(&database, "ty_text", BatchOptions::default()).expect("rows").remove(0);
    let options = BatchOptions { text: TextPolicy::Binary, ..BatchOptions::default() };
    let bytes = table_batches(&database, "ty_text", options).expect("rows").remove(0);
    let text: Vec<_> = text.column(1).as_string::<i32>().iter().map(|t| t.map(str::as_bytes)).collect();
    assert!(text.len() == 24 && text.iter().flatten().any(|t| !t.is_ascii()));
    assert_eq!(bytes.column(1).as_binary::<i32>().iter().collect::<Vec<_>>(), text);
}
