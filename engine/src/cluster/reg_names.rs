//! What the `reg*` types print: names of objects, as a session with the default `search_path` would see them.
//!
//! `pg_catalog` comes first in every search path. `"$user"` is left out: no session is known, so an object in a schema
//! of the user's name is printed qualified. Rules are those of the output functions in `regproc.c` and `format_type.c`.

use super::{Database, quote::quote_identifier, reader::Row};
use crate::{
    Result,
    schema::{TypeCatalog, TypeKind},
};
use rustc_hash::{FxHashMap, FxHashSet};

const ACLITEM: u32 = 1033;
const REGPROC: u32 = 24;
const REGPROCEDURE: u32 = 2202;
const REGOPER: u32 = 2203;
const REGOPERATOR: u32 = 2204;
const REGCLASS: u32 = 2205;
const REGTYPE: u32 = 2206;
const REGCONFIG: u32 = 3734;
const REGDICTIONARY: u32 = 3769;
const REGNAMESPACE: u32 = 4089;
const REGROLE: u32 = 4096;
const REGCOLLATION: u32 = 4191;

/// The types whose text form needs the name of an object. `aclitem` is one: it prints roles.
pub(super) const REG_TYPES: [u32; 12] = [
    ACLITEM,
    REGPROC,
    REGPROCEDURE,
    REGOPER,
    REGOPERATOR,
    REGCLASS,
    REGTYPE,
    REGCONFIG,
    REGDICTIONARY,
    REGNAMESPACE,
    REGROLE,
    REGCOLLATION,
];

/// `PG_CATALOG_NAMESPACE`.
const PG_CATALOG: u32 = 11;
/// `array_out`: the output function of true arrays, and of domains over them.
const ARRAY_OUT: u32 = 751;

/// Reads the names of the objects that values of the `wanted` types can stand for. An object that is not there is
/// not in the map: its oid is printed.
pub(super) fn read(database: &Database, catalog: &mut TypeCatalog, wanted: &FxHashSet<u32>) -> Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut wanted = wanted.clone();
    if wanted.contains(&ACLITEM) {
        // An aclitem prints the names of roles.
        wanted.insert(REGROLE);
    }
    let public = database.namespaces.iter().find(|(_, name)| *name == "public").map(|(oid, _)| *oid);
    let namer = Namer { database, public, major_version: catalog.major_version };
    let mut names = FxHashMap::default();
    let mut put = |kind: u32, named: Vec<(u32, String)>| {
        if wanted.contains(&kind) {
            names.extend(named.into_iter().map(|(oid, name)| ((kind, oid), name)));
        }
    };
    let wants = |kinds: &[u32]| kinds.iter().any(|kind| wanted.contains(kind));
    // The operators' "none" is 0, that of all others a dash.
    for kind in REG_TYPES {
        match kind {
            ACLITEM => {}
            REGOPER | REGOPERATOR => put(kind, vec![(0, "0".to_owned())]),
            _ => put(kind, vec![(0, "-".to_owned())]),
        }
    }
    if wants(&[REGCLASS]) {
        let objects = database.classes.values().map(|c| Object::new(c.oid, c.namespace, c.name.clone())).collect();
        put(REGCLASS, namer.by_name(objects));
    }
    if wants(&[REGNAMESPACE]) {
        let quote = |name: &str| quote_identifier(name, namer.major_version);
        put(REGNAMESPACE, database.namespaces.iter().map(|(oid, name)| (*oid, quote(name))).collect());
    }
    if wants(&[REGROLE]) {
        let roles = namer.roles()?;
        put(REGROLE, roles.iter().map(|(o, n)| (*o, quote_identifier(n, namer.major_version))).collect());
    }
    if wants(&[REGCONFIG]) {
        let objects = namer.objects("pg_ts_config", &["oid", "cfgnamespace", "cfgname"])?;
        put(REGCONFIG, namer.by_name(objects));
    }
    if wants(&[REGDICTIONARY]) {
        let objects = namer.objects("pg_ts_dict", &["oid", "dictnamespace", "dictname"])?;
        put(REGDICTIONARY, namer.by_name(objects));
    }
    if wants(&[REGCOLLATION]) {
        put(REGCOLLATION, namer.collations()?);
    }
    if wants(&[REGTYPE, REGPROCEDURE, REGOPERATOR]) {
        let types = namer.types(catalog)?;
        if wants(&[REGPROCEDURE]) {
            put(REGPROCEDURE, namer.signatures(&namer.functions()?, &types, Signature::Function));
        }
        if wants(&[REGOPERATOR]) {
            put(REGOPERATOR, namer.signatures(&namer.operators()?, &types, Signature::Operator));
        }
        put(REGTYPE, types.into_iter().collect());
    }
    if wants(&[REGPROC]) {
        put(REGPROC, namer.unique(&namer.functions()?, Signature::Function));
    }
    if wants(&[REGOPER]) {
        put(REGOPER, namer.unique(&namer.operators()?, Signature::Operator));
    }
    catalog.reg_names = names;
    Ok(())
}

/// An object of a kind that is told apart by schema, name and, for functions and operators, the types it takes.
struct Object {
    oid: u32,
    namespace: u32,
    name: String,
    arguments: Vec<u32>,
}

impl Object {
    fn new(oid: u32, namespace: u32, name: String) -> Self {
        Self { oid, namespace, name, arguments: Vec::new() }
    }
}

#[derive(Clone, Copy)]
enum Signature {
    Function,
    Operator,
}

struct Namer<'a> {
    database: &'a Database,
    public: Option<u32>,
    major_version: u32,
}

impl Namer<'_> {
    /// Place of a schema in the search path.
    fn path_position(&self, namespace: u32) -> Option<usize> {
        match namespace {
            PG_CATALOG => Some(0),
            _ if Some(namespace) == self.public => Some(1),
            _ => None,
        }
    }

    fn identifier(&self, name: &str) -> String {
        quote_identifier(name, self.major_version)
    }

    fn schema(&self, namespace: u32) -> String {
        self.identifier(&self.database.schema_name(namespace))
    }

    /// Objects that another one of the same name and arguments, earlier in the path, does not hide.
    fn visible(&self, objects: &[Object]) -> FxHashSet<u32> {
        let mut first: FxHashMap<(&str, &[u32]), (usize, u32)> = FxHashMap::default();
        for object in objects {
            if let Some(position) = self.path_position(object.namespace) {
                let best = first.entry((&object.name, &object.arguments)).or_insert((position, object.oid));
                if position < best.0 {
                    *best = (position, object.oid);
                }
            }
        }
        first.into_values().map(|(_, oid)| oid).collect()
    }

    /// `regclassout` and its like: the name, with the schema if it is not visible.
    fn by_name(&self, objects: Vec<Object>) -> Vec<(u32, String)> {
        let visible = self.visible(&objects);
        objects.into_iter().map(|o| (o.oid, self.qualified(&o, visible.contains(&o.oid)))).collect()
    }

    fn qualified(&self, object: &Object, visible: bool) -> String {
        let name = self.identifier(&object.name);
        if visible { name } else { format!("{}.{name}", self.schema(object.namespace)) }
    }

    /// `regprocout`, `regoperout`: the bare name only if nothing else that is visible has it.
    fn unique(&self, objects: &[Object], kind: Signature) -> Vec<(u32, String)> {
        let visible = self.visible(objects);
        let mut count: FxHashMap<&str, usize> = FxHashMap::default();
        for object in objects.iter().filter(|o| visible.contains(&o.oid)) {
            *count.entry(&object.name).or_default() += 1;
        }
        let name = |object: &Object| {
            let alone = visible.contains(&object.oid) && count.get(object.name.as_str()) == Some(&1);
            match kind {
                Signature::Function => self.qualified(object, alone),
                Signature::Operator if alone => object.name.clone(),
                Signature::Operator => format!("{}.{}", self.schema(object.namespace), object.name),
            }
        };
        objects.iter().map(|object| (object.oid, name(object))).collect()
    }

    /// `regprocedureout`, `regoperatorout`: with the types of the arguments.
    fn signatures(&self, objects: &[Object], types: &FxHashMap<u32, String>, kind: Signature) -> Vec<(u32, String)> {
        let visible = self.visible(objects);
        let argument = |oid: &u32| match (kind, oid) {
            (Signature::Operator, 0) => "NONE".to_owned(),
            (_, oid) => types.get(oid).cloned().unwrap_or_else(|| "???".to_owned()),
        };
        let name = |object: &Object| {
            let is_visible = visible.contains(&object.oid);
            let name = match kind {
                Signature::Function => self.qualified(object, is_visible),
                Signature::Operator if is_visible => object.name.clone(),
                Signature::Operator => format!("{}.{}", self.schema(object.namespace), object.name),
            };
            let arguments: Vec<_> = object.arguments.iter().map(argument).collect();
            format!("{name}({})", arguments.join(","))
        };
        objects.iter().map(|object| (object.oid, name(object))).collect()
    }

    /// `format_type`: SQL's names for the types that have one there.
    fn types(&self, catalog: &TypeCatalog) -> Result<FxHashMap<u32, String>> {
        let objects = self.objects("pg_type", &["oid", "typnamespace", "typname"])?;
        let visible = self.visible(&objects);
        let mut names: FxHashMap<u32, String> = objects
            .iter()
            .map(|object| {
                let name = match sql_name(object.oid) {
                    Some(name) => name.to_owned(),
                    None => self.qualified(object, visible.contains(&object.oid)),
                };
                (object.oid, name)
            })
            .collect();
        let arrays: Vec<_> = catalog
            .types
            .values()
            .filter(|t| t.elem != 0 && t.output == ARRAY_OUT && t.kind != TypeKind::Domain)
            .map(|t| (t.oid, names.get(&t.elem).map_or_else(|| "???[]".to_owned(), |name| format!("{name}[]"))))
            .collect();
        names.extend(arrays);
        Ok(names)
    }

    fn roles(&self) -> Result<Vec<(u32, String)>> {
        let mut roles = Vec::new();
        self.database.catalog("pg_authid")?.read(&*self.database.reader, &["oid", "rolname"], |row| {
            roles.push((row.u32(0)?, row.name(1)?));
            Ok(())
        })?;
        Ok(roles)
    }

    /// The objects of a catalog; `columns` are oid, schema and name.
    fn objects(&self, catalog: &'static str, columns: &[&'static str; 3]) -> Result<Vec<Object>> {
        self.objects_with(catalog, columns, |_| Ok(Vec::new()))
    }

    fn objects_with(
        &self,
        catalog: &'static str,
        columns: &[&'static str],
        arguments: impl Fn(&Row<'_>) -> Result<Vec<u32>>,
    ) -> Result<Vec<Object>> {
        let mut objects = Vec::new();
        self.database.catalog(catalog)?.read(&*self.database.reader, columns, |row| {
            let arguments = arguments(row)?;
            objects.push(Object { oid: row.u32(0)?, namespace: row.u32(1)?, name: row.name(2)?, arguments });
            Ok(())
        })?;
        Ok(objects)
    }

    fn functions(&self) -> Result<Vec<Object>> {
        let columns = ["oid", "pronamespace", "proname", "proargtypes"];
        self.objects_with("pg_proc", &columns, |row| {
            // An oidvector: an array of one dimension whose header, less the varlena header, is 20 bytes.
            let vector = row.bytes(3).and_then(|v| v.get(20..)).unwrap_or_default();
            let (oids, rest) = vector.as_chunks::<4>();
            if !rest.is_empty() {
                return Err(row.error(3, format_args!("is no oidvector")));
            }
            Ok(oids.iter().map(|oid| u32::from_le_bytes(*oid)).collect())
        })
    }

    fn operators(&self) -> Result<Vec<Object>> {
        let columns = ["oid", "oprnamespace", "oprname", "oprleft", "oprright"];
        self.objects_with("pg_operator", &columns, |row| Ok(vec![row.u32(3)?, row.u32(4)?]))
    }

    /// Of collations with the same name, those of the database's encoding come first, then those of any (-1); those of
    /// other encodings are never visible.
    fn collations(&self) -> Result<Vec<(u32, String)>> {
        let columns = ["oid", "collnamespace", "collname", "collencoding"];
        let objects = self.objects_with("pg_collation", &columns, |row| Ok(vec![row.i32(3)?.cast_unsigned()]))?;
        let encoding = self.database.info().encoding.cast_unsigned();
        let rank = |object: &Object| match (self.path_position(object.namespace), object.arguments[..].first()) {
            (Some(position), Some(&e)) if e == encoding => Some(2 * position),
            (Some(position), Some(&u32::MAX)) => Some(2 * position + 1),
            _ => None,
        };
        let mut first: FxHashMap<&str, (usize, u32)> = FxHashMap::default();
        for object in &objects {
            if let Some(rank) = rank(object) {
                let best = first.entry(&object.name).or_insert((rank, object.oid));
                *best = (*best).min((rank, object.oid));
            }
        }
        let is_visible = |o: &Object| first.get(o.name.as_str()).is_some_and(|&(_, oid)| oid == o.oid);
        Ok(objects.iter().map(|o| (o.oid, self.qualified(o, is_visible(o)))).collect())
    }
}

/// Types that `format_type` prints by SQL's name, by oid.
fn sql_name(oid: u32) -> Option<&'static str> {
    Some(match oid {
        16 => "boolean",
        20 => "bigint",
        21 => "smallint",
        23 => "integer",
        114 => "json",
        700 => "real",
        701 => "double precision",
        1042 => "character",
        1043 => "character varying",
        1083 => "time without time zone",
        1114 => "timestamp without time zone",
        1184 => "timestamp with time zone",
        1186 => "interval",
        1266 => "time with time zone",
        1560 => "bit",
        1562 => "bit varying",
        1700 => "numeric",
        _ => return None,
    })
}
