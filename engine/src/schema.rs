//! What the catalog says of rows and types. Pure data: read by [`crate::cluster`], used by the decoders.

use rustc_hash::FxHashMap;

/// One attribute of a relation or composite type (a row of `pg_attribute`), dropped ones included: a dropped column
/// still has its bytes in old tuples.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    /// `attname`.
    pub name: String,
    /// `attnum`, from 1.
    pub number: i16,
    /// `atttypid`; 0 when dropped.
    pub type_oid: u32,
    /// `atttypmod`; -1 when there is none.
    pub typmod: i32,
    /// `attlen`: bytes, -1 varlena, -2 C string.
    pub len: i16,
    /// `attbyval`.
    pub by_val: bool,
    /// `attalign` in bytes: 1, 2, 4 or 8.
    pub align: u8,
    /// `attstorage`: `p`, `e`, `m` or `x`. Columns with `p` never have short varlena headers.
    pub storage: u8,
    /// `attnotnull`.
    pub not_null: bool,
    /// `attisdropped`.
    pub dropped: bool,
    /// `attndims`: dimensions that an array was declared with; values may have others. 0 when it is none.
    pub dimensions: i16,
    /// `attgenerated`: 0, `s` (stored) or `v` (virtual: computed when read, the file holds no value).
    pub generated: u8,
    /// `attmissingval`'s element as it would lie in a tuple (fixed length: `len` bytes; varlena: with its header):
    /// the value of rows that are older than the column.
    pub missing: Option<Vec<u8>>,
}

/// The physical layout of the rows of a relation, in `attnum` order, dropped attributes included.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowLayout {
    /// The attributes; `attributes[i].number == i + 1`.
    pub attributes: Vec<Attribute>,
}

/// `pg_type.typtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeKind {
    /// `b`
    Base,
    /// `c`
    Composite,
    /// `d`
    Domain,
    /// `e`
    Enum,
    /// `p`
    Pseudo,
    /// `r`
    Range,
    /// `m`
    Multirange,
}

/// A row of `pg_type`.
#[derive(Clone, Debug)]
pub struct TypeInfo {
    /// `oid`.
    pub oid: u32,
    /// `typname`.
    pub name: String,
    /// Name of the schema.
    pub namespace: String,
    /// `typlen`.
    pub len: i16,
    /// `typbyval`.
    pub by_val: bool,
    /// `typalign` in bytes.
    pub align: u8,
    /// `typtype`.
    pub kind: TypeKind,
    /// `typelem`: the element type of arrays and of fixed-length array-like types; else 0.
    pub elem: u32,
    /// `typarray`: the array type over this one; else 0.
    pub array: u32,
    /// `typdelim`.
    pub delim: u8,
    /// `typbasetype` of a domain; else 0.
    pub base: u32,
    /// `typtypmod` of a domain; else -1.
    pub base_typmod: i32,
    /// `typrelid` of a composite type; else 0.
    pub relation: u32,
    /// `typoutput`: oid of the output function. Tells true arrays (751, `array_out`) and built-in types from others.
    pub output: u32,
}

/// `FirstNormalObjectId`: what users and extensions make has this oid or a larger one.
pub const FIRST_NORMAL_OID: u32 = 16384;

/// An output function that is not PostgreSQL's own (a row of `pg_proc`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFunction {
    /// `proname`.
    pub name: String,
    /// `prolang`: 12 internal, 13 C.
    pub language: u32,
    /// `probin`, the library; empty when there is none.
    pub library: String,
}

/// The types of a database.
#[derive(Clone, Debug, Default)]
pub struct TypeCatalog {
    /// `pg_type` by oid.
    pub types: FxHashMap<u32, TypeInfo>,
    /// `pg_enum`: label by the oid of the label.
    pub enum_labels: FxHashMap<u32, String>,
    /// `pg_range`: range type to its subtype.
    pub range_subtypes: FxHashMap<u32, u32>,
    /// `pg_range`: multirange type to its range type.
    pub multirange_ranges: FxHashMap<u32, u32>,
    /// Attributes of composite types and of tables by `typrelid`.
    pub composites: FxHashMap<u32, RowLayout>,
    /// Names of the objects that the reg* types print, already written as the server would print them
    /// (schema-qualified and quoted where it would, for the default `search_path`), by (reg type oid, object oid).
    pub reg_names: FxHashMap<(u32, u32), String>,
    /// Output functions of extensions' types, by oid.
    pub output_functions: FxHashMap<u32, OutputFunction>,
    /// PostgreSQL major version: some text forms differ between versions.
    pub major_version: u32,
}
