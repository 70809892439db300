//! jsonpath: a tree of items (`src/include/utils/jsonpath.h`) to its text.

use super::{
    copy::escape_json,
    digits::push_u32,
    nested::{Bad, Text, align_up, bad, bytes, u32_at, varlena},
    numeric,
};

const LAX: u32 = 0x8000_0000;
const VERSION: u32 = 1;
/// Items are nested in the text by parentheses; nobody writes more, and damage must not exhaust the stack.
const MAX_DEPTH: u32 = 500;

/// The kinds of items, in the order of `JsonPathItemType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Null,
    String,
    Numeric,
    Bool,
    /// Two operands around an operator.
    Binary {
        operator: &'static str,
        priority: u8,
    },
    /// `+` or `-`.
    Unary(u8),
    Not,
    IsUnknown,
    AnyArray,
    AnyKey,
    IndexArray,
    Any,
    Key,
    Current,
    Root,
    Variable,
    Filter,
    Exists,
    Last,
    LikeRegex,
    /// A method without arguments.
    Method(&'static str),
    /// A method with an argument that may lack.
    MethodOptional(&'static str),
    /// `.decimal()`, which has two.
    Decimal,
}

/// The kind with this number. PostgreSQL 13 put `.datetime()` in the middle.
fn kind(number: u8, major_version: u32) -> Option<Kind> {
    let binary = |operator, priority| Kind::Binary { operator, priority };
    let number = if major_version < 13 && number >= 37 { number.saturating_add(1) } else { number };
    Some(match number {
        0 => Kind::Null,
        1 => Kind::String,
        2 => Kind::Numeric,
        3 => Kind::Bool,
        4 => binary("&&", 1),
        5 => binary("||", 0),
        6 => Kind::Not,
        7 => Kind::IsUnknown,
        8 => binary("==", 2),
        9 => binary("!=", 2),
        10 => binary("<", 2),
        11 => binary(">", 2),
        12 => binary("<=", 2),
        13 => binary(">=", 2),
        14 => binary("+", 3),
        15 => binary("-", 3),
        16 => binary("*", 4),
        17 => binary("/", 4),
        18 => binary("%", 4),
        19 => Kind::Unary(b'+'),
        20 => Kind::Unary(b'-'),
        21 => Kind::AnyArray,
        22 => Kind::AnyKey,
        23 => Kind::IndexArray,
        24 => Kind::Any,
        25 => Kind::Key,
        26 => Kind::Current,
        27 => Kind::Root,
        28 => Kind::Variable,
        29 => Kind::Filter,
        30 => Kind::Exists,
        31 => Kind::Method(".type()"),
        32 => Kind::Method(".size()"),
        33 => Kind::Method(".abs()"),
        34 => Kind::Method(".floor()"),
        35 => Kind::Method(".ceiling()"),
        36 => Kind::Method(".double()"),
        37 => Kind::MethodOptional(".datetime("),
        38 => Kind::Method(".keyvalue()"),
        40 => Kind::Last,
        41 => binary("starts with", 2),
        42 => Kind::LikeRegex,
        43 => Kind::Method(".bigint()"),
        44 => Kind::Method(".boolean()"),
        45 => Kind::Method(".date()"),
        46 => Kind::Decimal,
        47 => Kind::Method(".integer()"),
        48 => Kind::Method(".number()"),
        49 => Kind::Method(".string()"),
        50 => Kind::MethodOptional(".time("),
        51 => Kind::MethodOptional(".time_tz("),
        52 => Kind::MethodOptional(".timestamp("),
        53 => Kind::MethodOptional(".timestamp_tz("),
        _ => return None,
    })
}

impl Kind {
    fn priority(self) -> u8 {
        match self {
            Self::Binary { priority, .. } => priority,
            Self::Unary(_) => 5,
            _ => 6,
        }
    }
}

/// Appends the text.
pub(super) fn write(payload: &[u8], major_version: u32, out: &mut Vec<u8>) -> Text {
    let header = u32_at(payload, 0)?;
    if header & !LAX != VERSION {
        return Err(bad("a jsonpath of an unknown version"));
    }
    if header & LAX == 0 {
        out.extend_from_slice(b"strict ");
    }
    let mut writer = Writer { payload, major_version, budget: payload.len() };
    writer.chain(4, false, true, 0, out)
}

struct Writer<'a> {
    payload: &'a [u8],
    major_version: u32,
    /// Items that may still be visited. A sound path visits each once; a damaged one could share subtrees.
    budget: usize,
}

/// An item: its kind, where it is (its references count from there) and where its content begins.
#[derive(Clone, Copy)]
struct Item {
    kind: Kind,
    at: usize,
    content: usize,
}

impl<'a> Writer<'a> {
    fn item(&self, at: usize) -> Result<Item, Bad> {
        let [number] = bytes(self.payload, at)?;
        let kind = kind(number, self.major_version).ok_or(bad("a jsonpath item is of no known kind"))?;
        Ok(Item { kind, at, content: align_up(at + 1, 4) + 4 })
    }

    /// The item that the reference at `field` leads to; it always lies behind.
    fn follow(&self, item: Item, field: usize) -> Result<Option<usize>, Bad> {
        match u32_at(self.payload, field)? {
            0 => Ok(None),
            offset if offset > i32::MAX as u32 => Err(bad("a jsonpath item refers backwards")),
            offset => Ok(Some(item.at + offset as usize)),
        }
    }

    /// The string with its length before it at `at`.
    fn string(&self, at: usize) -> Result<&'a [u8], Bad> {
        let len = u32_at(self.payload, at)? as usize;
        self.payload.get(at + 4..(at + 4).saturating_add(len)).ok_or(bad("a jsonpath string is too long"))
    }

    fn quoted(&self, at: usize, out: &mut Vec<u8>) -> Text {
        out.push(b'"');
        escape_json(self.string(at)?, out);
        out.push(b'"');
        Ok(())
    }

    /// Writes the item at `at` and those that follow it (`$.a[1]` is three).
    fn chain(&mut self, mut at: usize, mut in_key: bool, mut brackets: bool, depth: u32, out: &mut Vec<u8>) -> Text {
        if depth > MAX_DEPTH {
            return Err(bad("a jsonpath is nested too deeply"));
        }
        loop {
            self.budget = self.budget.checked_sub(1).ok_or(bad("a jsonpath is not a tree"))?;
            let item = self.item(at)?;
            let next = self.follow(item, item.content - 4)?;
            self.one(item, in_key, brackets, next.is_some(), depth, out)?;
            match next {
                Some(next) => (at, in_key, brackets) = (next, true, true),
                None => return Ok(()),
            }
        }
    }

    /// Writes the argument at the reference `field`.
    fn argument(&mut self, item: Item, field: usize, operand: bool, depth: u32, out: &mut Vec<u8>) -> Text {
        let at = self.follow(item, field)?.ok_or(bad("a jsonpath operator lacks an operand"))?;
        let brackets = operand && self.item(at)?.kind.priority() <= item.kind.priority();
        self.chain(at, false, brackets, depth + 1, out)
    }

    /// The same if there is one.
    fn optional(&mut self, item: Item, field: usize, depth: u32, out: &mut Vec<u8>) -> Text {
        match self.follow(item, field)? {
            Some(at) => self.chain(at, false, false, depth + 1, out),
            None => Ok(()),
        }
    }

    fn one(&mut self, item: Item, in_key: bool, brackets: bool, has_next: bool, depth: u32, out: &mut Vec<u8>) -> Text {
        let content = item.content;
        match item.kind {
            Kind::Null => out.extend_from_slice(b"null"),
            Kind::String => self.quoted(content, out)?,
            Kind::Numeric => self.number(content, has_next, out)?,
            Kind::Bool => {
                let [value] = bytes(self.payload, content)?;
                out.extend_from_slice(if value != 0 { b"true" } else { b"false" });
            }
            Kind::Binary { .. } | Kind::Unary(_) | Kind::LikeRegex => {
                if brackets {
                    out.push(b'(');
                }
                self.operator(item, depth, out)?;
                if brackets {
                    out.push(b')');
                }
            }
            Kind::Not => self.wrapped("!(", item, ")", depth, out)?,
            Kind::IsUnknown => self.wrapped("(", item, ") is unknown", depth, out)?,
            Kind::Filter => self.wrapped("?(", item, ")", depth, out)?,
            Kind::Exists => self.wrapped("exists (", item, ")", depth, out)?,
            Kind::AnyArray => out.extend_from_slice(b"[*]"),
            Kind::AnyKey => out.extend_from_slice(if in_key { b".*" } else { b"*" }),
            Kind::IndexArray => self.subscripts(item, depth, out)?,
            Kind::Any => self.any(content, in_key, out)?,
            Kind::Key => {
                if in_key {
                    out.push(b'.');
                }
                self.quoted(content, out)?;
            }
            Kind::Current => out.push(b'@'),
            Kind::Root => out.push(b'$'),
            Kind::Variable => {
                out.push(b'$');
                self.quoted(content, out)?;
            }
            Kind::Last => out.extend_from_slice(b"last"),
            Kind::Method(text) => out.extend_from_slice(text.as_bytes()),
            Kind::MethodOptional(text) => {
                out.extend_from_slice(text.as_bytes());
                self.optional(item, content, depth, out)?;
                out.push(b')');
            }
            Kind::Decimal => {
                out.extend_from_slice(b".decimal(");
                self.optional(item, content, depth, out)?;
                if self.follow(item, content + 4)?.is_some() {
                    out.push(b',');
                    self.optional(item, content + 4, depth, out)?;
                }
                out.push(b')');
            }
        }
        Ok(())
    }

    /// A number that something follows is in parentheses, else its point would be ambiguous (PostgreSQL 15 and later).
    fn number(&self, at: usize, has_next: bool, out: &mut Vec<u8>) -> Text {
        let parentheses = has_next && self.major_version >= 15;
        if parentheses {
            out.push(b'(');
        }
        numeric::write(varlena(self.payload, at)?.0, out)?;
        if parentheses {
            out.push(b')');
        }
        Ok(())
    }

    fn wrapped(&mut self, open: &str, item: Item, close: &str, depth: u32, out: &mut Vec<u8>) -> Text {
        out.extend_from_slice(open.as_bytes());
        self.argument(item, item.content, false, depth, out)?;
        out.extend_from_slice(close.as_bytes());
        Ok(())
    }

    fn operator(&mut self, item: Item, depth: u32, out: &mut Vec<u8>) -> Text {
        let content = item.content;
        match item.kind {
            Kind::Binary { operator, .. } => {
                self.argument(item, content, true, depth, out)?;
                out.push(b' ');
                out.extend_from_slice(operator.as_bytes());
                out.push(b' ');
                self.argument(item, content + 4, true, depth, out)
            }
            Kind::Unary(sign) => {
                out.push(sign);
                self.argument(item, content, true, depth, out)
            }
            // Flags, expression, pattern.
            _ => {
                self.argument(item, content + 4, true, depth, out)?;
                out.extend_from_slice(b" like_regex ");
                self.quoted(content + 8, out)?;
                let flags = u32_at(self.payload, content)?;
                if flags != 0 {
                    out.extend_from_slice(b" flag \"");
                    let letters = b"ismxq".iter().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1);
                    out.extend(letters.map(|(_, letter)| letter));
                    out.push(b'"');
                }
                Ok(())
            }
        }
    }

    /// `[from to to,...]`.
    fn subscripts(&mut self, item: Item, depth: u32, out: &mut Vec<u8>) -> Text {
        out.push(b'[');
        for i in 0..u32_at(self.payload, item.content)? as usize {
            if i > 0 {
                out.push(b',');
            }
            let from = item.content + 4 + i * 8;
            self.argument(item, from, false, depth, out)?;
            if self.follow(item, from + 4)?.is_some() {
                out.extend_from_slice(b" to ");
                self.argument(item, from + 4, false, depth, out)?;
            }
        }
        out.push(b']');
        Ok(())
    }

    /// `**{first to last}`.
    fn any(&self, at: usize, in_key: bool, out: &mut Vec<u8>) -> Text {
        let (first, last) = (u32_at(self.payload, at)?, u32_at(self.payload, at + 4)?);
        let level = |level: u32, out: &mut Vec<u8>| match level {
            u32::MAX => out.extend_from_slice(b"last"),
            _ => push_u32(level, out),
        };
        out.extend_from_slice(if in_key { b".**" } else { b"**" });
        if (first, last) != (0, u32::MAX) {
            out.push(b'{');
            level(first, out);
            if first != last {
                out.extend_from_slice(b" to ");
                level(last, out);
            }
            out.push(b'}');
        }
        Ok(())
    }
}
