//! The list of `--agg`: `count(*), sum(abalance), sum(octet_length(filler))`.

use crate::{Error, ErrorKind, Result};

/// An aggregate function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `count(*)` counts rows, `count(x)` those where x is not NULL.
    Count,
    /// `sum(x)`
    Sum,
    /// `min(x)`
    Min,
    /// `max(x)`
    Max,
}

/// What an aggregate is taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// `*`
    Star,
    /// A column.
    Column(String),
    /// `octet_length(column)`
    OctetLength(String),
}

/// One aggregate of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregateCall {
    /// The function.
    pub function: Function,
    /// Its argument.
    pub argument: Argument,
    /// As the user wrote it: the heading of the result.
    pub text: String,
}

/// Parses a comma-separated list of aggregates.
///
/// # Errors
/// `Usage`, naming the position (in characters, from 1).
pub fn parse(text: &str) -> Result<Vec<AggregateCall>> {
    let mut parser = Parser { text, at: 0 };
    let mut calls = vec![parser.call()?];
    while parser.eat(',') {
        calls.push(parser.call()?);
    }
    parser.skip_blanks();
    if parser.at < text.len() {
        return Err(parser.error("expected a comma or the end"));
    }
    Ok(calls)
}

/// Parses a comma-separated list of column names, folded and quoted as in SQL.
///
/// # Errors
/// `Usage`, naming the position (in characters, from 1).
pub fn parse_columns(text: &str) -> Result<Vec<String>> {
    let mut parser = Parser { text, at: 0 };
    let mut names = vec![parser.name()?];
    while parser.eat(',') {
        names.push(parser.name()?);
    }
    parser.skip_blanks();
    if parser.at < text.len() {
        return Err(parser.error("expected a comma or the end"));
    }
    Ok(names)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn call(&mut self) -> Result<AggregateCall> {
        self.skip_blanks();
        let start = self.at;
        let function = match self.name()?.as_str() {
            "count" => Function::Count,
            "sum" => Function::Sum,
            "min" => Function::Min,
            "max" => Function::Max,
            other => {
                self.at = start;
                return Err(self.error(&format!("no aggregate {other:?}; there are count, sum, min and max")));
            }
        };
        self.expect('(')?;
        let argument = if self.eat('*') {
            Argument::Star
        } else {
            let column = self.name()?;
            if column == "octet_length" && self.eat('(') {
                let inner = self.name()?;
                self.expect(')')?;
                Argument::OctetLength(inner)
            } else {
                Argument::Column(column)
            }
        };
        self.expect(')')?;
        if argument == Argument::Star && function != Function::Count {
            self.at = start;
            return Err(self.error("only count can be taken over *"));
        }
        Ok(AggregateCall { function, argument, text: self.text[start..self.at].trim_end().to_owned() })
    }

    fn name(&mut self) -> Result<String> {
        self.skip_blanks();
        let rest = &self.text[self.at..];
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut name = String::new();
            let mut chars = quoted.char_indices().peekable();
            while let Some((i, c)) = chars.next() {
                if c != '"' {
                    name.push(c);
                } else if chars.peek().is_some_and(|&(_, next)| next == '"') {
                    name.push('"');
                    chars.next();
                } else if name.is_empty() {
                    return Err(self.error("a quoted name must not be empty"));
                } else {
                    self.at += 1 + i + 1;
                    return Ok(name);
                }
            }
            return Err(self.error("the quoted name does not end"));
        }
        let starts = |c: char| c == '_' || c.is_alphabetic();
        let goes_on = |c: char| starts(c) || c == '$' || c.is_ascii_digit();
        if !rest.starts_with(starts) {
            return Err(self.error("expected a name"));
        }
        let end = rest.find(|c| !goes_on(c)).unwrap_or(rest.len());
        self.at += end;
        // Only ASCII folds, as the server does for multi-byte encodings.
        Ok(rest[..end].to_ascii_lowercase())
    }

    fn expect(&mut self, c: char) -> Result<()> {
        if self.eat(c) { Ok(()) } else { Err(self.error(&format!("expected {c:?}"))) }
    }

    fn eat(&mut self, c: char) -> bool {
        self.skip_blanks();
        let found = self.text[self.at..].starts_with(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn skip_blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn error(&self, what: &str) -> Error {
        let position = self.text[..self.at].chars().count() + 1;
        Error::new(ErrorKind::Usage, format!("{:?}, character {position}: {what}", self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_list_of_the_readme() {
        let calls = parse("count(*), sum(abalance),sum( octet_length(filler) )").unwrap();
        assert_eq!(calls[0].argument, Argument::Star);
        assert_eq!(calls[1].argument, Argument::Column("abalance".into()));
        assert_eq!(calls[2].argument, Argument::OctetLength("filler".into()));
        assert_eq!(calls[2].text, "sum( octet_length(filler) )");
    }

    #[test]
    fn names_fold_and_quote_as_in_sql() {
        assert_eq!(parse("MIN(Aid)").unwrap()[0].argument, Argument::Column("aid".into()));
        assert_eq!(parse(r#"max("Odd ""name, x")"#).unwrap()[0].argument, Argument::Column("Odd \"name, x".into()));
        assert_eq!(parse("sum(octet_length)").unwrap()[0].argument, Argument::Column("octet_length".into()));
        assert_eq!(parse_columns(r#"A, "B,c" ,d"#).unwrap(), ["a", "B,c", "d"]);
    }

    #[test]
    fn errors_name_the_position() {
        for (text, position) in [
            ("", 1),
            ("avg(x)", 1),
            ("sum(*)", 1),
            ("count(*) x", 10),
            ("count(*),", 10),
            ("sum(\"x)", 5),
            ("sum(x", 6),
            ("sum(1)", 5),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("character {position}:")), "{text}: {error}");
        }
    }
}
