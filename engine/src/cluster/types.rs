//! The types of a database: `pg_type` and what hangs on it.

use super::{Database, database::assemble, layouts::alignment, reader::Row, reg_names};
use crate::{
    Error, ErrorKind, Result,
    schema::{FIRST_NORMAL_OID, OutputFunction, RowLayout, TypeCatalog, TypeInfo, TypeKind},
};
use rustc_hash::{FxHashMap, FxHashSet};

/// How deep composite types may lie in each other: each level is one more scan of `pg_attribute`.
const MAX_DEPTH: usize = 64;

const TYPE_COLUMNS: [&str; 14] = [
    "oid",
    "typname",
    "typnamespace",
    "typlen",
    "typbyval",
    "typalign",
    "typtype",
    "typelem",
    "typarray",
    "typdelim",
    "typbasetype",
    "typtypmod",
    "typrelid",
    "typoutput",
];

impl Database {
    /// All types, composite layouts, labels and object names of the database. Takes memory in proportion to its
    /// catalogs; to read one table, [`Database::type_catalog_for`] is enough.
    ///
    /// # Errors
    /// Those of scanning the catalogs; `Corrupt` if one makes no sense.
    pub fn type_catalog(&self) -> Result<TypeCatalog> {
        let mut catalog = self.read_types()?;
        let relations: FxHashSet<u32> = catalog.types.values().map(|t| t.relation).filter(|&r| r != 0).collect();
        self.read_composites(&mut catalog, &relations)?;
        self.read_enum_labels(&mut catalog, |_| true)?;
        self.read_output_functions(&mut catalog, |_| true)?;
        reg_names::read(self, &mut catalog, &reg_names::REG_TYPES.into_iter().collect())?;
        Ok(catalog)
    }

    /// The types of the database, and of composite layouts, labels and object names those that the columns of the
    /// layouts need, through arrays, domains, ranges and composite types.
    ///
    /// # Errors
    /// As [`Database::type_catalog`]; `Limit` if composite types lie more than 64 deep in each other.
    pub fn type_catalog_for(&self, layouts: &[&RowLayout]) -> Result<TypeCatalog> {
        let mut catalog = self.read_types()?;
        let mut reached = FxHashSet::default();
        let mut pending: Vec<u32> = layouts.iter().flat_map(|layout| column_types(layout)).collect();
        let mut loaded = FxHashSet::default();
        for _ in 0..MAX_DEPTH {
            let mut relations = reach(&catalog, pending, &mut reached);
            relations.retain(|relation| loaded.insert(*relation));
            if relations.is_empty() {
                self.read_enum_labels(&mut catalog, |oid| reached.contains(&oid))?;
                self.read_output_functions(&mut catalog, |oid| reached.contains(&oid))?;
                reached.retain(|oid| reg_names::REG_TYPES.contains(oid));
                reg_names::read(self, &mut catalog, &reached)?;
                return Ok(catalog);
            }
            self.read_composites(&mut catalog, &relations)?;
            pending = relations.iter().filter_map(|r| catalog.composites.get(r)).flat_map(column_types).collect();
        }
        Err(Error::new(ErrorKind::Limit, format!("composite types lie more than {MAX_DEPTH} deep in each other")))
    }

    fn read_types(&self) -> Result<TypeCatalog> {
        let major_version = self.cluster().control().major_version;
        let mut catalog = TypeCatalog { major_version, ..TypeCatalog::default() };
        self.catalog("pg_type")?.read(&*self.reader, &TYPE_COLUMNS, |row| {
            let info = self.parse_type(row)?;
            catalog.types.entry(info.oid).or_insert(info);
            Ok(())
        })?;
        let columns: &[&str] = if major_version >= 14 {
            &["rngtypid", "rngsubtype", "rngmultitypid"]
        } else {
            &["rngtypid", "rngsubtype"]
        };
        self.catalog("pg_range")?.read(&*self.reader, columns, |row| {
            let range = row.u32(0)?;
            catalog.range_subtypes.insert(range, row.u32(1)?);
            if columns.len() == 3 {
                catalog.multirange_ranges.insert(row.u32(2)?, range);
            }
            Ok(())
        })?;
        Ok(catalog)
    }

    fn parse_type(&self, row: &Row<'_>) -> Result<TypeInfo> {
        let letter = row.char(5)?;
        let align = alignment(letter).ok_or_else(|| row.error(5, format_args!("is {:?}", char::from(letter))))?;
        let kind = match row.char(6)? {
            b'b' => TypeKind::Base,
            b'c' => TypeKind::Composite,
            b'd' => TypeKind::Domain,
            b'e' => TypeKind::Enum,
            b'p' => TypeKind::Pseudo,
            b'r' => TypeKind::Range,
            b'm' => TypeKind::Multirange,
            other => return Err(row.error(6, format_args!("is {:?}", char::from(other)))),
        };
        Ok(TypeInfo {
            oid: row.u32(0)?,
            name: row.name(1)?,
            namespace: self.schema_name(row.u32(2)?),
            len: row.i16(3)?,
            by_val: row.bool(4)?,
            align,
            kind,
            elem: row.u32(7)?,
            array: row.u32(8)?,
            delim: row.char(9)?,
            base: row.u32(10)?,
            base_typmod: row.i32(11)?,
            relation: row.u32(12)?,
            output: row.u32(13)?,
        })
    }

    /// A composite whose attributes contradict each other is left out, so that only its own values cannot be decoded.
    fn read_composites(&self, catalog: &mut TypeCatalog, relations: &FxHashSet<u32>) -> Result<()> {
        let found = self.attributes_of(&|relation| relations.contains(&relation))?;
        let layouts = found.into_iter().filter_map(|(oid, attributes)| Some((oid, assemble(oid, attributes).ok()?)));
        catalog.composites.extend(layouts);
        // A composite type may have no columns at all.
        for &relation in relations {
            let is_empty = self.classes.get(&relation).is_some_and(|class| class.natts == 0);
            if is_empty {
                catalog.composites.entry(relation).or_default();
            }
        }
        Ok(())
    }

    /// The functions that print the wanted types and came with extensions; `pg_proc` is not read when there are none.
    fn read_output_functions(&self, catalog: &mut TypeCatalog, wanted: impl Fn(u32) -> bool) -> Result<()> {
        let foreign = catalog.types.values().filter(|t| t.output >= FIRST_NORMAL_OID && wanted(t.oid));
        let functions: FxHashSet<u32> = foreign.map(|t| t.output).collect();
        if functions.is_empty() {
            return Ok(());
        }
        let mut found = FxHashMap::default();
        self.catalog("pg_proc")?.read(&*self.reader, &["oid", "proname", "prolang", "probin"], |row| {
            let oid = row.u32(0)?;
            if functions.contains(&oid) {
                let library = String::from_utf8_lossy(row.bytes(3).unwrap_or_default()).into_owned();
                found.insert(oid, OutputFunction { name: row.name(1)?, language: row.u32(2)?, library });
            }
            Ok(())
        })?;
        catalog.output_functions = found;
        Ok(())
    }

    fn read_enum_labels(&self, catalog: &mut TypeCatalog, wanted: impl Fn(u32) -> bool) -> Result<()> {
        let mut labels = FxHashMap::default();
        self.catalog("pg_enum")?.read(&*self.reader, &["oid", "enumtypid", "enumlabel"], |row| {
            if wanted(row.u32(1)?) {
                labels.insert(row.u32(0)?, row.name(2)?);
            }
            Ok(())
        })?;
        catalog.enum_labels = labels;
        Ok(())
    }
}

fn column_types(layout: &RowLayout) -> impl Iterator<Item = u32> + '_ {
    layout.attributes.iter().filter(|a| !a.dropped).map(|a| a.type_oid)
}

/// Marks the types that `pending` reach; returns the relations of the composite ones among the newly reached. The
/// marks end cycles.
fn reach(catalog: &TypeCatalog, mut pending: Vec<u32>, reached: &mut FxHashSet<u32>) -> FxHashSet<u32> {
    let mut relations = FxHashSet::default();
    while let Some(oid) = pending.pop() {
        let Some(info) = catalog.types.get(&oid) else { continue };
        if !reached.insert(oid) {
            continue;
        }
        pending.extend([info.elem, info.base]);
        pending.extend(catalog.range_subtypes.get(&oid));
        pending.extend(catalog.multirange_ranges.get(&oid));
        if info.relation != 0 {
            relations.insert(info.relation);
        }
    }
    relations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(catalog: &mut TypeCatalog, oid: u32, elem: u32, base: u32, relation: u32) {
        let info = TypeInfo {
            oid,
            name: format!("t{oid}"),
            namespace: "public".to_owned(),
            len: -1,
            by_val: false,
            align: 4,
            kind: TypeKind::Base,
            elem,
            array: 0,
            delim: b',',
            base,
            base_typmod: -1,
            relation,
            output: 751,
        };
        catalog.types.insert(oid, info);
    }

    #[test]
    fn types_are_reached_through_all_links_and_cycles_end() {
        let mut catalog = TypeCatalog::default();
        add(&mut catalog, 1, 2, 0, 0);
        add(&mut catalog, 2, 0, 3, 0);
        add(&mut catalog, 3, 1, 0, 77);
        add(&mut catalog, 4, 4, 4, 0);
        add(&mut catalog, 5, 0, 0, 78);
        add(&mut catalog, 6, 0, 0, 0);
        catalog.multirange_ranges.insert(4, 6);
        catalog.range_subtypes.insert(6, 5);
        let mut reached = FxHashSet::default();
        let relations = reach(&catalog, vec![1, 4, 99], &mut reached);
        assert_eq!(relations, [77, 78].into_iter().collect());
        assert_eq!(reached, [1, 2, 3, 4, 5, 6].into_iter().collect());
        assert!(reach(&catalog, vec![1, 4], &mut reached).is_empty());
    }
}
