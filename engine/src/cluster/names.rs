//! Names of tables as SQL writes them.

use crate::{Error, ErrorKind, Result};
use std::{fmt, str::FromStr};

/// Which relation: `t`, `s.t`, `"Strange Schema"."a ""table"""`, or `oid:16384`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RelationName {
    /// By oid.
    Oid(u32),
    /// By name.
    Named {
        /// The schema; without one, `public` is searched, then `pg_catalog`.
        schema: Option<String>,
        /// The table.
        name: String,
    },
}

impl RelationName {
    /// A name that is taken as it is, without quotes and folding.
    pub fn exact(schema: impl Into<String>, name: impl Into<String>) -> Self {
        Self::Named { schema: Some(schema.into()), name: name.into() }
    }
}

impl FromStr for RelationName {
    type Err = Error;

    /// # Errors
    /// `Usage`, with the position (in bytes, from 1) of what is wrong.
    fn from_str(text: &str) -> Result<Self> {
        if let Some(oid) = text.strip_prefix("oid:") {
            let digits = !oid.is_empty() && oid.bytes().all(|b| b.is_ascii_digit());
            return match oid.parse() {
                Ok(oid) if digits && oid > 0 => Ok(Self::Oid(oid)),
                _ => Err(syntax(text, 4, "an oid is a number from 1 to 4294967295")),
            };
        }
        let (first, mut at) = identifier(text, 0)?;
        let mut parts = vec![first];
        while at < text.len() {
            if !text[at..].starts_with('.') {
                return Err(syntax(text, at, "expected a dot or the end"));
            }
            let (part, end) = identifier(text, at + 1)?;
            parts.push(part);
            at = end;
        }
        let mut parts = parts.into_iter();
        match (parts.next(), parts.next(), parts.next()) {
            (Some(name), None, None) => Ok(Self::Named { schema: None, name }),
            (Some(schema), Some(name), None) => Ok(Self::Named { schema: Some(schema), name }),
            _ => Err(syntax(text, 0, "more than a schema and a table").with_hint("the database is chosen apart")),
        }
    }
}

/// Reads one identifier at byte `start`; returns it and where it ends.
fn identifier(text: &str, start: usize) -> Result<(String, usize)> {
    let rest = &text[start..];
    if rest.starts_with('"') {
        return quoted(text, start);
    }
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_' || !c.is_ascii();
    let is_part = |c: char| is_start(c) || c.is_ascii_digit() || c == '$';
    match rest.chars().next() {
        None => Err(syntax(text, start, "expected a name")),
        Some(c) if !is_start(c) => {
            Err(syntax(text, start, "expected a name").with_hint("other characters need double quotes"))
        }
        Some(_) => {
            let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            // The server folds ASCII letters only, in a UTF-8 database.
            Ok((rest[..length].to_ascii_lowercase(), start + length))
        }
    }
}

fn quoted(text: &str, start: usize) -> Result<(String, usize)> {
    let mut name = String::new();
    let mut chars = text[start + 1..].char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c != '"' {
            name.push(c);
        } else if chars.next_if(|&(_, c)| c == '"').is_some() {
            name.push('"');
        } else if name.is_empty() {
            return Err(syntax(text, start, "a name cannot be empty"));
        } else {
            return Ok((name, start + 1 + at + 1));
        }
    }
    Err(syntax(text, start, "this double quote is not closed"))
}

fn syntax(text: &str, at: usize, what: &str) -> Error {
    Error::new(ErrorKind::Usage, format!("table name {text:?}, position {}: {what}", at + 1))
}

impl fmt::Display for RelationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Oid(oid) => write!(f, "oid:{oid}"),
            Self::Named { schema: Some(schema), name } => write!(f, "{}.{}", quote(schema), quote(name)),
            Self::Named { schema: None, name } => f.write_str(&quote(name)),
        }
    }
}

/// Quotes a name unless it can be read back without; key words need no quotes here.
fn quote(name: &str) -> String {
    let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && !name.is_empty()
        && !name.as_bytes()[0].is_ascii_digit();
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(schema: Option<&str>, name: &str) -> RelationName {
        RelationName::Named { schema: schema.map(str::to_owned), name: name.to_owned() }
    }

    #[test]
    fn names() {
        for (text, expected) in [
            ("t", named(None, "t")),
            ("Public.T", named(Some("public"), "t")),
            ("\"Public\".\"T\"", named(Some("Public"), "T")),
            ("\"Other Schema\".t", named(Some("Other Schema"), "t")),
            ("a.\"b.c\"", named(Some("a"), "b.c")),
            ("\"a\"\"b\"", named(None, "a\"b")),
            ("\"\"\"\"", named(None, "\"")),
            ("_a$1", named(None, "_a$1")),
            ("tÄble", named(None, "tÄble")),
            ("oid:16384", RelationName::Oid(16384)),
            ("\"oid:16384\"", named(None, "oid:16384")),
        ] {
            assert_eq!(text.parse::<RelationName>().expect(text), expected, "{text}");
        }
    }

    #[test]
    fn mistakes_have_a_position() {
        for (text, position) in [
            ("", 1),
            ("a.", 3),
            (".a", 1),
            ("a..b", 3),
            ("a b", 2),
            ("1a", 1),
            ("\"a", 1),
            ("a.\"b", 3),
            ("\"\"", 1),
            ("\"a\"b", 4),
            ("a.b.c", 1),
            ("a-b", 2),
            ("oid:", 5),
            ("oid:0", 5),
            ("oid:+5", 5),
            ("oid:4294967296", 5),
        ] {
            let error = text.parse::<RelationName>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains(&format!("position {position}:")), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(schema in ".{1,8}", name in ".{1,8}") {
            let relation = RelationName::exact(schema, name);
            prop_assert_eq!(relation.to_string().parse::<RelationName>().expect("must read back"), relation);
        }

        #[test]
        fn no_text_panics(text in ".{0,20}") {
            let _ = text.parse::<RelationName>();
        }
    }
}
