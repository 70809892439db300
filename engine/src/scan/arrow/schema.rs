//! From the catalog to Arrow's types. No row is looked at, so an empty table has its schema too.

use super::{
    bytes::{Bytes, Check, Source},
    column::{ColumnBuilder, Values},
    decimal,
    encoding::{self, Decoder},
    labels::Labels,
    list::{Element, ListBuilder},
    options::{
        ArrayPolicy, BatchOptions, InfinityPolicy, IntervalPolicy, NumericPolicy, SpecialNumericPolicy, TextPolicy,
        TimestampUnit,
    },
};
use crate::{
    Error, ErrorKind, Result,
    scan::TableContext,
    schema::{Attribute, TypeInfo, TypeKind},
    types::TypeOutput,
};
use arrow_schema::{DataType, Field, IntervalUnit, Schema, SchemaRef, TimeUnit};
use std::{collections::HashMap, sync::Arc};

/// Metadata key of a field: name of the PostgreSQL type (`pg_type.typname`), of the domain if it is one.
pub const METADATA_TYPE: &str = "postgresql:type";
/// Metadata key of a field: oid of that type.
pub const METADATA_OID: &str = "postgresql:oid";
/// Metadata key of a field: `atttypmod`; -1 when there is none.
pub const METADATA_TYPMOD: &str = "postgresql:typmod";
/// Metadata key of a field: how values were converted, in words. `exact` when there was nothing to choose.
pub const METADATA_CONVERSION: &str = "postgresql:conversion";
/// Metadata key of a schema: the table, as `schema.name`.
pub const METADATA_TABLE: &str = "postgresql:table";

/// Longer chains of domains are damage, or a cycle.
const DOMAIN_DEPTH: usize = 64;
/// `pg_enc` of UTF-8.
const UTF8: i32 = 6;

/// Checks the options, and makes the schema and an empty builder for each column.
pub(super) fn resolve(
    context: &TableContext,
    columns: &[usize],
    options: &BatchOptions,
) -> Result<(SchemaRef, Vec<ColumnBuilder>)> {
    check(context, options)?;
    let mapper = Mapper { context, options, encoding: context.toast.encoding() };
    let mut fields = Vec::with_capacity(columns.len());
    let mut builders = Vec::with_capacity(columns.len());
    for &index in columns {
        let attribute = context.attribute_at(index);
        let target = mapper.target(attribute).map_err(|e| e.in_context(format_args!("column {}", attribute.name)))?;
        let nullable = !attribute.not_null || options.all_nullable || target.makes_nulls;
        let info = context.types.types.get(&attribute.type_oid);
        let metadata = HashMap::from([
            (METADATA_TYPE.to_owned(), info.map_or_else(String::new, |t| t.name.clone())),
            (METADATA_OID.to_owned(), attribute.type_oid.to_string()),
            (METADATA_TYPMOD.to_owned(), attribute.typmod.to_string()),
            (METADATA_CONVERSION.to_owned(), target.conversion),
        ]);
        fields.push(Field::new(&attribute.name, target.data_type, nullable).with_metadata(metadata));
        builders.push(ColumnBuilder::new(attribute.len, target.values));
    }
    let table = format!("{}.{}", context.info.schema, context.info.name);
    let schema = Schema::new(fields).with_metadata(HashMap::from([(METADATA_TABLE.to_owned(), table)]));
    Ok((Arc::new(schema), builders))
}

fn check(context: &TableContext, options: &BatchOptions) -> Result<()> {
    let usage = |message: String| Err(Error::new(ErrorKind::Usage, message));
    if options.max_rows == 0 {
        return usage("max_rows of 0: a batch has at least one row".to_owned());
    }
    if options.max_bytes == 0 || options.max_bytes > i32::MAX as usize {
        return usage(format!("max_bytes of {}: use 1 byte to 2 GiB less 1", options.max_bytes));
    }
    for (name, _) in &options.numeric_columns {
        context.attribute(name)?;
    }
    Ok(())
}

/// What a column becomes.
struct Target {
    data_type: DataType,
    values: Values,
    conversion: String,
    /// A policy can turn values into NULL.
    makes_nulls: bool,
}

impl Target {
    fn exact(data_type: DataType, values: Values) -> Self {
        Self { data_type, values, conversion: "exact".to_owned(), makes_nulls: false }
    }
}

struct Mapper<'a> {
    context: &'a TableContext,
    options: &'a BatchOptions,
    encoding: i32,
}

impl Mapper<'_> {
    /// By the output function of the type, whose oids are fixed: so types that were made as copies of built-in ones
    /// are found too.
    fn target(&self, attribute: &Attribute) -> Result<Target> {
        // Of system columns: numbers, where those of tables are text.
        if attribute.number < 0 && attribute.len == 4 && attribute.type_oid != 23 {
            return Ok(Target::exact(DataType::UInt32, Values::UInt32(Vec::new())));
        }
        let Some((info, typmod)) = self.base(attribute) else { return self.stored(attribute) };
        if self.options.arrays == ArrayPolicy::List
            && (info.output, attribute.len) == (751, -1)
            && attribute.dimensions <= 1
            && let Some(element) = self.context.types.types.get(&info.elem)
        {
            return self.list(attribute, element, typmod);
        }
        if let Some((_, policy)) = self.options.numeric_columns.iter().find(|(name, _)| *name == attribute.name) {
            return match (info.output, attribute.len) {
                (1702, -1) => self.numeric_by(*policy, attribute),
                _ => Err(Error::new(ErrorKind::Usage, format!("numeric_columns names it, but it is {}", info.name))),
            };
        }
        Ok(match (info.output, attribute.len) {
            (1243, 1) => Target::exact(DataType::Boolean, Values::boolean()),
            (39, 2) => Target::exact(DataType::Int16, Values::Int16(Vec::new())),
            (43, 4) => Target::exact(DataType::Int32, Values::Int32(Vec::new())),
            (461, 8) => Target::exact(DataType::Int64, Values::Int64(Vec::new())),
            (1799, 4) => Target::exact(DataType::UInt32, Values::UInt32(Vec::new())),
            (201, 4) => Target::exact(DataType::Float32, Values::Float32(Vec::new())),
            (215, 8) => Target::exact(DataType::Float64, Values::Float64(Vec::new())),
            (1085, 4) => self.date(),
            (1144, 8) => Target::exact(DataType::Time64(TimeUnit::Microsecond), Values::Time(Vec::new())),
            (1313, 8) => self.timestamp(None),
            (1151, 8) => self.timestamp(Some("UTC".into())),
            (1161, 16) if self.options.interval == IntervalPolicy::MonthDayNano => self.interval(),
            (2953, 16) => Target::exact(DataType::FixedSizeBinary(16), Values::Uuid(Vec::new())),
            (1702, -1) => return self.numeric(typmod, attribute),
            (31, -1) => Target::exact(DataType::Binary, Values::Bytes(Bytes::new(Source::Varlena, Check::Nothing))),
            // textout, unknownout, json_out, bpcharout, varcharout: their bytes are the text.
            (47 | 110 | 322 | 1045 | 1047, -1) => self.text(Source::Varlena, "exact"),
            (110, -2) | (2293, -2) => self.text(Source::Plain, "exact"),
            (35, 64) => self.text(Source::Name, "exact"),
            (33, 1) => self.text(Source::Char, "text"),
            (3507, 4) => Target {
                data_type: DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
                values: Values::Enum(Vec::new(), Labels::new(&self.context.types)),
                conversion: "enum label".to_owned(),
                makes_nulls: false,
            },
            _ => return self.printed(attribute, "text"),
        })
    }

    /// The type below all domains, and its typmod, which lies at the innermost domain.
    fn base(&self, attribute: &Attribute) -> Option<(&TypeInfo, i32)> {
        let types = &self.context.types.types;
        let (mut info, mut typmod) = (types.get(&attribute.type_oid)?, attribute.typmod);
        for _ in 0..DOMAIN_DEPTH {
            if info.kind != TypeKind::Domain {
                return Some((info, typmod));
            }
            typmod = info.base_typmod;
            info = types.get(&info.base)?;
        }
        None
    }

    /// A list of what the element type becomes.
    fn list(&self, attribute: &Attribute, element: &TypeInfo, typmod: i32) -> Result<Target> {
        let inner = Attribute {
            name: attribute.name.clone(),
            type_oid: element.oid,
            typmod,
            len: element.len,
            by_val: element.by_val,
            align: element.align,
            dimensions: 0,
            missing: None,
            ..attribute.clone()
        };
        // A domain over an array as the element would be a list of lists, whose inner arrays may have any shape.
        let target = match self.base(&inner) {
            Some((info, _)) if info.output == 751 => self.printed(&inner, "text")?,
            _ => self.target(&inner)?,
        };
        let item = Field::new("item", target.data_type, true);
        let child = ColumnBuilder::new(element.len, target.values);
        let shape = Element { oid: element.oid, len: element.len, align: element.align };
        Ok(Target {
            data_type: DataType::List(Arc::new(item)),
            values: Values::List(Box::new(ListBuilder::new(&attribute.name, shape, child))),
            conversion: format!("list; {}", target.conversion),
            // The list itself stays.
            makes_nulls: false,
        })
    }

    fn text(&self, source: Source, conversion: &str) -> Target {
        let (data_type, check) = match (self.options.text, self.encoding) {
            (TextPolicy::Binary, _) => (DataType::Binary, Check::Nothing),
            (TextPolicy::Utf8, UTF8) => (DataType::Utf8, Check::Utf8),
            (TextPolicy::Utf8, other) => match Decoder::new(other) {
                Some(decoder) => (DataType::Utf8, Check::Convert(other, decoder)),
                None => (DataType::Utf8, Check::Ascii(other)),
            },
        };
        let conversion = match (self.options.text, check) {
            (TextPolicy::Binary, _) => format!("{conversion}, in the database's encoding"),
            (_, Check::Convert(number, _)) => format!("{conversion}, from {}", encoding::name(number)),
            _ => conversion.to_owned(),
        };
        Target { data_type, values: Values::Bytes(Bytes::new(source, check)), conversion, makes_nulls: false }
    }

    /// What the server prints; bytes as they are stored where that is not known.
    fn printed(&self, attribute: &Attribute, conversion: &str) -> Result<Target> {
        match TypeOutput::new(attribute.type_oid, attribute.typmod, &self.context.types) {
            Ok(output) if output.is_raw() => self.stored(attribute),
            // ASCII whatever the encoding is.
            Ok(output) if output.is_verbatim() => Ok(Target {
                data_type: DataType::Utf8,
                values: Values::Bytes(Bytes::new(Source::Printed(Box::new(output)), Check::Utf8)),
                conversion: conversion.to_owned(),
                makes_nulls: false,
            }),
            Ok(output) => Ok(self.text(Source::Printed(Box::new(output)), conversion)),
            Err(error) if self.options.strict => Err(error),
            Err(_) => self.stored(attribute),
        }
    }

    fn stored(&self, attribute: &Attribute) -> Result<Target> {
        if self.options.strict {
            return Err(Error::new(ErrorKind::Unsupported, format!("its type {} is not known", attribute.type_oid)));
        }
        let source = if attribute.len == -1 { Source::Varlena } else { Source::Plain };
        Ok(Target {
            data_type: DataType::Binary,
            values: Values::Bytes(Bytes::new(source, Check::Nothing)),
            conversion: "bytes as stored".to_owned(),
            makes_nulls: false,
        })
    }

    fn infinities(&self) -> &'static str {
        match self.options.infinity {
            InfinityPolicy::Error => "infinities are errors",
            InfinityPolicy::Null => "infinities are NULL",
            InfinityPolicy::Saturate => "infinities are the ends of the range",
        }
    }

    fn date(&self) -> Target {
        Target {
            data_type: DataType::Date32,
            values: Values::Date(Vec::new(), self.options.infinity),
            conversion: format!("days since 1970-01-01; {}", self.infinities()),
            makes_nulls: self.options.infinity == InfinityPolicy::Null,
        }
    }

    fn timestamp(&self, zone: Option<Arc<str>>) -> Target {
        let (unit, name) = match self.options.timestamp_unit {
            TimestampUnit::Microsecond => (TimeUnit::Microsecond, "microseconds"),
            TimestampUnit::Nanosecond => (TimeUnit::Nanosecond, "nanoseconds"),
        };
        Target {
            data_type: DataType::Timestamp(unit, zone),
            values: Values::Timestamp(Vec::new(), self.options.timestamp_unit, self.options.infinity),
            conversion: format!("{name} since 1970-01-01; {}", self.infinities()),
            makes_nulls: self.options.infinity == InfinityPolicy::Null,
        }
    }

    fn interval(&self) -> Target {
        Target {
            data_type: DataType::Interval(IntervalUnit::MonthDayNano),
            values: Values::Interval {
                values: Vec::new(),
                infinity: self.options.infinity,
                can_be_infinite: self.context.types.major_version >= 17,
            },
            conversion: format!("months, days, nanoseconds; {}", self.infinities()),
            makes_nulls: self.options.infinity == InfinityPolicy::Null,
        }
    }

    fn numeric(&self, typmod: i32, attribute: &Attribute) -> Result<Target> {
        match decimal_of(typmod) {
            Some((precision, scale)) => Ok(self.decimal(precision, scale)),
            None => self.numeric_by(self.options.numeric, attribute),
        }
    }

    fn numeric_by(&self, policy: NumericPolicy, attribute: &Attribute) -> Result<Target> {
        match policy {
            NumericPolicy::Text => self.printed(attribute, "numeric text"),
            NumericPolicy::LossyFloat64 => Ok(Target {
                data_type: DataType::Float64,
                values: Values::LossyFloat64(Vec::new()),
                conversion: "lossy float64: digits beyond its precision are lost".to_owned(),
                makes_nulls: false,
            }),
            NumericPolicy::Decimal { precision: precision @ 1..=76, scale }
                if scale <= 0 || scale.unsigned_abs() <= precision =>
            {
                Ok(self.decimal(precision, scale))
            }
            NumericPolicy::Decimal { precision, scale } => Err(Error::new(
                ErrorKind::Usage,
                format!("there is no decimal({precision}, {scale}): 1 to 76 digits, at most all of them fractional"),
            )),
        }
    }

    fn decimal(&self, precision: u8, scale: i8) -> Target {
        let special = self.options.numeric_special;
        let (data_type, values) = if precision <= 38 {
            let bound = decimal::bound(precision);
            (DataType::Decimal128(precision, scale), Values::Decimal128 { values: Vec::new(), scale, bound, special })
        } else {
            let bound = decimal::bound(precision);
            (DataType::Decimal256(precision, scale), Values::Decimal256 { values: Vec::new(), scale, bound, special })
        };
        let (what, makes_nulls) = match special {
            SpecialNumericPolicy::Error => ("exact; NaN and infinities are errors", false),
            SpecialNumericPolicy::Null => ("exact; NaN and infinities are NULL", true),
        };
        Target { data_type, values, conversion: what.to_owned(), makes_nulls }
    }
}

/// Precision and scale of the smallest decimal that has all values of `numeric` with this typmod. PostgreSQL 15 and
/// later allow scales below 0 and above the precision; 11 bits hold it.
fn decimal_of(typmod: i32) -> Option<(u8, i8)> {
    let bits = typmod.checked_sub(4).filter(|&bits| bits >= 0)?;
    let precision = bits >> 16 & 0xffff;
    let scale = ((bits & 0x7ff) ^ 0x400) - 0x400;
    // numeric(3, 5) has at most 0.00999: as many digits as decimal(5, 5) has behind the point.
    let precision = u8::try_from(precision.max(scale)).ok().filter(|precision| (1..=76).contains(precision))?;
    Some((precision, i8::try_from(scale).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typmods_of_numeric() {
        let typmod = |precision: i32, scale: i32| (precision << 16 | scale & 0x7ff) + 4;
        assert_eq!(decimal_of(-1), None);
        assert_eq!(decimal_of(3), None);
        assert_eq!(decimal_of(typmod(10, 2)), Some((10, 2)));
        assert_eq!(decimal_of(typmod(38, 38)), Some((38, 38)));
        assert_eq!(decimal_of(typmod(76, 0)), Some((76, 0)));
        assert_eq!(decimal_of(typmod(77, 0)), None);
        assert_eq!(decimal_of(typmod(1000, 1000)), None);
        assert_eq!(decimal_of(typmod(5, -2)), Some((5, -2)));
        assert_eq!(decimal_of(typmod(5, -1000)), None);
        assert_eq!(decimal_of(typmod(3, 5)), Some((5, 5)));
    }
}
