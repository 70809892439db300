//! From names to files and layouts.

use super::*;

fn find(database: &Database, name: &str) -> Result<RelationInfo> {
    database.relation(&name.parse().expect("a good name"))
}

fn refusal(database: &Database, name: &str) -> (ErrorKind, String) {
    let error = find(database, name).expect_err("must be refused");
    (error.kind(), error.to_string())
}

#[test]
fn h14_tables_are_found_by_name_and_oid_but_never_by_file() {
    let fake = FakeCluster::new();
    fake.add_namespace(17_000, "Other Schema");
    fake.add_class(&FakeClass { filenode: 20_001, ..FakeClass::table(16_390, "rewritten") });
    fake.add_class(&FakeClass { namespace: 17_000, ..FakeClass::table(16_391, "Strange") });
    let database = fake.database();
    for name in ["rewritten", "public.REWRITTEN", "\"public\".\"rewritten\"", "oid:16390"] {
        let info = find(&database, name).expect(name);
        assert_eq!((info.oid, info.schema.as_str(), info.kind), (16_390, "public", RelationKind::Table));
        assert_eq!(info.file, RelationFile { tablespace: 1663, database: DATABASE, filenode: 20_001 });
        assert_eq!(info.path, fake.path().join("base/16384/20001"));
        assert_eq!(database.open_fork(&info, OpenFileOptions::default()).expect("its file").blocks(), 0);
    }
    assert_eq!(find(&database, "\"Other Schema\".\"Strange\"").expect("a table").oid, 16_391);
    assert_eq!(find(&database, "pg_class").expect("mapped").path, fake.path().join("base/16384/91259"));
    let shared = find(&database, "pg_catalog.pg_database").expect("shared");
    assert_eq!(shared.path, fake.path().join("global/91262"));
    assert_eq!(shared.file, RelationFile { tablespace: 1664, database: 0, filenode: 91_262 });
    let (kind, message) = refusal(&database, "strange");
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(message.contains("\"Other Schema\".\"Strange\""), "{message}");
    assert_eq!(refusal(&database, "oid:20001").0, ErrorKind::NotFound);
    assert_eq!(refusal(&database, "nowhere.rewritten").0, ErrorKind::NotFound);
}

#[test]
fn the_layout_has_dropped_columns_and_missing_values() {
    let fake = FakeCluster::new();
    fake.add_class(&FakeClass { natts: 3, ..FakeClass::table(16_390, "t") });
    let mut array = Vec::new();
    for word in [1i32, 0, 23, 1, 1, 42] {
        array.extend(word.to_le_bytes());
    }
    // In the order of the numbers, not of the rows; system columns do not count.
    let missing =
        column_row(16_390, 3, "added", 23, 4, b'i', true).byte("atthasmissing", 1).bytes("attmissingval", &array);
    fake.reader.add("91249", missing.byte("attgenerated", b's'));
    let dropped = column_row(16_390, 2, "........pg.dropped.2........", 0, 8, b'd', true).byte("attisdropped", 1);
    fake.reader.add("91249", dropped.byte("atthasmissing", 1).bytes("attmissingval", b"rubbish"));
    fake.add_column(16_390, -1, "ctid", 27, 6, b's', false);
    fake.add_column(16_390, 1, "a", 25, -1, b'i', false);
    let layout = find(&fake.database(), "t").expect("a table").layout;
    let summary: Vec<_> =
        layout.attributes.iter().map(|a| (a.number, a.type_oid, a.len, a.align, a.storage, a.dropped)).collect();
    assert_eq!(summary, [(1, 25, -1, 4, b'x', false), (2, 0, 8, 8, b'p', true), (3, 23, 4, 4, b'p', false)]);
    assert_eq!(layout.attributes[2].missing, Some(vec![42, 0, 0, 0]));
    assert_eq!(layout.attributes[2].generated, b's');
    assert_eq!(layout.attributes[1].missing, None);
}

#[test]
fn contradictions_of_the_catalogs_are_noticed() {
    let fake = FakeCluster::new();
    let table = |oid, name, natts| fake.add_class(&FakeClass { natts, ..FakeClass::table(oid, name) });
    for (oid, name, natts, numbers) in [
        (16_400, "gap", 2, &[1i16, 3][..]),
        (16_401, "duplicate", 2, &[1, 2, 2]),
        (16_402, "fewer", 3, &[1, 2]),
        (16_403, "more", 1, &[1, 2]),
        (16_404, "negative", -1, &[1]),
        (16_405, "beyond", 1, &[1601]),
    ] {
        table(oid, name, natts);
        for &number in numbers {
            fake.add_column(oid, number, "a", 23, 4, b'i', true);
        }
    }
    for (oid, name, len, align, by_val) in [
        (16_410, "length_0", 0, b'i', false),
        (16_411, "length_3", -3, b'i', false),
        (16_412, "by_value", 3, b'i', true),
        (16_413, "alignment", 4, b'x', true),
    ] {
        table(oid, name, 1);
        fake.add_column(oid, 1, "a", 23, len, align, by_val);
    }
    table(16_420, "missing", 1);
    let damaged = column_row(16_420, 1, "a", 23, 4, b'i', true).byte("atthasmissing", 1);
    fake.reader.add("91249", damaged.bytes("attmissingval", &[1, 2, 3]));
    table(16_430, "twice", 0);
    table(16_430, "twice", 0);
    let database = fake.database();
    for name in [
        "gap",
        "duplicate",
        "fewer",
        "more",
        "negative",
        "beyond",
        "length_0",
        "length_3",
        "by_value",
        "alignment",
        "missing",
        "twice",
    ] {
        let (kind, message) = refusal(&database, name);
        assert_eq!(kind, ErrorKind::Corrupt, "{name}: {message}");
    }
    // One damaged relation does not take the others with it.
    assert!(find(&database, "pg_class").is_ok());
}

#[test]
fn catalogs_of_another_product_are_refused() {
    let fake = FakeCluster::new();
    fake.add_column(1259, 34, "relextra", 23, 4, b'i', true);
    let error = fake.try_database(OpenOptions::default()).expect_err("another layout");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("pg_class") && error.to_string().contains("34 columns"), "{error}");
}

#[test]
fn h31_what_has_no_rows_says_so() {
    let fake = FakeCluster::new();
    for (oid, name, kind) in
        [(1, "v", b'v'), (2, "i", b'i'), (3, "pi", b'I'), (4, "f", b'f'), (5, "c", b'c'), (6, "seq", b'S')]
    {
        fake.add_class(&FakeClass::of_kind(16_400 + oid, name, kind));
    }
    fake.add_class(&FakeClass { persistence: b't', ..FakeClass::table(16_410, "temp") });
    fake.add_class(&FakeClass { access_method: 4711, ..FakeClass::table(16_411, "columnar") });
    fake.add_class(&FakeClass { access_method: 4712, ..FakeClass::table(16_412, "secret") });
    fake.reader.add("2601", FakeRow::default().u32("oid", 4712).name("amname", "tde_heap"));
    let database = fake.database();
    for (name, part) in [
        ("v", "is a view"),
        ("i", "is an index"),
        ("pi", "index of a partitioned table"),
        ("f", "is a foreign table"),
        ("c", "is a composite type"),
        ("temp", "temporary"),
        ("columnar", "access method 4711"),
        ("secret", "looks encrypted"),
    ] {
        let (kind, message) = refusal(&database, name);
        assert_eq!(kind, ErrorKind::Unsupported, "{message}");
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(find(&database, "seq").expect("one row").kind, RelationKind::Sequence);
    assert_eq!(database.toast_relation(16_410).expect_err("no TOAST table").kind(), ErrorKind::Corrupt);
    assert_eq!(database.toast_relation(1).expect_err("nothing").kind(), ErrorKind::Corrupt);
}

#[test]
fn a_partitioned_table_names_its_leaves() {
    let fake = FakeCluster::new();
    for (oid, name, kind) in [(1, "p", b'p'), (2, "sub", b'p'), (3, "leaf_a", b'r'), (4, "leaf_b", b'r')] {
        fake.add_class(&FakeClass { kind, ..FakeClass::table(16_400 + oid, name) });
    }
    // The last one closes a circle.
    for (child, parent) in [(4, 2), (2, 1), (3, 1), (1, 2)] {
        let row = FakeRow::default().u32("inhrelid", 16_400 + child).u32("inhparent", 16_400 + parent);
        fake.reader.add("2611", row);
    }
    let database = fake.database();
    assert_eq!(database.leaf_partitions(16_401).expect("leaves"), [16_403, 16_404]);
    let (kind, message) = refusal(&database, "p");
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(message.contains("partitioned") && message.contains("public.leaf_a, public.leaf_b"), "{message}");
}

#[test]
fn unlogged_tables_are_empty_after_a_crash() {
    let fake = FakeCluster::new();
    fake.add_class(&FakeClass { persistence: b'u', ..FakeClass::table(16_390, "u") });
    fake.write("base/16384/16390", &[0; 16_384]);
    fake.write("base/16384/16390_init", b"");
    let blocks = |options| {
        let database = fake.try_database(options).expect("a database");
        let info = find(&database, "u").expect("a table");
        let fork = database.open_fork(&info, OpenFileOptions::default()).expect("a fork");
        (info.reset_by_crash, fork.blocks())
    };
    assert_eq!(blocks(OpenOptions::default()), (false, 2));
    fake.set_control(|control| control.u32(16, 6));
    assert_eq!(blocks(OpenOptions { allow_unclean: true, ..OpenOptions::default() }), (true, 0));
}

#[test]
fn h13_tablespaces() {
    let fake = FakeCluster::new();
    let outside = tempfile::tempdir().expect("a folder");
    let version = "PG_15_202209061";
    for folder in [fake.path().join("pg_tblspc/17001"), outside.path().to_owned()] {
        fs::create_dir_all(folder.join(version).join("16384")).expect("a folder");
    }
    std::os::unix::fs::symlink(outside.path(), fake.path().join("pg_tblspc/17002")).expect("a link");
    std::os::unix::fs::symlink("17001", fake.path().join("pg_tblspc/17003")).expect("a link");
    std::os::unix::fs::symlink("/nonexistent", fake.path().join("pg_tblspc/17004")).expect("a link");
    fs::create_dir_all(fake.path().join("pg_tblspc/17005/PG_14_202107181")).expect("a folder");
    fake.write("pg_tblspc/17006", b"");
    let names = ["in_place", "outside", "inside", "dangling", "version", "file", "gone"];
    for (name, n) in names.into_iter().zip(1..) {
        fake.add_class(&FakeClass { tablespace: 17_000 + n, filenode: 99, ..FakeClass::table(16_400 + n, name) });
    }
    let database = fake.database();
    assert!(find(&database, "in_place").expect("a table").path.ends_with(format!("17001/{version}/16384/99")));
    assert!(find(&database, "inside").expect("a table").path.ends_with(format!("17001/{version}/16384/99")));
    for (name, kind, part) in [
        ("outside", ErrorKind::Unsupported, outside.path().to_str().expect("UTF-8")),
        ("dangling", ErrorKind::Io, "/nonexistent"),
        ("version", ErrorKind::Unsupported, "PG_14_202107181"),
        ("file", ErrorKind::Corrupt, "neither a link nor a directory"),
        ("gone", ErrorKind::NotFound, "17007"),
    ] {
        let (refused, message) = refusal(&database, name);
        assert_eq!(refused, kind, "{message}");
        assert!(message.contains(part), "{message}");
    }
    let followed = OpenOptions { follow_tablespace_links: true, ..OpenOptions::default() };
    let database = fake.try_database(followed).expect("a database");
    let path = outside.path().canonicalize().expect("a folder").join(version).join("16384/99");
    assert_eq!(find(&database, "outside").expect("followed").path, path);
    let mapped = OpenOptions { tablespaces: [(17_007, outside.path().to_owned())].into(), ..OpenOptions::default() };
    let database = fake.try_database(mapped).expect("a database");
    assert_eq!(find(&database, "gone").expect("mapped").path, outside.path().join(version).join("16384/99"));
}

#[test]
fn the_list_of_tables_survives_what_is_wrong_with_one() {
    let fake = FakeCluster::new();
    fake.add_class(&FakeClass::table(16_390, "good"));
    fake.write("base/16384/16390", &[0; 8192 * 3]);
    fake.add_class(&FakeClass::table(16_391, "truncated"));
    fake.write("base/16384/16391", &[0; 100]);
    fake.add_class(&FakeClass { tablespace: 17_001, ..FakeClass::table(16_392, "elsewhere") });
    fake.add_class(&FakeClass::of_kind(16_393, "idx", b'i'));
    let tables = fake.database().tables();
    let user: Vec<_> = tables
        .iter()
        .filter(|t| t.schema == "public")
        .map(|t| (t.name.as_str(), t.blocks, t.bytes, t.note.is_some()))
        .collect();
    assert_eq!(
        user,
        [("elsewhere", None, None, true), ("good", Some(3), Some(24_576), false), ("truncated", None, None, true)]
    );
    assert_eq!(tables.iter().filter(|t| t.schema == "pg_catalog").count(), 15);
}

#[test]
fn names_of_objects_as_the_server_prints_them() {
    let fake = FakeCluster::new();
    fake.add_namespace(17_000, "S");
    fake.add_class(&FakeClass { natts: 5, ..FakeClass::table(16_390, "t") });
    for (number, type_oid) in (1..).zip([2205, 2206, 24, 2202, 4096]) {
        fake.add_column(16_390, number, "a", type_oid, 4, b'i', true);
        fake.reader.add("91247", fake.add_type(type_oid, PG_CATALOG, "reg", b'b'));
    }
    // Hidden by the catalog of the same name; not in the path; a key word.
    fake.add_class(&FakeClass::table(16_391, "pg_class"));
    fake.add_class(&FakeClass { namespace: 17_000, ..FakeClass::table(16_392, "t") });
    fake.add_class(&FakeClass::table(16_393, "user"));
    fake.reader.add("91247", fake.add_type(23, PG_CATALOG, "int4", b'b').u32("typarray", 1007));
    let array = fake.add_type(1007, PG_CATALOG, "_int4", b'b').u32("typelem", 23).u32("typoutput", 751);
    fake.reader.add("91247", array);
    fake.reader.add("91247", fake.add_type(18, PG_CATALOG, "char", b'b'));
    fake.reader.add("91247", fake.add_type(16_500, 17_000, "mood", b'e'));
    for (oid, namespace, name, arguments) in [
        (1, PG_CATALOG, "lower", &[23][..]),
        (2, PG_CATALOG, "sum", &[23]),
        (3, PG_CATALOG, "sum", &[1007, 16_500]),
        (4, PUBLIC, "lower", &[23]),
        (5, 17_000, "F", &[]),
    ] {
        let mut vector = vec![0; 20];
        for oid in arguments {
            vector.extend(u32::to_le_bytes(*oid));
        }
        let row = FakeRow::default().u32("oid", oid).name("proname", name).u32("pronamespace", namespace);
        fake.reader.add("91255", row.bytes("proargtypes", &vector));
    }
    fake.reader.add("91260", FakeRow::default().u32("oid", 10).name("rolname", "Admin"));
    let database = fake.database();
    let layout = find(&database, "t").expect("a table").layout;
    let names = database.type_catalog_for(&[&layout]).expect("types").reg_names;
    for (kind, oid, expected) in [
        (2205, 0, "-"),
        (2205, 16_390, "t"),
        (2205, 16_391, "public.pg_class"),
        (2205, 16_392, "\"S\".t"),
        (2205, 16_393, "\"user\""),
        (2205, 1259, "pg_class"),
        (2206, 23, "integer"),
        (2206, 1007, "integer[]"),
        (2206, 18, "\"char\""),
        (2206, 16_500, "\"S\".mood"),
        (24, 1, "lower"),
        (24, 2, "pg_catalog.sum"),
        (24, 4, "public.lower"),
        (24, 5, "\"S\".\"F\""),
        (2202, 2, "sum(integer)"),
        (2202, 3, "sum(integer[],\"S\".mood)"),
        (2202, 4, "public.lower(integer)"),
        (2202, 5, "\"S\".\"F\"()"),
        (4096, 10, "\"Admin\""),
    ] {
        assert_eq!(names.get(&(kind, oid)).map(String::as_str), Some(expected), "{kind} {oid}");
    }
    assert!(names.keys().all(|(kind, _)| [2205, 2206, 24, 2202, 4096].contains(kind)), "only what the columns need");
    assert_eq!(names.get(&(2205, 4711)), None);
}

#[test]
fn composite_types_are_read_as_deep_as_they_lie() {
    let fake = FakeCluster::new();
    fake.add_class(&FakeClass { natts: 1, ..FakeClass::table(16_390, "t") });
    fake.add_column(16_390, 1, "a", 16_501, -1, b'd', false);
    for (class, type_oid, column_type) in [(16_401, 16_501, 16_502), (16_402, 16_502, 16_503), (16_403, 16_503, 16_501)]
    {
        fake.add_class(&FakeClass { natts: 1, ..FakeClass::of_kind(class, "c", b'c') });
        fake.add_column(class, 1, "a", column_type, -1, b'd', false);
        fake.reader.add("91247", fake.add_type(type_oid, PUBLIC, "c", b'c').u32("typrelid", class));
    }
    let database = fake.database();
    let layout = find(&database, "t").expect("a table").layout;
    let catalog = database.type_catalog_for(&[&layout]).expect("types");
    let mut composites: Vec<_> = catalog.composites.keys().copied().collect();
    composites.sort_unstable();
    assert_eq!(composites, [16_401, 16_402, 16_403]);
    assert!(catalog.reg_names.is_empty());
    assert_eq!(database.type_catalog().expect("all types").composites.len(), 3);
    for n in 0..70 {
        let (class, type_oid) = (20_000 + n, 30_000 + n);
        fake.add_column(class, 1, "a", type_oid + 1, -1, b'd', false);
        fake.reader.add("91247", fake.add_type(type_oid, PUBLIC, "deep", b'c').u32("typrelid", class));
    }
    fake.add_class(&FakeClass { natts: 1, ..FakeClass::table(16_391, "deep") });
    fake.add_column(16_391, 1, "a", 30_000, -1, b'd', false);
    let database = fake.database();
    let layout = find(&database, "deep").expect("a table").layout;
    assert_eq!(database.type_catalog_for(&[&layout]).expect_err("too deep").kind(), ErrorKind::Limit);
}
