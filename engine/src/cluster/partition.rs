//! Partitions in the order of their bounds, which is the order in which the server reads them.
//!
//! `pg_class.relpartbound` is a node tree as text (`_outPartitionBoundSpec` of `outfuncs.c`); its constants have their
//! values as bytes. Keys of types whose order is not known here, and texts of other collations than C, sort by their
//! bytes: then only the order of the partitions can differ from the server's.

use super::{Database, RelationInfo, RelationKind};
use crate::{Error, ErrorKind, Result};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Ordering;

/// The bound of a partition, as far as its place among its siblings goes. The order is that of
/// `partition_bounds_create`: hash by modulus and remainder; list by the smallest value, then the one with NULL only;
/// range by the lower bound; the default partition last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Bound {
    Hash(i64, i64),
    Range(Vec<Limit>),
    List(Value),
    ListOfNull,
    Default,
    /// Not understood: in the order of oids.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Limit {
    Least,
    At(Value),
    Most,
}

/// A constant, comparable with those of the same type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Signed(i64),
    Unsigned(u64),
    Float(OrderedFloat),
    Numeric(NumericKey),
    Bytes(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct OrderedFloat(f64);

impl Eq for OrderedFloat {}

impl PartialOrd for OrderedFloat {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedFloat {
    /// NaN is the largest, as in the server.
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.partial_cmp(&other.0).unwrap_or_else(|| self.0.is_nan().cmp(&other.0.is_nan()))
    }
}

/// A finite numeric: sign, weight of the first base-10000 digit, digits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NumericKey {
    negative: bool,
    weight: i16,
    digits: Vec<u16>,
}

impl PartialOrd for NumericKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NumericKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = |key: &Self| match (key.digits.is_empty(), key.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        let magnitude = || self.weight.cmp(&other.weight).then_with(|| self.digits.cmp(&other.digits));
        match (sign(self), sign(other)) {
            (a, b) if a != b => a.cmp(&b),
            (0, _) => Ordering::Equal,
            (1, _) => magnitude(),
            _ => magnitude().reverse(),
        }
    }
}

/// The words of a node tree: what lies between blanks, braces and parentheses, and these themselves.
fn words(tree: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = tree;
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else { return words };
        let length = match first {
            '{' | '}' | '(' | ')' | '[' | ']' => first.len_utf8(),
            _ => rest.find(|c: char| c.is_whitespace() || "{}()[]".contains(c)).unwrap_or(rest.len()).max(1),
        };
        let Some((word, behind)) = rest.split_at_checked(length) else { return words };
        words.push(word);
        rest = behind;
    }
}

/// What follows the field `:name`.
fn after<'w, 't>(words: &'w [&'t str], name: &str) -> Option<&'w [&'t str]> {
    let at = words.iter().position(|word| *word == name)?;
    words.get(at + 1..)
}

fn number<T: std::str::FromStr>(words: &[&str], name: &str) -> Option<T> {
    after(words, name)?.first()?.parse().ok()
}

/// The end of the node that begins with `{` at the front.
fn node<'w, 't>(words: &'w [&'t str]) -> Option<(&'w [&'t str], &'w [&'t str])> {
    let mut depth = 0usize;
    for (at, word) in words.iter().enumerate() {
        match *word {
            "{" => depth += 1,
            "}" => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some((&words[..=at], &words[at + 1..]));
                }
            }
            _ => {}
        }
    }
    None
}

/// The nodes of a list `({..} {..})`; `<>` is the empty one.
fn list<'w, 't>(words: &'w [&'t str]) -> Option<Vec<&'w [&'t str]>> {
    let mut nodes = Vec::new();
    let mut rest = match words.first()? {
        &"(" => &words[1..],
        _ => return Some(nodes),
    };
    while rest.first() == Some(&"{") {
        let (first, behind) = node(rest)?;
        nodes.push(first);
        rest = behind;
    }
    Some(nodes)
}

impl Bound {
    fn parse(tree: &str) -> Self {
        let words = words(tree);
        Self::read(&words).unwrap_or(Self::Unknown)
    }

    fn read(words: &[&str]) -> Option<Self> {
        if after(words, ":is_default")?.first()? == &"true" {
            return Some(Self::Default);
        }
        match *after(words, ":strategy")?.first()? {
            "h" => Some(Self::Hash(number(words, ":modulus")?, number(words, ":remainder")?)),
            "l" => {
                let values =
                    list(after(words, ":listdatums")?)?.into_iter().map(constant).collect::<Option<Vec<_>>>()?;
                Some(values.into_iter().flatten().min().map_or(Self::ListOfNull, Self::List))
            }
            "r" => {
                let limit = |datum: &[&str]| match number::<i32>(datum, ":kind")? {
                    ..0 => Some(Limit::Least),
                    0 => constant(after(datum, ":value")?)?.map(Limit::At),
                    1.. => Some(Limit::Most),
                };
                let lower = list(after(words, ":lowerdatums")?)?;
                Some(Self::Range(lower.into_iter().map(limit).collect::<Option<_>>()?))
            }
            _ => None,
        }
    }
}

/// The value of a `CONST` node; `Some(None)` is NULL.
fn constant(node: &[&str]) -> Option<Option<Value>> {
    if after(node, ":constisnull")?.first()? == &"true" {
        return Some(None);
    }
    let type_oid: u32 = number(node, ":consttype")?;
    let value = after(node, ":constvalue")?;
    let from = value.iter().position(|word| *word == "[")? + 1;
    // Bytes are printed as signed numbers.
    let bytes: Vec<u8> = value[from..]
        .iter()
        .take_while(|word| **word != "]")
        .map(|word| word.parse::<i16>().ok().map(|byte| byte as u8))
        .collect::<Option<_>>()?;
    let fixed = || bytes.first_chunk::<8>().map(|bytes| i64::from_le_bytes(*bytes));
    Some(Some(match type_oid {
        21 => Value::Signed((fixed()? as i16).into()),
        // int4, date
        23 | 1082 => Value::Signed((fixed()? as i32).into()),
        // int8, time, timestamp, timestamptz
        20 | 1083 | 1114 | 1184 => Value::Signed(fixed()?),
        // bool, "char", oid
        16 | 18 | 26 => Value::Unsigned((fixed()? as u32).into()),
        700 => Value::Float(OrderedFloat(f32::from_bits(fixed()? as u32).into())),
        701 => Value::Float(OrderedFloat(f64::from_bits(fixed()? as u64))),
        // With a header of four bytes: a constant is never short or compressed.
        1700 => numeric(bytes.get(4..)?)?,
        25 | 1042 | 1043 | 17 => Value::Bytes(bytes.get(4..)?.to_vec()),
        _ => Value::Bytes(bytes),
    }))
}

/// `NumericShort` and `NumericLong` of `numeric.c`, of finite values.
fn numeric(bytes: &[u8]) -> Option<Value> {
    let word = |at: usize| bytes.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let header = word(0)?;
    let (negative, weight, from) = match header & 0xc000 {
        0x8000 => {
            let weight = (header & 0x3f) as i16 - if header & 0x40 != 0 { 0x40 } else { 0 };
            (header & 0x2000 != 0, weight, 2)
        }
        0xc000 => return None,
        sign => (sign == 0x4000, word(2)? as i16, 4),
    };
    let digits = bytes.get(from..)?.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
    Some(Value::Numeric(NumericKey { negative, weight, digits }))
}

impl Database {
    /// Which relations have the rows of `parent`, a partitioned table: its leaves, in the order in which the server reads
    /// them, through all levels.
    ///
    /// # Errors
    /// Those of the scans of `pg_inherits` and `pg_class`.
    pub fn leaves_in_order(&self, parent: u32) -> Result<Vec<u32>> {
        let children = self.children()?;
        let mut bounds: FxHashMap<u32, Bound> = FxHashMap::default();
        let class = self.mapped_catalog(super::layouts::PG_CLASS, "pg_class")?;
        class.read(&*self.reader, &["oid", "relpartbound"], |row| {
            if let Some(tree) = row.bytes(1) {
                bounds.insert(row.u32(0)?, Bound::parse(&String::from_utf8_lossy(tree)));
            }
            Ok(())
        })?;
        let (mut leaves, mut visited, mut pending) = (Vec::new(), FxHashSet::default(), vec![parent]);
        while let Some(oid) = pending.pop() {
            if !visited.insert(oid) {
                continue;
            }
            if !self.classes.get(&oid).is_some_and(|class| class.kind == RelationKind::PartitionedTable) {
                leaves.push(oid);
                continue;
            }
            let mut below = children.get(&oid).cloned().unwrap_or_default();
            below.sort_by_key(|child| (bounds.get(child).cloned().unwrap_or(Bound::Unknown), *child));
            pending.extend(below.into_iter().rev());
        }
        Ok(leaves)
    }

    /// The tables that inherit from `parent` (not as partitions), through all levels, without itself: in the order of
    /// `find_all_inheritors`, level by level and by oid.
    ///
    /// # Errors
    /// Those of the scan of `pg_inherits`.
    pub fn inheritors(&self, parent: u32) -> Result<Vec<u32>> {
        let children = self.children()?;
        let mut found = vec![parent];
        let mut next = 0;
        while let Some(oid) = found.get(next).copied() {
            next += 1;
            let mut below = children.get(&oid).cloned().unwrap_or_default();
            below.sort_unstable();
            for child in below {
                if !found.contains(&child) {
                    found.push(child);
                }
            }
        }
        found.remove(0);
        Ok(found)
    }

    fn children(&self) -> Result<FxHashMap<u32, Vec<u32>>> {
        let mut children: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        self.catalog("pg_inherits")?.read(&*self.reader, &["inhrelid", "inhparent"], |row| {
            children.entry(row.u32(1)?).or_default().push(row.u32(0)?);
            Ok(())
        })?;
        Ok(children)
    }

    /// For each column of `parent` the index of the column of `part` with the same name.
    ///
    /// # Errors
    /// `Corrupt` if there is none, or it has another type.
    pub(crate) fn column_map(parent: &RelationInfo, part: &RelationInfo) -> Result<Vec<usize>> {
        let map = |attribute: &crate::schema::Attribute| {
            if attribute.dropped {
                return Ok(usize::MAX);
            }
            let is_it = |a: &crate::schema::Attribute| !a.dropped && a.name == attribute.name;
            let found = part.layout.attributes.iter().position(is_it);
            found.filter(|&index| part.layout.attributes[index].type_oid == attribute.type_oid).ok_or_else(|| {
                Error::new(
                    ErrorKind::Corrupt,
                    format!("{} has no column {} of the same type as {}", part.name, attribute.name, parent.name),
                )
            })
        };
        parent.layout.attributes.iter().map(map).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant_of(type_oid: u32, value: &str) -> String {
        format!(
            "{{CONST :consttype {type_oid} :consttypmod -1 :constcollid 0 :constlen 4 :constbyval true :constisnull \
             false :location -1 :constvalue {value}}}"
        )
    }

    fn spec(strategy: &str, default: bool, list: &str, lower: &str) -> String {
        format!(
            "{{PARTITIONBOUNDSPEC :strategy {strategy} :is_default {default} :modulus 4 :remainder 3 :listdatums {list} \
             :lowerdatums {lower} :upperdatums <> :location 40}}"
        )
    }

    fn range(kind: i32, value: &str) -> String {
        spec("r", false, "<>", &format!("({{PARTITIONRANGEDATUM :kind {kind} :value {value} :location 7}})"))
    }

    #[test]
    fn bounds_sort_as_the_server_sorts_them() {
        let int = |bytes: &str| constant_of(23, &format!("4 [ {bytes} ]"));
        let mut ranges = [
            range(0, &int("10 0 0 0 0 0 0 0")),
            spec("r", true, "<>", "<>"),
            range(0, &int("-10 -1 -1 -1 -1 -1 -1 -1")),
            range(-1, "<>"),
        ]
        .map(|tree| Bound::parse(&tree));
        ranges.sort();
        let at = |n| Bound::Range(vec![Limit::At(Value::Signed(n))]);
        assert_eq!(ranges, [Bound::Range(vec![Limit::Least]), at(-10), at(10), Bound::Default]);
        let null = "{CONST :consttype 25 :constisnull true :constvalue <>}";
        let text = |letter: u8| constant_of(25, &format!("5 [ 20 0 0 0 {letter} ]"));
        let mut lists = [
            spec("l", false, &format!("({null})"), "<>"),
            spec("l", false, &format!("({} {})", text(b'z'), text(b'b')), "<>"),
            spec("l", false, &format!("({null} {})", text(b'c')), "<>"),
        ]
        .map(|tree| Bound::parse(&tree));
        lists.sort();
        let of = |letter| Bound::List(Value::Bytes(vec![letter]));
        assert_eq!(lists, [of(b'b'), of(b'c'), Bound::ListOfNull]);
        assert_eq!(Bound::parse(&spec("h", false, "<>", "<>")), Bound::Hash(4, 3));
    }

    #[test]
    fn numerics_sort_by_value() {
        let key = |negative, weight, digits: &[u16]| NumericKey { negative, weight, digits: digits.to_vec() };
        let sorted = [
            key(true, 1, &[1]),
            key(true, 0, &[5]),
            key(false, 0, &[]),
            key(false, -1, &[5000]),
            key(false, 0, &[5]),
            key(false, 0, &[5, 1]),
            key(false, 1, &[1]),
        ];
        assert!(sorted.is_sorted());
        assert_eq!(numeric(&[0x00, 0x80, 7, 0]), Some(Value::Numeric(key(false, 0, &[7]))));
    }

    #[test]
    fn damaged_bounds_are_no_panic() {
        for tree in [
            "",
            "{",
            "{PARTITIONBOUNDSPEC",
            ":is_default",
            "{x :is_default false :strategy l :listdatums ({CONST",
            "{x :is_default false :strategy r :lowerdatums ({y :kind 0 :value {CONST :constisnull false :consttype 23 :constvalue 4 [ 1 ]}})}",
        ] {
            assert_eq!(Bound::parse(tree), Bound::Unknown, "{tree}");
        }
    }
}
