//! Clusters made up of real control and map files, with catalogs served from memory: what the catalogs of a real
//! server cannot be made to say.

mod open;
mod relations;

use super::{control, filenode_map, *};
use crate::schema::RowLayout;
use rustc_hash::FxHashMap;
use std::{fs, sync::Mutex};

/// A row by column name; what is not named is zero or NULL.
#[derive(Clone, Default)]
pub(super) struct FakeRow(FxHashMap<&'static str, Vec<u8>>);

impl FakeRow {
    fn u32(mut self, column: &'static str, value: u32) -> Self {
        self.0.insert(column, value.to_le_bytes().to_vec());
        self
    }

    fn i16(mut self, column: &'static str, value: i16) -> Self {
        self.0.insert(column, value.to_le_bytes().to_vec());
        self
    }

    /// A `"char"` or a bool.
    fn byte(mut self, column: &'static str, value: u8) -> Self {
        self.0.insert(column, vec![value]);
        self
    }

    fn name(mut self, column: &'static str, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.resize(64, 0);
        self.0.insert(column, bytes);
        self
    }

    fn bytes(mut self, column: &'static str, value: &[u8]) -> Self {
        self.0.insert(column, value.to_vec());
        self
    }
}

/// Serves the rows of a file by its name.
#[derive(Default)]
pub(super) struct FakeReader(Mutex<FxHashMap<String, Vec<FakeRow>>>);

impl FakeReader {
    fn add(&self, file: &str, row: FakeRow) {
        self.0.lock().expect("not poisoned").entry(file.to_owned()).or_default().push(row);
    }
}

impl TableReader for FakeReader {
    fn read_rows(
        &self,
        fork: &Arc<RelationFork>,
        layout: &RowLayout,
        columns: &[usize],
        row: &mut crate::cluster::RowVisitor<'_>,
    ) -> Result<()> {
        let file = fork.path().file_name().expect("a name").to_string_lossy().into_owned();
        let rows = self.0.lock().expect("not poisoned").get(&file).cloned().unwrap_or_default();
        for fake in rows {
            let zeros = [0; 64];
            let values: Vec<_> = columns
                .iter()
                .map(|&column| {
                    let attribute = &layout.attributes[column];
                    let zero = usize::try_from(attribute.len).ok().map(|len| &zeros[..len]);
                    fake.0.get(attribute.name.as_str()).map(Vec::as_slice).or(zero)
                })
                .collect();
            row(&values)?;
        }
        Ok(())
    }
}

/// A relation to be put into the catalogs.
#[derive(Clone)]
pub(super) struct FakeClass {
    oid: u32,
    namespace: u32,
    name: &'static str,
    kind: u8,
    filenode: u32,
    access_method: u32,
    persistence: u8,
    tablespace: u32,
    natts: i16,
}

impl FakeClass {
    fn table(oid: u32, name: &'static str) -> Self {
        Self {
            oid,
            namespace: PUBLIC,
            name,
            kind: b'r',
            filenode: oid,
            access_method: 2,
            persistence: b'p',
            tablespace: 0,
            natts: 0,
        }
    }

    fn of_kind(oid: u32, name: &'static str, kind: u8) -> Self {
        Self { kind, access_method: 0, ..Self::table(oid, name) }
    }
}

const VERSION: u32 = 15;
const DATABASE: u32 = 16_384;
const PUBLIC: u32 = 2200;
const PG_CATALOG: u32 = 11;

/// A cluster with one user database, whose catalogs have nothing but themselves.
pub(super) struct FakeCluster {
    folder: tempfile::TempDir,
    reader: Arc<FakeReader>,
}

/// A column: name, type, length, alignment.
type Column = (&'static str, u32, i16, u8);

/// The catalogs that only `pg_attribute` describes.
const COLUMNS: [(u32, &str, &[Column]); 12] = [
    (
        1247,
        "pg_type",
        &[
            ("oid", 26, 4, b'i'),
            ("typname", 19, 64, b'c'),
            ("typnamespace", 26, 4, b'i'),
            ("typlen", 21, 2, b's'),
            ("typbyval", 16, 1, b'c'),
            ("typtype", 18, 1, b'c'),
            ("typdelim", 18, 1, b'c'),
            ("typrelid", 26, 4, b'i'),
            ("typelem", 26, 4, b'i'),
            ("typarray", 26, 4, b'i'),
            ("typoutput", 24, 4, b'i'),
            ("typalign", 18, 1, b'c'),
            ("typbasetype", 26, 4, b'i'),
            ("typtypmod", 23, 4, b'i'),
        ],
    ),
    (
        1255,
        "pg_proc",
        &[
            ("oid", 26, 4, b'i'),
            ("proname", 19, 64, b'c'),
            ("pronamespace", 26, 4, b'i'),
            ("proargtypes", 30, -1, b'i'),
        ],
    ),
    (1260, "pg_authid", &[("oid", 26, 4, b'i'), ("rolname", 19, 64, b'c')]),
    (2601, "pg_am", &[("oid", 26, 4, b'i'), ("amname", 19, 64, b'c')]),
    (2611, "pg_inherits", &[("inhrelid", 26, 4, b'i'), ("inhparent", 26, 4, b'i')]),
    (2615, "pg_namespace", &[("oid", 26, 4, b'i'), ("nspname", 19, 64, b'c')]),
    (
        2617,
        "pg_operator",
        &[
            ("oid", 26, 4, b'i'),
            ("oprname", 19, 64, b'c'),
            ("oprnamespace", 26, 4, b'i'),
            ("oprleft", 26, 4, b'i'),
            ("oprright", 26, 4, b'i'),
        ],
    ),
    (
        3456,
        "pg_collation",
        &[
            ("oid", 26, 4, b'i'),
            ("collname", 19, 64, b'c'),
            ("collnamespace", 26, 4, b'i'),
            ("collencoding", 23, 4, b'i'),
        ],
    ),
    (3501, "pg_enum", &[("oid", 26, 4, b'i'), ("enumtypid", 26, 4, b'i'), ("enumlabel", 19, 64, b'c')]),
    (3541, "pg_range", &[("rngtypid", 26, 4, b'i'), ("rngsubtype", 26, 4, b'i'), ("rngmultitypid", 26, 4, b'i')]),
    (3600, "pg_ts_dict", &[("oid", 26, 4, b'i'), ("dictname", 19, 64, b'c'), ("dictnamespace", 26, 4, b'i')]),
    (3602, "pg_ts_config", &[("oid", 26, 4, b'i'), ("cfgname", 19, 64, b'c'), ("cfgnamespace", 26, 4, b'i')]),
];

impl FakeCluster {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let cluster = Self { folder, reader: Arc::default() };
        for folder in ["global", "base/16384", "pg_tblspc"] {
            fs::create_dir_all(cluster.path().join(folder)).expect("a folder");
        }
        cluster.write("PG_VERSION", b"15\n");
        cluster.write("base/16384/PG_VERSION", b"15\n");
        cluster.write("global/pg_control", &control::tests::Writer::release(VERSION).finish());
        // The numbers differ from the oids, as after VACUUM FULL.
        let global = [(1262, 91_262), (1260, 91_260)];
        cluster.write("global/pg_filenode.map", &filenode_map::tests::map_bytes(VERSION, &global));
        let local = [(1259, 91_259), (1249, 91_249), (1247, 91_247), (1255, 91_255)];
        cluster.write("base/16384/pg_filenode.map", &filenode_map::tests::map_bytes(VERSION, &local));
        cluster.add_database(DATABASE, "shop");
        cluster.add_catalogs();
        cluster
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path().join(name), bytes).expect("a file");
    }

    /// Puts another control file in place; `change` sets fields by offset.
    fn set_control(&self, change: impl FnOnce(&mut control::tests::Writer) -> &mut control::tests::Writer) {
        let mut writer = control::tests::Writer::release(VERSION);
        self.write("global/pg_control", &change(&mut writer).finish());
    }

    fn add_database(&self, oid: u32, name: &str) {
        self.write("global/91262", b"");
        let row = FakeRow::default().u32("oid", oid).name("datname", name).u32("encoding", 6);
        self.reader.add("91262", row.u32("dattablespace", 1663).byte("datallowconn", 1));
    }

    fn add_catalogs(&self) {
        for (oid, name) in [(1259, "pg_class"), (1249, "pg_attribute"), (1262, "pg_database")] {
            let layout = bootstrap_layout(VERSION, oid, 64).expect("a known layout");
            for a in &layout.attributes {
                let align = b"csid"[a.align.ilog2() as usize];
                self.add_column(oid, a.number, &a.name, a.type_oid, a.len, align, a.by_val);
            }
            self.add_catalog(oid, name, layout.attributes.len());
        }
        for (oid, name, columns) in COLUMNS {
            for (&(column, type_oid, len, align), number) in columns.iter().zip(1..) {
                self.add_column(oid, number, column, type_oid, len, align, (1..=4).contains(&len));
            }
            self.add_catalog(oid, name, columns.len());
        }
        self.add_namespace(PG_CATALOG, "pg_catalog");
        self.add_namespace(PUBLIC, "public");
    }

    fn add_catalog(&self, oid: u32, name: &'static str, columns: usize) {
        let shared = matches!(oid, 1260 | 1262);
        let mapped = shared || matches!(oid, 1259 | 1249 | 1247 | 1255);
        let file = if mapped { 90_000 + oid } else { oid };
        let folder = if shared { "global" } else { "base/16384" };
        self.write(&format!("{folder}/{file}"), b"");
        let class = FakeClass {
            namespace: PG_CATALOG,
            filenode: if mapped { 0 } else { oid },
            natts: columns as i16,
            ..FakeClass::table(oid, name)
        };
        self.reader.add("91259", class_row(&class).byte("relisshared", shared.into()));
    }

    fn add_namespace(&self, oid: u32, name: &str) {
        self.reader.add("2615", FakeRow::default().u32("oid", oid).name("nspname", name));
    }

    #[expect(clippy::too_many_arguments, reason = "they are the columns of pg_attribute")]
    fn add_column(&self, table: u32, number: i16, name: &str, type_oid: u32, len: i16, align: u8, by_val: bool) {
        self.reader.add("91249", column_row(table, number, name, type_oid, len, align, by_val));
    }

    /// Adds a table with its file.
    fn add_class(&self, class: &FakeClass) {
        self.write(&format!("base/16384/{}", class.filenode), b"");
        self.reader.add("91259", class_row(class));
    }

    fn add_type(&self, oid: u32, namespace: u32, name: &str, kind: u8) -> FakeRow {
        FakeRow::default()
            .u32("oid", oid)
            .name("typname", name)
            .u32("typnamespace", namespace)
            .byte("typtype", kind)
            .i16("typlen", 4)
            .byte("typalign", b'i')
    }

    fn open(&self, options: OpenOptions) -> Result<Cluster> {
        Cluster::open(self.path(), options)
    }

    fn try_database(&self, options: OpenOptions) -> Result<Database> {
        self.open(options)?.database(Arc::clone(&self.reader) as _, None)
    }

    fn database(&self) -> Database {
        self.try_database(OpenOptions::default()).expect("a good database")
    }
}

fn class_row(class: &FakeClass) -> FakeRow {
    FakeRow::default()
        .u32("oid", class.oid)
        .name("relname", class.name)
        .u32("relnamespace", class.namespace)
        .u32("relam", class.access_method)
        .u32("relfilenode", class.filenode)
        .u32("reltablespace", class.tablespace)
        .byte("relpersistence", class.persistence)
        .byte("relkind", class.kind)
        .i16("relnatts", class.natts)
}

fn column_row(table: u32, number: i16, name: &str, type_oid: u32, len: i16, align: u8, by_val: bool) -> FakeRow {
    FakeRow::default()
        .u32("attrelid", table)
        .i16("attnum", number)
        .name("attname", name)
        .u32("atttypid", type_oid)
        .i16("attlen", len)
        .byte("attalign", align)
        .byte("attbyval", by_val.into())
        .byte("attstorage", if len == -1 { b'x' } else { b'p' })
}
