//! From a [`Predicate`] to what is tested on a page: columns are looked up, constants become values of their types, NOT is
//! pushed down to the comparisons.
//!
//! That leaves no third truth value: each test says where the predicate is *true* (or, below an odd number of NOTs, where
//! it is *false*), and a comparison with NULL is neither.

use super::{
    ColumnName, Comparison, Literal, LiteralValue, Predicate,
    bytes::{BytesTest, Encoding, Trim, trimmed},
    eval::{Key, Leaf, Node, PageFilter, Test},
    like::Pattern,
    literal::{self, Wrong},
    number::{Decimal, NumericKey, float_key},
};
use crate::{
    Error, ErrorKind, Result,
    cluster::Collation,
    scan::TableContext,
    schema::{Attribute, TypeKind},
};
use std::sync::Arc;

/// Names of `double precision`.
const DOUBLES: [&str; 3] = ["double precision", "double", "float8"];

/// What a column's type is to comparisons.
#[derive(Clone, Debug)]
enum Family {
    Integer(Key),
    Oid,
    Float {
        single: bool,
    },
    Bool,
    Date,
    Time,
    Timestamp {
        zone: bool,
    },
    Uuid,
    Bytea,
    Text(Trim),
    Char,
    Numeric,
    /// The labels in their order.
    Enum(Vec<(u32, String)>),
    /// Only NULL or not can be asked.
    Other,
}

/// A column that tests use.
#[derive(Clone)]
struct Bound {
    /// Index into the filter's columns.
    column: usize,
    family: Arc<Family>,
    /// Of texts, but not of names, whose collation is always C.
    collation: Option<Arc<Collation>>,
    /// For messages: `column "a" (integer)`.
    shown: Arc<str>,
}

struct Binder<'t> {
    context: &'t TableContext,
    attributes: Vec<usize>,
    /// One an attribute: the catalogs are asked once a column.
    bound: Vec<Bound>,
}

/// Checks `predicate` against the table.
pub(super) fn bind(predicate: &Predicate, context: &Arc<TableContext>) -> Result<PageFilter> {
    let mut binder = Binder { context, attributes: Vec::new(), bound: Vec::new() };
    let node = binder.node(predicate, true)?;
    PageFilter::new(context, node, binder.attributes)
}

impl Binder<'_> {
    /// Where `predicate` is true, or with `!wanted` false.
    fn node(&mut self, predicate: &Predicate, wanted: bool) -> Result<Node> {
        match predicate {
            Predicate::Constant(Some(value)) => Ok(constant(*value == wanted)),
            Predicate::Constant(None) => Ok(Node::Never),
            Predicate::Not(inner) => self.node(inner, !wanted),
            Predicate::And(parts) if wanted => Ok(Node::all(self.nodes(parts, wanted)?)),
            Predicate::Or(parts) if !wanted => Ok(Node::all(self.nodes(parts, wanted)?)),
            Predicate::And(parts) | Predicate::Or(parts) => Ok(Node::any(self.nodes(parts, wanted)?)),
            Predicate::Is(inner, truth) => self.is(inner, *truth, wanted),
            Predicate::IsNull(column) => {
                let bound = self.column(column)?;
                Ok(leaf(&bound, if wanted { Test::Null } else { Test::NotNull }))
            }
            Predicate::Compare { column, op, value } => {
                let bound = self.column(column)?;
                let op = if wanted { *op } else { op.negated() };
                self.compare(&bound, op, value)
            }
            Predicate::In { column, values } => {
                let bound = self.column(column)?;
                self.is_in(&bound, values, wanted)
            }
            Predicate::Like { column, pattern, escape } => {
                let bound = self.column(column)?;
                self.like(&bound, pattern, *escape, wanted)
            }
        }
    }

    fn nodes(&mut self, parts: &[Predicate], wanted: bool) -> Result<Vec<Node>> {
        parts.iter().map(|part| self.node(part, wanted)).collect()
    }

    fn is(&mut self, inner: &Predicate, truth: Option<bool>, wanted: bool) -> Result<Node> {
        let node = match truth {
            Some(truth) => self.node(inner, truth)?,
            // Known: true or false.
            None => Node::any(vec![self.node(inner, true)?, self.node(inner, false)?]),
        };
        Ok(if wanted == truth.is_some() { node } else { Node::Except(Box::new(node)) })
    }

    fn column(&mut self, name: &ColumnName) -> Result<Bound> {
        let attribute = self
            .context
            .attribute(&name.name)
            .map_err(|e| if name.at > 0 { e.in_context(place(name.at)) } else { e })?;
        if let Some(known) = self.attributes.iter().position(|&a| a == attribute) {
            return Ok(self.bound[known].clone());
        }
        let type_name = self.context.column(attribute).type_name;
        let family = self.family(self.context.base_types[attribute])?;
        let collation = match family {
            Family::Text(Trim::No | Trim::Blanks) => {
                let (relation, number) = (self.context.info.oid, self.context.info.layout.attributes[attribute].number);
                Some(Arc::new(self.context.toast.database().collation_of(relation, number)?))
            }
            _ => None,
        };
        let shown = format!("column {:?} ({type_name})", name.name).into();
        let bound = Bound { column: self.attributes.len(), family: Arc::new(family), collation, shown };
        self.attributes.push(attribute);
        self.bound.push(bound.clone());
        Ok(bound)
    }

    fn family(&self, oid: u32) -> Result<Family> {
        Ok(match oid {
            16 => Family::Bool,
            17 => Family::Bytea,
            18 => Family::Char,
            19 => Family::Text(Trim::Zeros),
            20 => Family::Integer(Key::Int8),
            21 => Family::Integer(Key::Int2),
            23 => Family::Integer(Key::Int4),
            25 | 1043 => Family::Text(Trim::No),
            26 => Family::Oid,
            700 => Family::Float { single: true },
            701 => Family::Float { single: false },
            1042 => Family::Text(Trim::Blanks),
            1082 => Family::Date,
            1083 => Family::Time,
            1114 => Family::Timestamp { zone: false },
            1184 => Family::Timestamp { zone: true },
            1700 => Family::Numeric,
            2950 => Family::Uuid,
            _ => match self.context.types.types.get(&oid) {
                Some(info) if info.kind == TypeKind::Enum => {
                    Family::Enum(self.context.toast.database().enum_order(oid)?)
                }
                _ => Family::Other,
            },
        })
    }

    fn compare(&self, bound: &Bound, op: Comparison, value: &Literal) -> Result<Node> {
        Self::check_order(bound, op, value)?;
        let wrong = |what: Wrong| wrong(bound, value, what);
        if value.value == LiteralValue::Null {
            return Self::never(bound, value);
        }
        check_cast(bound, value)?;
        Ok(match &*bound.family {
            Family::Integer(key) => {
                let (floor, exact) = decimal(value, true).map_err(wrong)?.floor();
                check_quoted_range(*key, floor, value).map_err(wrong)?;
                keys(bound, *key, op, floor, exact)
            }
            Family::Oid => keys(bound, Key::Oid, op, oid(value).map_err(wrong)?.into(), true),
            Family::Float { single } => {
                let key = if *single { Key::Float4 } else { Key::Float8 };
                keys(bound, key, op, float_key(float(value, *single).map_err(wrong)?).into(), true)
            }
            Family::Bool => keys(bound, Key::Bool, op, boolean(value).map_err(wrong)?.into(), true),
            Family::Char => keys(bound, Key::Byte, op, byte(value).map_err(wrong)?.into(), true),
            Family::Date => keys(bound, Key::Int4, op, date(value).map_err(wrong)?.into(), true),
            Family::Time => {
                keys(bound, Key::Int8, op, literal::time(text(value).map_err(wrong)?).map_err(wrong)?.into(), true)
            }
            Family::Timestamp { zone } => {
                keys(bound, Key::Int8, op, timestamp(value, *zone).map_err(wrong)?.into(), true)
            }
            Family::Uuid => wide(bound, op, literal::uuid(text(value).map_err(wrong)?).map_err(wrong)?),
            Family::Bytea | Family::Text(_) => {
                let (trim, constant) = self.bytes(bound, value).map_err(wrong)?;
                leaf(bound, Test::Bytes(trim, BytesTest::Compare(op, constant)))
            }
            Family::Numeric => leaf(bound, Test::Numeric(op, numeric(value).map_err(wrong)?)),
            Family::Enum(labels) => {
                let rank = label(labels, value).map_err(wrong)?;
                let chosen = labels.iter().enumerate().filter(|(i, _)| op.holds(i.cmp(&rank)));
                set(bound, Key::Oid, chosen.map(|(_, (oid, _))| i64::from(*oid)).collect(), false)
            }
            Family::Other => return Err(not_compared(bound, value)),
        })
    }

    /// Whether `<` and its kin mean the order of bytes, and `=` their equality.
    fn check_order(bound: &Bound, op: Comparison, value: &Literal) -> Result<()> {
        let Some(collation) = &bound.collation else { return Ok(()) };
        let refused = |why: String| {
            let error = Error::new(ErrorKind::Unsupported, format!("{}{}: {why}", before(value.at), bound.shown));
            Err(error.with_hint("filter on another column, or filter what the scan yields"))
        };
        if !collation.deterministic {
            return refused(format!("collation {} is not deterministic: different texts can be equal", collation.name));
        }
        if !matches!(op, Comparison::Eq | Comparison::Ne) && !collation.bytewise {
            let op = op.as_str();
            return refused(format!(
                "{op} needs the order of collation {}; only C, POSIX and ucs_basic are known",
                collation.name
            ));
        }
        Ok(())
    }

    /// What no row fulfils; the type must be one that is compared all the same.
    fn never(bound: &Bound, value: &Literal) -> Result<Node> {
        if matches!(*bound.family, Family::Other) { Err(not_compared(bound, value)) } else { Ok(Node::Never) }
    }

    fn is_in(&self, bound: &Bound, values: &[Literal], wanted: bool) -> Result<Node> {
        let has_null = values.iter().any(|v| v.value == LiteralValue::Null);
        let mut nodes = Vec::with_capacity(values.len());
        // A list of several has one type, which for real is real unless a cast says double: 0.1 is then rounded first.
        let is_double = |v: &Literal| v.cast.as_deref().is_some_and(|c| DOUBLES.contains(&c));
        let of_real = values.len() > 1 && matches!(*bound.family, Family::Float { single: true });
        let cast = of_real.then(|| if values.iter().any(is_double) { "float8" } else { "real" });
        for value in values {
            match cast {
                Some(cast) => {
                    check_cast(bound, value)?;
                    let value = Literal { cast: Some(cast.to_owned()), ..value.clone() };
                    nodes.push(self.compare(bound, Comparison::Eq, &value)?);
                }
                None => nodes.push(self.compare(bound, Comparison::Eq, value)?),
            }
        }
        if values.is_empty() {
            return Ok(constant(!wanted));
        }
        if !wanted && has_null {
            // Equal to one of them, or unknown.
            return Ok(Node::Never);
        }
        Ok(one_of(bound, nodes, !wanted))
    }

    fn like(&self, bound: &Bound, pattern: &Literal, escape: Option<char>, wanted: bool) -> Result<Node> {
        let Family::Text(trim) = *bound.family else {
            let what = format!("{}{}: LIKE is for texts", before(pattern.at), bound.shown);
            return Err(Error::new(ErrorKind::Usage, what));
        };
        Self::check_order(bound, Comparison::Eq, pattern)?;
        if pattern.value == LiteralValue::Null {
            return Ok(Node::Never);
        }
        let encoding = Encoding::of(self.context.toast.encoding());
        let wrong = |what: Wrong| wrong(bound, pattern, what);
        let text = text(pattern).map_err(wrong)?;
        self.check_encoding(text).map_err(wrong)?;
        let pattern = Pattern::new(text, escape, encoding).map_err(wrong)?;
        if pattern.counts_characters() && encoding == Encoding::Multibyte {
            return Err(wrong("_ is not offered in this database's encoding"));
        }
        Ok(leaf(bound, Test::Bytes(trim, BytesTest::Like(pattern, !wanted))))
    }

    /// A constant as it is stored.
    fn bytes(&self, bound: &Bound, value: &Literal) -> Result<(Trim, Vec<u8>), Wrong> {
        let trim = match *bound.family {
            Family::Text(trim) => trim,
            _ => {
                return match &value.value {
                    LiteralValue::Bytes(bytes) => Ok((Trim::No, bytes.clone())),
                    _ => Ok((Trim::No, literal::bytea(text(value)?)?)),
                };
            }
        };
        let text = text(value)?;
        self.check_encoding(text)?;
        let bytes = match trim {
            Trim::No => text.as_bytes(),
            Trim::Blanks => trimmed(text.as_bytes()),
            Trim::Zeros => &text.as_bytes()[..text.floor_char_boundary(63)],
        };
        Ok((trim, bytes.to_vec()))
    }

    /// Constants are UTF-8; what is not ASCII has other bytes in other encodings.
    fn check_encoding(&self, text: &str) -> Result<(), Wrong> {
        const UTF8: i32 = 6;
        const SQL_ASCII: i32 = 0;
        match self.context.toast.encoding() {
            UTF8 | SQL_ASCII => Ok(()),
            _ if text.is_ascii() => Ok(()),
            _ => Err("only ASCII can be compared in a database whose encoding is not UTF-8"),
        }
    }
}

fn constant(value: bool) -> Node {
    if value { Node::Always } else { Node::Never }
}

fn leaf(bound: &Bound, test: Test) -> Node {
    Node::Leaf(Leaf { column: bound.column, test })
}

/// A comparison of integers with a number whose largest integer below is `floor`.
fn keys(bound: &Bound, key: Key, op: Comparison, floor: i128, exact: bool) -> Node {
    let all = (i128::from(i64::MIN), i128::from(i64::MAX));
    let (low, high, outside) = match op {
        Comparison::Eq | Comparison::Ne if !exact => (1, 0, op == Comparison::Ne),
        Comparison::Eq => (floor, floor, false),
        Comparison::Ne => (floor, floor, true),
        Comparison::Lt if exact => (all.0, floor - 1, false),
        Comparison::Lt | Comparison::Le => (all.0, floor, false),
        Comparison::Ge if exact => (floor, all.1, false),
        Comparison::Gt | Comparison::Ge => (floor + 1, all.1, false),
    };
    let (low, high) = (low.max(all.0), high.min(all.1));
    if low > high {
        return if outside { leaf(bound, Test::NotNull) } else { Node::Never };
    }
    leaf(bound, Test::Range { key, low: low as i64, high: high as i64, outside })
}

fn set(bound: &Bound, key: Key, mut values: Vec<i64>, outside: bool) -> Node {
    values.sort_unstable();
    values.dedup();
    match values[..] {
        [] if outside => leaf(bound, Test::NotNull),
        [] => Node::Never,
        [one] => leaf(bound, Test::Range { key, low: one, high: one, outside }),
        _ => leaf(bound, Test::Set { key, values, outside }),
    }
}

fn wide(bound: &Bound, op: Comparison, value: u128) -> Node {
    let (low, high, outside) = match op {
        Comparison::Eq => (value, value, false),
        Comparison::Ne => (value, value, true),
        Comparison::Lt if value == 0 => return Node::Never,
        Comparison::Gt if value == u128::MAX => return Node::Never,
        Comparison::Lt => (0, value - 1, false),
        Comparison::Le => (0, value, false),
        Comparison::Gt => (value + 1, u128::MAX, false),
        Comparison::Ge => (value, u128::MAX, false),
    };
    leaf(bound, Test::Wide { low, high, outside })
}

/// From tests of equality to one test of a list.
fn one_of(bound: &Bound, nodes: Vec<Node>, negated: bool) -> Node {
    let (mut integers, mut bytes, mut numerics, mut uuids) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut key, mut trim) = (None, Trim::No);
    for node in nodes {
        match node {
            Node::Leaf(Leaf { test: Test::Range { key: of, low, .. }, .. }) => {
                key = Some(of);
                integers.push(low);
            }
            Node::Leaf(Leaf { test: Test::Bytes(of, BytesTest::Compare(_, constant)), .. }) => {
                trim = of;
                bytes.push(constant);
            }
            Node::Leaf(Leaf { test: Test::Numeric(_, constant), .. }) => numerics.push(constant),
            Node::Leaf(Leaf { test: Test::Wide { low, .. }, .. }) => uuids.push(low),
            _ => {}
        }
    }
    if let Some(key) = key {
        return set(bound, key, integers, negated);
    }
    let op = if negated { Comparison::Ne } else { Comparison::Eq };
    let join = if negated { Node::all } else { Node::any };
    if !bytes.is_empty() {
        bytes.sort_unstable();
        bytes.dedup();
        return leaf(bound, Test::Bytes(trim, BytesTest::In(bytes, negated)));
    }
    if !numerics.is_empty() {
        return join(numerics.into_iter().map(|n| leaf(bound, Test::Numeric(op, n))).collect());
    }
    if !uuids.is_empty() {
        return join(uuids.into_iter().map(|u| wide(bound, op, u)).collect());
    }
    // No constant can be a value of the column: 5.5 of an integer's.
    if negated { leaf(bound, Test::NotNull) } else { Node::Never }
}

fn before(at: usize) -> String {
    if at > 0 { format!("{}: ", place(at)) } else { String::new() }
}

fn place(at: usize) -> String {
    format!("filter, character {at}")
}

#[cold]
fn wrong(bound: &Bound, value: &Literal, what: Wrong) -> Error {
    let shown = match &value.value {
        LiteralValue::Text(text) => format!("'{text}'"),
        LiteralValue::Number(digits) => digits.clone(),
        LiteralValue::Bool(value) => value.to_string(),
        LiteralValue::Bytes(bytes) => format!("{} bytes", bytes.len()),
        LiteralValue::Null => "NULL".to_owned(),
    };
    let shown: String = shown.chars().take(60).collect();
    let what = format!("{}{shown} is no value for {}: {what}", before(value.at), bound.shown);
    Error::new(ErrorKind::Usage, what)
}

#[cold]
fn not_compared(bound: &Bound, value: &Literal) -> Error {
    let what = format!("{}{}: values of this type are not compared", before(value.at), bound.shown);
    Error::new(ErrorKind::Unsupported, what).with_hint("IS NULL and IS NOT NULL can be asked of any column")
}

/// A cast must name a type of the column's family, so that it changes nothing.
fn check_cast(bound: &Bound, value: &Literal) -> Result<()> {
    let Some(cast) = &value.cast else { return Ok(()) };
    const INTEGERS: &[&str] = &["smallint", "int2", "integer", "int", "int4", "bigint", "int8"];
    const TIMESTAMPS: &[&str] =
        &["date", "timestamp", "timestamp without time zone", "timestamptz", "timestamp with time zone"];
    let cast = cast.trim_matches('"');
    let numbers = |cast: &str| INTEGERS.contains(&cast) || matches!(cast, "numeric" | "decimal");
    let fits = match &*bound.family {
        Family::Integer(_) | Family::Numeric => numbers(cast),
        Family::Oid => cast == "oid" || INTEGERS.contains(&cast),
        Family::Float { .. } => numbers(cast) || matches!(cast, "real" | "float4") || DOUBLES.contains(&cast),
        Family::Bool => matches!(cast, "bool" | "boolean"),
        Family::Date => cast == "date",
        Family::Time => matches!(cast, "time" | "time without time zone"),
        Family::Timestamp { .. } => TIMESTAMPS.contains(&cast),
        Family::Uuid => cast == "uuid",
        Family::Bytea => cast == "bytea",
        Family::Char => cast == "char",
        Family::Text(Trim::Blanks) => matches!(cast, "char" | "character" | "bpchar"),
        Family::Text(_) => matches!(cast, "text" | "varchar" | "character varying" | "name"),
        Family::Enum(_) => bound.shown.ends_with(&format!("({cast})")),
        Family::Other => true,
    };
    if fits {
        return Ok(());
    }
    let what = format!("{}{}: a constant of type {cast} is not compared with it", before(value.at), bound.shown);
    Err(Error::new(ErrorKind::Usage, what).with_hint("leave the cast out: the constant takes the column's type"))
}

fn text(value: &Literal) -> Result<&str, Wrong> {
    match &value.value {
        LiteralValue::Text(text) if text.contains('\0') => Err("no text has a zero byte"),
        LiteralValue::Text(text) => Ok(text),
        _ => Err("expected a quoted value"),
    }
}

/// A number; a quoted one for `integer` has neither point nor exponent, as the server reads it.
fn decimal(value: &Literal, integer: bool) -> Result<Decimal, Wrong> {
    match &value.value {
        LiteralValue::Number(digits) => Decimal::parse(digits).ok_or("not a number that can be compared"),
        LiteralValue::Text(text) if integer && text.contains(['.', 'e', 'E']) => Err("not an integer"),
        LiteralValue::Text(text) => Decimal::parse(text).ok_or("not a number"),
        _ => Err("expected a number"),
    }
}

/// A quoted constant takes the column's type and must be a value of it; a number may be any.
fn check_quoted_range(key: Key, floor: i128, value: &Literal) -> Result<(), Wrong> {
    let (low, high) = match key {
        Key::Int2 => (i16::MIN.into(), i16::MAX.into()),
        Key::Int4 => (i32::MIN.into(), i32::MAX.into()),
        _ => (i64::MIN, i64::MAX),
    };
    let fits = (i128::from(low)..=i128::from(high)).contains(&floor);
    if fits || !matches!(value.value, LiteralValue::Text(_)) { Ok(()) } else { Err("out of range of the type") }
}

/// An oid: integers that int4 holds are taken as its bits, as the server does.
fn oid(value: &Literal) -> Result<u32, Wrong> {
    match decimal(value, true)?.floor() {
        (whole, true) => match (u32::try_from(whole), i32::try_from(whole)) {
            (Ok(oid), _) => Ok(oid),
            (_, Ok(negative)) => Ok(negative.cast_unsigned()),
            _ => Err("out of range of the type"),
        },
        _ => Err("not an integer"),
    }
}

/// A float as the server compares it: a quoted constant takes the column's type, a number is a double.
fn float(value: &Literal, single: bool) -> Result<f64, Wrong> {
    let single = match (&value.cast, &value.value) {
        (Some(cast), _) => matches!(cast.as_str(), "real" | "float4"),
        (None, LiteralValue::Text(_)) => single,
        _ => false,
    };
    match &value.value {
        LiteralValue::Text(text) | LiteralValue::Number(text) if single => literal::float4(text),
        LiteralValue::Text(text) | LiteralValue::Number(text) => literal::float8(text),
        _ => Err("expected a number"),
    }
}

fn boolean(value: &Literal) -> Result<bool, Wrong> {
    match &value.value {
        LiteralValue::Bool(value) => Ok(*value),
        LiteralValue::Text(text) => literal::boolean(text),
        _ => Err("expected true or false"),
    }
}

fn byte(value: &Literal) -> Result<u8, Wrong> {
    match text(value)?.as_bytes() {
        [] => Ok(0),
        [byte] => Ok(*byte),
        _ => Err("expected one character"),
    }
}

fn date(value: &Literal) -> Result<i32, Wrong> {
    literal::date(text(value)?)
}

fn timestamp(value: &Literal, zone: bool) -> Result<i64, Wrong> {
    let text = text(value)?;
    // `timestamp '...+02'` drops the zone before it is compared with a timestamptz: not offered.
    let zone = zone && !matches!(value.cast.as_deref(), Some("timestamp" | "timestamp without time zone" | "date"));
    literal::timestamp(text, zone)
}

fn numeric(value: &Literal) -> Result<NumericKey, Wrong> {
    if let LiteralValue::Text(text) = &value.value {
        match text.trim().to_ascii_lowercase().as_str() {
            "nan" => return Ok(NumericKey::NaN),
            "infinity" | "+infinity" | "inf" | "+inf" => return Ok(NumericKey::Infinity),
            "-infinity" | "-inf" => return Ok(NumericKey::NegativeInfinity),
            _ => {}
        }
    }
    Ok(NumericKey::from(&decimal(value, false)?))
}

/// The place of a label.
fn label(labels: &[(u32, String)], value: &Literal) -> Result<usize, Wrong> {
    let text = text(value)?;
    labels.iter().position(|(_, label)| label == text).ok_or("not a label of the enum")
}

/// Only for messages of evaluation.
pub(super) fn name_of(attributes: &[Attribute], attribute: usize) -> &str {
    attributes.get(attribute).map_or("", |a| a.name.as_str())
}
