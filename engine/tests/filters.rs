//! Filters beside a real server over the same files: what `COPY (SELECT * FROM t WHERE ...) TO STDOUT` prints, for chosen
//! predicates and for random ones, with every IO method. About 10 s a server.

mod method_support;

use heapscan::{Engine, Predicate, RowFormat, Table, aggregate, col};
use heapscan_fixtures::{
    generate::{self, PgbenchOptions, TEMPLATE_VERSIONS},
    server::{self, Server},
};
use method_support::{Random, methods, options};
use std::{fmt::Write, fs, os::unix::fs::PermissionsExt, path::Path};

const SCRIPT: &str = r#"
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
ALTER TYPE mood ADD VALUE 'glum' BEFORE 'ok';
CREATE DOMAIN small AS int2;
CREATE TABLE mixed (
  i2 int2, i4 int4, i8 int8, o oid, f4 float4, f8 float8, n numeric, flag bool, d date, tm time, ts timestamp,
  tz timestamptz, u uuid, b bytea, t text COLLATE "C", v varchar(40) COLLATE "POSIX", c char(6) COLLATE ucs_basic, nm name,
  m mood, dm small, "Odd ""one" int4, arr int4[]);
INSERT INTO mixed SELECT i - 300, i * 7000 - 2000000, i * 9000000000 - 1000000000000, i::bigint * 7000000, i / 4.0 - 50, i / 8.0 - 30,
  (i - 200) ^ 3 / 7.0, i % 3 = 0, date '1999-12-01' + i, time '00:00' + i * interval '2 min',
  timestamp '1999-12-31 23:00' + i * interval '17 min 0.25 s', timestamptz '2000-01-01 00:00+00' + i * interval '1 h',
  md5(i::text)::uuid, decode(md5((i % 40)::text), 'hex'), left(md5((i % 90)::text), i % 7), repeat(chr(97 + i % 5), i % 4), left(md5(i::text), i % 5),
  'name' || i % 20, (enum_range(null::mood))[1 + i % 4], i % 100, i % 10, ARRAY[i]
  FROM generate_series(1, 600) i;
INSERT INTO mixed (i4, f4, f8, n, d, ts, t) VALUES (5, 'NaN', 'NaN', 'NaN', 'infinity', 'infinity', ''),
  (5, '-0', '-0', '0.000', '-infinity', '-infinity', 'é%_\'), (5, 'inf', '-inf', '1e40', '0044-03-15 BC', 'epoch', 'ü'), (2147483647, 0.1, 0.1, 0.1, 'epoch', '2000-01-01', '日本');
INSERT INTO mixed DEFAULT VALUES;
INSERT INTO mixed (t, b) SELECT repeat('long ' || i, 3000), decode(repeat(md5(i::text), 400), 'hex') FROM generate_series(1, 4) i;
DELETE FROM mixed WHERE i4 % 11 = 0;
UPDATE mixed SET t = t || 'x' WHERE i2 % 17 = 0;
ALTER TABLE mixed ADD late int4 DEFAULT 42, ADD later text COLLATE "C" DEFAULT 'missing', DROP arr;
INSERT INTO mixed (i4, late, later) VALUES (6, NULL, NULL), (7, 1, 'there');
CREATE TABLE fixed (a int4 NOT NULL, b int8 NOT NULL, p float8 NOT NULL, q float4 NOT NULL, day date NOT NULL, s int2 NOT NULL, ok bool NOT NULL, u uuid NOT NULL);
INSERT INTO fixed SELECT i, i % 1000, i / 16.0, i % 50, date '1994-01-01' + i % 1000, i % 300, i % 2 = 0, md5((i % 100)::text)::uuid FROM generate_series(1, 20000) i;
VACUUM FREEZE fixed;
CREATE TABLE parted (a int4, b text COLLATE "C", c int8) PARTITION BY RANGE (a);
CREATE TABLE parted_1 (c int8, gone int4, b text COLLATE "C", a int4);
ALTER TABLE parted_1 DROP gone;
ALTER TABLE parted ATTACH PARTITION parted_1 FOR VALUES FROM (0) TO (100);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (100) TO (1000);
INSERT INTO parted SELECT i, 'text ' || i % 7, i * 10 FROM generate_series(1, 900) i;
"#;

/// Predicates of `parted`, one of whose partitions has its columns in another order.
const PARTED: &[&str] = &["a between 95 and 105", "b = 'text 3' and c < 500", "c > 8000 or a = 4", "b is null"];

/// Predicates of `mixed` with all that the grammar has.
const MIXED: &[&str] = &[
    "i4 = 5",
    "5 = i4",
    "i4 <> 5 and t is null",
    "not i4 = 5",
    "i4 > 5 and t = '' or i2 is null",
    "i4 > 5 or t = 'c4' and i2 is null",
    "not (i4 > 5 or t = '')",
    "not i4 > 5 and flag",
    "i4 = 5 is null",
    "(i4 > 5 and f8 < 3) is not true",
    "(i4 > 100000 or t < 'a') is unknown",
    "(i4 > 100000 or t < 'a') is not unknown",
    "(not flag) is false",
    "flag",
    "not flag",
    "flag is not false",
    "flag = 't' and flag >= false",
    "i4 in (5, -1993000, 600)",
    "i4 not in (5, null)",
    "i4 in (5, null)",
    "i4 not in (5, 6.5, 12000)",
    "i4 in (5.5)",
    "i4 not in (5.5)",
    "i4 between -100000 and 100000.5",
    "i4 not between 0 and 1000000",
    "i4 = null",
    "i4 <> null or i4 = 5",
    "i2 > 100000",
    "i2 < 100000",
    "i2 >= -50.5 and i2 < 50.5",
    "i2 = 5e1",
    "i8 = -991000000000",
    "i8 > 4000000000 and i8 <= '4300000000'",
    "i8 < 99999999999999999999999",
    "o > 2147483647",
    "o = -1",
    "o in (7000000, '14000000')",
    "f4 = 0.1",
    "f4 = '0.1'",
    "f4 = 0.1::real",
    "f4 = 'NaN'",
    "f4 > 1e30",
    "f8 = 'nan'",
    "f8 = 0",
    "f8 <> 0",
    "f8 < -29.5 or f8 >= 44.5",
    "f8 > '-inf' and f8 < 'infinity'",
    "n = 0",
    "n < -100000.125",
    "n = 0.1 or n = 'NaN' or n > 1e30",
    "n between -1 and 1",
    "n not in (0.1, 0, 'NaN')",
    "n = -1142857.1428571428571429",
    "d = '2000-01-01'",
    "d > date '2001-01-01'",
    "d in ('infinity', '-infinity', '0044-03-15 BC', 'epoch')",
    "tm between '01:00' and '02:00:00.5'",
    "ts < '2000-01-01'",
    "ts >= timestamp '2000-01-01 00:00' and ts < date '2000-01-02'",
    "ts = 'infinity' or ts = 'epoch'",
    "tz = '2000-01-05 02:00+02'",
    "tz > '2000-01-20 00:00:00Z'",
    "u = 'C4CA4238-A0B9-2382-0DCC-509A6F75849B'",
    "u < '10000000-0000-0000-0000-000000000000'",
    "u in ('c4ca4238a0b923820dcc509a6f75849b', 'c81e728d-9d4c-2f63-6f06-7f89cc14862c')",
    "u not in ('c4ca4238a0b923820dcc509a6f75849b', 'c81e728d-9d4c-2f63-6f06-7f89cc14862c')",
    "b = '\\xc4ca4238a0b923820dcc509a6f75849b'",
    "b > '\\xc4' and b < '\\xd0'",
    "b = ''",
    "t = ''",
    "t <> ''",
    "t < 'b' and t > 'a'",
    "t >= 'z'",
    "t like 'c%'",
    "t like '%4_'",
    "t not like '%4%'",
    "t like 'é\\%\\_\\\\'",
    "t like '_本'",
    "t like 'x!%%' escape '!'",
    "t like 'long %3'",
    "t like null",
    "t in ('', 'é%_\\', '日本')",
    "t = 'it''s'",
    "t = E'\\u00fc'",
    "t = $$ü$$",
    "v = 'aa'",
    "v like 'a%'",
    "v > 'bb'",
    "c = 'c4'",
    "c = 'c4  '",
    "c like 'c4'",
    "c like 'c4%'",
    "c >= 'f'",
    "c in ('c', '', 'e')",
    "nm = 'name3'",
    "nm > 'name5'",
    "nm like 'name1_'",
    "m = 'glum'",
    "m < 'ok'",
    "m >= 'ok'",
    "m <> 'sad' and m in ('sad', 'ok', 'happy')",
    "m not in ('sad', 'ok')",
    "m between 'glum' and 'ok'",
    "dm = 7",
    "dm > 7 and dm < '9'",
    "\"Odd \"\"one\" = 3",
    "late = 42",
    "late <> 42 or late is null",
    "later = 'missing' and I4 > 0",
    "later is null",
    "later is not null and late in (1, 2)",
    "late is distinct from 42",
    "late is not distinct from null",
    "i4 is distinct from 5 and i4 is not distinct from 6",
    "true",
    "false or i4 = 5",
    "null",
    "null is null and i4 = 5",
    "((((i4)) = ((5))))",
];

/// Predicates of `fixed`, whose pages are uniform.
const FIXED: &[&str] = &[
    "a = 777",
    "a > 100 and a <= 19000 and b < 500",
    "day >= date '1994-03-01' and day < date '1995-03-01' and p between 5 and 700 and b < 24",
    "q = 7 or s in (1, 2, 299)",
    "ok and not (b > 10)",
    "u = 'c4ca4238a0b923820dcc509a6f75849b' and a > 10000",
    "a is null",
    "a is not null and s = 3",
    "(a = 3) is not true and a < 10",
    "not ok or p > 1249.9",
    "a < 0",
    "a <> 20000",
    "b >= 0",
];

fn random_leaf(random: &mut Random, out: &mut String) {
    const POOLS: &[(&str, &[&str])] = &[
        ("i2", &["-299", "0", "7", "250", "1000000", "-0.5", "null"]),
        ("i4", &["5", "-1993000", "0", "1e6", "'12000'", "null", "2147483647"]),
        ("i8", &["0", "-1e12", "800000000000", "1.5"]),
        ("o", &["7000000", "3500000000", "0"]),
        ("f4", &["0", "0.1", "'NaN'", "12.25", "-49.75", "null"]),
        ("f8", &["0", "-29.875", "'inf'", "10", "null"]),
        ("n", &["0", "0.1", "-1e6", "'NaN'", "1142857.1428571428571429"]),
        ("flag", &["true", "false", "null"]),
        ("d", &["'2000-01-01'", "'infinity'", "'2001-02-03'"]),
        ("ts", &["'2000-01-03 04:05'", "'-infinity'", "'2000-01-01'"]),
        ("tz", &["'2000-01-03 04:00+00'", "'2000-01-15 00:00-05'"]),
        ("u", &["'c4ca4238a0b923820dcc509a6f75849b'", "'80000000000000000000000000000000'"]),
        ("b", &["'\\xc4ca4238a0b923820dcc509a6f75849b'", "'\\x80'", "''"]),
        ("t", &["''", "'c4'", "'a'", "'é%_\\'", "null"]),
        ("v", &["'aa'", "'b'", "''"]),
        ("c", &["'c4'", "'e'", "''"]),
        ("m", &["'sad'", "'glum'", "'happy'"]),
        ("dm", &["50", "3"]),
        ("late", &["42", "1"]),
        ("later", &["'missing'", "'there'"]),
    ];
    let (column, values) = POOLS[random.below(POOLS.len() as u64) as usize];
    let mut value = || values[random.below(values.len() as u64) as usize];
    let (a, b, c) = (value(), value(), value());
    let text = matches!(column, "t" | "v" | "c" | "later");
    let _ = match random.below(10) {
        0 => write!(out, "{column} is null"),
        1 => write!(out, "{column} is not null"),
        2 => write!(out, "{column} in ({a}, {b}, {c})"),
        3 => write!(out, "{column} not in ({a}, {b})"),
        4 => write!(out, "{column} between {a} and {b}"),
        5 if text => write!(out, "{column} like '%{}%'", ["c", "4", "_", "a_", ""][random.below(5) as usize]),
        n => write!(
            out,
            "{column} {} {a}",
            ["=", "<>", "<", "<=", ">", ">="][(n as usize + random.below(6) as usize) % 6]
        ),
    };
}

fn random_predicate(random: &mut Random, depth: u32, out: &mut String) {
    let inner = |random: &mut Random, out: &mut String| random_predicate(random, depth - 1, out);
    match if depth == 0 { 0 } else { random.below(6) } {
        1 | 2 => {
            inner(random, out);
            out.push_str(if random.below(2) == 0 { " and " } else { " or " });
            inner(random, out);
        }
        3 => {
            out.push_str("not (");
            inner(random, out);
            out.push(')');
        }
        4 => {
            out.push('(');
            inner(random, out);
            let what = ["true", "not true", "false", "not false", "unknown", "not unknown"];
            let _ = write!(out, ") is {}", what[random.below(6) as usize]);
        }
        5 => {
            out.push('(');
            inner(random, out);
            out.push(')');
        }
        _ => random_leaf(random, out),
    }
}

#[test]
fn rows_are_those_of_the_server() {
    let installed: Vec<_> =
        TEMPLATE_VERSIONS.into_iter().filter_map(|major| Some((major, server::find_bin(major)?))).collect();
    if installed.is_empty() {
        server::skip("postgres", "no PostgreSQL 15 or 18 is installed; HEAPSCAN_PGBIN can name its folder of programs");
    }
    for (major, bin) in installed {
        beside(major, &bin);
    }
}

fn beside(major: u32, bin: &Path) {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let options_of_cluster = PgbenchOptions { scale: 1, postgres: major, ..PgbenchOptions::default() };
    let made = generate::pgbench(&folder.path().join("cluster"), options_of_cluster).unwrap();
    let server = Server::start(bin, &made.data_dir).unwrap();
    server.sql(&made.database, SCRIPT).unwrap();
    // Not every build has ICU.
    let collated = server.sql(
        &made.database,
        "CREATE COLLATION same (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
         CREATE TABLE collated (t text COLLATE same, l text COLLATE \"und-x-icu\"); INSERT INTO collated VALUES ('a', 'b'), ('A', 'B');",
    );
    let seed = std::env::var("HEAPSCAN_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0x5eed_f117);
    let mut random = Random(seed);
    let mut questions: Vec<(&str, String)> = MIXED.iter().map(|p| ("mixed", (*p).to_owned())).collect();
    questions.extend(FIXED.iter().map(|p| ("fixed", (*p).to_owned())));
    questions.extend(PARTED.iter().map(|p| ("parted", (*p).to_owned())));
    for _ in 0..400 {
        let mut predicate = String::new();
        random_predicate(&mut random, 3, &mut predicate);
        questions.push(("mixed", predicate));
    }
    const MARK: &str = "-- the next answer";
    let script: String = questions
        .iter()
        .map(|(table, p)| format!("COPY (SELECT * FROM {table} WHERE {p}) TO STDOUT;\nSELECT '{MARK}';\n"))
        .collect();
    let answers = server.sql(&made.database, &format!("SET TimeZone = 'UTC';\n{script}")).unwrap();
    server.stop().unwrap();
    let answers: Vec<&str> = answers.split(&format!("{MARK}\n")).collect();
    assert_eq!(answers.len(), questions.len() + 1);

    let engines: Vec<(Engine, [Table; 3])> = methods()
        .into_iter()
        .map(|method| {
            let engine = Engine::open(&made.data_dir, options(method, 256)).unwrap();
            let database = engine.database(None).unwrap();
            let tables = ["mixed", "fixed", "parted"].map(|name| database.table(name).unwrap());
            (engine, tables)
        })
        .collect();
    for (i, ((table, text), answer)) in questions.iter().zip(&answers).enumerate() {
        let predicate = Predicate::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        // All methods for the chosen ones, one after the other for the random ones.
        let chosen = i < MIXED.len() + FIXED.len() + PARTED.len();
        for (e, (_, [mixed, fixed, parted])) in engines.iter().enumerate() {
            if !chosen && i % engines.len() != e {
                continue;
            }
            let table = match *table {
                "mixed" => mixed,
                "fixed" => fixed,
                _ => parted,
            };
            same_rows(major, table, &predicate, text, answer);
        }
    }
    if collated.is_ok() {
        refuses_collations(&engines[0].0);
    }
}

/// Rows, counts, batches and limits of one predicate.
fn same_rows(major: u32, table: &Table, predicate: &Predicate, text: &str, answer: &str) {
    let scan = || table.scan().filter(predicate.clone());
    let mut out = Vec::new();
    let stats = scan().write_rows(RowFormat::Text, &mut out).unwrap_or_else(|e| panic!("{major} {text}: {e}"));
    let out = String::from_utf8(out).unwrap();
    assert!(
        out == answer,
        "PostgreSQL {major}, {text}: {} rows, the server has {}",
        stats.rows,
        answer.lines().count()
    );
    let rows = answer.lines().count() as u64;
    assert_eq!(stats.rows, rows, "{text}");
    let calls = aggregate::parse("count(*)").unwrap();
    let count = scan().aggregate(&calls).unwrap();
    assert_eq!(count.values, [Some(rows.to_string())], "{text}");
    #[cfg(feature = "arrow")]
    {
        // The first column alone: Arrow has no place for what some others hold, infinite dates for instance.
        let first = table.columns()[0].name.clone();
        let batches = scan().columns(&[first]).batches(heapscan::arrow::BatchOptions::default()).unwrap();
        assert_eq!(batches.map(|b| b.unwrap().num_rows() as u64).sum::<u64>(), rows, "{text}");
    }
    let mut limited = Vec::new();
    scan().limit(3).write_rows(RowFormat::Text, &mut limited).unwrap();
    let expected: String = answer.split_inclusive('\n').take(3).collect();
    assert_eq!(String::from_utf8(limited).unwrap(), expected, "{text}");
}

fn refuses_collations(engine: &Engine) {
    let table = engine.database(None).unwrap().table("collated").unwrap();
    let error = |p: Predicate| table.scan().filter(p).start().err().expect("a refusal").to_string();
    assert!(error(col("t").eq("a")).contains("not deterministic"), "{}", error(col("t").eq("a")));
    assert!(error(col("t").like("a%")).contains("not deterministic"));
    assert!(error(col("l").lt("a")).contains("needs the order of collation"), "{}", error(col("l").lt("a")));
    let mut out = Vec::new();
    table.scan().filter(col("l").eq("b")).write_rows(RowFormat::Text, &mut out).unwrap();
    assert_eq!(out, b"a\tb\n");
}
