//! From `pg_type` to the form that a type's values are printed in.

use super::{
    Form,
    array::ArrayForm,
    composite::{Field, RecordForm},
    extension::{self, Known},
    geometric::Shape,
    nested::Physical,
    range::RangeForm,
    reg::{self, Names},
};
use crate::{
    error::{Error, ErrorKind, Result},
    schema::{FIRST_NORMAL_OID, TypeCatalog, TypeInfo, TypeKind},
};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Domains over arrays of composites over ...: types cannot contain themselves, but a damaged catalog can say so.
const MAX_DEPTH: u32 = 32;
/// Forms that one type may consist of; a table has at most 1600 columns.
const MAX_FORMS: u32 = 100_000;

/// Resolves types, and keeps what several of them share.
pub(super) struct Resolver<'a> {
    catalog: &'a TypeCatalog,
    depth: u32,
    forms: u32,
    labels: Option<Names>,
    names: FxHashMap<u32, Names>,
    any: Any,
}

/// The forms for anyarray, which are those of all types.
enum Any {
    No,
    Building,
    Ready(Arc<FxHashMap<u32, ArrayForm>>),
}

fn unsupported(info: &TypeInfo, why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("type {}.{} cannot be printed: {why}", info.namespace, info.name))
        .with_hint("leave the column out, or read it as bytes")
}

impl<'a> Resolver<'a> {
    pub(super) fn new(catalog: &'a TypeCatalog) -> Self {
        Self { catalog, depth: 0, forms: 0, labels: None, names: FxHashMap::default(), any: Any::No }
    }

    /// The form of a type whose output function is not one of PostgreSQL's own.
    fn of_extension(&self, info: &TypeInfo) -> Result<Form> {
        match self.catalog.output_functions.get(&info.output).and_then(extension::known) {
            Some(Known::Text) => Ok(Form::Text),
            Some(Known::Hstore) => Ok(Form::Hstore),
            Some(Known::Ltree) => Ok(Form::Ltree),
            Some(Known::Cube) => Ok(Form::Cube),
            None if info.kind == TypeKind::Base && info.output >= FIRST_NORMAL_OID => Ok(Form::Raw),
            None => Err(unsupported(info, "its output function is not one that heapscan knows")),
        }
    }

    /// The row of `pg_type`.
    pub(super) fn info(&self, oid: u32) -> Result<&'a TypeInfo> {
        self.catalog.types.get(&oid).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("the type with oid {oid} is not in pg_type"))
                .with_hint("leave the column out, or read it as bytes")
        })
    }

    /// The form of a type.
    pub(super) fn form(&mut self, info: &'a TypeInfo) -> Result<Form> {
        self.forms += 1;
        if self.depth >= MAX_DEPTH || self.forms > MAX_FORMS {
            return Err(unsupported(info, "the catalog says that it consists of too many types"));
        }
        self.depth += 1;
        let form = self.form_inside(info);
        self.depth -= 1;
        form
    }

    fn form_inside(&mut self, info: &'a TypeInfo) -> Result<Form> {
        let major = self.catalog.major_version;
        if let Some((reg_type, none)) = reg::reg_type(info.output) {
            return Ok(Form::Reg { names: self.names(reg_type), none });
        }
        Ok(match info.output {
            33 => Form::Char { octal: major >= 15 },
            751 => Form::Array(Box::new(self.array(info)?)),
            1032 => Form::Acl { roles: self.names(reg::REGROLE), wide: major >= 16 },
            1161 => Form::Interval { infinite: major >= 17 },
            2291 => Form::Record(Box::new(self.record(info)?)),
            2297 => Form::AnyArray(self.any_array(info)?),
            3507 => Form::Enum(self.labels()),
            3835 => Form::Range(Box::new(self.range(info)?)),
            4003 => Form::Jsonpath { major },
            4232 => Form::Multirange(Box::new(self.multirange(info)?)),
            output => match simple(output) {
                Some(form) => form,
                None => self.of_extension(info)?,
            },
        })
    }

    /// The type below a domain, or the type itself.
    fn base(&self, mut info: &'a TypeInfo) -> Result<&'a TypeInfo> {
        for _ in 0..MAX_DEPTH {
            if info.base == 0 {
                return Ok(info);
            }
            info = self.info(info.base)?;
        }
        Err(unsupported(info, "the catalog says that it is a domain over itself"))
    }

    fn array(&mut self, info: &'a TypeInfo) -> Result<ArrayForm> {
        let element = self.info(self.base(info)?.elem)?;
        self.array_of(element)
    }

    fn array_of(&mut self, element: &'a TypeInfo) -> Result<ArrayForm> {
        let physical = Physical { len: element.len, align: element.align };
        Ok(ArrayForm { element: self.form(element)?, element_oid: element.oid, physical, delimiter: element.delim })
    }

    /// anyarray, which `pg_statistic` has: any element type, named by each value.
    fn any_array(&mut self, info: &'a TypeInfo) -> Result<Arc<FxHashMap<u32, ArrayForm>>> {
        match &self.any {
            Any::Ready(forms) => return Ok(forms.clone()),
            // Rows of pg_statistic in an array in pg_statistic: the only types that are left out.
            Any::Building => return Err(unsupported(info, "an anyarray inside an anyarray")),
            Any::No => self.any = Any::Building,
        }
        let mut forms = FxHashMap::default();
        let (depth, count) = (std::mem::replace(&mut self.depth, 1), self.forms);
        for element in self.catalog.types.values() {
            self.forms = 0;
            // Types that cannot be printed matter only if a value has them.
            if let Ok(form) = self.array_of(element) {
                forms.insert(element.oid, form);
            }
        }
        (self.depth, self.forms) = (depth, count);
        let forms = Arc::new(forms);
        self.any = Any::Ready(forms.clone());
        Ok(forms)
    }

    fn record(&mut self, info: &'a TypeInfo) -> Result<RecordForm> {
        let relation = self.base(info)?.relation;
        let layout = self.catalog.composites.get(&relation).ok_or_else(|| {
            unsupported(info, &format!("the columns of the composite type (relation {relation}) are not known"))
        })?;
        let mut fields = Vec::with_capacity(layout.attributes.len());
        for attribute in &layout.attributes {
            let form = match attribute.dropped {
                true => None,
                false => Some(self.form(self.info(attribute.type_oid)?)?),
            };
            fields.push(Field {
                form,
                physical: Physical { len: attribute.len, align: attribute.align },
                missing: attribute.missing.as_deref().map(Box::from),
            });
        }
        Ok(RecordForm { fields })
    }

    fn range(&mut self, info: &'a TypeInfo) -> Result<RangeForm> {
        let oid = self.base(info)?.oid;
        let bound = self.catalog.range_subtypes.get(&oid).ok_or_else(|| unsupported(info, "it is not in pg_range"))?;
        let bound = self.info(*bound)?;
        let physical = Physical { len: bound.len, align: bound.align };
        Ok(RangeForm { bound: self.form(bound)?, physical })
    }

    fn multirange(&mut self, info: &'a TypeInfo) -> Result<RangeForm> {
        let oid = self.base(info)?.oid;
        let range =
            self.catalog.multirange_ranges.get(&oid).ok_or_else(|| unsupported(info, "it is not in pg_range"))?;
        let range = self.info(*range)?;
        self.range(range)
    }

    fn labels(&mut self) -> Names {
        let labels = &self.catalog.enum_labels;
        let shared = || Arc::new(labels.iter().map(|(&oid, label)| (oid, label.as_str().into())).collect());
        self.labels.get_or_insert_with(shared).clone()
    }

    fn names(&mut self, reg_type: u32) -> Names {
        let names = self.catalog.reg_names.iter().filter(|((of, _), _)| *of == reg_type);
        let shared = || Arc::new(names.map(|(&(_, oid), name)| (oid, name.as_str().into())).collect());
        self.names.entry(reg_type).or_insert_with(shared).clone()
    }
}

/// The form of a type whose output function needs nothing from the catalog. The numbers are oids of `pg_proc`.
fn simple(output: u32) -> Option<Form> {
    Some(match output {
        31 | 5019 => Form::Bytea,
        35 => Form::Name,
        39 => Form::Int2,
        41 => Form::Vector { wide: false },
        43 => Form::Int4,
        // textout, unknownout, pg_node_tree_out, bpcharout, varcharout, cstring_out.
        47 | 110 | 196 | 1045 | 1047 | 2293 => Form::Text,
        49 => Form::Tid,
        51 | 53 => Form::Xid,
        1799 => Form::Oid,
        55 => Form::Vector { wide: true },
        118 => Form::Shape(Shape::Point),
        120 => Form::Shape(Shape::Lseg),
        122 => Form::Shape(Shape::Path),
        124 => Form::Shape(Shape::Box),
        348 => Form::Shape(Shape::Polygon),
        1451 => Form::Shape(Shape::Circle),
        1491 => Form::Shape(Shape::Line),
        201 => Form::Float4,
        215 => Form::Float8,
        322 => Form::Json,
        437 => Form::Macaddr,
        461 => Form::Int8,
        887 => Form::Money,
        911 => Form::Inet { cidr: false },
        1427 => Form::Inet { cidr: true },
        1085 => Form::Date,
        1144 => Form::Time,
        1151 => Form::Timestamp { zone: true },
        1243 => Form::Bool,
        1313 => Form::Timestamp { zone: false },
        1351 => Form::Timetz,
        1565 | 1580 => Form::Bits,
        1702 => Form::Numeric,
        2894 => Form::Xml,
        2940 | 5056 => Form::Snapshot,
        2953 => Form::Uuid,
        3230 => Form::Lsn,
        3356 => Form::Ndistinct,
        3405 => Form::Dependencies,
        3611 => Form::Tsvector,
        3613 => Form::Tsquery,
        3804 => Form::Jsonb,
        4111 => Form::Macaddr8,
        5081 => Form::Xid8,
        _ => return None,
    })
}

impl Form {
    /// The form of array elements whose header names another type than the column's element type: one that a cast can
    /// have renamed without touching the value, if it is of the same length.
    pub(super) fn of_renamed_element(element_oid: u32, len: i16) -> Option<Self> {
        match (element_oid, len) {
            (23, 4) => Some(Self::Int4),
            (26, 4) => Some(Self::Oid),
            (20, 8) => Some(Self::Int8),
            (25 | 1042 | 1043, -1) => Some(Self::Text),
            (17, -1) => Some(Self::Bytea),
            (1560 | 1562, -1) => Some(Self::Bits),
            (869, -1) => Some(Self::Inet { cidr: false }),
            (650, -1) => Some(Self::Inet { cidr: true }),
            _ => None,
        }
    }
}
